"""Serving comes first: a pod of normal priority takes the GPU from a probe as if the probe were not there."""

from __future__ import annotations

import time

import pytest

from steadyfleet_operator.reasons import Reason
from tests.cluster.progress import say
from tests.e2e import pods
from tests.e2e.checks import simulated
from tests.e2e.lab import Lab

PATIENCE_SECONDS = 10.0
"""How much longer a serving pod may wait because of a probe: its grace period is 5 s."""


@pytest.mark.timeout(300)
def test_a_serving_pod_takes_the_gpu_at_once_and_the_visit_is_made_again_later(lab: Lab) -> None:
    with lab.pod(pods.with_gpus("serves-alone", node="gpu-2")) as name:
        undisturbed = _seconds_until_it_runs(lab, name)
    slow = {"engine.simulation.launchMilliseconds": 40_000, "schedule.intervalSeconds": 60}
    with lab.check(simulated("yields", slow, nodes=["gpu-2"])) as check:
        check.wait_running()
        with lab.pod(pods.with_gpus("serves-first", node="gpu-2")) as name:
            beside_a_probe = _seconds_until_it_runs(lab, name)
            check.wait(lambda: lab.evidence.visits(check.uid), what="the visit is recorded")
            check.wait(lambda: not check.jobs() and not check.pods(), what="nothing is left of the visit")
        say(f"a serving pod runs after {undisturbed:.1f} s, after {beside_a_probe:.1f} s beside a probe")
        assert beside_a_probe < undisturbed + PATIENCE_SECONDS

        (visit,) = lab.evidence.visits(check.uid)
        assert visit.reason is Reason.PREEMPTED
        assert "PreemptionByScheduler" in visit.message
        entry = check.entries()["gpu-2"]
        assert (entry["verdict"], entry["reason"]) == ("Unknown", "Preempted")
        assert check.condition("Ready")["status"] == "True", "a probe that yields is no fault of the check"

        check.patch({"engine": {"simulation": {"launchMilliseconds": 100}}})
        check.wait(
            lambda: lab.evidence.launches(check.uid), what="the visit is made again by itself", timeout_seconds=120
        )
        (launch,) = lab.evidence.launches(check.uid)
        assert launch.attempt > visit.attempt


def _seconds_until_it_runs(lab: Lab, name: str) -> float:
    began = time.monotonic()
    lab.cluster.wait_for(
        lambda: pods.is_running(lab.cluster, name), what=f"pod {name} runs", timeout_seconds=60, poll_seconds=0.1
    )
    return time.monotonic() - began
