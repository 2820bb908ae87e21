"""A node with eight GPUs of which one is bad: a visit meets one of them, and the other seven neither hide nor clear
it."""

from __future__ import annotations

import pytest

from steadyfleet_operator.reasons import Reason
from tests.cluster.gpus import RESOURCE
from tests.e2e.checks import simulated
from tests.e2e.lab import GPUS, Lab

NODE = "gpu-3"


@pytest.mark.timeout(400)
def test_one_bad_gpu_of_eight_is_found_and_cleared_by_launches_of_its_own_alone(lab: Lab) -> None:
    uuids = lab.cluster.gpu_uuids(NODE)
    bad = uuids[5]
    changes = {"engine.simulation.divergentGpus": [bad], "action.mode": "Mark"}
    try:
        # The kubelet gives any GPU that is healthy: so a visit meets whom we let it meet.
        _offer(lab, set(uuids) - {bad})
        with lab.check(simulated("eight", changes)) as check:
            check.wait_verdicts(dict.fromkeys(GPUS, "Consistent"))

            _offer(lab, {bad})
            check.sweep_by_hand()
            check.wait(lambda: lab.marks() == {NODE}, what="the bad GPU is found", timeout_seconds=120)
            entry = check.entries()[NODE]
            assert entry["verdict"] == "Divergent"
            assert [(gpu["uuid"], gpu["verdict"]) for gpu in entry["gpus"]] == [(bad, "Divergent")]
            assert entry["consistentGPUs"] >= 1
            assert check.get()["status"]["divergent"][0]["gpu"] == bad

            _offer(lab, set(uuids) - {bad})
            visits = len(lab.evidence.visits(check.uid))
            check.sweep_by_hand()
            check.wait(
                lambda: any(
                    visit.node == NODE and visit.reason is Reason.GPU_NOT_GIVEN
                    for visit in lab.evidence.visits(check.uid)[visits:]
                ),
                what="a visit that got only the other seven says that it did not meet the bad one",
            )
            assert check.verdicts()[NODE] == "Divergent"
            assert lab.marks() == {NODE}, "seven good GPUs do not clear the eighth"
            assert check.condition("Ready")["status"] == "True"

            _offer(lab, set(uuids))
            check.patch({"engine": {"simulation": {"divergentGpus": []}}})
            check.sweep_by_hand()
            check.wait_verdicts(dict.fromkeys(GPUS, "Consistent"))
            check.wait(lambda: lab.marks() == set(), what="the mark is gone")
            last = [launch for launch in lab.evidence.launches(check.uid) if launch.node == NODE][-1]
            assert (last.gpus, last.wanted_gpu) == ((bad,), bad), "cleared by the GPU itself, picked out of eight"
    finally:
        _offer(lab, set(uuids))


def _offer(lab: Lab, healthy: set[str]) -> None:
    for uuid in lab.cluster.gpu_uuids(NODE):
        lab.cluster.set_gpu_health(NODE, uuid, healthy=uuid in healthy)
    lab.cluster.wait_for(
        lambda: lab.node(NODE)["status"]["allocatable"][RESOURCE] == str(len(healthy)),
        what=f"{NODE} offers {len(healthy)} GPUs",
    )
