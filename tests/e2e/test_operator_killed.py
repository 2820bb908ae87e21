"""The operator may be killed at any moment: the sweep goes on where it was, no slot ever has two Jobs, and no report
that was acknowledged is lost."""

from __future__ import annotations

import random
import time
from functools import partial

import pytest

from steadyfleet_contract.report import Outcome, TerminationMessage
from steadyfleet_operator.reasons import Reason
from tests.cluster.images import ENGINE_IMAGE
from tests.e2e.checks import LiveCheck, simulated
from tests.e2e.lab import LEASE_SECONDS, Lab
from tests.e2e.recorder import Recorder

KILLS = 10
SEED = 20
SLOTS = 2
LAUNCHES = 2

CHECK = simulated(
    "killed",
    {
        "launches.pinned": LAUNCHES,
        "engine.simulation.launchMilliseconds": 2500,
        "engine.simulation.divergentNodes": ["gpu-2"],
        # Enough visits, and the shortest interval there is: they go on for as long as the kills do.
        "versions": [{"name": name, "image": ENGINE_IMAGE} for name in ("one", "two", "three")],
        "schedule.intervalSeconds": 60,
        "schedule.maxConcurrent": SLOTS,
    },
)


@pytest.mark.timeout(600)
def test_killing_the_operator_at_any_moment_neither_doubles_a_visit_nor_loses_a_report(lab: Lab) -> None:
    with Recorder(lab.cluster, "killed") as recorder, lab.check(CHECK) as check:
        uid = check.uid
        _kill_again_and_again(lab, check)
        check.wait_verdicts(
            {"gpu-1": "Consistent", "gpu-2": "Divergent", "gpu-3": "Consistent"}, timeout_seconds=150
        )
        check.patch({"suspend": True})
        check.wait(lambda: not check.jobs() and not check.slots(), what="all visits have ended")
        visits = lab.evidence.visits(uid)
        launches = lab.evidence.launches(uid)

    doubled = {attempt: uids for attempt, uids in recorder.jobs_by_attempt().items() if len(uids) > 1}
    assert not doubled, "a second Job was made for one attempt of a slot"
    assert recorder.most_pods_of_a_slot() == 1
    assert recorder.most_pods_at_once() == SLOTS, "the cap was exceeded, or never reached"

    acknowledged = {
        (pod_uid, launch.launch)
        for pod_uid, pod in recorder.last_pods().items()
        for launch in _said_at_the_end(pod).launches
        if launch.posted
    }
    stored = [(launch.pod_uid, launch.launch) for launch in launches]
    assert len(stored) == len(set(stored)), "a launch is stored twice"
    assert acknowledged <= set(stored), "a report was acknowledged and is not in the evidence store"
    assert len(acknowledged) >= LAUNCHES * 6, "too few visits ended to prove anything"
    assert not lab.evidence.broken()

    assert len({(visit.slot, visit.attempt) for visit in visits}) == len(visits)
    ended = [visit for visit in visits if visit.reason is not Reason.SUSPENDED]
    assert {visit.reason for visit in ended} == {Reason.AS_EXPECTED}
    for visit in ended:
        mine = [launch for launch in launches if (launch.slot, launch.attempt) == (visit.slot, visit.attempt)]
        assert len(mine) == visit.launches
        assert {launch.outcome for launch in mine} == {Outcome.COMPLETED}
        assert {launch.node for launch in mine} == {visit.node}


def _kill_again_and_again(lab: Lab, check: LiveCheck) -> None:
    """Each time when an operator has begun to act, and then some. A process that is killed twice in one pod would wait
    for the kubelet's back-off, so pods are replaced in between."""
    moments = random.Random(SEED)  # noqa: S311  not for secrets
    for number in range(KILLS):
        before = lab.operator.identity()
        time.sleep(moments.uniform(0, 6))  # the moment is the point
        pod = lab.operator.pod()
        if number % 2 == 0:
            lab.operator.kill_process(pod)
        else:
            lab.operator.kill_pod(pod["metadata"]["name"])
        check.wait(
            partial(_another_holds, lab, before), what="another operator holds the Lease",
            timeout_seconds=LEASE_SECONDS + 60,
        )  # fmt: skip


def _another_holds(lab: Lab, before: str) -> bool:
    return lab.operator.identity() not in ("", before)


def _said_at_the_end(pod: dict) -> TerminationMessage:  # type: ignore[type-arg]
    for status in pod["status"].get("containerStatuses", []):
        if message := status["state"].get("terminated", {}).get("message"):
            return TerminationMessage.model_validate_json(message)
    return TerminationMessage()
