"""Who is judged what, over whole sweeps of a small fleet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
    digest_of,
    node,
    spec,
    three_nodes,
)


def stated_weights() -> dict[str, object]:
    return {"model": {"path": "/models/x", "digest": WEIGHTS}}


def test_equal_bits_everywhere_are_consistent() -> None:
    world = three_nodes()
    world.settle()
    assert world.verdicts() == {"a": "Consistent", "b": "Consistent", "c": "Consistent"}
    assert world.condition("Consistent") == ("True", "AllConsistent")
    assert world.condition("Ready") == ("True", "AsExpected")


def test_a_gpu_that_always_differs_is_divergent_after_a_relaunch_and_a_control() -> None:
    world = three_nodes(engine=bad_on("b", Answer(digest=BAD)))
    world.settle()
    assert world.verdicts() == {"a": "Consistent", "b": "Divergent", "c": "Consistent"}
    purposes = [(start.node.name, start.slot.purpose) for start in world.started]
    assert ("b", Purpose.CONFIRM) in purposes
    assert [purpose for _, purpose in purposes].count(Purpose.CONTROL) == 1
    assert world.marked() == {"b"}
    assert world.entries["b"].cause.value == "Unexplained"


def test_nothing_is_said_before_the_relaunch_and_the_control() -> None:
    world = three_nodes(engine=bad_on("b", Answer(digest=BAD)))
    for _ in range(20):
        world.step()
        if world.verdicts().get("b") == "Divergent":
            break
        assert not world.marked()
    confirms = [start for start in world.started if start.slot.purpose is not Purpose.SWEEP]
    assert {start.slot.purpose for start in confirms} == {Purpose.CONFIRM, Purpose.CONTROL}
    assert all(start.slot.node == "b" for start in confirms if start.slot.purpose is Purpose.CONFIRM)
    assert all(start.slot.node != "b" for start in confirms if start.slot.purpose is Purpose.CONTROL)


def test_wrong_weights_against_the_spec_are_named_as_the_cause() -> None:
    wrong = Answer(digest=BAD, weights=WRONG_WEIGHTS)
    world = three_nodes(spec=spec(engine=stated_weights()), engine=bad_on("c", wrong))
    world.settle()
    assert world.verdicts()["c"] == "Divergent"
    assert (world.entries["c"].cause.value, world.reasons()["c"]) == ("Weights", "WrongWeights")
    assert WRONG_WEIGHTS[:19] in world.entries["c"].message


def test_other_weights_than_the_others_are_named_but_not_blamed_when_the_spec_states_none() -> None:
    """Two of three nodes may share the wrong file: nobody can say which one is right."""
    world = three_nodes(engine=bad_on("c", Answer(digest=BAD, weights=WRONG_WEIGHTS)))
    world.settle()
    assert (world.verdicts()["c"], world.reasons()["c"]) == ("NotComparable", "SurroundingsDiffer")
    assert "weights.digest" in world.entries["c"].message


def test_a_repaired_gpu_is_cleared_by_the_next_sweep() -> None:
    answers = {"b": Answer(digest=BAD)}
    world = three_nodes(engine=lambda on, _gpu, _count: answers.get(on, Answer()))
    world.settle()
    assert world.marked() == {"b"}
    answers.clear()
    world.sweep()
    assert world.verdicts()["b"] == "Consistent"
    assert not world.marked()
    assert [note.reason.value for note in world.events if note.reason.value.startswith("Node")] == [
        "NodeMarked",
        "NodeUnmarked",
    ]


def test_a_divergent_gpu_stays_so_while_its_visits_fail() -> None:
    answers = {"b": Answer(digest=BAD)}
    world = three_nodes(engine=lambda on, _gpu, _count: answers.get(on, Answer()))
    world.settle()
    answers["b"] = Answer(outcome=Outcome.ENGINE_EXITED, message="rc 1")
    world.sweep()
    assert world.verdicts()["b"] == "Divergent"
    assert world.marked() == {"b"}


def test_one_odd_launch_is_not_confirmed_and_never_marks() -> None:
    odd = {"b": 2}

    def engine(on: str, _gpu: str, _count: int) -> Answer:
        if on == "b" and odd["b"]:
            odd["b"] -= 1
            return Answer(digest=BAD)
        return Answer()

    world = three_nodes(engine=engine)
    world.settle()
    assert (world.verdicts()["b"], world.reasons()["b"]) == ("Unknown", "NotConfirmed")
    assert not any(note.reason.value == "NodeMarked" for note in world.events)
    world.sweep()
    assert world.verdicts()["b"] == "Consistent"


def test_a_control_that_moved_as_well_blames_nobody() -> None:
    """A change that reaches the whole fleet between two sweeps must not convict the GPU that was visited first."""
    moved = {"after": 10**9}
    world = three_nodes(engine=lambda _on, _gpu, count: Answer(digest=BAD if count >= moved["after"] else GOOD))
    world.spec = spec(schedule={"intervalSeconds": 3600, "maxConcurrent": 1})
    world.settle()
    moved["after"] = len(world.launches)
    world.sweep()
    assert "Divergent" not in world.verdicts().values()
    assert not world.marked()


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_nodes_are_not_comparable(count: int) -> None:
    world = World.of(*[node(f"n{i}") for i in range(count)], spec=spec())
    world.settle()
    assert set(world.verdicts().values()) == {"NotComparable"}
    assert set(world.reasons().values()) == {"TooFewNodes"}


def test_an_accepted_variant_makes_two_nodes_comparable() -> None:
    world = World.of(node("a"), node("b"), spec=spec(acceptedVariants=[GOOD]), engine=bad_on("b", Answer(digest=BAD)))
    world.settle()
    assert world.verdicts() == {"a": "Consistent", "b": "Divergent"}


def test_an_accepted_variant_of_another_group_changes_nothing() -> None:
    world = three_nodes(spec=spec(acceptedVariants=[OTHER]))
    world.settle()
    assert set(world.verdicts().values()) == {"Consistent"}


def test_three_different_answers_have_no_majority() -> None:
    world = three_nodes(engine=lambda on, _gpu, _count: Answer(digest=digest_of(on)))
    world.settle()
    assert set(world.verdicts().values()) == {"Unknown"}
    assert set(world.reasons().values()) == {"NoMajority"}


def test_two_of_three_moving_from_the_baseline_blames_no_node() -> None:
    answers: dict[str, Answer] = {}
    world = three_nodes(engine=lambda on, _gpu, _count: answers.get(on, Answer()))
    world.settle()
    answers.update(a=Answer(digest=BAD), b=Answer(digest=BAD))
    world.sweep()
    assert "Divergent" not in world.verdicts().values()
    assert not world.marked()


def test_a_difference_explained_by_the_driver_is_not_comparable_and_names_the_key() -> None:
    drivers = {"gpu": {"driver_version": "580.1"}}
    others = {"gpu": {"driver_version": "570.9"}}
    world = three_nodes(
        engine=lambda on, _gpu, _count: (
            Answer(digest=BAD, fingerprint=others) if on == "b" else Answer(fingerprint=drivers)
        )
    )
    world.settle()
    assert (world.verdicts()["b"], world.reasons()["b"]) == ("NotComparable", "SurroundingsDiffer")
    assert "gpu.driver_version" in world.entries["b"].message
    assert not world.marked()


def test_differences_between_gpus_by_nature_explain_nothing() -> None:
    world = three_nodes(
        engine=lambda on, gpu, _count: Answer(
            digest=BAD if on == "b" else GOOD, fingerprint={"gpu": {"uuid": gpu}, "host": {"hostname": on}}
        )
    )
    world.settle()
    assert world.verdicts()["b"] == "Divergent"


def test_repeats_that_differ_on_two_nodes_make_the_version_unjudgeable() -> None:
    world = three_nodes(
        engine=lambda on, _gpu, count: Answer(digest=GOOD if on != "c" else digest_of(str(count)), differing_rounds=2)
    )
    world.settle()
    assert "Divergent" not in world.verdicts().values()


def test_launches_that_were_not_pinned_after_all_are_not_judged() -> None:
    world = three_nodes(engine=lambda on, _gpu, _count: Answer(digest=digest_of(on), kind=LaunchKind.AS_SERVED))
    world.settle()
    assert set(world.reasons().values()) == {"PinDoesNotHold"}


def test_as_served_launches_never_change_a_verdict() -> None:
    world = three_nodes(spec=spec(launches={"pinned": 1, "asServed": 2}))
    world.engine = lambda on, _gpu, _count: Answer()
    world.settle()
    world.launches = [
        replace(launch, digest=digest_of(str(i))) if launch.kind is LaunchKind.AS_SERVED else launch
        for i, launch in enumerate(world.launches)
    ]
    world.step()
    assert set(world.verdicts().values()) == {"Consistent"}


def test_groups_of_different_gpu_products_are_never_compared() -> None:
    nodes = [node(name) for name in ("a", "b", "c", "d", "e", "f")]
    world = World.of(
        *nodes,
        spec=spec(),
        engine=lambda on, _gpu, _count: Answer(digest=BAD, product="H100") if on in "abc" else Answer(product="H200"),
    )
    world.settle()
    assert set(world.verdicts().values()) == {"Consistent"}


def test_one_bad_gpu_of_eight_is_found_and_its_seven_neighbours_neither_hide_nor_clear_it() -> None:
    world = World.of(
        node("a", gpus=8),
        node("b", gpus=8),
        node("c", gpus=8),
        spec=spec(),
        engine=lambda _on, gpu, _count: Answer(digest=BAD) if gpu == "GPU-b-5" else Answer(),
    )
    world.settle()
    for _ in range(8):
        world.sweep()
    assert [gpu.uuid for gpu in world.entries["b"].gpus] == ["GPU-b-5"]
    assert world.entries["b"].verdict.value == "Divergent"
    assert world.entries["b"].consistent_gpus >= 5
    # Sweeps of the good neighbours do not clear it, since each revisit must meet the bad one.
    world.sweep()
    assert world.verdicts()["b"] == "Divergent"


def test_a_gpu_that_comes_back_under_a_new_node_is_still_divergent() -> None:
    world = three_nodes(engine=lambda _on, gpu, _count: Answer(digest=BAD) if gpu == "GPU-b-0" else Answer())
    world.settle()
    world.nodes["b"] = replace(world.nodes["b"], uid="uid-b-second")
    world.entries.pop("b")  # the NodeConsistency of the old node goes with it
    world.settle()
    assert world.verdicts()["b"] == "Divergent"


def test_an_edited_spec_starts_anew_but_a_standing_mark_remains_until_the_gpu_is_clean() -> None:
    answers = {"b": Answer(digest=BAD)}
    world = three_nodes(engine=lambda on, _gpu, _count: answers.get(on, Answer()))
    world.settle()
    world.spec = world.spec.model_copy(update={"prompts": world.spec.prompts.model_copy(update={"max_tokens": 32})})
    world.pending = {"a", "b", "c"}
    world.step()
    assert world.marked() == {"b"}
    answers.clear()
    world.pending = set()
    world.settle()
    assert world.verdicts()["b"] == "Consistent"
    assert not world.marked()


def test_a_lost_evidence_store_does_not_lift_a_mark() -> None:
    world = three_nodes(engine=bad_on("b", Answer(digest=BAD)))
    world.settle()
    world.launches.clear()
    world.visits.clear()
    plan = decide(world.observe())
    entry = plan.node_checks.get("b", world.entries["b"])
    assert entry is not None
    assert entry.verdict.value == "Divergent"
    assert entry.marked


def test_a_result_that_got_too_old_says_nothing_any_more() -> None:
    world = three_nodes()
    world.settle()
    world.pending = {"a", "b", "c"}
    for _ in range(3):
        world.sweep()
    assert set(world.reasons().values()) == {"ResultExpired"}
    assert world.status.fleet.stale == 3


def test_half_a_clean_visit_clears_nothing() -> None:
    answers = {"b": Answer(digest=BAD)}
    world = three_nodes(engine=lambda on, _gpu, _count: answers.get(on, Answer()))
    world.settle()
    answers.clear()
    world.sweep()
    whole = world.launches.copy()
    mine = [launch for launch in whole if launch.node == "b"]
    world.launches = [launch for launch in whole if launch is not mine[-1]]
    plan = decide(world.observe())
    assert [judged.verdict.value for judged in plan.judgements if judged.node == "b"] == ["Divergent"]
    world.launches = whole
    plan = decide(world.observe())
    assert [judged.verdict.value for judged in plan.judgements if judged.node == "b"] == ["Consistent"]


@st.composite
def fleets(draw: st.DrawFn) -> World:
    """Up to seven nodes whose launches answer anything."""
    names = [f"n{i}" for i in range(draw(st.integers(1, 7)))]
    table = {
        name: draw(st.lists(st.sampled_from([GOOD, GOOD, GOOD, BAD, OTHER]), min_size=1, max_size=6)) for name in names
    }
    counts = dict.fromkeys(names, 0)

    def engine(on: str, _gpu: str, _count: int) -> Answer:
        answers = table[on]
        counts[on] += 1
        return Answer(digest=answers[(counts[on] - 1) % len(answers)])

    return World.of(*[node(name) for name in names], spec=spec(), engine=engine)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fleets())
def test_nobody_is_divergent_without_two_novel_pods_and_a_clean_fresh_control(world: World) -> None:
    world.settle(steps=200)
    world.now = world.now.replace(year=world.now.year + 1)
    world.settle(steps=200)
    for name, entry in world.entries.items():
        if entry.verdict.value == "Divergent":
            mine = [launch for launch in world.launches if launch.node == name and launch.digest != GOOD]
            accepted = next(iter(world.baselines.values())).status.accepted
            novel = {launch.pod_uid for launch in world.launches if launch.node == name and launch.digest != accepted}
            assert len(novel) >= 2
            first = min(launch.received_at for launch in world.launches if launch.pod_uid in novel)
            assert any(
                launch.node != name and launch.digest == accepted and launch.received_at > first
                for launch in world.launches
            )
            assert mine or accepted != GOOD


@settings(max_examples=25, deadline=None)
@given(fleets(), st.randoms(use_true_random=False))
def test_the_order_in_which_reports_arrive_late_or_twice_changes_no_verdict(world: World, rng) -> None:  # type: ignore[no-untyped-def]
    world.settle(steps=200)
    before = decide(world.observe())
    nodes = list(world.nodes.values())
    rng.shuffle(nodes)
    world.nodes = {n.name: n for n in nodes}
    rng.shuffle(world.visits)
    world.visits.sort(key=lambda visit: visit.ended_at)
    assert decide(world.observe()).judgements == before.judgements
