"""Reports that do not come from a probe at work, or do not say what was asked: refused, with the field and the reason,
and nothing of them is stored. All sent over TLS to the operator's pod."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from steadyfleet_contract.wire import MAX_REPORT_BYTES
from tests.e2e.checks import Json, LiveCheck, simulated
from tests.e2e.lab import Lab
from tests.e2e.reports import asked_of, failed_report, post, token_of

HANGS = {"engine.simulation.hangNodes": ["gpu-1", "gpu-2"], "schedule.launchDeadlineSeconds": 300}
"""The probe is there and reports nothing of its own."""


class Visit:
    """A probe at work, its order, and its token."""

    def __init__(self, lab: Lab, check: LiveCheck) -> None:
        self.check = check
        self.uid = check.uid
        self.pod = check.wait_running()
        self.asked = asked_of(self.pod)
        self.token = token_of(lab, self.pod)


@pytest.fixture(scope="module")
def visit(installed: Lab) -> Iterator[Visit]:
    with installed.check(simulated("hangs", HANGS, nodes=["gpu-1"])) as check:
        yield Visit(installed, check)


def test_a_report_without_a_token_is_refused(lab: Lab, visit: Visit) -> None:
    answer = post(lab, failed_report(visit.asked))
    assert (answer.status, answer.reason, answer.field) == (401, "NoToken", "Authorization")
    assert lab.evidence.launches(visit.uid) == []


def test_a_token_for_another_audience_is_refused(lab: Lab, visit: Visit) -> None:
    answer = post(lab, failed_report(visit.asked), token=token_of(lab, visit.pod, audience=""))
    assert (answer.status, answer.reason, answer.field) == (401, "TokenRefused", "Authorization")
    assert lab.evidence.launches(visit.uid) == []


def test_a_token_that_no_api_server_made_is_refused(lab: Lab, visit: Visit) -> None:
    answer = post(lab, failed_report(visit.asked), token="eyJhbGciOiJub25lIn0.e30.")
    assert (answer.status, answer.reason) == (401, "TokenRefused")


def test_a_token_that_is_bound_to_no_pod_is_refused(lab: Lab, visit: Visit) -> None:
    answer = post(lab, failed_report(visit.asked), token=token_of(lab))
    assert (answer.status, answer.reason) == (403, "TokenWithoutPod")


def test_a_pod_that_is_no_probe_is_refused(lab: Lab, visit: Visit) -> None:
    answer = post(lab, failed_report(visit.asked), token=token_of(lab, lab.operator.pod()))
    assert (answer.status, answer.reason) == (403, "NotAProbe")
    assert lab.operator.pod()["metadata"]["name"] in answer.message


@pytest.mark.timeout(120)
def test_another_probe_cannot_report_for_this_one(lab: Lab, visit: Visit) -> None:
    """The token says whose report it is: that of the other visit, which was asked something else."""
    other_check = simulated("hangs-too", HANGS | {"prompts.maxTokens": 32}, nodes=["gpu-2"])
    with lab.check(other_check) as check:
        other = Visit(lab, check)
        answer = post(lab, failed_report(visit.asked), token=other.token)
        assert (answer.status, answer.reason, answer.field) == (422, "NotAsked", "epoch")
        assert lab.evidence.launches(visit.uid) == []
        assert lab.evidence.launches(other.uid) == []


@pytest.mark.parametrize("compressed", [False, True], ids=["as it is", "a small body that unpacks to a large one"])
def test_a_report_that_is_too_large_is_refused(lab: Lab, visit: Visit, compressed: bool) -> None:
    body = b" " * (MAX_REPORT_BYTES + 1)
    answer = post(lab, body, token=visit.token, compressed=compressed)
    assert (answer.status, answer.reason) == (413, "TooLarge")
    assert str(MAX_REPORT_BYTES) in answer.message


def test_a_field_that_does_not_fit_is_named(lab: Lab, visit: Visit) -> None:
    report: Json = json.loads(failed_report(visit.asked))
    answer = post(lab, json.dumps(report | {"launch": 64}).encode(), token=visit.token)
    assert (answer.status, answer.reason, answer.field) == (422, "FieldInvalid", "launch")
    answer = post(lab, json.dumps(report | {"node": "gpu-3"}).encode(), token=visit.token)
    assert (answer.status, answer.reason, answer.field) == (422, "FieldInvalid", "node")


def test_a_launch_that_was_not_asked_for_is_refused(lab: Lab, visit: Visit) -> None:
    answer = post(lab, failed_report(visit.asked, launch=5), token=visit.token)
    assert (answer.status, answer.reason, answer.field) == (422, "NotAsked", "launch")


def test_refusals_are_counted_by_reason(lab: Lab, visit: Visit) -> None:
    before = lab.operator.metric("steadyfleet_reports_total").get('{result="NoToken"}', 0.0)
    post(lab, failed_report(visit.asked))
    assert lab.operator.metric("steadyfleet_reports_total")['{result="NoToken"}'] == before + 1


@pytest.mark.timeout(120)
def test_a_report_that_comes_twice_counts_once_and_a_contradiction_is_refused(lab: Lab) -> None:
    with lab.check(simulated("twice", HANGS, nodes=["gpu-2"])) as check:
        visit = Visit(lab, check)
        body = failed_report(visit.asked)
        first = post(lab, body, token=visit.token, compressed=True)
        again = post(lab, body, token=visit.token)
        other = post(lab, failed_report(visit.asked, message="something else"), token=visit.token)
        assert (first.status, first.duplicate) == (200, False)
        assert (again.status, again.duplicate) == (200, True)
        assert (other.status, other.reason, other.field) == (409, "Conflicting", "launch")
        (stored,) = lab.evidence.launches(visit.uid)
        assert (stored.node, stored.pod_uid, stored.message) == (
            "gpu-2", visit.pod["metadata"]["uid"], "sent by a test",
        )  # fmt: skip


@pytest.mark.timeout(120)
def test_a_report_after_the_end_of_its_visit_is_refused(lab: Lab) -> None:
    """The pod is held by a finalizer, as by a kubelet that takes its time; its Job is being deleted."""
    with lab.check(simulated("late", HANGS, nodes=["gpu-2"])) as check:
        visit = Visit(lab, check)
        name = visit.pod["metadata"]["name"]
        _set_finalizers(lab, name, ["example.com/held-by-a-test"])
        try:
            check.patch({"suspend": True})
            check.wait(
                lambda: all("deletionTimestamp" in job["metadata"] for job in check.jobs()), what="the visit is over"
            )
            answer = post(lab, failed_report(visit.asked), token=visit.token)
            assert (answer.status, answer.reason) == (410, "JobGone")
            assert name in answer.message
            assert check.slots(), "the slot was given away while its pod was still there"
        finally:
            _set_finalizers(lab, name, [])
        assert lab.evidence.launches(visit.uid) == []
        check.wait(lambda: not check.slots(), what="the slot is free once the pod is gone")

        gone = post(lab, failed_report(visit.asked), token=visit.token)
        assert gone.status in (401, 410), "the token of a pod that is gone"


def _set_finalizers(lab: Lab, pod: str, finalizers: list[str]) -> None:
    body = json.dumps({"metadata": {"finalizers": finalizers or None}})
    lab.cluster.kubectl("patch", "pod", pod, "-n", "steadyfleet", "--type=merge", "-p", body)
