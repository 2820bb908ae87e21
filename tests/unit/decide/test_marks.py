"""When a node is to be marked: mode, namespace, breaker."""

from __future__ import annotations

from tests.unit.decide.fleet import BAD, Answer, World, bad_on, digest_of, node, spec, three_nodes

BROKEN = bad_on("b", Answer(digest=BAD))


def big(count: int, broken: int, **action: object) -> World:
    names = [f"n{i:02}" for i in range(count)]
    bad = set(names[:broken])
    return World.of(
        *[node(name) for name in names],
        spec=spec(action={"mode": "Mark"} | action, schedule={"intervalSeconds": 3600, "maxConcurrent": 8}),
        engine=lambda on, _gpu, _count: Answer(digest=digest_of(on)) if on in bad else Answer(),
    )


def test_observe_mode_judges_but_never_marks() -> None:
    world = three_nodes(spec=spec(action={"mode": "Observe"}), engine=BROKEN)
    world.settle()
    assert world.verdicts()["b"] == "Divergent"
    assert world.marked() == set()
    assert world.condition("MarkingAllowed") == ("False", "ObserveOnly")


def test_going_back_to_observe_unmarks() -> None:
    world = three_nodes(engine=BROKEN)
    world.settle()
    assert world.marked() == {"b"}
    world.spec = spec(action={"mode": "Observe"})
    world.step()
    assert world.marked() == set()


def test_a_namespace_that_may_not_mark_marks_nothing() -> None:
    world = three_nodes(engine=BROKEN, may_mark=False)
    world.settle()
    assert world.marked() == set()
    assert world.condition("MarkingAllowed") == ("False", "MarkingNamespaceNotAllowed")


def test_the_breaker_holds_back_all_new_marks_and_says_so() -> None:
    world = big(40, 5, maxMarkedNodes=3, maxMarkedPercent=100)
    world.settle(steps=200)
    assert world.status.fleet.divergent == 5
    assert len(world.marked()) <= 3
    assert world.condition("MarkingAllowed") == ("False", "TooManyDiverge")


def test_the_share_counts_beside_the_number_and_small_fleets_may_mark_one() -> None:
    world = three_nodes(engine=BROKEN, spec=spec(action={"mode": "Mark", "maxMarkedPercent": 5}))
    world.settle()
    assert world.marked() == {"b"}


def test_an_open_breaker_never_blocks_clearing() -> None:
    broken = {"n00", "n01", "n02"}
    world = big(30, 3, maxMarkedNodes=3, maxMarkedPercent=100)
    world.engine = lambda on, _gpu, _count: Answer(digest=digest_of(on)) if on in broken else Answer()
    world.settle(steps=200)
    assert world.marked() == {"n00", "n01", "n02"}
    broken |= {"n03", "n04"}
    world.sweep()
    assert world.condition("MarkingAllowed") == ("False", "TooManyDiverge")
    assert world.marked() == {"n00", "n01", "n02"}
    broken -= {"n00"}
    world.sweep()
    assert "n00" not in world.marked()
    assert world.verdicts()["n00"] == "Consistent"
