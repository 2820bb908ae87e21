"""Stories in which a simpler judgement accused the innocent, cleared the guilty, or never came to an end."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from steadyfleet_contract.report import Outcome
from steadyfleet_contract.spec import LaunchKind
from steadyfleet_operator.decide import decide
from steadyfleet_operator.resource import Purpose
from tests.unit.decide.fleet import (
    BAD,
    GOOD,
    OTHER,
    WEIGHTS,
    WRONG_WEIGHTS,
    Answer,
    World,
    bad_on,
    node,
    spec,
    three_nodes,
)

STATED: dict[str, Any] = {"model": {"path": "/models/x", "digest": WEIGHTS}}


def fleet(count: int, **changes: Any) -> World:
    checked = changes.pop("spec", spec())
    return World.of(*[node(f"n{i:02}") for i in range(count)], spec=checked, **changes)


def switching(answers: dict[str, Answer]) -> Any:
    return lambda on, _gpu, _count: answers.get(on, Answer())


def test_a_change_that_rolls_over_the_fleet_leaves_nobody_marked() -> None:
    """Something that no fingerprint shows changes node after node, one a sweep, with the same new bits everywhere."""
    answers: dict[str, Answer] = {}
    world = fleet(6, engine=switching(answers), spec=spec(action={"mode": "Mark", "maxMarkedPercent": 100}))
    world.settle()
    for name in sorted(world.nodes):
        answers[name] = Answer(digest=BAD)
        world.sweep()
    world.sweep()
    assert world.marked() == set()
    assert "Divergent" not in world.verdicts().values()


def test_two_nodes_with_the_same_new_bits_are_both_left_alone() -> None:
    answers = {"n01": Answer(digest=BAD)}
    world = fleet(6, engine=switching(answers))
    world.settle()
    assert world.marked() == {"n01"}
    answers["n04"] = Answer(digest=BAD)
    world.sweep()
    assert (world.reasons()["n01"], world.reasons()["n04"]) == ("DifferenceShared", "DifferenceShared")
    assert world.marked() == set()


def test_two_nodes_that_are_broken_each_in_its_own_way_are_both_found() -> None:
    answers = {"n01": Answer(digest=BAD), "n04": Answer(digest=OTHER)}
    world = fleet(6, engine=switching(answers), spec=spec(action={"mode": "Mark", "maxMarkedPercent": 50}))
    world.settle()
    assert world.marked() == {"n01", "n04"}


def test_a_bad_roll_out_of_weights_that_reaches_every_node_ends_in_verdicts_not_in_an_error() -> None:
    answers = {"b": Answer(digest=BAD, weights=WRONG_WEIGHTS)}
    world = three_nodes(spec=spec(engine=STATED), engine=switching(answers))
    world.settle()
    assert world.marked() == {"b"}
    answers |= {name: Answer(digest=BAD, weights=WRONG_WEIGHTS) for name in "ac"}
    world.sweep()
    assert world.verdicts()["b"] == "Divergent"
    assert world.condition("Consistent") == ("False", "NodesDiverge")


def test_asking_for_more_launches_does_not_convict_a_repaired_node() -> None:
    answers = {"b": Answer(digest=BAD)}
    world = three_nodes(spec=spec(launches={"pinned": 1, "asServed": 0}), engine=switching(answers))
    world.settle()
    answers.clear()
    world.sweep()
    assert world.verdicts()["b"] == "Consistent"
    world.spec = spec(launches={"pinned": 2, "asServed": 0})
    plan = decide(world.observe())
    assert not any(judged.verdict.value == "Divergent" for judged in plan.judgements)


def test_two_halves_of_clean_visits_clear_nothing() -> None:
    answers = {"b": Answer(digest=BAD)}
    world = three_nodes(engine=switching(answers))
    world.settle()
    answers.clear()
    world.sweep()
    world.sweep()
    whole = list(world.launches)
    late = [launch for launch in whole if launch.node == "b" and launch.digest == GOOD]
    halves = {launch.evidence for launch in late if launch.launch == 1}
    world.launches = [launch for launch in whole if launch.evidence not in halves]
    assert [j.verdict.value for j in decide(world.observe()).judgements if j.node == "b"] == ["Divergent"]


def test_a_visit_that_lost_a_launch_is_no_result_and_is_tried_again_soon() -> None:
    world = three_nodes()
    world.step()
    lost = next(launch for launch in world.launches if launch.node == "b" and launch.launch == 1)
    world.launches.remove(lost)
    world.step()
    visit = next(visit for visit in world.visits if visit.node == "b")
    assert visit.reason.value != "AsExpected"
    assert "1 of 2 launches reported" in visit.message
    for _ in range(8):
        world.step()
    assert [start.node.name for start in world.started].count("b") == 2


def test_a_node_that_cannot_be_visited_does_not_hold_up_the_vote() -> None:
    world = World.of(node("a"), node("b"), node("c"), node("d", unschedulable=True), spec=spec())
    world.engine = bad_on("b", Answer(digest=BAD))
    world.settle()
    assert world.verdicts() == {"a": "Consistent", "b": "Divergent", "c": "Consistent", "d": "Unknown"}


def test_the_first_twenty_nodes_are_a_sample_not_one_rack() -> None:
    """Eleven of the first twenty by name share a wrong state: they must not become the baseline of all forty."""
    rack = {f"n{i:02}" for i in range(11)}
    world = fleet(
        40,
        engine=lambda on, _gpu, _count: Answer(digest=BAD) if on in rack else Answer(),
        spec=spec(action={"mode": "Mark", "maxMarkedNodes": 40, "maxMarkedPercent": 100}),
    )
    world.settle(steps=300)
    assert world.marked() - rack == set()
    assert world.marked() == set(), "eleven nodes with the same bits are a camp"
    assert {world.verdicts()[name] for name in world.nodes.keys() - rack} == {"Consistent"}


def test_a_control_that_was_under_way_when_the_suspect_differed_is_not_fresh() -> None:
    world = three_nodes(engine=bad_on("b", Answer(digest=BAD)))
    world.settle()
    for index, launch in enumerate(world.launches):
        if launch.purpose is Purpose.CONTROL:
            world.launches[index] = replace(launch, visit_started_at=launch.received_at - timedelta(hours=9))
    world.entries.clear()
    plan = decide(world.observe())
    assert [j.reason.value for j in plan.judgements if j.node == "b"] == ["Confirming"]


def test_accepting_a_variant_adds_to_the_baseline_and_convicts_nobody_who_keeps_to_it() -> None:
    answers: dict[str, Answer] = {}
    world = three_nodes(engine=switching(answers))
    world.settle()
    answers |= {"b": Answer(digest=OTHER), "c": Answer(digest=OTHER)}
    world.sweep()
    world.spec = spec(acceptedVariants=[OTHER])
    world.settle()
    assert set(world.verdicts().values()) == {"Consistent"}


def test_two_nodes_that_share_a_wrong_weight_file_do_not_convict_the_third() -> None:
    shared = Answer(digest=BAD, weights=WRONG_WEIGHTS)
    world = three_nodes(engine=switching({"b": shared, "c": shared}))
    world.settle()
    assert world.marked() == set()
    assert "Divergent" not in world.verdicts().values()


def test_a_glitch_of_long_ago_on_two_nodes_does_not_switch_the_judgement_off() -> None:
    glitch = {"n00", "n01"}
    answers: dict[str, Answer] = {}
    world = fleet(
        6,
        engine=lambda on, _gpu, _count: replace(answers.get(on, Answer()), differing_rounds=int(on in glitch)),
    )
    world.settle()
    glitch.clear()
    answers["n03"] = Answer(digest=BAD)
    world.sweep()
    assert world.verdicts()["n03"] == "Divergent"


def test_a_gpu_is_judged_in_the_group_of_its_newest_launch_alone() -> None:
    """nvidia-smi failed once, so the product was not known once: that group of one must not stay for ever."""
    once = {"b": 2}

    def engine(on: str, _gpu: str, _count: int) -> Answer:
        if once.get(on, 0):
            once[on] -= 1
            return Answer(product="")
        return Answer()

    world = three_nodes(engine=engine)
    world.settle()
    world.sweep()
    assert world.verdicts()["b"] == "Consistent"


def test_a_mixed_visit_tells_of_the_launch_that_differed() -> None:
    seen = {"b": 0}

    def engine(on: str, _gpu: str, _count: int) -> Answer:
        seen[on] = seen.get(on, 0) + 1
        mixed = on == "b" and seen[on] == 5  # the second launch of the third visit
        return Answer(digest=GOOD if on != "b" or mixed else BAD)

    world = three_nodes(engine=engine)
    world.settle()
    world.sweep()
    told = next(judged for judged in decide(world.observe()).judgements if judged.node == "b")
    guilty = next(launch for launch in world.launches if launch.evidence == told.evidence)
    assert guilty.digest == BAD
    assert GOOD[:19] not in told.message.split(", accepted")[0]


def test_a_swapped_gpu_frees_its_node_and_the_new_one_is_judged() -> None:
    world = three_nodes(engine=lambda _on, gpu, _count: Answer(digest=BAD) if gpu == "GPU-b-0" else Answer())
    world.settle()
    assert world.marked() == {"b"}
    swap(world, "b", "GPU-new")
    for _ in range(3):
        world.sweep()
    assert world.marked() == set()
    assert world.verdicts()["b"] == "Consistent"


def test_a_swapped_gpu_is_seen_although_the_spec_was_edited_meanwhile() -> None:
    world = three_nodes(engine=lambda _on, gpu, _count: Answer(digest=BAD) if gpu == "GPU-b-0" else Answer())
    world.settle()
    swap(world, "b", "GPU-new")
    world.spec = spec(prompts={"maxTokens": 32})
    for _ in range(3):
        world.sweep()
    assert world.marked() == set()


def test_a_gpu_that_is_only_busy_is_not_taken_for_gone() -> None:
    world = World.of(node("a", gpus=2), node("b", gpus=2), node("c", gpus=2), spec=spec())
    world.engine = lambda _on, gpu, _count: Answer(digest=BAD) if gpu == "GPU-b-0" else Answer()
    world.settle()
    assert world.marked() == {"b"}
    world.given["b"] = ["GPU-b-1"]
    for _ in range(4):
        world.sweep()
    assert world.marked() == {"b"}


def test_after_an_edit_the_standing_gpu_is_met_again_among_eight() -> None:
    broken = {"GPU-b-5"}
    world = World.of(*[node(name, gpus=8) for name in "abc"], spec=spec())
    world.engine = lambda _on, gpu, _count: Answer(digest=BAD) if gpu in broken else Answer()
    world.settle()
    for _ in range(8):
        world.sweep()
    assert world.marked() == {"b"}
    broken.clear()
    world.spec = spec(prompts={"maxTokens": 32})
    world.settle()
    assert world.marked() == set()


def test_every_open_gpu_of_a_node_is_met_in_turn() -> None:
    broken = {"GPU-b-0": BAD, "GPU-b-1": OTHER}
    world = World.of(*[node(name, gpus=2) for name in "abc"], spec=spec())
    world.engine = lambda _on, gpu, _count: Answer(digest=broken.get(gpu, GOOD))
    for _ in range(6):
        world.sweep()
    assert [gpu.uuid for gpu in world.entries["b"].gpus] == ["GPU-b-0", "GPU-b-1"]
    del broken["GPU-b-1"]
    for _ in range(4):
        world.sweep()
    assert [gpu.uuid for gpu in world.entries["b"].gpus] == ["GPU-b-0"]


def test_a_gpu_has_one_entry_while_a_standing_verdict_is_judged_anew() -> None:
    world = three_nodes(engine=bad_on("b", Answer(digest=BAD)))
    world.settle()
    world.spec = spec(prompts={"maxTokens": 32})
    for _ in range(6):
        world.step()
        assert len(world.entries["b"].gpus) == len({gpu.uuid for gpu in world.entries["b"].gpus})
        assert world.marked() == {"b"}


def test_a_node_that_opts_out_in_mid_visit_is_left_alone_at_once() -> None:
    world = three_nodes(pending={"b"})
    world.step()
    world.nodes["b"] = replace(world.nodes["b"], labels={"steadyfleet.dev/exclude": "true"})
    plan = decide(world.observe())
    assert [visit.reason.value for visit in plan.visits if visit.node == "b"] == ["Superseded"]


def test_confirming_and_control_visits_do_not_put_off_a_nodes_turn() -> None:
    world = three_nodes(engine=bad_on("b", Answer(digest=BAD)))
    world.settle()
    turns = [visit for visit in world.visits if visit.purpose is Purpose.SWEEP]
    extra = [visit for visit in world.visits if visit.purpose is not Purpose.SWEEP]
    assert extra
    world.now = max(turn.ended_at for turn in turns) + timedelta(seconds=3600)
    assert {start.node.name for start in decide(world.observe()).start} == {"a", "b", "c"}


@pytest.mark.parametrize("kind", [Outcome.ENGINE_EXITED, Outcome.ENGINE_ERROR])
def test_pinned_launches_that_failed_beside_an_as_served_one_that_did_not_are_not_judged(kind: Outcome) -> None:
    world = three_nodes(spec=spec(launches={"pinned": 1, "asServed": 1}))
    world.settle()
    for index, launch in enumerate(world.launches):
        if launch.kind is LaunchKind.PINNED:
            world.launches[index] = replace(launch, outcome=kind, digest="")
    assert {j.reason.value for j in decide(world.observe()).judgements} == {"PinDoesNotHold"}


def swap(world: World, name: str, uuid: str) -> None:
    """The node's only GPU is replaced by one with another UUID."""
    world.given[name] = [uuid]
