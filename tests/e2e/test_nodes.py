"""Nodes that go away in mid-visit: the visit ends with a reason, nothing is blamed, and the node is visited again."""

from __future__ import annotations

import pytest

from steadyfleet_operator.reasons import Reason
from tests.e2e.checks import simulated
from tests.e2e.lab import Lab

LONG = {"engine.simulation.launchMilliseconds": 50_000}


@pytest.mark.timeout(300)
def test_a_node_that_is_deleted_in_mid_visit_is_forgotten_and_visited_anew_when_it_comes_back(lab: Lab) -> None:
    node = lab.quiet_node()
    with lab.check(simulated("node-deleted", LONG, nodes=[node])) as check:
        check.wait_running()
        old = lab.node(node)["metadata"]["uid"]
        lab.cluster.kubectl("delete", "node", node)
        try:
            check.wait(lambda: lab.evidence.visits(check.uid), what="the visit has ended")
            (visit,) = lab.evidence.visits(check.uid)
            assert (visit.reason, visit.node_uid) == (Reason.NODE_GONE, old)
            assert node in visit.message
            check.wait_condition("Ready", "NoNodesSelected")
            check.wait(lambda: check.entries() == {}, what="nothing is said of a node that is gone")
            check.patch({"engine": {"simulation": {"launchMilliseconds": 100}}})
        finally:
            lab.cluster.restart_kubelet(node)
            lab.wait_node_ready(node)
        new = lab.node(node)["metadata"]["uid"]
        assert new != old
        check.wait(
            lambda: {launch.node_uid for launch in lab.evidence.launches(check.uid)} == {new},
            what="a launch of the new node", timeout_seconds=120,
        )  # fmt: skip
        check.wait(lambda: len(lab.evidence.visits(check.uid)) == 2, what="its visit is recorded")
        last = lab.evidence.visits(check.uid)[1]
        assert (last.reason, last.node_uid) == (Reason.AS_EXPECTED, new)
        assert last.attempt > visit.attempt or last.slot != visit.slot
        check.wait(lambda: check.entries()[node]["lastResultTime"], what="the new node has a result")


@pytest.mark.timeout(300)
def test_a_node_that_crashes_in_mid_visit_is_not_blamed_and_visited_again(lab: Lab) -> None:
    node = lab.quiet_node()
    with lab.check(simulated("node-crash", LONG, nodes=[node])) as check:
        check.wait_running()
        lab.cluster.stop_node(node)
        try:
            check.wait(lambda: check.entries()[node]["reason"] == "NodeNotReady", what="the node is seen to be away")
            assert check.entries()[node]["verdict"] == "Unknown"
            assert len(check.jobs()) == 1, "no second Job while nobody knows what the first one does"
        finally:
            lab.cluster.start_node(node)
        check.wait(lambda: lab.evidence.visits(check.uid), what="the visit has ended", timeout_seconds=120)
        visit = lab.evidence.visits(check.uid)[0]
        assert visit.reason not in (Reason.AS_EXPECTED, Reason.NODE_GONE)
        assert check.verdicts() == {node: "Unknown"}
        check.patch({"engine": {"simulation": {"launchMilliseconds": 100}}})
        check.sweep_by_hand()
        check.wait(lambda: lab.evidence.launches(check.uid), what="visited again", timeout_seconds=120)
