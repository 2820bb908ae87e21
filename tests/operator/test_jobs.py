"""Probe Jobs on a real API server with its controllers and scheduler; this test plays the kubelet."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from steadyfleet_contract import wire
from steadyfleet_contract.spec import ProbeSpec
from steadyfleet_operator.decide.observation import Check, Job, JobEnd, Node, Pod, PodPhase
from steadyfleet_operator.errors import Conflict
from steadyfleet_operator.kube.client import KubeClient, PatchType
from steadyfleet_operator.kube.jobs import Jobs
from steadyfleet_operator.kube.podspec import build_job
from steadyfleet_operator.kube.resources import CHECKS, PODS
from steadyfleet_operator.resource import Engine, PodTemplate
from tests.cluster.control_plane import ControlPlane
from tests.operator.builders import a_visit, check_spec, probe_spec, settings
from tests.operator.conftest import MakeCheck, MakeNode, eventually


@pytest.fixture
def jobs(client: KubeClient) -> Jobs:
    return Jobs(client)


def built(check: Check, node: Node, **visit: Any) -> dict[str, Any]:
    return build_job(a_visit(check, node.name, node.uid, **visit), settings=settings(), report_ca="PEM")


async def the_pod(jobs: Jobs, job: Job) -> Pod:
    """Once the scheduler has bound it."""
    found: list[Pod] = []

    async def bound() -> bool:
        found[:] = [pod for pod in await jobs.list_pods(job.namespace, "qwen") if pod.job_uid == job.uid and pod.node]
        return bool(found)

    await eventually("the Job's pod is bound", bound)
    return found[0]


async def kubelet_says(admin: KubeClient, pod: Pod, **status: Any) -> None:
    body = {"status": status}
    await admin.patch(PODS, pod.name, body, kind=PatchType.MERGE, namespace=pod.namespace, subresource="status")


async def kubelet_removes(control_plane: ControlPlane, pod: Pod) -> None:
    control_plane.kubectl("delete", "pod", pod.name, "-n", pod.namespace, "--grace-period=0", "--force", "--wait=false")


async def gone(jobs: Jobs, job: Job) -> bool:
    return not await jobs.list_jobs(job.namespace, "qwen")


async def test_a_job_comes_back_as_it_was_made(jobs: Jobs, make_check: MakeCheck, make_node: MakeNode) -> None:
    check, node = await make_check(), await make_node()

    created = await jobs.create(built(check, node, slot=3, attempt=8))

    assert await jobs.list_jobs(check.namespace, check.name) == (created,)
    assert (created.name, created.slot, created.attempt, created.node, created.node_uid, created.check_uid) == (
        "sfl-qwen-3", 3, 8, node.name, node.uid, check.uid,
    )  # fmt: skip
    assert created.end is JobEnd.NONE


async def test_the_server_keeps_every_field_of_the_pod(
    jobs: Jobs, admin: KubeClient, make_check: MakeCheck, make_node: MakeNode
) -> None:
    """A misspelt field is dropped in silence: what came back must hold what was sent."""
    check, node = await make_check(), await make_node()
    sent = built(check, node)
    pod = await the_pod(jobs, await jobs.create(sent))

    item = await admin.get(PODS, pod.name, namespace=pod.namespace)

    assert item is not None
    assert missing(sent["spec"]["template"]["spec"], item["spec"]) == []
    assert pod.node == node.name
    (environment,) = (c["env"] for c in item["spec"]["containers"])
    order = next(variable["value"] for variable in environment if variable["name"] == wire.ENV_SPEC)
    assert ProbeSpec.model_validate_json(order) == a_visit(check, node.name, node.uid).probe


def missing(sent: Any, found: Any, path: str = "") -> list[str]:
    """Paths of what was sent and is not there."""
    if isinstance(sent, dict):
        if not isinstance(found, dict):
            return [path]
        return [gap for key, value in sent.items() for gap in missing(value, found.get(key), f"{path}.{key}")]
    if isinstance(sent, list):
        if not isinstance(found, list):
            return [path]
        keyed = all(isinstance(entry, dict) and "name" in entry for entry in sent)
        if keyed:
            by_name = {entry["name"]: entry for entry in found}
            pairs = [(entry["name"], entry, by_name.get(entry["name"])) for entry in sent]
            return [gap for name, entry, other in pairs for gap in missing(entry, other, f"{path}[{name}]")]
        return [] if all(any(missing(entry, other) == [] for other in found) for entry in sent) else [path]
    return [] if sent == found or (not sent and found is None) else [path]


async def test_a_slots_name_is_taken_until_its_pod_is_gone(
    jobs: Jobs, make_check: MakeCheck, make_node: MakeNode, control_plane: ControlPlane
) -> None:
    """The cap is on pods: a deleted Job whose pod still runs must hold its slot."""
    check, node = await make_check(), await make_node()
    job = await jobs.create(built(check, node))
    pod = await the_pod(jobs, job)

    assert await jobs.delete(job)

    (lingering,) = await jobs.list_jobs(check.namespace, check.name)
    assert (lingering.uid, lingering.deleting) == (job.uid, True)
    with pytest.raises(Conflict, match="being deleted"):
        await jobs.create(built(check, node, attempt=2))

    await kubelet_removes(control_plane, pod)

    await eventually("the Job is gone with its pod", lambda: gone(jobs, job))
    assert (await jobs.create(built(check, node, attempt=2))).attempt == 2


async def test_two_jobs_of_one_slot_cannot_exist(jobs: Jobs, make_check: MakeCheck, make_node: MakeNode) -> None:
    check, node = await make_check(), await make_node()
    await jobs.create(built(check, node))

    with pytest.raises(Conflict, match="already exists"):
        await jobs.create(built(check, node, attempt=2))


async def test_a_job_of_another_uid_is_not_deleted(jobs: Jobs, make_check: MakeCheck, make_node: MakeNode) -> None:
    check, node = await make_check(), await make_node()
    job = await jobs.create(built(check, node))
    stale = replace(job, uid="00000000-0000-0000-0000-000000000000")

    assert not await jobs.delete(stale)

    assert not (await jobs.list_jobs(check.namespace, check.name))[0].deleting


async def test_a_deleted_check_takes_its_jobs_along(
    jobs: Jobs, admin: KubeClient, make_check: MakeCheck, make_node: MakeNode, control_plane: ControlPlane
) -> None:
    check, node = await make_check(), await make_node()
    job = await jobs.create(built(check, node))
    pod = await the_pod(jobs, job)

    await admin.delete(CHECKS, check.name, uid=check.uid, namespace=check.namespace)

    await eventually("the garbage collector takes the Job", lambda: gone(jobs, job))

    async def pod_ends() -> bool:
        return all(found.deleting for found in await jobs.list_pods(check.namespace, check.name))

    await eventually("the garbage collector ends the pod", pod_ends)
    await kubelet_removes(control_plane, pod)


async def test_a_node_without_a_free_gpu_leaves_the_pod_waiting_with_the_reason(
    jobs: Jobs, make_check: MakeCheck, make_node: MakeNode
) -> None:
    check, node = await make_check(), await make_node(gpus=0)
    await jobs.create(built(check, node))

    async def told() -> bool:
        pods = await jobs.list_pods(check.namespace, check.name)
        return bool(pods and pods[0].waiting and pods[0].waiting.reason == "Unschedulable")

    await eventually("the scheduler gives up on the pod", told)
    (pod,) = await jobs.list_pods(check.namespace, check.name)
    assert pod.waiting is not None
    assert "Insufficient nvidia.com/gpu" in pod.waiting.message
    assert (pod.node, pod.phase) == ("", PodPhase.PENDING)


async def test_preemption_is_told_apart_from_failure(
    jobs: Jobs, admin: KubeClient, make_check: MakeCheck, make_node: MakeNode, control_plane: ControlPlane
) -> None:
    check, node = await make_check(), await make_node()
    yielding, failing = await jobs.create(built(check, node, slot=0)), await jobs.create(built(check, node, slot=1))
    preempted, failed = await the_pod(jobs, yielding), await the_pod(jobs, failing)
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "by x"}
    ended = {"name": "engine", "image": "x", "imageID": "x", "ready": False, "restartCount": 0}
    ended |= {"state": {"terminated": {"exitCode": 143, "reason": "Error"}}}

    await kubelet_says(admin, preempted, phase="Failed", conditions=[disrupted], containerStatuses=[ended])
    await kubelet_says(admin, failed, phase="Failed", containerStatuses=[ended])

    async def both_ended() -> bool:
        return all(job.end is JobEnd.FAILED for job in await jobs.list_jobs(check.namespace, check.name))

    await eventually("the job controller fails both", both_ended)
    reasons = {job.slot: job.end_reason for job in await jobs.list_jobs(check.namespace, check.name)}
    assert reasons == {0: "PodFailurePolicy", 1: "BackoffLimitExceeded"}
    pods = {pod.slot: pod.disrupted for pod in await jobs.list_pods(check.namespace, check.name)}
    assert pods == {0: "PreemptionByScheduler", 1: ""}


# Trial of a pod that nobody creates.


async def test_a_pod_that_the_namespace_takes_is_not_refused(
    jobs: Jobs, make_check: MakeCheck, make_node: MakeNode
) -> None:
    check, node = await make_check(), await make_node()

    assert await jobs.refusal(built(check, node)) == ""
    assert await jobs.list_pods(check.namespace, check.name) == ()


async def test_pod_security_is_told_in_the_servers_words_and_met_by_the_users_fields(
    jobs: Jobs, make_check: MakeCheck, make_node: MakeNode, control_plane: ControlPlane
) -> None:
    as_the_user_says = PodTemplate(security_context={"runAsNonRoot": True, "runAsUser": 2000})
    engine = Engine(model=probe_spec().model, pod=as_the_user_says)
    plain, careful, node = await make_check(), await make_check("careful", check_spec(engine=engine)), await make_node()
    enforce = "pod-security.kubernetes.io/enforce=restricted"
    control_plane.kubectl("label", "namespace", plain.namespace, enforce)

    async def enforced() -> bool:
        return await jobs.refusal(built(plain, node)) != ""

    await eventually("the label takes effect", enforced)
    refusal = await jobs.refusal(built(plain, node))

    assert "violates PodSecurity" in refusal
    assert "runAsNonRoot" in refusal
    assert "allowPrivilegeEscalation" not in refusal, "our own defaults meet the rest of `restricted`"
    assert await jobs.refusal(built(careful, node)) == ""


async def test_a_quota_is_told_in_the_servers_words(
    jobs: Jobs, make_check: MakeCheck, make_node: MakeNode, control_plane: ControlPlane
) -> None:
    check, node = await make_check(), await make_node()
    control_plane.kubectl("create", "quota", "none", "--hard=pods=0", "-n", check.namespace)

    async def enforced() -> bool:
        return await jobs.refusal(built(check, node)) != ""

    await eventually("the quota takes effect", enforced)
    assert "exceeded quota: none" in await jobs.refusal(built(check, node))


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ({"volumes": ({"name": "v", "hostPath": "/models"},)}, "hostPath"),
        ({"volume_mounts": ({"name": "absent", "mountPath": "/models"},)}, "absent"),
        ({"runtime_class_name": "nowhere"}, "nowhere"),
        ({"service_account_name": "nobody"}, "nobody"),
    ],
    ids=["wrong type", "no such volume", "no such runtime class", "no such service account"],
)
async def test_a_pod_template_that_cannot_work_is_told_in_the_servers_words(
    template: dict[str, Any], words: str, jobs: Jobs, make_check: MakeCheck, make_node: MakeNode
) -> None:
    engine = Engine(model=probe_spec().model, pod=PodTemplate(**template))
    check, node = await make_check(spec=check_spec(engine=engine)), await make_node()

    assert words in await jobs.refusal(built(check, node))


# Free GPUs.


def user_pod(name: str, node: str, **resources: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "i", "resources": {"limits": resources}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"nodeName": node, "containers": containers},
    }


async def test_free_units_are_what_no_pod_on_the_node_asks_for(
    jobs: Jobs, admin: KubeClient, make_node: MakeNode, namespace: str
) -> None:
    node, other = await make_node(gpus=8), await make_node(gpus=8)
    gpu = "nvidia.com/gpu"
    await admin.create(PODS, user_pod("serving", node.name, **{gpu: "2"}), namespace=namespace)
    await admin.create(PODS, user_pod("cpu", node.name, cpu="1"), namespace=namespace)
    await admin.create(PODS, user_pod("elsewhere", other.name, **{gpu: "4"}), namespace=namespace)
    initial = user_pod("initial", node.name, **{gpu: "1"})
    initial["spec"]["initContainers"] = [{"name": "i", "image": "i", "resources": {"limits": {gpu: "3"}}}]
    await admin.create(PODS, initial, namespace=namespace)
    await admin.create(PODS, user_pod("done", node.name, **{gpu: "1"}), namespace=namespace)
    body = {"status": {"phase": "Succeeded"}}
    await admin.patch(PODS, "done", body, kind=PatchType.MERGE, namespace=namespace, subresource="status")

    assert await jobs.free_units(node, gpu) == 8 - 2 - 3
    assert await jobs.free_units(other, gpu) == 4
    assert await jobs.free_units(node, "amd.com/gpu") == 0


async def test_all_jobs_of_ours_can_be_cleared_and_only_those(
    jobs: Jobs, make_check: MakeCheck, make_node: MakeNode, control_plane: ControlPlane
) -> None:
    check, node = await make_check(), await make_node()
    await jobs.create(built(check, node, slot=0))
    await jobs.create(built(check, node, slot=1))
    control_plane.kubectl("create", "job", "other", "--image=i", "-n", check.namespace)

    assert await jobs.delete_all((check.namespace,)) == 2

    listed = json.loads(control_plane.kubectl("get", "jobs", "-n", check.namespace, "-o", "json").stdout)["items"]
    assert [job["metadata"]["name"] for job in listed if "deletionTimestamp" not in job["metadata"]] == ["other"]
