"""Rendering the chart with the real helm, without a cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.commands import run

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "charts" / "steadyfleet"
MINIMAL_VALUES = CHART / "ci" / "default-values.yaml"
"""Only what has no default."""

NAMESPACE = "steadyfleet"
KUBERNETES = "v1.37.2"

Json = dict[str, Any]


@dataclass(frozen=True)
class Rendered:
    """What a render printed: its objects in order, or the error."""

    objects: tuple[Json, ...]
    error: str = ""

    def of(self, kind: str, name: str = "") -> Json:
        """The only object of the kind (and name)."""
        (found,) = self.all(kind, name)
        return found

    def all(self, kind: str, name: str = "") -> list[Json]:
        return [o for o in self.objects if o["kind"] == kind and name in ("", o["metadata"]["name"])]

    @property
    def names(self) -> set[str]:
        """Kind/name of every object; Kind/namespace/name where two have the same."""
        return {f"{o['kind']}/{o['metadata']['name']}" for o in self.objects}


@dataclass(frozen=True)
class Helm:
    program: Path

    def template(self, *values: str, apis: tuple[str, ...] = (), minimal: bool = True) -> Rendered:
        """`values`: as for `helm --set-json`, such as `dryRun=true`. `minimal` off: without the required values."""
        done = run(
            self.program, "template", "steadyfleet", CHART, "--namespace", NAMESPACE, "--kube-version", KUBERNETES,
            *(("--values", str(MINIMAL_VALUES)) if minimal else ()),
            *(word for value in values for word in ("--set-json", value)),
            *(word for api in apis for word in ("--api-versions", api)),
            check=False,
        )  # fmt: skip
        if done.returncode != 0:
            return Rendered((), error=done.stderr)
        return Rendered(tuple(document for document in yaml.safe_load_all(done.stdout) if document))

    def lint(self, *values: str) -> str:
        """What `helm lint --strict` says. Raises CommandFailed when it finds something wrong."""
        settings = (word for value in values for word in ("--set-json", value))
        return run(self.program, "lint", "--strict", CHART, "--values", MINIMAL_VALUES, *settings).stdout


def value(path: str, content: object) -> str:
    """One `--set-json` argument."""
    return f"{path}={json.dumps(content)}"


def pod(workload: Json) -> Json:
    """The pod's spec in a Deployment or Job."""
    spec: Json = workload["spec"]["template"]["spec"]
    return spec


def environment(workload: Json) -> dict[str, str]:
    """Of the only container; empty for what the downward API fills in."""
    (container,) = pod(workload)["containers"]
    return {variable["name"]: variable.get("value", "") for variable in container["env"]}
