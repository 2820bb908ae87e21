"""A condition, a label and a taint of somebody else on a node: they must be the same whatever we do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.e2e.lab import Lab

Json = dict[str, Any]

CONDITION = "ExampleFanWorn"
LABEL = "example.com/team"
TAINT = "example.com/maintenance-soon"


@dataclass(frozen=True)
class Foreign:
    lab: Lab
    node: str
    before: Json

    def intact(self) -> bool:
        return _look(self.lab, self.node) == self.before


@contextmanager
def foreign(lab: Lab, node: str) -> Iterator[Foreign]:
    condition = {
        "type": CONDITION, "status": "True", "reason": "Noisy", "message": "replace it on Tuesday",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    lab.cluster.kubectl("label", "node", node, f"{LABEL}=blue", "--overwrite")
    # Preferred only: probes still come.
    lab.cluster.kubectl("taint", "node", node, f"{TAINT}=tuesday:PreferNoSchedule", "--overwrite")
    _patch_status(lab, node, condition)
    try:
        yield Foreign(lab, node, _look(lab, node))
    finally:
        lab.cluster.kubectl("label", "node", node, f"{LABEL}-", check=False)
        lab.cluster.kubectl("taint", "node", node, f"{TAINT}-", check=False)
        _patch_status(lab, node, {"type": CONDITION, "$patch": "delete"})


def _patch_status(lab: Lab, node: str, condition: Json) -> None:
    body = json.dumps({"status": {"conditions": [condition]}})
    lab.cluster.kubectl("patch", "node", node, "--subresource=status", "--type=strategic", "-p", body)


def _look(lab: Lab, node: str) -> Json:
    """All but what is ours, and but what the kubelet writes all the time."""
    live = lab.node(node)
    conditions = (found["type"] for found in live["status"]["conditions"])
    return {
        "condition": lab.condition(node, CONDITION),
        "conditions": sorted(kind for kind in conditions if not kind.startswith("Steadyfleet")),
        "labels": {k: v for k, v in live["metadata"]["labels"].items() if not k.startswith("steadyfleet.dev/")},
        "annotations": live["metadata"].get("annotations", {}),
        "finalizers": live["metadata"].get("finalizers", []),
        "taints": live["spec"].get("taints", []),
    }
