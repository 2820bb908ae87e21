"""From GPU judgements to what a node's NodeConsistency says of this check, and whether the node is to be marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from steadyfleet_operator.decide.observation import Node, Observation
from steadyfleet_operator.decide.plan import GPUJudgement
from steadyfleet_operator.decide.schedule import History
from steadyfleet_operator.decide.select import cannot_visit
from steadyfleet_operator.decide.thresholds import EXPIRY_INTERVALS, MAX_LISTED_GPUS, MAX_MESSAGE
from steadyfleet_operator.decide.times import parse, text
from steadyfleet_operator.reasons import Reason
from steadyfleet_operator.resource import ActionMode, Cause, GPUEntry, NodeCheck, Verdict

SEVERITY = {Verdict.CONSISTENT: 0, Verdict.UNKNOWN: 1, Verdict.NOT_COMPARABLE: 2, Verdict.DIVERGENT: 3}


def node_check(
    seen: Observation, node: Node, judgements: Sequence[GPUJudgement], epochs: Mapping[str, str], history: History
) -> NodeCheck:
    """The whole entry, from the stored results alone; what the entry said before counts only where those are gone.

    `judgements` are those of all nodes: a GPU that moved is spoken of where it is now.
    """
    before = seen.node_checks.get(node.name)
    mine = [judgement for judgement in judgements if judgement.node == node.name]
    mine += _standing(seen, node, judgements, before, epochs)
    tried = [history.last(node.name, version) for version in epochs]
    visits = [visit for visit in tried if visit is not None]
    for version in epochs:
        if not any(judgement.version == version for judgement in mine):
            mine.append(_nothing(seen, node, version, epochs[version], history))
    worst = max(mine, key=lambda judgement: (SEVERITY[judgement.verdict], judgement.newest is None))
    last_visit = max((visit.ended_at for visit in visits), default=None)
    last_result = max((judgement.newest for judgement in mine if judgement.newest), default=None)
    if worst.verdict is Verdict.CONSISTENT and last_result and _is_old(seen, last_result):
        worst = replace(
            worst,
            verdict=Verdict.UNKNOWN,
            reason=Reason.RESULT_EXPIRED,
            message=f"was consistent, but no result came for {EXPIRY_INTERVALS} intervals",
        )
    same = before is not None and before.verdict is worst.verdict and before.uid == seen.check.uid
    entries = [_entry(said) for said in mine if said.verdict is not Verdict.CONSISTENT and said.uuid]
    entries.sort(key=lambda entry: (-SEVERITY[entry.verdict], entry.uuid, entry.version))
    return NodeCheck(
        namespace=seen.check.namespace,
        name=seen.check.name,
        uid=seen.check.uid,
        verdict=worst.verdict,
        cause=worst.cause,
        reason=worst.reason.value,
        message=worst.message[:MAX_MESSAGE],
        marked=bool(before and before.marked and before.uid == seen.check.uid),
        consistent_gpus=len({judgement.uuid for judgement in mine} - {entry.uuid for entry in entries} - {""}),
        gpus=tuple(entries[:MAX_LISTED_GPUS]),
        since=before.since if before and same else text(worst.since or seen.now),
        last_visit_time=text(last_visit) or (before.last_visit_time if before else ""),
        last_result_time=text(last_result) or (before.last_result_time if before else ""),
        failed_visits=max((history.failures(node.name, version) for version in epochs), default=0),
    )


def mark(entries: Mapping[str, NodeCheck], seen: Observation) -> tuple[dict[str, NodeCheck], tuple[Reason, str]]:
    """Sets `marked`, and says whether marking is allowed. The breaker holds new marks, never their clearing."""
    action = seen.check.spec.action
    divergent = sorted(name for name, entry in entries.items() if entry.verdict is Verdict.DIVERGENT)
    if action.mode is not ActionMode.MARK:
        return _with_marks(entries, set(), may_mark=False), (
            Reason.OBSERVE_ONLY,
            "action.mode is Observe: no node is marked",
        )
    if not seen.may_mark:
        return _with_marks(entries, set(), may_mark=False), (
            Reason.MARKING_NAMESPACE_NOT_ALLOWED,
            f"checks of namespace {seen.check.namespace} may not mark nodes; "
            "the administrator lists such namespaces in markNamespaces, and dryRun must be off",
        )
    cap = min(action.max_marked_nodes, max(1, len(entries) * action.max_marked_percent // 100))
    already = {name for name in divergent if entries[name].marked}
    if len(divergent) > cap:
        return _with_marks(entries, already, may_mark=True), (
            Reason.TOO_MANY_DIVERGE,
            f"{len(divergent)} nodes diverge, more than the {cap} that may be marked: no further node is marked; "
            "look at what they share before you raise action.maxMarkedNodes or maxMarkedPercent",
        )
    return _with_marks(entries, set(divergent), may_mark=True), (
        Reason.MARKING_ALLOWED,
        f"up to {cap} nodes may be marked",
    )


def is_stale(entry: NodeCheck, *, now: datetime, interval_seconds: int) -> bool:
    """No result for twice the interval, or none at all."""
    newest = parse(entry.last_result_time)
    return newest is None or now - newest > timedelta(seconds=EXPIRY_INTERVALS * interval_seconds)


def _is_old(seen: Observation, moment: datetime) -> bool:
    return seen.now - moment > timedelta(seconds=EXPIRY_INTERVALS * seen.check.spec.schedule.interval_seconds)


def _with_marks(entries: Mapping[str, NodeCheck], marked: set[str], *, may_mark: bool) -> dict[str, NodeCheck]:
    return {
        name: entry.model_copy(update={"may_mark": may_mark, "marked": name in marked})
        for name, entry in entries.items()
    }


def _standing(
    seen: Observation,
    node: Node,
    judgements: Sequence[GPUJudgement],
    before: NodeCheck | None,
    epochs: Mapping[str, str],
) -> list[GPUJudgement]:
    """Divergent GPUs that nothing in the store speaks of any more: the spec was edited, or the store was lost.

    They stand until the same GPU and version is judged anew; a mark must not vanish because its evidence did.
    """
    if before is None or before.uid != seen.check.uid:
        return []
    spoken = {(judgement.uuid, judgement.version) for judgement in judgements if judgement.reason not in UNDECIDED}
    return [
        GPUJudgement(
            uuid=entry.uuid,
            node=node.name,
            version=entry.version,
            epoch=entry.epoch,
            verdict=Verdict.DIVERGENT,
            reason=Reason(entry.reason),
            message=entry.message,
            cause=entry.cause,
            since=parse(entry.since),
            evidence=entry.evidence,
        )
        for entry in before.gpus
        if entry.verdict is Verdict.DIVERGENT and entry.version in epochs and (entry.uuid, entry.version) not in spoken
    ]


UNDECIDED = frozenset(
    {
        Reason.NOT_YET_JUDGED,
        Reason.NO_MAJORITY,
        Reason.TOO_FEW_NODES,
        Reason.NO_CONTROL,
        Reason.CONFIRMING,
        Reason.PIN_DOES_NOT_HOLD,
        Reason.FLEET_MOVED,
        Reason.REPEATS_DIFFER,
    }
)
"""Judgements that say nothing yet, and so take back nothing either."""


def _nothing(seen: Observation, node: Node, version: str, epoch: str, history: History) -> GPUJudgement:
    said: tuple[Reason, str]
    last = history.last(node.name, version)
    if last is not None and last.reason is not Reason.AS_EXPECTED:
        said = last.reason, last.message
    elif why := cannot_visit(node, seen.check.spec.nodes, seen.check.spec.engine):
        said = why
    elif version in seen.refusals:
        said = Reason.POD_REFUSED, seen.refusals[version]
    else:
        said = Reason.NO_RESULT, "no launch of this node has been recorded yet"
    return GPUJudgement("", node.name, version, epoch, Verdict.UNKNOWN, *said)


def _entry(judgement: GPUJudgement) -> GPUEntry:
    return GPUEntry(
        uuid=judgement.uuid,
        version=judgement.version,
        verdict=judgement.verdict,
        cause=judgement.cause if judgement.verdict is Verdict.DIVERGENT else Cause.NONE,
        reason=judgement.reason.value,
        message=judgement.message[:MAX_MESSAGE],
        since=text(judgement.since),
        epoch=judgement.epoch,
        evidence=judgement.evidence,
    )
