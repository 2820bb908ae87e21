"""What a node shall carry, judged from the node as it is and from all checks that speak of it."""

from __future__ import annotations

import pytest

from steadyfleet_operator.decide.marks import MarkAction, wanted_mark
from steadyfleet_operator.decide.observation import Node, NodeMark
from steadyfleet_operator.resource import LABEL_EXCLUDE, NodeCheck, NodeStatus, Verdict
from tests.unit.decide.fleet import node

BARE = node("a")
MESSAGE = "serving/x: differs"
MARKED = node("a", mark=NodeMark("True", "GPUDiverges", MESSAGE), labelled=True)
RECOVERED = node("a", mark=NodeMark("False", "Recovered", "no check finds a divergent GPU"))


def entry(name: str = "x", *, marked: bool = False, may_mark: bool = True) -> NodeCheck:
    return NodeCheck(
        namespace="serving",
        name=name,
        uid="u",
        verdict=Verdict.DIVERGENT if marked else Verdict.CONSISTENT,
        message="differs" if marked else "as accepted",
        may_mark=may_mark,
        marked=marked,
    )


@pytest.mark.parametrize(
    ("live", "entries", "action"),
    [
        pytest.param(BARE, (), None, id="nothing-to-say"),
        pytest.param(BARE, (entry(),), None, id="consistent-and-never-marked"),
        pytest.param(BARE, (entry(marked=True),), MarkAction.MARK, id="divergent"),
        pytest.param(MARKED, (entry(marked=True),), None, id="marked-already"),
        pytest.param(MARKED, (entry(),), MarkAction.RECOVER, id="recovered"),
        pytest.param(RECOVERED, (entry(),), None, id="recovered-already"),
        pytest.param(RECOVERED, (entry(marked=True),), MarkAction.MARK, id="divergent-again"),
        pytest.param(MARKED, (), MarkAction.REMOVE, id="check-deleted"),
        pytest.param(MARKED, (entry(may_mark=False),), MarkAction.REMOVE, id="back-to-observe"),
        pytest.param(RECOVERED, (entry(may_mark=False),), MarkAction.REMOVE, id="false-condition-goes-with-the-mode"),
        pytest.param(MARKED, (entry(), entry("y", marked=True)), MarkAction.MARK, id="another-check-still-marks"),
        pytest.param(node("a", labelled=True), (entry(),), MarkAction.RECOVER, id="label-without-condition"),
        pytest.param(
            node("a", mark=NodeMark("True", "GPUDiverges", MESSAGE)),
            (entry(marked=True),),
            MarkAction.MARK,
            id="label-taken-by-somebody",
        ),
        pytest.param(
            node("a", labels={LABEL_EXCLUDE: "true"}, mark=NodeMark("True"), labelled=True),
            (entry(marked=True),),
            MarkAction.REMOVE,
            id="opted-out",
        ),
    ],
)
def test_the_mark_follows_from_the_node_and_its_entries(
    live: Node, entries: tuple[NodeCheck, ...], action: MarkAction | None
) -> None:
    wanted = wanted_mark(live, NodeStatus(checks=entries))
    assert (wanted.action if wanted else None) is action


def test_the_message_names_every_check_that_marks() -> None:
    wanted = wanted_mark(BARE, NodeStatus(checks=(entry("x", marked=True), entry("y", marked=True), entry("z"))))
    assert wanted is not None
    assert wanted.message == "serving/x: differs; serving/y: differs"
