"""The check's own status: conditions, counts, the sweep. All conditions exist after the first pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from steadyfleet_operator.decide.nodes import is_stale
from steadyfleet_operator.decide.observation import Observation
from steadyfleet_operator.decide.schedule import UNCHARGED, History
from steadyfleet_operator.decide.thresholds import MAX_LISTED_DIVERGENT, MAX_MESSAGE
from steadyfleet_operator.decide.times import parse, text
from steadyfleet_operator.reasons import Reason
from steadyfleet_operator.resource import (
    CheckStatus,
    Condition,
    DivergentGPU,
    FleetCounts,
    NodeCheck,
    Slot,
    Sweep,
    Verdict,
)

WAITING_IS_NORMAL = (
    frozenset({Reason.AS_EXPECTED, Reason.NO_FREE_GPU, Reason.PREEMPTED, Reason.GPU_NOT_GIVEN}) | UNCHARGED
)
"""Ends of a visit that do not make a check un-Ready: serving comes first."""

Told = tuple[Literal["True", "False", "Unknown"], Reason, str]


def status(
    seen: Observation,
    *,
    entries: Mapping[str, NodeCheck],
    epochs: Mapping[str, str],
    history: History,
    marking: tuple[Reason, str],
    slots: Sequence[Slot],
) -> CheckStatus:
    interval = seen.check.spec.schedule.interval_seconds
    by_verdict = Counter(entry.verdict for entry in entries.values())
    fleet = FleetCounts(
        selected=len(entries),
        consistent=by_verdict[Verdict.CONSISTENT],
        divergent=by_verdict[Verdict.DIVERGENT],
        not_comparable=by_verdict[Verdict.NOT_COMPARABLE],
        unknown=by_verdict[Verdict.UNKNOWN],
        stale=sum(is_stale(entry, now=seen.now, interval_seconds=interval) for entry in entries.values()),
    )
    told: dict[str, Told] = {
        "Ready": _ready(seen, entries, epochs, history, slots),
        "Consistent": _consistent(fleet, entries),
        "MarkingAllowed": ("True" if marking[0] is Reason.MARKING_ALLOWED else "False", *marking),
    }
    return CheckStatus(
        observed_generation=seen.check.generation,
        conditions=tuple(_condition(seen, kind, *said) for kind, said in told.items()),
        fleet=fleet,
        sweep=_sweep(seen, entries, epochs, history),
        slots=tuple(slots),
        divergent=_divergent(entries),
    )


def _ready(
    seen: Observation,
    entries: Mapping[str, NodeCheck],
    epochs: Mapping[str, str],
    history: History,
    slots: Sequence[Slot],
) -> Told:
    if not seen.may_run:
        return (
            "False",
            Reason.NAMESPACE_NOT_ALLOWED,
            f"checks of namespace {seen.check.namespace} are not run; "
            "the administrator lists namespaces in checkNamespaces",
        )
    if seen.check.spec.suspend:
        return "False", Reason.SUSPENDED, seen.check.spec.suspend_reason or "spec.suspend is true"
    if not entries:
        return "False", Reason.NO_NODES_SELECTED, "spec.nodes.selector matches no node (excluded ones do not count)"
    at_work = {slot.version for slot in slots if slot.node}
    for order, message in sorted(seen.refusals.items(), key=lambda refused: (refused[0].version, refused[0].node)):
        if order.version not in at_work:
            return (
                "False",
                Reason.POD_REFUSED,
                f"the API server refuses the probe pod of version {order.version}: {message}",
            )
    failing = [
        last
        for version in epochs
        for node in entries
        if (last := history.last(node, version)) and last.reason not in WAITING_IS_NORMAL
    ]
    if failing:
        newest = max(failing, key=lambda visit: (visit.ended_at, visit.node))
        nodes = len({visit.node for visit in failing})
        return (
            "False",
            Reason.VISITS_FAIL,
            f"visits fail on {nodes} of {len(entries)} nodes; "
            f"on {newest.node}: {newest.reason.value}: {newest.message}",
        )
    untried = sum(not history.tried(node, version) for version in epochs for node in entries)
    if untried:
        return "True", Reason.SWEEPING, f"the first sweep goes on: {untried} visits to go"
    return "True", Reason.AS_EXPECTED, "visits go as planned"


def _consistent(fleet: FleetCounts, entries: Mapping[str, NodeCheck]) -> Told:
    if fleet.divergent:
        names = [name for name, entry in sorted(entries.items()) if entry.verdict is Verdict.DIVERGENT]
        return (
            "False",
            Reason.NODES_DIVERGE,
            f"{fleet.divergent} of {fleet.selected} nodes diverge: " + ", ".join(names[:MAX_LISTED_DIVERGENT]),
        )
    if fleet.selected and fleet.consistent == fleet.selected:
        return "True", Reason.ALL_CONSISTENT, f"all {fleet.selected} nodes are consistent"
    if not fleet.selected:
        return "Unknown", Reason.NO_NODES_SELECTED, "no node is selected"
    others = Counter(entry.reason for entry in entries.values() if entry.verdict is not Verdict.CONSISTENT)
    words = ", ".join(f"{count} {reason}" for reason, count in sorted(others.items()))
    return (
        "Unknown",
        Reason.NOT_YET_JUDGED,
        f"{fleet.consistent} of {fleet.selected} nodes are consistent; others: {words}",
    )


def _condition(
    seen: Observation, kind: str, state: Literal["True", "False", "Unknown"], reason: Reason, message: str
) -> Condition:
    """lastTransitionTime moves only when the status flips."""
    before = next((condition for condition in seen.check.status.conditions if condition.type == kind), None)
    flipped = before is None or before.status != state
    return Condition(
        type=kind,
        status=state,
        reason=reason.value,
        message=message[:MAX_MESSAGE],
        last_transition_time=text(seen.now) if flipped or before is None else before.last_transition_time,
        observed_generation=seen.check.generation,
    )


def _sweep(seen: Observation, entries: Mapping[str, NodeCheck], epochs: Mapping[str, str], history: History) -> Sweep:
    """A new sweep begins when every node was visited since the last one began and one of them is due again."""
    units = [(node, version) for node in entries for version in epochs]
    began = parse(seen.check.status.sweep.started_at)
    interval = seen.check.spec.schedule.interval_seconds
    due = [history.due_at(node, version, interval, seen.check.run_at) for node, version in units]
    anything_due = any(at is None or at <= seen.now for at in due)
    if not units or (began is None and not anything_due):
        return seen.check.status.sweep
    visited = _visited_since(history, units, began)
    if began is None or (visited == len(units) and anything_due):
        return Sweep(started_at=text(seen.now), visited=0)
    return Sweep(started_at=text(began), visited=visited)


def _visited_since(history: History, units: Sequence[tuple[str, str]], began: datetime | None) -> int:
    lasts = (history.last(node, version) for node, version in units)
    return sum(1 for last in lasts if last is not None and (began is None or last.ended_at > began))


def _divergent(entries: Mapping[str, NodeCheck]) -> tuple[DivergentGPU, ...]:
    found = [
        DivergentGPU(node=name, gpu=gpu.uuid, cause=gpu.cause, since=gpu.since)
        for name, entry in sorted(entries.items())
        for gpu in entry.gpus
        if gpu.verdict is Verdict.DIVERGENT
    ]
    return tuple(found[:MAX_LISTED_DIVERGENT])


def invalid_conditions(
    before: Sequence[Condition], generation: int, message: str, now: datetime
) -> tuple[Condition, ...]:
    """For a check that can't be read: only Ready says so, the others stay as they were."""
    ready = next((condition for condition in before if condition.type == "Ready"), None)
    told = Condition(
        type="Ready",
        status="False",
        reason=Reason.SPEC_INVALID.value,
        message=message[:MAX_MESSAGE],
        last_transition_time=ready.last_transition_time if ready and ready.status == "False" else text(now),
        observed_generation=generation,
    )
    return (told, *(condition for condition in before if condition.type != "Ready"))
