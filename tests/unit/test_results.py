"""The order of a node's entries: `kubectl get nodeconsistencies` shows the first one alone."""

from __future__ import annotations

import itertools

import pytest

from steadyfleet_operator.kube.results import with_entry
from steadyfleet_operator.resource import VERDICT_SEVERITY, NodeCheck, NodeStatus, Verdict

WORST_FIRST = tuple(sorted(Verdict, key=lambda verdict: -VERDICT_SEVERITY[verdict]))


def entry(name: str, verdict: Verdict) -> NodeCheck:
    return NodeCheck(namespace="serving", name=name, uid="1", verdict=verdict)


def test_every_verdict_has_its_place() -> None:
    assert sorted(WORST_FIRST) == sorted(Verdict)


@pytest.mark.parametrize("arrival", list(itertools.permutations(Verdict)), ids=lambda arrival: "-".join(arrival))
def test_the_worst_verdict_is_shown_whoever_wrote_last(arrival: tuple[Verdict, ...]) -> None:
    status = NodeStatus()
    for number, verdict in enumerate(arrival):
        status = with_entry(status, entry(f"check-{number}", verdict))
    assert tuple(found.verdict for found in status.checks) == WORST_FIRST


def test_equal_verdicts_are_in_the_order_of_their_checks() -> None:
    status = with_entry(with_entry(NodeStatus(), entry("b", Verdict.CONSISTENT)), entry("a", Verdict.CONSISTENT))
    assert [found.name for found in status.checks] == ["a", "b"]


def test_a_new_verdict_replaces_that_of_its_check_alone() -> None:
    status = NodeStatus(checks=(entry("a", Verdict.CONSISTENT), entry("b", Verdict.CONSISTENT)))
    changed = with_entry(status, entry("b", Verdict.DIVERGENT))
    assert [(found.name, found.verdict) for found in changed.checks] == [
        ("b", Verdict.DIVERGENT),
        ("a", Verdict.CONSISTENT),
    ]
