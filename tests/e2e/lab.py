"""The cluster of the end-to-end tests with Steadyfleet on it, and what the tests do there.

    lab.check(manifest)      a check for as long as the `with` block lasts; nothing of it is left afterwards
    lab.operator             the operator's pod and process: its log, its end
    lab.evidence             the evidence store, read from the host

Nodes: gpu-1 and gpu-2 with one GPU each, gpu-3 with eight.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steadyfleet_operator.resource import CONDITION_TYPE, GROUP, LABEL_MARK
from tests.cluster import engine, images
from tests.cluster.cluster import Cluster
from tests.cluster.errors import WaitTimedOut
from tests.cluster.gpus import RESOURCE
from tests.cluster.options import ClusterOptions, ControlPlaneOptions, NodeOptions
from tests.cluster.progress import step
from tests.e2e import platform
from tests.e2e.checks import LiveCheck
from tests.e2e.evidence import Evidence
from tests.e2e.operator import Operator
from tests.e2e.platform import NAMESPACE

Json = dict[str, Any]

GPUS = {"gpu-1": 1, "gpu-2": 1, "gpu-3": 8}

RESTRICTED = "e2e-restricted"
"""A namespace with Pod Security `restricted`; its checks are run, but may not mark."""

LEASE_SECONDS = 8
"""Shorter than the default of the chart: each killed operator costs a test this long."""

PROMETHEUS_RULES = "rules.yaml"


def options() -> ClusterOptions:
    with step("build the images from the Dockerfile"):
        built = platform.build_images()
    return ClusterOptions(
        nodes=tuple(
            NodeOptions(name=name, gpus=gpus, zone=f"zone-{number}")
            for number, (name, gpus) in enumerate(GPUS.items(), start=1)
        ),
        images=(*built.all, images.engine()),
        gpu_mounts=(engine.prepare().mount,),
        control_plane=ControlPlaneOptions(audit_log=True),
    )


@dataclass
class Lab:
    cluster: Cluster
    prometheus: str = ""
    operator: Operator = field(init=False)
    evidence: Evidence = field(init=False)

    def __post_init__(self) -> None:
        self.operator = Operator(self.cluster)
        self.evidence = Evidence(self.cluster.folder / "evidence")

    def set_up(self) -> None:
        """Steadyfleet by Helm, and a Prometheus that scrapes it and evaluates its alerts."""
        self.namespace(RESTRICTED, **{"pod-security.kubernetes.io/enforce": "restricted"})
        self.install()
        self.prometheus = platform.start_prometheus(self.cluster, rules=self._quick_rules())

    def install(self) -> None:
        platform.install(self.cluster, evidence=self.evidence.folder, values=values())

    def is_installed(self) -> bool:
        return "steadyfleet" in self.cluster.helm("list", "--namespace", NAMESPACE, "--short").stdout.split()

    def namespace(self, name: str, **labels: str) -> None:
        self.cluster.apply(
            json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        )

    @contextmanager
    def check(self, manifest: Json) -> Iterator[LiveCheck]:
        """Applies it; deletes it at the end, and waits until its Jobs, pods, entries and marks are gone."""
        live = LiveCheck(self.cluster, manifest["metadata"]["name"], manifest["metadata"]["namespace"])
        self.cluster.apply(json.dumps(manifest))
        try:
            yield live
        finally:
            live.delete()
            self.wait_empty(live.left_behind, what=f"what check {live.name} left behind")

    @contextmanager
    def pod(self, manifest: Json) -> Iterator[str]:
        """A pod of somebody else; its name."""
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        self.cluster.apply(json.dumps(manifest))
        try:
            yield name
        finally:
            self.cluster.kubectl("delete", "pod", name, "-n", namespace, "--now", "--ignore-not-found")

    def wait_empty(self, left: Callable[[], list[str]], *, what: str, timeout_seconds: float = 90) -> None:
        """Until `left` returns nothing; the error says what it returned last."""
        try:
            self.cluster.wait_for(lambda: not left(), what=f"{what} is gone", timeout_seconds=timeout_seconds)
        except WaitTimedOut as late:
            raise WaitTimedOut(f"{late}; still there: {', '.join(left())}") from late

    def node(self, name: str) -> Json:
        found: Json = self.cluster.get("node", name)
        return found

    def quiet_node(self) -> str:
        """A node with one GPU on which the operator does not run."""
        home = self.operator.pod()["spec"]["nodeName"]
        return next(name for name, gpus in GPUS.items() if gpus == 1 and name != home)

    def wait_node_ready(self, name: str) -> None:
        def ready() -> bool:
            status = self.node(name)["status"]
            said = any(c["type"] == "Ready" and c["status"] == "True" for c in status["conditions"])
            return said and status["allocatable"].get(RESOURCE) == str(GPUS[name])

        self.cluster.wait_for(ready, what=f"node {name} is Ready with its GPUs")

    def condition(self, node: str, kind: str = CONDITION_TYPE) -> Json | None:
        return next((found for found in self.node(node)["status"]["conditions"] if found["type"] == kind), None)

    def marks(self) -> set[str]:
        """Nodes that carry a condition True of ours with its label; one without the other is an error."""
        marked = set()
        for node in self.cluster.get("nodes")["items"]:
            said = any(
                found["type"] == CONDITION_TYPE and found["status"] == "True" for found in node["status"]["conditions"]
            )
            if said and node["metadata"]["labels"].get(LABEL_MARK) == "true":
                marked.add(node["metadata"]["name"])
        return marked

    def traces(self) -> list[str]:
        """Everything of ours on nodes, in words."""
        found = []
        for node in self.cluster.get("nodes")["items"]:
            name = node["metadata"]["name"]
            found += [f"{name}: condition" for c in node["status"]["conditions"] if c["type"] == CONDITION_TYPE]
            keys = [f"label {key}" for key in node["metadata"]["labels"]]
            keys += [f"taint {taint['key']}" for taint in node["spec"].get("taints", [])]
            found += [f"{name}: {key}" for key in keys if f"{GROUP}/" in key]
        return found

    def _quick_rules(self) -> Path:
        """The chart's own rules, but an alert need not keep firing for minutes after its cause is gone."""
        rules = self.cluster.folder / PROMETHEUS_RULES
        rules.write_text(platform.RULES.read_text().replace("keep_firing_for: 5m", "keep_firing_for: 5s"))
        return rules


def values() -> Json:
    """The chart's values of all tests."""
    return {
        "checkNamespaces": [NAMESPACE, RESTRICTED],
        "markNamespaces": [NAMESPACE],
        "operator": {"leaseSeconds": LEASE_SECONDS},
    }
