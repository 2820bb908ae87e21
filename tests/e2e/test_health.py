"""Liveness and readiness tell the truth, and of two operators only the one that holds the Lease acts."""

from __future__ import annotations

import time

import pytest

from tests.e2e.checks import Json, simulated
from tests.e2e.lab import LEASE_SECONDS, Lab
from tests.e2e.operator import is_ready


def test_the_leader_is_alive_ready_and_says_so_in_its_metrics(lab: Lab) -> None:
    assert lab.operator.get("/livez") == (200, "ok")
    assert lab.operator.get("/readyz") == (200, "ok")
    assert lab.operator.metric("steadyfleet_leader") == {"": 1.0}


@pytest.mark.timeout(240)
def test_of_two_operators_one_waits_unready_and_takes_over_within_the_lease(lab: Lab) -> None:
    lab.operator.scale(2)
    try:
        lab.cluster.wait_for(lambda: len(_with_address(lab)) == 2, what="two operators run")
        leader = lab.operator.holder()
        (waiting,) = (pod for pod in _with_address(lab) if pod["metadata"]["name"] != leader)
        lab.cluster.wait_for(lambda: lab.operator.get("/livez", waiting)[0] == 200, what="the second is alive")
        assert lab.operator.get("/readyz", waiting) == (500, "waiting for the Lease")
        assert lab.operator.metric("steadyfleet_leader", waiting) == {"": 0.0}
        name = str(waiting["metadata"]["name"])

        with lab.check(simulated("two-operators", nodes=["gpu-1"])) as check:
            check.wait(lambda: lab.evidence.launches(check.uid), what="the leader acts")
            assert lab.operator.holder() == leader
            assert lab.operator.metric("steadyfleet_visits_total", waiting) == {}
            assert not is_ready(_named(lab, name))

            lab.operator.kill_pod(leader)
            killed = time.monotonic()
            check.wait(lambda: lab.operator.holder() == name, what="the second takes over")
            assert time.monotonic() - killed < LEASE_SECONDS + 5
            lab.cluster.wait_for(lambda: is_ready(_named(lab, name)), what="the new leader is ready")
            before = len(lab.evidence.launches(check.uid))
            check.sweep_by_hand()
            check.wait(lambda: len(lab.evidence.launches(check.uid)) > before, what="the new leader acts")
            check.wait(lambda: lab.operator.metric("steadyfleet_visits_total", _named(lab, name)), what="it counts")
    finally:
        lab.operator.scale(1)
        lab.cluster.wait_for(lambda: len(lab.operator.pods()) == 1, what="one operator again")
        lab.operator.wait_ready()


def _with_address(lab: Lab) -> list[Json]:
    return [pod for pod in lab.operator.pods() if pod["status"].get("podIP")]


def _named(lab: Lab, name: str) -> Json:
    (found,) = (pod for pod in lab.operator.pods() if pod["metadata"]["name"] == name)
    return found
