"""Raw Jobs, Pods and Nodes, as the API server sends them, and what is read from them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from steadyfleet_contract.report import TerminationMessage
from steadyfleet_operator.decide.observation import Job, JobEnd, Pod, PodPhase, Terminated, Waiting
from steadyfleet_operator.kube.fields import whole
from steadyfleet_operator.kube.fleet import parse_node
from steadyfleet_operator.kube.podparse import parse_job, parse_pod
from steadyfleet_operator.resource import Purpose
from tests.operator.builders import node_manifest

AT = "2026-03-01T12:00:00Z"
MOMENT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

LABELS = {"steadyfleet.dev/check": "qwen", "steadyfleet.dev/check-uid": "c-uid", "steadyfleet.dev/slot": "2"}
NOTES = {
    "steadyfleet.dev/attempt": "7",
    "steadyfleet.dev/node": "gpu-1",
    "steadyfleet.dev/node-uid": "n-uid",
    "steadyfleet.dev/version": "stable",
    "steadyfleet.dev/epoch": "0123456789abcdef",
    "steadyfleet.dev/purpose": "Control",
    "steadyfleet.dev/gpu": "GPU-a",
}


def raw_job(*conditions: tuple[str, str, str], **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "serving", "name": "sfl-qwen-2", "uid": "j-uid", "creationTimestamp": AT,
            "labels": LABELS, "annotations": NOTES, **metadata,
        },
        "status": {
            "conditions": [
                {"type": kind, "status": "True", "reason": reason, "message": text, "lastTransitionTime": AT}
                for kind, reason, text in conditions
            ]
        },
    }  # fmt: skip


def raw_pod(*, phase: str = "Pending", node: str = "gpu-1", **status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "serving", "name": "sfl-qwen-2-abcde", "uid": "p-uid", "creationTimestamp": AT,
            "labels": {**LABELS, "batch.kubernetes.io/job-name": "sfl-qwen-2"}, "annotations": NOTES,
            "ownerReferences": [{"kind": "Job", "uid": "j-uid"}],
        },
        "spec": {"nodeName": node, "containers": [{"name": "engine", "image": "registry.example/vllm:1"}]},
        "status": {"phase": phase, **status},
    }  # fmt: skip


def container(name: str = "engine", **state: Any) -> dict[str, Any]:
    return {"name": name, "image": "x", "imageID": "sha256:abc", "state": state}


def test_a_job_tells_what_it_was_made_for() -> None:
    assert parse_job(raw_job()) == Job(
        namespace="serving", name="sfl-qwen-2", uid="j-uid", check_uid="c-uid", slot=2, attempt=7, node="gpu-1",
        node_uid="n-uid", version="stable", epoch="0123456789abcdef", purpose=Purpose.CONTROL, gpu="GPU-a",
        created=MOMENT,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("conditions", "end", "reason"),
    [
        ([], JobEnd.NONE, ""),
        ([("FailureTarget", "PodFailurePolicy", "m")], JobEnd.NONE, ""),
        ([("SuccessCriteriaMet", "", "")], JobEnd.NONE, ""),
        ([("FailureTarget", "Preempted", "m"), ("Failed", "PodFailurePolicy", "m")], JobEnd.FAILED, "PodFailurePolicy"),
        ([("Failed", "BackoffLimitExceeded", "m")], JobEnd.FAILED, "BackoffLimitExceeded"),
        ([("SuccessCriteriaMet", "", ""), ("Complete", "Completed", "")], JobEnd.COMPLETE, "Completed"),
    ],
    ids=["running", "failing", "succeeding", "preempted", "failed", "complete"],
)  # fmt: skip
def test_a_jobs_end_is_read_from_the_final_conditions(
    conditions: list[tuple[str, str, str]], end: JobEnd, reason: str
) -> None:
    job = parse_job(raw_job(*conditions))

    assert (job.end, job.end_reason) == (end, reason)
    assert job.ended_at == (MOMENT if end is not JobEnd.NONE else None)


def test_a_job_that_is_being_deleted_says_so() -> None:
    assert parse_job(raw_job(deletionTimestamp=AT)).deleting


@pytest.mark.parametrize(
    "metadata",
    [{"annotations": {}}, {"annotations": None}, {"annotations": {**NOTES, "steadyfleet.dev/attempt": "-3"}},
     {"annotations": {**NOTES, "steadyfleet.dev/attempt": "٣"}}],
    ids=["none", "null", "negative", "digits of another script"],
)  # fmt: skip
def test_a_job_with_broken_annotations_matches_no_attempt(metadata: dict[str, Any]) -> None:
    assert parse_job(raw_job(**metadata)).attempt == -1


def test_a_job_with_an_unknown_purpose_counts_as_a_sweep() -> None:
    assert parse_job(raw_job(annotations={**NOTES, "steadyfleet.dev/purpose": "Else"})).purpose is Purpose.SWEEP


def unschedulable(message: str) -> dict[str, Any]:
    return {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"conditions": [unschedulable("0/3 nodes")]}, Waiting("Unschedulable", "0/3 nodes")),
        (
            {"containerStatuses": [container(waiting={"reason": "ImagePullBackOff", "message": "Back-off"})]},
            Waiting("ImagePullBackOff", "engine: Back-off"),
        ),
        (
            {
                "initContainerStatuses": [container("copy", waiting={"reason": "ErrImageNeverPull", "message": "no"})],
                "containerStatuses": [container(waiting={"reason": "PodInitializing"})],
            },
            Waiting("ErrImageNeverPull", "copy: no"),
        ),
        (
            {
                "initContainerStatuses": [container("copy", terminated={"exitCode": 0})],
                "containerStatuses": [container(waiting={"reason": "PodInitializing"})],
            },
            Waiting("Pulling", "engine: image registry.example/vllm:1 is still being pulled"),
        ),
        (
            {
                "initContainerStatuses": [container("copy", running={})],
                "containerStatuses": [container(waiting={"reason": "PodInitializing"})],
            },
            None,
        ),
        ({"containerStatuses": [container(waiting={"reason": "ContainerCreating"})]}, None),
        ({}, None),
    ],
    ids=["no free gpu", "pull", "probe image", "still pulling", "copying", "starting", "new"],
)
def test_why_a_pod_waits(status: dict[str, Any], expected: Waiting | None) -> None:
    assert parse_pod(raw_pod(**status)).waiting == expected


def test_a_running_pod_waits_for_nothing() -> None:
    pod = parse_pod(
        raw_pod(
            phase="Running",
            startTime=AT,
            conditions=[{"type": "PodScheduled", "status": "True", "lastTransitionTime": AT}],
            containerStatuses=[container(running={"startedAt": AT})],
        )
    )

    assert (pod.phase, pod.waiting) == (PodPhase.RUNNING, None)
    assert pod.running_at == MOMENT
    assert (pod.image, pod.image_id) == ("registry.example/vllm:1", "sha256:abc")
    assert (pod.job, pod.job_uid, pod.check_uid, pod.slot, pod.attempt) == ("sfl-qwen-2", "j-uid", "c-uid", 2, 7)


def ended(**state: Any) -> Pod:
    return parse_pod(raw_pod(phase="Failed", containerStatuses=[container(terminated=state)]))


def test_the_probes_last_words_are_parsed() -> None:
    left = TerminationMessage(message="could not post").model_dump_json(by_alias=True)

    pod = ended(exitCode=3, reason="Error", message=left, startedAt=AT, finishedAt=AT)

    assert pod.terminated == Terminated("engine", 3, "Error", left)
    assert pod.termination == TerminationMessage(message="could not post")


def test_foreign_last_words_are_kept_as_text() -> None:
    pod = ended(exitCode=128, reason="StartError", message="exec: not found", startedAt="1970-01-01T00:00:00Z")

    assert pod.terminated is not None
    assert pod.terminated.message == "exec: not found"
    assert (pod.termination, pod.running_at) == (None, None)


def test_a_failed_init_container_is_named() -> None:
    statuses = [container("copy", terminated={"exitCode": 1, "reason": "Error"})]

    pod = parse_pod(raw_pod(phase="Failed", initContainerStatuses=statuses))

    assert pod.terminated is not None
    assert (pod.terminated.container, pod.terminated.exit_code) == ("copy", 1)


def test_an_init_container_that_did_its_work_is_no_end() -> None:
    pod = parse_pod(raw_pod(phase="Running", initContainerStatuses=[container("copy", terminated={"exitCode": 0})]))

    assert pod.terminated is None


def test_a_disruption_is_told_by_its_condition() -> None:
    disruption = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "by x"}

    pod = parse_pod(raw_pod(phase="Failed", conditions=[disruption]))

    assert (pod.disrupted, pod.disrupted_message) == ("PreemptionByScheduler", "by x")


def test_a_pod_that_the_kubelet_turned_away_says_why() -> None:
    pod = parse_pod(raw_pod(phase="Failed", reason="UnexpectedAdmissionError", message="no device"))

    assert (pod.failed_reason, pod.failed_message) == ("UnexpectedAdmissionError", "no device")


@pytest.mark.parametrize("status", [{}, {"conditions": None, "containerStatuses": None}], ids=["empty", "null"])
def test_a_pod_without_a_status_can_be_read(status: dict[str, Any]) -> None:
    pod = parse_pod(raw_pod(phase="", node="", **status))

    assert (pod.phase, pod.node, pod.waiting) == (PodPhase.UNKNOWN, "", None)


def test_a_node_keeps_the_fields_in_use() -> None:
    taints = [{"key": "k", "effect": "NoSchedule"}]
    raw = node_manifest("gpu-1", gpus=8, labels={"a": "b"}, unschedulable=True, taints=taints)
    raw["metadata"] |= {"uid": "n-uid", "deletionTimestamp": AT}
    raw["status"]["conditions"].append({"type": "SteadyfleetDivergent", "status": "True", "reason": "GPUDiverges"})

    node = parse_node(raw)

    assert (node.name, node.uid, node.labels["a"], node.unschedulable, node.deleting, node.ready) == (
        "gpu-1", "n-uid", "b", True, True, True,
    )  # fmt: skip
    assert node.allocatable == {"nvidia.com/gpu": 8}
    assert [taint.key for taint in node.taints] == ["k"]
    assert node.mark is not None
    assert (node.mark.status, node.labelled) == ("True", False)


def test_a_node_that_never_reported_is_not_ready() -> None:
    assert not parse_node({"metadata": {"name": "n", "uid": "u"}}).ready


@pytest.mark.parametrize(("written", "units"), [("8", 8), ("2k", 2000), (8, 8), ("0", 0), ("many", 0)])
def test_amounts_are_read_as_the_api_server_writes_them(written: object, units: int) -> None:
    assert whole(written) == units
