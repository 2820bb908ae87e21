"""Which visits to start now: what a verdict waits for first, then the nodes whose result is the oldest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from steadyfleet_operator.decide.observation import Node, Observation, Order, VisitRecord
from steadyfleet_operator.decide.order import epochs, probe_spec
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
        self._turns: dict[tuple[str, str], list[VisitRecord]] = {}
        self._extra: dict[tuple[str, str], list[VisitRecord]] = {}
        for visit in visits:
            node = nodes.get(visit.node)
            current = node and node.uid == visit.node_uid and epochs.get(visit.version) == visit.epoch
            if current and visit.reason not in UNCHARGED:
                kind = self._turns if visit.purpose is Purpose.SWEEP else self._extra
                kind.setdefault((visit.node, visit.version), []).append(visit)

    def tried(self, node: str, version: str) -> bool:
        return (node, version) in self._turns

    def last(self, node: str, version: str) -> VisitRecord | None:
        """The node's newest turn; confirming and control visits are other GPUs' business, and no turn."""
        turns = self._turns.get((node, version))
        return turns[-1] if turns else None

    def last_visit_at(self, node: str, version: str) -> datetime | None:
        visits = [*self._turns.get((node, version), [])[-1:], *self._extra.get((node, version), [])[-1:]]
        return max((visit.ended_at for visit in visits), default=None)

    def failures(self, node: str, version: str) -> int:
        """Turns without a result since the last one with one."""
        return _failures(self._turns.get((node, version), []))

    def extra_since(self, node: str, version: str, since: datetime) -> int:
        """Visits that were not the node's turn."""
        return sum(visit.ended_at > since for visit in self._extra.get((node, version), []))

    def extra_not_before(self, node: str, version: str) -> datetime | None:
        """A confirmation that keeps failing must not spin."""
        visits = self._extra.get((node, version), [])
        failures = _failures(visits)
        return visits[-1].ended_at + _wait(failures) if failures else None

    def due_at(self, node: str, version: str, interval_seconds: int, run_at: datetime | None) -> datetime | None:
        """None: never tried, so at once. A sweep by hand (`run_at`) makes everything due that was visited before it."""
        last = self.last(node, version)
        if last is None:
            return None
        if run_at is not None and last.started_at < run_at:
            return run_at
        interval = timedelta(seconds=interval_seconds)
        failures = self.failures(node, version)
        return last.ended_at + (min(interval, _wait(failures)) if failures else interval)


def _failures(visits: Sequence[VisitRecord]) -> int:
    count = 0
    for visit in reversed(visits):
        if visit.reason is Reason.AS_EXPECTED:
            break
        count += 1
    return count


def _wait(failures: int) -> timedelta:
    return timedelta(seconds=RETRY_SECONDS * 2 ** min(failures - 1, 20))


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
    versions = {version.name: version for version in seen.check.spec.versions}
    present = {node.name: node for node in nodes}
    for slot, order in zip(free, wanted.orders, strict=False):
        node = present[order.node]
        probe = probe_spec(seen.check, versions[order.version], purpose=order.purpose, gpu=order.gpu)
        # A counter never goes back, even if the status was lost: (slot, attempt) names a visit for ever.
        attempt = max([slot.attempt, *(visit.attempt for visit in seen.visits if visit.slot == slot.slot)]) + 1
        raised = Slot(
            slot=slot.slot,
            attempt=attempt,
            node=node.name,
            node_uid=node.uid,
            version=order.version,
            purpose=order.purpose,
            gpu=order.gpu,
            epoch=probe.epoch,
            started_at=text(seen.now),
        )
        starts.append(Start(raised, node, versions[order.version], probe, whole_node=bool(order.gpu)))
    return tuple(starts)


class _Wanted:
    """Orders in the sequence in which free slots take them."""

    def __init__(self, seen: Observation, nodes: Sequence[Node], taken: set[str], history: History) -> None:
        self.seen = seen
        self.orders: list[Order] = []
        self._history = history
        self._open = {
            node.name
            for node in nodes
            if node.name not in taken and cannot_visit(node, seen.check.spec.nodes, seen.check.spec.engine) is None
        }
        self._interval = timedelta(seconds=seen.check.spec.schedule.interval_seconds)

    def add_needs(self, needs: Sequence[Need], busy: Sequence[Slot]) -> None:
        """One visit of a kind at a time serves every suspect of a version: a control controls them all."""
        for need in sorted(needs, key=lambda need: need.purpose is not Purpose.CONFIRM):
            on_its_way = {(slot.version, slot.purpose) for slot in busy}
            on_its_way |= {(order.version, order.purpose) for order in self.orders}
            if need.purpose is Purpose.CONTROL and (need.version, Purpose.CONTROL) in on_its_way:
                continue
            for node, gpu in need.gpus:
                if self._may_have_extra(node, need.version) and self._add(Order(node, need.version, need.purpose, gpu)):
                    break

    def add_turns(self, judgements: Sequence[GPUJudgement]) -> None:
        """Never tried first, in an order of their own for each epoch, since the first ones vote: by name they would be
        one rack. Then the longest waiting. A node with a GPU that is not cleared meets it again."""
        interval = self.seen.check.spec.schedule.interval_seconds
        turns = []
        for version, epoch in epochs(self.seen.check).items():
            for name in self._open:
                due = self._history.due_at(name, version, interval, self.seen.check.run_at)
                if due is None or due <= self.seen.now:
                    turns.append((due is not None, due or self.seen.now, _drawn(epoch, name), name, version))
        wanted = _to_be_met(judgements)
        for _, _, _, name, version in sorted(turns):
            last = self._history.last(name, version)
            # Every other turn meets any GPU: over the open one the node's others must not go unseen.
            gpu = "" if last is not None and last.gpu else wanted.get((name, version), "")
            self._add(Order(name, version, Purpose.SWEEP, gpu))

    def _add(self, order: Order) -> bool:
        if order.node not in self._open or order in self.seen.refusals:
            return False
        self._open.remove(order.node)
        self.orders.append(order)
        return True

    def _may_have_extra(self, node: str, version: str) -> bool:
        not_before = self._history.extra_not_before(node, version)
        spent = self._history.extra_since(node, version, self.seen.now - self._interval)
        return spent < MAX_EXTRA_VISITS and (not_before is None or not_before <= self.seen.now)


MEET_AGAIN = frozenset(
    {
        Reason.CONFIRMING,
        Reason.NOT_CONFIRMED,
        Reason.SURROUNDINGS_DIFFER,
        Reason.CONTROL_DISAGREES,
        Reason.NO_CONTROL,
        Reason.DIFFERENCE_SHARED,
    }
)
"""Why a GPU that is not Divergent must be met again too: only a clean visit of that very GPU ends it."""


def _to_be_met(judgements: Sequence[GPUJudgement]) -> dict[tuple[str, str], str]:
    """(node, version) -> the GPU to meet: of several the one that was not measured for the longest time."""
    open_ones = [j for j in judgements if j.uuid and (j.verdict is Verdict.DIVERGENT or j.reason in MEET_AGAIN)]
    wanted: dict[tuple[str, str], str] = {}
    for judgement in sorted(open_ones, key=lambda j: (j.newest is not None, text(j.newest), j.uuid)):
        wanted.setdefault((judgement.node, judgement.version), judgement.uuid)
    return wanted


def _drawn(epoch: str, node: str) -> str:
    return hashlib.sha256(f"{epoch}/{node}".encode()).hexdigest()
