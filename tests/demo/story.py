"""What happens in the demo, step by step; the end-to-end test walks the same steps."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.cluster import engine, images
from tests.cluster.cluster import Cluster
from tests.cluster.options import ClusterOptions, NodeOptions
from tests.cluster.progress import say, step
from tests.e2e import models, platform
from tests.e2e.platform import NAMESPACE

BROKEN = "gpu-2"
CHECK = "tiny"
MANIFEST = Path(__file__).with_name("check.yaml")
CONDITION = "SteadyfleetDivergent"
LABEL = "steadyfleet.dev/divergent"

SWEEP_TIMEOUT_SECONDS = 900.0


def options() -> ClusterOptions:
    """Everything that a node needs is built first, and on it when it becomes Ready."""
    with step("build the images from the Dockerfile"):
        built = platform.build_images()
    return ClusterOptions(
        nodes=tuple(NodeOptions(name=f"gpu-{i}", gpus=1, zone=f"zone-{i}") for i in (1, 2, 3)),
        images=(*built.all, images.engine()),
        gpu_mounts=(engine.prepare().mount,),
    )


class Story:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.prometheus = ""
        self._told: set[str] = set()

    def install(self) -> None:
        platform.install(self.cluster, evidence=self.cluster.folder / "evidence")
        self.prometheus = platform.start_prometheus(self.cluster)
        with step(f"put the model on each node, and flip one exponent bit of it on {BROKEN}"):
            digest = models.place_tiny(self.cluster)
            models.flip_exponent_bit(self.cluster, BROKEN)
        say(f"kubectl apply -f {MANIFEST.name}")
        self.cluster.apply(MANIFEST.read_text().replace("WEIGHTS_DIGEST", digest))

    def sweep(self) -> None:
        """Until the broken node is marked and the others are consistent."""
        self._watch("the broken node is marked, the others consistent", self._found)

    def repair(self) -> None:
        """Mends the file, asks for a sweep by hand, and waits until the mark is gone."""
        models.flip_exponent_bit(self.cluster, BROKEN)
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        say(f"{BROKEN} is repaired; kubectl annotate consistencycheck {CHECK} steadyfleet.dev/run-at={now}")
        self.cluster.kubectl(
            "annotate", "consistencycheck", CHECK, "-n", NAMESPACE, f"steadyfleet.dev/run-at={now}", "--overwrite"
        )
        self._watch("all nodes are consistent and the mark is cleared", self._cleared)

    def show(self) -> None:
        """What a person would look at, as the programs print it."""
        self._print("get", "consistencychecks,nodeconsistencies", "-n", NAMESPACE)
        path = f"{{.status.conditions[?(@.type=='{CONDITION}')]}}"
        for name in sorted(node.options.name for node in self.cluster.nodes):
            say(f"$ kubectl get node {name}: condition {CONDITION}, label {LABEL}")
            said = self.cluster.kubectl("get", "node", name, "-o", f"jsonpath={path}").stdout
            label = self.node(name)["metadata"]["labels"].get(LABEL, "absent")
            print(f"{said or 'no condition'}\nlabel: {label}", flush=True)
        for expression in ("steadyfleet_node_gpus", "steadyfleet_node_marked", "ALERTS"):
            say(f"Prometheus: {expression}")
            for labels, value in platform.query(self.prometheus, expression):
                kept = {k: v for k, v in labels.items() if k not in ("job", "instance", "__name__")}
                print(f"  {kept} {value:g}", flush=True)

    def node(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.get("node", name)
        return found

    def condition(self, name: str) -> dict[str, str] | None:
        conditions = self.node(name)["status"]["conditions"]
        return next((condition for condition in conditions if condition["type"] == CONDITION), None)

    def verdicts(self) -> dict[str, str]:
        """Node -> verdict of the demo's check."""
        items = self.cluster.get("nodeconsistencies")["items"]
        return {
            item["metadata"]["name"]: entry["verdict"]
            for item in items
            for entry in item.get("status", {}).get("checks", [])
            if entry["name"] == CHECK
        }

    def _found(self) -> bool:
        verdicts = self.verdicts()
        wanted = dict.fromkeys(self._names(), "Consistent") | {BROKEN: "Divergent"}
        condition = self.condition(BROKEN)
        return (
            verdicts == wanted
            and condition is not None
            and condition["status"] == "True"
            and self._metric("Divergent") == {BROKEN}
            and self._metric("Consistent") == self._names() - {BROKEN}
        )

    def _cleared(self) -> bool:
        condition = self.condition(BROKEN)
        return (
            set(self.verdicts().values()) == {"Consistent"}
            and (condition is None or condition["status"] == "False")
            and LABEL not in self.node(BROKEN)["metadata"]["labels"]
            and self._metric("Consistent") == self._names()
        )

    def _metric(self, verdict: str) -> set[str]:
        series = platform.query(self.prometheus, f'steadyfleet_node_gpus{{check="{CHECK}",verdict="{verdict}"}} > 0')
        return {labels["node"] for labels, _ in series}

    def _names(self) -> set[str]:
        return {node.options.name for node in self.cluster.nodes}

    def _watch(self, what: str, condition: Any) -> None:
        self._told.clear()
        began = time.monotonic()

        def look() -> bool:
            self._tell(began)
            return bool(condition())

        with step(f"wait until {what}"):
            self.cluster.wait_for(look, what=what, timeout_seconds=SWEEP_TIMEOUT_SECONDS, poll_seconds=2)

    def _tell(self, began: float) -> None:
        """Each visit and each verdict once, as it comes."""
        check = self.cluster.get("consistencycheck", CHECK, "-n", NAMESPACE)
        lines = [
            f"{slot['purpose'].lower()} visit of {slot['node']} (attempt {slot['attempt']} of slot {slot['slot']})"
            for slot in check.get("status", {}).get("slots", [])
            if slot.get("node")
        ]
        for item in self.cluster.get("nodeconsistencies")["items"]:
            for entry in item.get("status", {}).get("checks", []):
                lines.append(f"{item['metadata']['name']}: {entry['verdict']}, {entry['reason']}: {entry['message']}")
        for line in lines:
            if line not in self._told:
                self._told.add(line)
                say(f"  {time.monotonic() - began:4.0f} s  {line}")

    def _print(self, *arguments: str) -> None:
        say("$ kubectl " + " ".join(arguments))
        print(self.cluster.kubectl(*arguments).stdout, flush=True)
