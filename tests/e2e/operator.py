"""The operator as its cluster sees it: pods, log, Lease, and the ways in which it can end."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.cluster import Cluster
from tests.e2e.platform import NAMESPACE

Json = dict[str, Any]

DEPLOYMENT = "steadyfleet-operator"
PODS = "app.kubernetes.io/component=operator"
METRICS_PORT = 8080


@dataclass(frozen=True)
class Operator:
    cluster: Cluster

    def pods(self) -> list[Json]:
        """Without those that are being deleted, oldest first."""
        found = self.cluster.get("pods", "-n", NAMESPACE, "-l", PODS)["items"]
        living = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return sorted(living, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def pod(self) -> Json:
        """The only one."""
        (found,) = self.cluster.wait_for(
            lambda: pods if len(pods := self.pods()) == 1 else None, what="one operator pod"
        )
        return dict(found)

    def holder(self) -> str:
        """Name of the pod that holds the Lease; empty if nobody does."""
        found = self.cluster.kubectl(
            "get", "lease", DEPLOYMENT, "-n", NAMESPACE, "-o", "jsonpath={.spec.holderIdentity}", check=False
        )
        return found.stdout.partition("_")[0]

    def identity(self) -> str:
        """Of the process that holds the Lease."""
        found = self.cluster.kubectl(
            "get", "lease", DEPLOYMENT, "-n", NAMESPACE, "-o", "jsonpath={.spec.holderIdentity}", check=False
        )
        return found.stdout

    def wait_ready(self, *, timeout_seconds: float = 90) -> None:
        self.cluster.wait_for(
            lambda: [pod for pod in self.pods() if is_ready(pod)], what="a ready operator",
            timeout_seconds=timeout_seconds,
        )  # fmt: skip

    def kill_pod(self, name: str) -> None:
        """As if its node had lost it: the API forgets it at once."""
        self.cluster.kubectl("delete", "pod", name, "-n", NAMESPACE, "--force", "--grace-period=0", "--wait=false")

    def kill_process(self, pod: Json) -> None:
        """SIGKILL on the node. Nothing if the process is gone already."""
        for pid in _processes_of(pod["metadata"]["uid"]):
            os.kill(pid, signal.SIGKILL)

    def scale(self, replicas: int) -> None:
        self.cluster.kubectl("scale", "deployment", DEPLOYMENT, "-n", NAMESPACE, f"--replicas={replicas}")

    def get(self, path: str, pod: Json | None = None) -> tuple[int, str]:
        """HTTP status and body of the metrics port; status 0 if nobody answers."""
        address = (pod or self.pod())["status"]["podIP"]
        try:
            with urllib.request.urlopen(f"http://{address}:{METRICS_PORT}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:  # it does not listen yet, or not any more
            return 0, str(error)

    def metric(self, name: str, pod: Json | None = None) -> dict[str, float]:
        """Series of one metric: `{labels}` as written, and its value."""
        _, body = self.get("/metrics", pod)
        lines = [line for line in body.splitlines() if line.partition("{")[0].partition(" ")[0] == name]
        return {line.rpartition(" ")[0].removeprefix(name): float(line.rpartition(" ")[2]) for line in lines}

    def log_tail(self, lines: int = 60) -> str:
        return self.cluster.kubectl(
            "logs", "-n", NAMESPACE, "-l", PODS, f"--tail={lines}", "--prefix", check=False
        ).stdout

    def requests(self, *, since: str = "") -> list[Json]:
        """What the operator's account asked of the API server, by the audit log; `since`: RFC 3339."""
        user = f"system:serviceaccount:{NAMESPACE}:{DEPLOYMENT}"
        lines = (self.cluster.folder / "log" / "audit.log").read_text().splitlines()
        entries = [json.loads(line) for line in lines if user in line]
        return [e for e in entries if e["user"]["username"] == user and e["requestReceivedTimestamp"] >= since]


def is_ready(pod: Json) -> bool:
    return any(
        found["type"] == "Ready" and found["status"] == "True" for found in pod["status"].get("conditions", [])
    )


def _processes_of(pod_uid: str) -> list[int]:
    """Processes of the operator's container: in the pod's cgroup, and running our module."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            ours = pod_uid in (folder / "cgroup").read_text()
            if ours and b"steadyfleet_operator" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
