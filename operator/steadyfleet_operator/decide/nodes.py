"""From GPU judgements to what a node's NodeConsistency says of this check, and whether the node is to be marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from steadyfleet_contract.report import Outcome
from steadyfleet_operator.decide.observation import Node, Observation
from steadyfleet_operator.decide.plan import GPUJudgement
from steadyfleet_operator.decide.schedule import History
from steadyfleet_operator.decide.select import cannot_visit
from steadyfleet_operator.decide.thresholds import EXPIRY_INTERVALS, MAX_LISTED_GPUS, MAX_MESSAGE
from steadyfleet_operator.decide.times import parse, text
from steadyfleet_operator.reasons import Reason
from steadyfleet_operator.resource import VERDICT_SEVERITY, ActionMode, Cause, GPUEntry, NodeCheck, Verdict

UNDECIDED = frozenset(
    {
        Reason.NOT_YET_JUDGED,
        Reason.NO_MAJORITY,
        Reason.TOO_FEW_NODES,
        Reason.NO_CONTROL,
        Reason.CONFIRMING,
        Reason.PIN_DOES_NOT_HOLD,
    }
)
"""Judgements that have not got as far as to say anything of the GPU: a standing Divergent outlives them. All others
take it back, `FleetMoved` and `DifferenceShared` too: they say that no node is to be blamed."""


def with_standing(
    seen: Observation, nodes: Sequence[Node], judgements: Sequence[GPUJudgement], epochs: Mapping[str, str]
) -> tuple[GPUJudgement, ...]:
    """Adds Divergent GPUs that nothing in the store decides any more: the spec was edited, or the store was lost.

    They stand until the same GPU and version is judged anew, or is seen to have left the node; a mark must not vanish
    because its evidence did. The undecided judgement of such a GPU gives way to it.
    """
    spoken = {(said.uuid, said.version) for said in judgements if said.reason not in UNDECIDED}
    gone = gone_gpus(seen, nodes)
    standing = {
        (entry.uuid, entry.version): _as_it_stood(node, entry)
        for node in nodes
        if (before := seen.node_checks.get(node.name)) is not None and before.uid == seen.check.uid
        for entry in before.gpus
        if entry.verdict is Verdict.DIVERGENT and entry.version in epochs
        if (entry.uuid, entry.version) not in spoken and (node.name, entry.uuid) not in gone
    }
    newest = {(said.uuid, said.version): said.newest for said in judgements}
    kept = [said for said in judgements if (said.uuid, said.version) not in standing]
    return (*kept, *(replace(said, newest=newest.get(key)) for key, said in standing.items()))


def gone_gpus(seen: Observation, nodes: Sequence[Node]) -> frozenset[tuple[str, str]]:
    """(node, uuid) of GPUs that a visit looked for among all GPUs of their node, and did not find: they were swapped.

    Against the capacity, not what is allocatable: a GPU that the device plugin calls unhealthy is not given either.
    """
    resource = seen.check.spec.nodes.resource_name
    alive = {(node.name, node.uid): node.capacity.get(resource, 0) for node in nodes}
    gone: set[tuple[str, str]] = set()
    for launch in seen.launches:
        for gpu in launch.gpus:
            gone.discard((launch.node, gpu))
        capacity = alive.get((launch.node, launch.node_uid), 0)
        if launch.outcome is Outcome.GPU_NOT_GIVEN and launch.wanted_gpu and len(launch.gpus) >= capacity > 0:
            gone.add((launch.node, launch.wanted_gpu))
    return frozenset(gone)


def node_check(
    seen: Observation, node: Node, judgements: Sequence[GPUJudgement], epochs: Mapping[str, str], history: History
) -> NodeCheck:
    """The whole entry; `judgements` are those of GPUs that are on this node now."""
    before = seen.node_checks.get(node.name)
    mine = list(judgements)
    for version in epochs:
        if not any(judgement.version == version for judgement in mine):
            mine.append(_nothing(seen, node, version, epochs[version], history))
    worst = max(mine, key=lambda judgement: (VERDICT_SEVERITY[judgement.verdict], judgement.newest is None))
    visits = [history.last_visit_at(node.name, version) for version in epochs]
    last_visit = max((moment for moment in visits if moment), default=None)
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
    entries.sort(key=lambda entry: (-VERDICT_SEVERITY[entry.verdict], entry.uuid, entry.version))
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


def _as_it_stood(node: Node, entry: GPUEntry) -> GPUJudgement:
    known = entry.reason in {reason.value for reason in Reason}
    return GPUJudgement(
        uuid=entry.uuid,
        node=node.name,
        version=entry.version,
        epoch=entry.epoch,
        verdict=Verdict.DIVERGENT,
        # An entry of another version of the operator may have a reason that this one does not know.
        reason=Reason(entry.reason) if known else Reason.DIFFERS_FROM_BASELINE,
        message=entry.message,
        cause=entry.cause,
        since=parse(entry.since),
        evidence=entry.evidence,
    )


def _nothing(seen: Observation, node: Node, version: str, epoch: str, history: History) -> GPUJudgement:
    said: tuple[Reason, str]
    last = history.last(node.name, version)
    if last is not None and last.reason is not Reason.AS_EXPECTED:
        said = last.reason, last.message
    elif why := cannot_visit(node, seen.check.spec.nodes, seen.check.spec.engine):
        said = why
    elif refused := [m for order, m in seen.refusals.items() if (order.node, order.version) == (node.name, version)]:
        said = Reason.POD_REFUSED, refused[0]
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
