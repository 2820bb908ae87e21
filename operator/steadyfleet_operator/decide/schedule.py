"""Which visits to start now: what a verdict waits for first, then the nodes whose result is the oldest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from steadyfleet_operator.decide.observation import Node, Observation, VisitRecord
from steadyfleet_operator.decide.order import probe_spec
from steadyfleet_operator.decide.plan import GPUJudgement, Start
from steadyfleet_operator.decide.select import cannot_visit
from steadyfleet_operator.decide.thresholds import MAX_EXTRA_VISITS, RETRY_SECONDS
from steadyfleet_operator.decide.times import text
from steadyfleet_operator.decide.verdict import Need
from steadyfleet_operator.reasons import Reason
from steadyfleet_operator.resource import Purpose, Slot, Verdict

UNCHARGED = frozenset({Reason.SUPERSEDED, Reason.SUSPENDED, Reason.NODE_GONE})
"""The check's own doing, or nobody's: such a visit neither counts as the node's turn nor as a failure."""


class History:
    """What became of earlier visits, per (node, version), within the current epochs and the node's present life."""

    def __init__(self, visits: Iterable[VisitRecord], nodes: Mapping[str, Node], epochs: Mapping[str, str]) -> None:
        self._counted: dict[tuple[str, str], list[VisitRecord]] = {}
        for visit in visits:
            node = nodes.get(visit.node)
            current = node and node.uid == visit.node_uid and epochs.get(visit.version) == visit.epoch
            if current and visit.reason not in UNCHARGED:
                self._counted.setdefault((visit.node, visit.version), []).append(visit)

    def tried(self, node: str, version: str) -> bool:
        return (node, version) in self._counted

    def last(self, node: str, version: str) -> VisitRecord | None:
        visits = self._counted.get((node, version))
        return visits[-1] if visits else None

    def failures(self, node: str, version: str) -> int:
        """Visits without a result since the last one with one."""
        count = 0
        for visit in reversed(self._counted.get((node, version), [])):
            if visit.reason is Reason.AS_EXPECTED:
                break
            count += 1
        return count

    def extra_since(self, node: str, version: str, since: datetime) -> int:
        """Visits that were not the node's turn."""
        visits = self._counted.get((node, version), [])
        return sum(visit.purpose is not Purpose.SWEEP and visit.ended_at > since for visit in visits)

    def due_at(self, node: str, version: str, interval_seconds: int, run_at: datetime | None) -> datetime | None:
        """None: never tried, so at once. A sweep by hand (`run_at`) makes everything due that was visited before it."""
        last = self.last(node, version)
        if last is None:
            return None
        if run_at is not None and last.started_at < run_at:
            return run_at
        failures = self.failures(node, version)
        wait = min(interval_seconds, RETRY_SECONDS * 2 ** min(failures - 1, 20)) if failures else interval_seconds
        return last.ended_at + timedelta(seconds=wait)


def choose(
    seen: Observation,
    *,
    nodes: Sequence[Node],
    free: Sequence[Slot],
    busy: Sequence[Slot],
    needs: Sequence[Need],
    judgements: Sequence[GPUJudgement],
    history: History,
) -> tuple[Start, ...]:
    """One visit for each free slot at most; never two at a time on one node of this check."""
    wanted = _Wanted(seen, nodes, {slot.node for slot in busy if slot.node}, history)
    wanted.add_needs(needs, busy)
    wanted.add_turns(judgements)
    starts = []
    for slot, (node, version, purpose, gpu) in zip(free, wanted.orders, strict=False):
        order = next(v for v in seen.check.spec.versions if v.name == version)
        probe = probe_spec(seen.check, order, purpose=purpose, gpu=gpu)
        # A counter never goes back, even if the status was lost: (slot, attempt) names a visit for ever.
        attempt = max([slot.attempt, *(visit.attempt for visit in seen.visits if visit.slot == slot.slot)]) + 1
        raised = Slot(
            slot=slot.slot,
            attempt=attempt,
            node=node.name,
            node_uid=node.uid,
            version=version,
            purpose=purpose,
            gpu=gpu,
            epoch=probe.epoch,
            started_at=text(seen.now),
        )
        starts.append(Start(slot=raised, node=node, version=order, probe=probe, whole_node=bool(gpu)))
    return tuple(starts)


class _Wanted:
    """Orders in the sequence in which free slots take them."""

    def __init__(self, seen: Observation, nodes: Sequence[Node], taken: set[str], history: History) -> None:
        self.seen = seen
        self.orders: list[tuple[Node, str, Purpose, str]] = []
        self._history = history
        self._open = {
            node.name: node
            for node in nodes
            if node.name not in taken and cannot_visit(node, seen.check.spec.nodes, seen.check.spec.engine) is None
        }
        self._refused = set(seen.refusals)

    def add_needs(self, needs: Sequence[Need], busy: Sequence[Slot]) -> None:
        """One visit of a kind at a time serves every suspect of a version: a control controls them all."""
        for need in sorted(needs, key=lambda need: need.purpose is not Purpose.CONFIRM):
            on_its_way = [(slot.version, slot.purpose, slot.gpu) for slot in busy] + [
                (version, purpose, gpu) for _, version, purpose, gpu in self.orders
            ]
            if need.purpose is Purpose.CONTROL and any(o[:2] == (need.version, Purpose.CONTROL) for o in on_its_way):
                continue
            for node, gpu in need.gpus:
                if self._spent(node, need.version):
                    continue
                if self._add(node, need.version, need.purpose, gpu, not_before=self._back_off(node, need.version)):
                    break

    def add_turns(self, judgements: Sequence[GPUJudgement]) -> None:
        """Never tried first, then the longest waiting. A node with a GPU that is not cleared must meet it again."""
        interval = self.seen.check.spec.schedule.interval_seconds
        turns = []
        for version in self.seen.check.spec.versions:
            for name in self._open:
                due = self._history.due_at(name, version.name, interval, self.seen.check.run_at)
                if due is None or due <= self.seen.now:
                    turns.append((due is not None, due or self.seen.now, name, version.name))
        suspects: dict[tuple[str, str], str] = {}
        for judgement in judgements:
            if judgement.verdict is Verdict.DIVERGENT or judgement.reason in (Reason.CONFIRMING, Reason.NOT_CONFIRMED):
                suspects.setdefault((judgement.node, judgement.version), judgement.uuid)
        for _, _, name, version_name in sorted(turns):
            self._add(name, version_name, Purpose.SWEEP, suspects.get((name, version_name), ""), not_before=None)

    def _add(self, node: str, version: str, purpose: Purpose, gpu: str, *, not_before: datetime | None) -> bool:
        if node not in self._open or version in self._refused or (not_before and not_before > self.seen.now):
            return False
        self.orders.append((self._open.pop(node), version, purpose, gpu))
        return True

    def _spent(self, node: str, version: str) -> bool:
        interval = timedelta(seconds=self.seen.check.spec.schedule.interval_seconds)
        return self._history.extra_since(node, version, self.seen.now - interval) >= MAX_EXTRA_VISITS

    def _back_off(self, node: str, version: str) -> datetime | None:
        """A confirmation that keeps failing must not spin."""
        failures = self._history.failures(node, version)
        last = self._history.last(node, version)
        if not failures or last is None:
            return None
        return last.ended_at + timedelta(seconds=RETRY_SECONDS * 2 ** min(failures - 1, 10))
