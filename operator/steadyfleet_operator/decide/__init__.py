"""The decisions, pure: plain data and `now` in, a plan out. No clock, network, framework or randomness in here.

`decide` reads as the order of judgement: how the slots stand, what the launches say, what that makes of each node, what
to start next, and what to tell.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from steadyfleet_contract.report import Outcome
from steadyfleet_operator.decide import summary
from steadyfleet_operator.decide.baselines import baseline_name, baseline_write, stored
from steadyfleet_operator.decide.nodes import gone_gpus, mark, node_check, with_standing
from steadyfleet_operator.decide.observation import LaunchRecord, Node, Observation, Order
from steadyfleet_operator.decide.order import epochs as epochs_of
from steadyfleet_operator.decide.order import probe_spec
from steadyfleet_operator.decide.plan import BaselineWrite, EventNote, GPUJudgement, Plan, Start
from steadyfleet_operator.decide.schedule import UNCHARGED, History, choose
from steadyfleet_operator.decide.select import cannot_visit, selected
from steadyfleet_operator.decide.thresholds import ACTIVE_REQUEUE_SECONDS, IDLE_REQUEUE_SECONDS, MAX_MESSAGE
from steadyfleet_operator.decide.verdict import Need, is_judged, judge_group
from steadyfleet_operator.decide.visits import SlotState, slot_state
from steadyfleet_operator.reasons import Reason
from steadyfleet_operator.resource import BaselineSpec, NodeCheck, Slot, Verdict

__all__ = ["decide"]


def decide(seen: Observation) -> Plan:
    """One pass. The same observation always gives the same plan."""
    spec = seen.check.spec
    epochs = epochs_of(seen.check)
    nodes = selected(seen.nodes, spec.nodes) if seen.may_run else ()
    slots = slot_state(seen, epochs)
    history = History((*seen.visits, *slots.ended), {node.name: node for node in nodes}, epochs)

    judged, needs, baselines = _judge(seen, nodes, epochs, history)
    judgements = with_standing(seen, nodes, judged, epochs)
    by_node: dict[str, list[GPUJudgement]] = defaultdict(list)
    for judgement in judgements:
        by_node[judgement.node].append(judgement)
    entries = {node.name: node_check(seen, node, by_node[node.name], epochs, history) for node in nodes}
    entries, marking = mark(entries, seen)

    starts: tuple[Start, ...] = ()
    if seen.may_run and not spec.suspend:
        free = [slot for slot in slots.free if slot.slot < spec.schedule.max_concurrent]
        starts = choose(
            seen, nodes=nodes, free=free, busy=slots.busy, needs=needs, judgements=judgements, history=history
        )
    status = summary.status(
        seen, entries=entries, epochs=epochs, history=history, marking=marking, slots=_all_slots(slots, starts)
    )
    return Plan(
        visits=slots.ended,
        delete=slots.delete,
        baselines=baselines,
        node_checks=_changes(seen.node_checks, entries),
        status=status,
        start=starts + (_again(seen, slots) if seen.may_run else ()),
        ended=_ended(slots),
        marking=_marking(seen, entries),
        begun=_begun(starts),
        judgements=judgements,
        keep_evidence=frozenset(j.evidence for j in judgements if j.verdict is not Verdict.CONSISTENT and j.evidence),
        requeue_seconds=ACTIVE_REQUEUE_SECONDS if slots.busy or starts else IDLE_REQUEUE_SECONDS,
    )


def _judge(
    seen: Observation, nodes: Sequence[Node], epochs: Mapping[str, str], history: History
) -> tuple[tuple[GPUJudgement, ...], tuple[Need, ...], tuple[BaselineWrite, ...]]:
    """Each group by itself."""
    judgements: list[GPUJudgement] = []
    needs: list[Need] = []
    writes: list[BaselineWrite] = []
    for group, launches in sorted(_groups(seen, nodes, epochs).items()):
        _, version, product, prompt_set = group
        key = BaselineSpec(
            check=seen.check.name,
            epoch=epochs[version],
            version=version,
            product=product,
            prompt_set_digest=prompt_set,
        )
        before = stored(seen.baselines, baseline_name(key))
        result = judge_group(
            launches,
            stated_weights=seen.check.spec.engine.model.digest,
            accepted_variants=seen.check.spec.accepted_variants,
            baseline=before.accepted,
            baseline_by=before.accepted_by,
            all_tried=all(
                history.tried(node.name, version) or cannot_visit(node, seen.check.spec.nodes, seen.check.spec.engine)
                for node in nodes
            ),
        )
        judgements += result.gpus
        needs += result.needs
        stated = seen.check.spec.engine.model.digest
        if (write := baseline_write(key, before, result, launches, stated_weights=stated)) is not None:
            writes.append(write)
    return tuple(judgements), tuple(needs), tuple(writes)


def _groups(
    seen: Observation, nodes: Sequence[Node], epochs: Mapping[str, str]
) -> dict[tuple[str, str, str, str], list[LaunchRecord]]:
    """Launches that may be compared.

    A GPU last seen on a node that is gone, replaced or not selected does not vote, nor does one that left its node; one
    that came back under a new node keeps its history. A GPU is judged in the group of its newest judged launch alone.
    """
    alive = {(node.name, node.uid) for node in nodes}
    gone = gone_gpus(seen, nodes)
    current = [launch for launch in seen.launches if launch.gpu and epochs.get(launch.version) == launch.epoch]
    seated = [launch for launch in current if launch.outcome is not Outcome.GPU_NOT_GIVEN]
    home = {launch.gpu: launch for launch in seated}
    place = {(launch.gpu, launch.version): _group(launch) for launch in seated}
    place |= {(launch.gpu, launch.version): _group(launch) for launch in seated if is_judged(launch)}
    groups: dict[tuple[str, str, str, str], list[LaunchRecord]] = defaultdict(list)
    for launch in seated:
        at = home[launch.gpu]
        here = (at.node, at.node_uid) in alive and (at.node, launch.gpu) not in gone
        if here and place[launch.gpu, launch.version] == _group(launch):
            groups[_group(launch)].append(launch)
    return groups


def _group(launch: LaunchRecord) -> tuple[str, str, str, str]:
    return launch.epoch, launch.version, launch.product, launch.prompt_set_digest


def _all_slots(slots: SlotState, starts: Sequence[Start]) -> tuple[Slot, ...]:
    begun = {start.slot.slot: start.slot for start in starts}
    everything = [begun.get(slot.slot, slot) for slot in (*slots.busy, *slots.free)]
    return tuple(sorted((slot for slot in everything if slot.attempt), key=lambda slot: slot.slot))


def _again(seen: Observation, slots: SlotState) -> tuple[Start, ...]:
    """Slots whose attempt was written but whose Job does not exist: the process ended in between."""
    nodes = {node.name: node for node in seen.nodes}
    versions = {version.name: version for version in seen.check.spec.versions}
    return tuple(
        Start(
            slot=slot,
            node=nodes[slot.node],
            version=versions[slot.version],
            probe=probe_spec(seen.check, versions[slot.version], purpose=slot.purpose, gpu=slot.gpu),
            whole_node=bool(slot.gpu),
        )
        for slot in slots.recreate
        if Order(slot.node, slot.version, slot.purpose, slot.gpu) not in seen.refusals
    )


def _changes(before: Mapping[str, NodeCheck], after: Mapping[str, NodeCheck]) -> dict[str, NodeCheck | None]:
    changed: dict[str, NodeCheck | None] = {name: entry for name, entry in after.items() if before.get(name) != entry}
    return changed | {name: None for name in before if name not in after}


def _begun(starts: Sequence[Start]) -> tuple[EventNote, ...]:
    return tuple(
        EventNote(
            "Normal",
            Reason.VISIT_STARTED,
            f"{start.slot.purpose.value} visit of node {start.node.name}, version {start.version.name}",
        )
        for start in starts
    )


def _ended(slots: SlotState) -> tuple[EventNote, ...]:
    return tuple(
        EventNote("Warning", visit.reason, f"visit of node {visit.node}: {visit.message}"[:MAX_MESSAGE])
        for visit in slots.ended
        if visit.reason is not Reason.AS_EXPECTED and visit.reason not in UNCHARGED
    )


def _marking(seen: Observation, entries: Mapping[str, NodeCheck]) -> tuple[EventNote, ...]:
    notes = []
    for name, entry in sorted(entries.items()):
        before = seen.node_checks.get(name)
        was = bool(before and before.marked)
        if entry.marked and not was:
            notes.append(EventNote("Warning", Reason.NODE_MARKED, f"node {name}: {entry.message}"[:MAX_MESSAGE]))
        elif was and not entry.marked:
            words = f"node {name}: {entry.reason}: {entry.message}"[:MAX_MESSAGE]
            notes.append(EventNote("Normal", Reason.NODE_UNMARKED, words))
    return tuple(notes)
