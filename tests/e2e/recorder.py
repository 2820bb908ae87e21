"""Everything that happened to the Jobs and pods of one check, from watches of its own: what was true at every moment,
not only when somebody looked."""

from __future__ import annotations

import json
import subprocess
import threading
import urllib.parse
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from tests.cluster import binaries
from tests.cluster.cluster import Cluster
from tests.e2e.platform import NAMESPACE

Json = dict[str, Any]

WATCH_SECONDS = 1200

ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Seen:
    """One event of a watch."""

    kind: str
    """ADDED, MODIFIED or DELETED."""
    item: Json

    @property
    def uid(self) -> str:
        return str(self.item["metadata"]["uid"])

    @property
    def slot(self) -> str:
        return str(self.item["metadata"]["labels"]["steadyfleet.dev/slot"])

    @property
    def attempt(self) -> int:
        return int(self.item["metadata"]["annotations"]["steadyfleet.dev/attempt"])


@dataclass
class Recorder:
    """`with Recorder(cluster, "name") as recorder:` watches from before the check is made until the block ends."""

    cluster: Cluster
    check: str
    jobs: list[Seen] = field(default_factory=list)
    pods: list[Seen] = field(default_factory=list)
    _watches: list[subprocess.Popen[str]] = field(default_factory=list)
    _readers: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Recorder:
        kubectl = binaries.build(binaries.CONTROL_PLANE_MODULES).path("kubectl")
        selector = urllib.parse.quote(f"steadyfleet.dev/check={self.check}")
        for path, events in (("apis/batch/v1", self.jobs), ("api/v1", self.pods)):
            kind = "jobs" if events is self.jobs else "pods"
            watch = subprocess.Popen(
                [kubectl, f"--kubeconfig={self.cluster.kubeconfig}", "get", "--raw",
                 f"/{path}/namespaces/{NAMESPACE}/{kind}?watch=true&timeoutSeconds={WATCH_SECONDS}&labelSelector={selector}"],
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            self._watches.append(watch)
            reader = threading.Thread(target=_read, args=(watch, events), daemon=True)
            reader.start()
            self._readers.append(reader)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for watch in self._watches:
            watch.terminate()
        for reader in self._readers:
            reader.join(timeout=10)
        for watch in self._watches:
            watch.wait(timeout=10)
            if watch.stdout:
                watch.stdout.close()

    def jobs_by_attempt(self) -> dict[tuple[str, int], set[str]]:
        """(slot, attempt) -> uids of all Jobs that were ever made for it."""
        found: dict[tuple[str, int], set[str]] = {}
        for seen in self.jobs:
            found.setdefault((seen.slot, seen.attempt), set()).add(seen.uid)
        return found

    def most_pods_at_once(self) -> int:
        return max((len(live) for live in self._live_pods()), default=0)

    def most_pods_of_a_slot(self) -> int:
        return max((_most_common(live) for live in self._live_pods()), default=0)

    def last_pods(self) -> dict[str, Json]:
        """uid -> the pod as it was seen last."""
        return {seen.uid: seen.item for seen in self.pods}

    def _live_pods(self) -> list[list[str]]:
        """After each event: the slot of every pod that had not ended."""
        live: dict[str, str] = {}
        moments = []
        for seen in self.pods:
            if seen.kind == "DELETED" or seen.item["status"].get("phase") in ENDED:
                live.pop(seen.uid, None)
            else:
                live[seen.uid] = seen.slot
            moments.append(list(live.values()))
        return moments


def _most_common(slots: list[str]) -> int:
    return max((slots.count(slot) for slot in slots), default=0)


def _read(watch: subprocess.Popen[str], events: list[Seen]) -> None:
    """One event a line, as the API server sends them."""
    assert watch.stdout is not None
    for line in watch.stdout:
        event = json.loads(line)
        events.append(Seen(event["type"], event["object"]))
