"""Checks that are deleted or edited in mid-visit, and two checks that want the same GPU."""

from __future__ import annotations

import pytest

from steadyfleet_operator.reasons import Reason
from tests.e2e.checks import simulated
from tests.e2e.lab import Lab
from tests.e2e.recorder import Recorder

pytestmark = pytest.mark.timeout(200)


def test_a_check_that_is_deleted_in_mid_visit_takes_jobs_entries_and_marks_along(lab: Lab) -> None:
    faults = {"engine.simulation.divergentNodes": ["gpu-2"], "action.mode": "Mark"}
    with lab.check(simulated("deleted", faults)) as check:
        check.wait(lambda: lab.marks() == {"gpu-2"}, what="gpu-2 is marked", timeout_seconds=90)
        check.patch({"engine": {"simulation": {"launchMilliseconds": 50_000}}})
        check.sweep_by_hand()
        check.wait_running()
        check.delete()
        lab.wait_empty(check.left_behind, what="what the check left", timeout_seconds=30)
        assert lab.traces() == []


def test_a_check_that_is_edited_in_mid_visit_ends_the_visit_and_makes_it_again_as_it_is_now(lab: Lab) -> None:
    slow = {"engine.simulation.launchMilliseconds": 50_000}
    with lab.check(simulated("edited", slow, nodes=["gpu-1"])) as check:
        check.wait_running()
        check.patch({"prompts": {"maxTokens": 16}, "engine": {"simulation": {"launchMilliseconds": 100}}})
        check.wait(lambda: lab.evidence.launches(check.uid), what="a launch of the edited check")
        check.wait(lambda: len(lab.evidence.visits(check.uid)) == 2, what="both visits are recorded")
        first, second = lab.evidence.visits(check.uid)
        assert (first.reason, second.reason) == (Reason.SUPERSEDED, Reason.AS_EXPECTED)
        assert first.epoch != second.epoch
        assert {launch.epoch for launch in lab.evidence.launches(check.uid)} == {second.epoch}
        assert check.condition("Ready")["status"] == "True"


def test_two_checks_on_one_gpu_take_turns_and_do_not_touch_each_others_findings(lab: Lab) -> None:
    faults = {"engine.simulation.divergentNodes": ["gpu-2"], "action.mode": "Mark"}
    with (
        Recorder(lab.cluster, "one") as of_one,
        Recorder(lab.cluster, "other") as of_other,
        lab.check(simulated("one", faults)) as one,
    ):
        with lab.check(simulated("other", faults)) as other:
            for check in (one, other):
                check.wait_verdicts({"gpu-1": "Consistent", "gpu-2": "Divergent", "gpu-3": "Consistent"})
            assert lab.marks() == {"gpu-2"}
            message = (lab.condition("gpu-2") or {})["message"]
            assert "steadyfleet/one" in message
            assert "steadyfleet/other" in message
            assert {visit.reason for check in (one, other) for visit in lab.evidence.visits(check.uid)} == {
                Reason.AS_EXPECTED
            }
        assert lab.marks() == {"gpu-2"}, "one of the two still says so"
        lab.cluster.wait_for(
            lambda: "steadyfleet/other" not in (lab.condition("gpu-2") or {})["message"], what="the other says no more"
        )
        assert one.verdicts()["gpu-2"] == "Divergent"
    assert of_one.most_pods_of_a_slot() == of_other.most_pods_of_a_slot() == 1
