"""Builder of ConsistencyChecks for the tests on a real API server."""

from __future__ import annotations

import copy
from typing import Any

from steadyfleet_operator.resource import API_VERSION
from tests.chart.helm import NAMESPACE, Json

REMOVED = object()
"""As a value of `check`: the field is left out."""


def check(changes: dict[str, Any] | None = None, *, name: str = "probe", namespace: str = NAMESPACE) -> Json:
    """A small valid check. `changes`: path below spec, such as "engine.model.path", and its new value."""
    spec: Json = {
        "engine": {"model": {"synthetic": "Tiny"}},
        "versions": [{"name": "stable", "image": "vllm/vllm-openai:v0.32.0"}],
    }
    for path, content in (changes or {}).items():
        *parents, last = path.split(".")
        target = spec
        for parent in parents:
            target = target.setdefault(parent, {})
        if content is REMOVED:
            del target[last]
        else:
            target[last] = copy.deepcopy(content)
    return {
        "apiVersion": API_VERSION,
        "kind": "ConsistencyCheck",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }
