"""Checks for the end-to-end tests: builders of manifests, and what can be seen of a check on the cluster."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from steadyfleet_operator.resource import ANNOTATION_RUN_AT, API_VERSION, CONDITION_TYPE, LABEL_MARK
from tests.cluster import images
from tests.cluster.cluster import Cluster
from tests.e2e.platform import NAMESPACE

Json = dict[str, Any]

ALL_NODES = ("gpu-1", "gpu-2", "gpu-3")


def simulated(name: str, changes: Mapping[str, Any] | None = None, *, nodes: Collection[str] = ALL_NODES) -> Json:
    """No engine: a launch takes `engine.simulation.launchMilliseconds`. `changes`: path below spec and its value."""
    return _check(name, nodes, {"engine.kind": "Simulated", "engine.simulation": {"seed": 1}} | dict(changes or {}))


def real(name: str, changes: Mapping[str, Any] | None = None, *, nodes: Collection[str] = ALL_NODES) -> Json:
    """vLLM on CPU with the Tiny model, which each pod makes itself."""
    settings: Json = {
        "engine.arguments": ["--enforce-eager", "--max-model-len=1024", "--gpu-memory-utilization=0.2"],
        "engine.environment": [
            {"name": "TORCHDYNAMO_DISABLE", "value": "1"},
            {"name": "VLLM_CPU_KVCACHE_SPACE", "value": "1"},
            {"name": "VLLM_CPU_OMP_THREADS_BIND", "value": "nobind"},
        ],
        "engine.pod.resources": {"requests": {"cpu": "100m", "memory": "2Gi"}},
        "schedule.launchDeadlineSeconds": 200,
    }
    return _check(name, nodes, settings | dict(changes or {}))


def _check(name: str, nodes: Collection[str], changes: Mapping[str, Any]) -> Json:
    spec: Json = {
        "nodes": {
            "selector": {
                "matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": sorted(nodes)}
                ]
            }
        },
        "engine": {"model": {"synthetic": "Tiny"}, "pod": {"imagePullPolicy": "Never"}},
        "versions": [{"name": "one", "image": images.ENGINE_IMAGE}],
        "launches": {"pinned": 1, "asServed": 0},
        "schedule": {
            "intervalSeconds": 3600, "maxConcurrent": 3, "pendingDeadlineSeconds": 60, "launchDeadlineSeconds": 60,
        },
    }  # fmt: skip
    for path, content in changes.items():
        *parents, last = path.split(".")
        target = spec
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = copy.deepcopy(content)
    return {
        "apiVersion": API_VERSION,
        "kind": "ConsistencyCheck",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    }


@dataclass(frozen=True)
class LiveCheck:
    """A check on the cluster, by its name."""

    cluster: Cluster
    name: str
    namespace: str = NAMESPACE

    def get(self) -> Json:
        return self._get("consistencycheck", self.name)

    @property
    def uid(self) -> str:
        return str(self.get()["metadata"]["uid"])

    def condition(self, kind: str) -> Json:
        """Empty while there is none."""
        conditions = self.get().get("status", {}).get("conditions", [])
        return next((found for found in conditions if found["type"] == kind), {})

    def entries(self) -> dict[str, Json]:
        """Node -> what its NodeConsistency says of this check."""
        return {
            item["metadata"]["name"]: entry
            for item in self.cluster.get("nodeconsistencies")["items"]
            for entry in item.get("status", {}).get("checks", [])
            if (entry["namespace"], entry["name"]) == (self.namespace, self.name)
        }

    def verdicts(self) -> dict[str, str]:
        return {node: entry["verdict"] for node, entry in self.entries().items()}

    def slots(self) -> list[Json]:
        """Slots with a visit."""
        return [slot for slot in self.get().get("status", {}).get("slots", []) if slot.get("node")]

    def jobs(self) -> list[Json]:
        return self._items("jobs", self._label)

    def pods(self) -> list[Json]:
        return self._items("pods", self._label)

    def running_pods(self) -> list[Json]:
        """Pods whose engine container runs."""
        return [
            pod
            for pod in self.pods()
            for status in pod["status"].get("containerStatuses", [])
            if "running" in status["state"] and "deletionTimestamp" not in pod["metadata"]
        ]

    def events(self) -> list[tuple[str, str]]:
        """(reason, message)."""
        found = self.cluster.get(
            "events", "-n", self.namespace, "--field-selector",
            f"involvedObject.kind=ConsistencyCheck,involvedObject.name={self.name}",
        )  # fmt: skip
        return [(item["reason"], item["message"]) for item in found["items"]]

    def event(self, reason: str) -> str:
        """Message of an Event with this reason; empty if there is none."""
        return next((message for found, message in self.events() if found == reason), "")

    def sweep_by_hand(self) -> None:
        """Every node that was visited before now is due. RFC 3339 in seconds, so two calls within one are the same."""
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self._kubectl("annotate", "consistencycheck", self.name, f"{ANNOTATION_RUN_AT}={now}", "--overwrite")

    def patch(self, spec: Json) -> None:
        """Merge patch of the spec."""
        self._kubectl("patch", "consistencycheck", self.name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def delete(self) -> None:
        self._kubectl("delete", "consistencycheck", self.name, "--ignore-not-found", "--wait=false")

    def wait(self, condition: Callable[[], Any], *, what: str, timeout_seconds: float = 60) -> Any:
        try:
            return self.cluster.wait_for(
                condition, what=f"check {self.name}: {what}", timeout_seconds=timeout_seconds, poll_seconds=0.5
            )
        except Exception as error:
            error.add_note(self.describe())
            raise

    def wait_condition(self, kind: str, reason: str, *, status: str = "", timeout_seconds: float = 60) -> Json:
        def there() -> Json | None:
            found = self.condition(kind)
            return found if found.get("reason") == reason and found["status"].startswith(status) else None

        found: Json = self.wait(there, what=f"condition {kind} has reason {reason}", timeout_seconds=timeout_seconds)
        return found

    def wait_verdicts(self, wanted: Mapping[str, str], *, timeout_seconds: float = 90) -> None:
        self.wait(
            lambda: self.verdicts() == wanted, what=f"verdicts are {dict(wanted)}", timeout_seconds=timeout_seconds
        )

    def wait_running(self, *, timeout_seconds: float = 60) -> Json:
        """A probe pod at work."""
        found: list[Json] = self.wait(self.running_pods, what="a probe runs", timeout_seconds=timeout_seconds)
        return found[0]

    def left_behind(self) -> list[str]:
        """What is still there of a check that was deleted, in words."""
        left = [f"job {job['metadata']['name']}" for job in self.jobs()]
        left += [f"pod {pod['metadata']['name']}" for pod in self.pods()]
        left += [f"entry of {node}" for node in self.entries()]
        spoken = {
            item["metadata"]["name"]
            for item in self.cluster.get("nodeconsistencies")["items"]
            if any(entry.get("mayMark") for entry in item.get("status", {}).get("checks", []))
        }
        for node in self.cluster.get("nodes")["items"]:
            name = node["metadata"]["name"]
            conditions = {found["type"] for found in node["status"]["conditions"]}
            if name not in spoken and (CONDITION_TYPE in conditions or LABEL_MARK in node["metadata"]["labels"]):
                left.append(f"mark of {name}")
        return left

    def describe(self) -> str:
        """What a person would look at, for the message of a failed wait."""
        status = self.cluster.kubectl(
            "get", "consistencycheck", self.name, "-n", self.namespace, "-o", "jsonpath={.status}", check=False
        ).stdout
        entries = "\n".join(f"  {node}: {json.dumps(entry)}" for node, entry in self.entries().items())
        events = "\n".join(f"  {reason}: {message}" for reason, message in self.events())
        pods = self.cluster.kubectl("get", "pods", "-n", self.namespace, "-o", "wide", check=False).stdout
        return f"status: {status}\nentries:\n{entries}\nevents:\n{events}\n{pods}"

    @property
    def _label(self) -> str:
        return f"steadyfleet.dev/check={self.name}"

    def _items(self, kind: str, label: str) -> list[Json]:
        found: list[Json] = self.cluster.get(kind, "-n", self.namespace, "-l", label)["items"]
        return found

    def _get(self, *arguments: str) -> Json:
        found: Json = self.cluster.get(*arguments, "-n", self.namespace)
        return found

    def _kubectl(self, *arguments: str) -> None:
        self.cluster.kubectl(*arguments, "-n", self.namespace)
