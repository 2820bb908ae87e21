"""Checks that cannot be carried out: a clear message that names the field or the thing, and nothing left behind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from steadyfleet_operator.reasons import Reason
from tests.cluster.images import ENGINE_IMAGE
from tests.e2e import pods
from tests.e2e.checks import Json, LiveCheck, real, simulated
from tests.e2e.lab import RESTRICTED, Lab
from tests.e2e.platform import NAMESPACE

pytestmark = pytest.mark.timeout(150)


def failed_visit(lab: Lab, check: LiveCheck, reason: Reason, *, timeout_seconds: float = 60) -> str:
    """Waits until the visit of gpu-1 has ended so, and that is told in the Ready condition, in an Event and in the
    node's entry. Returns the message."""
    check.wait_condition("Ready", "VisitsFail", status="False", timeout_seconds=timeout_seconds)
    visit = lab.evidence.last_visit(check.uid, "gpu-1")
    assert visit is not None
    assert visit.reason is reason
    assert reason.value in check.condition("Ready")["message"]
    assert visit.message[:100] in check.condition("Ready")["message"]
    check.wait(lambda: check.event(reason.value), what=f"an Event {reason.value}")
    entry = check.entries()["gpu-1"]
    assert (entry["verdict"], entry["reason"]) == ("Unknown", reason.value)
    check.wait(lambda: not check.jobs() and not check.pods(), what="Job and pod are gone")
    return visit.message


def test_a_selector_that_matches_no_node_is_said(lab: Lab) -> None:
    with lab.check(simulated("no-nodes", nodes=["gpu-9"])) as check:
        ready = check.wait_condition("Ready", "NoNodesSelected", status="False")
        assert "spec.nodes.selector" in ready["message"]
        assert check.jobs() == []


@pytest.mark.timeout(240)
def test_a_node_without_a_free_gpu_is_skipped_at_the_pending_deadline_and_visited_once_it_is_free(lab: Lab) -> None:
    with lab.pod(pods.with_gpus("serves", node="gpu-1")):
        lab.cluster.wait_for(lambda: pods.is_running(lab.cluster, "serves"), what="the other pod runs")
        with lab.check(
            simulated("busy", {"schedule.pendingDeadlineSeconds": 5, "schedule.intervalSeconds": 60}, nodes=["gpu-1"])
        ) as check:
            check.wait(lambda: check.event("NoFreeGPU"), what="the visit was skipped")
            visit = lab.evidence.last_visit(check.uid, "gpu-1")
            assert visit is not None
            assert visit.reason is Reason.NO_FREE_GPU
            assert "skipped after 5 s" in visit.message
            assert "nvidia.com/gpu" in visit.message
            assert check.entries()["gpu-1"]["reason"] == "NoFreeGPU"
            assert check.condition("Ready")["status"] == "True", "serving comes first: that is no fault of the check"
            check.wait(lambda: not check.jobs(), what="the Job is gone")
            assert pods.is_running(lab.cluster, "serves"), "the probe must not take the GPU from anybody"

            lab.cluster.kubectl("delete", "pod", "serves", "-n", NAMESPACE, "--now")
            check.wait(lambda: lab.evidence.launches(check.uid), what="visited by itself", timeout_seconds=120)


def test_an_image_that_cannot_be_pulled_is_named_at_the_pending_deadline(lab: Lab) -> None:
    changes = {
        "versions": [{"name": "one", "image": "localhost/absent:1"}],
        "engine.pod.imagePullPolicy": "IfNotPresent",
        "schedule.pendingDeadlineSeconds": 10,
    }
    with lab.check(simulated("no-image", changes, nodes=["gpu-1"])) as check:
        message = failed_visit(lab, check, Reason.IMAGE_PULL_FAILED)
        assert "localhost/absent:1" in message
        assert "skipped after 10 s" in message


def test_an_image_that_will_never_be_there_is_not_waited_for(lab: Lab) -> None:
    changes = {"versions": [{"name": "one", "image": "localhost/absent:1"}], "schedule.pendingDeadlineSeconds": 600}
    with lab.check(simulated("never-image", changes, nodes=["gpu-1"])) as check:
        assert "localhost/absent:1" in failed_visit(lab, check, Reason.IMAGE_PULL_FAILED)


def test_an_engine_that_exits_at_start_is_told_with_its_last_words(lab: Lab) -> None:
    with lab.check(simulated("exits", {"engine.simulation.crashNodes": ["gpu-1"]}, nodes=["gpu-1"])) as check:
        assert "RuntimeError" in failed_visit(lab, check, Reason.ENGINE_EXITED)


def test_an_engine_that_hangs_is_ended_at_the_launch_deadline(lab: Lab) -> None:
    changes = {"engine.simulation.hangNodes": ["gpu-1"], "schedule.launchDeadlineSeconds": 10}
    with lab.check(simulated("hangs", changes, nodes=["gpu-1"])) as check:
        assert "hangs" in failed_visit(lab, check, Reason.ENGINE_NOT_READY)


def test_an_argument_that_vllm_does_not_know_is_told_in_its_own_words(lab: Lab) -> None:
    with lab.check(real("argument", {"engine.arguments": ["--no-such-option=1"]}, nodes=["gpu-1"])) as check:
        message = failed_visit(lab, check, Reason.ARGUMENT_REJECTED, timeout_seconds=120)
        assert "unrecognized arguments: --no-such-option=1" in message


def test_a_model_path_that_is_not_there_is_named(lab: Lab) -> None:
    with lab.check(real("no-model", {"engine.model": {"path": "/models/absent"}}, nodes=["gpu-1"])) as check:
        assert "/models/absent" in failed_visit(lab, check, Reason.MODEL_NOT_FOUND, timeout_seconds=90)


def test_prompts_longer_than_the_models_maximum_are_told_with_both_numbers(lab: Lab) -> None:
    with lab.check(real("too-long", {"engine.arguments": ["--max-model-len=256"]}, nodes=["gpu-1"])) as check:
        message = failed_visit(lab, check, Reason.PROMPTS_TOO_LONG, timeout_seconds=90)
        assert "256" in message
        assert "577" in message


def test_an_engine_that_answers_http_500_is_told_with_what_it_said(lab: Lab) -> None:
    python = pods.place_fake_vllm(lab.cluster, "gpu-1")
    changes: dict[str, Any] = {
        "engine.python": python,
        "engine.environment": [{"name": "FAKE_FAULT", "value": "error"}],
        "engine.arguments": [],
        "engine.pod.volumes": [{"name": "fake", "hostPath": {"path": pods.FAKE_VLLM, "type": "Directory"}}],
        "engine.pod.volumeMounts": [{"name": "fake", "mountPath": pods.FAKE_VLLM, "readOnly": True}],
    }
    with lab.check(real("http-500", changes, nodes=["gpu-1"])) as check:
        assert "HTTP 500" in failed_visit(lab, check, Reason.ENGINE_ERROR, timeout_seconds=90)


def test_a_namespace_with_pod_security_refuses_the_pod_and_takes_one_that_obeys(lab: Lab) -> None:
    manifest = simulated("restricted", nodes=["gpu-1"])
    manifest["metadata"]["namespace"] = RESTRICTED
    with lab.check(manifest) as check:
        ready = check.wait_condition("Ready", "PodRefused", status="False")
        assert "violates PodSecurity" in ready["message"]
        assert "runAsNonRoot" in ready["message"]
        assert check.jobs() == []
        assert check.entries()["gpu-1"]["reason"] == "PodRefused"

        check.patch({"engine": {"pod": {"securityContext": {"runAsNonRoot": True, "runAsUser": 1000}}}})
        check.wait(lambda: lab.evidence.launches(check.uid), what="a launch of the pod that obeys")
        assert check.condition("Ready")["status"] == "True"
        assert check.condition("MarkingAllowed")["reason"] == "ObserveOnly"


def test_a_quota_that_refuses_the_pod_is_told_in_the_servers_words(lab: Lab) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "no-gpus", "namespace": NAMESPACE},
        "spec": {"hard": {"requests.nvidia.com/gpu": "0"}},
    }
    lab.cluster.apply(json.dumps(quota))
    try:
        lab.cluster.wait_for(
            lambda: lab.cluster.get("resourcequota", "no-gpus", "-n", NAMESPACE)["status"].get("hard"),
            what="the quota is in force",
        )
        with lab.check(simulated("quota", nodes=["gpu-1"])) as check:
            ready = check.wait_condition("Ready", "PodRefused", status="False")
            assert "exceeded quota: no-gpus" in ready["message"]
            assert check.jobs() == []
            assert check.slots() == [], "a slot was taken for a pod that can't be"
            lab.cluster.kubectl("delete", "resourcequota", "no-gpus", "-n", NAMESPACE)
            check.wait(lambda: lab.evidence.launches(check.uid), what="visited once the quota is gone")
    finally:
        lab.cluster.kubectl("delete", "resourcequota", "no-gpus", "-n", NAMESPACE, "--ignore-not-found")


def test_one_version_that_is_refused_does_not_keep_the_other_from_being_checked(lab: Lab) -> None:
    """The probe's order of `huge` does not fit into a pod's environment."""
    variables = [{"name": f"LARGE_{number}", "value": "x" * 4096} for number in range(32)]
    changes = {
        "versions": [
            {"name": "huge", "image": ENGINE_IMAGE, "environment": variables},
            {"name": "small", "image": ENGINE_IMAGE},
        ],
        "schedule.maxConcurrent": 1,
    }
    with lab.check(simulated("two-versions", changes, nodes=["gpu-1", "gpu-2"])) as check:
        check.wait(
            lambda: {launch.node for launch in lab.evidence.launches(check.uid)} == {"gpu-1", "gpu-2"},
            what="launches of the version that can be started",
        )
        assert {launch.version for launch in lab.evidence.launches(check.uid)} == {"small"}
        ready = check.wait_condition("Ready", "PodRefused", status="False")
        assert "huge" in ready["message"]
        assert "spec.engine" in ready["message"]


def test_a_check_in_a_namespace_that_is_not_listed_is_not_run_and_told_so(lab: Lab) -> None:
    manifest = simulated("not-allowed", nodes=["gpu-1"])
    manifest["metadata"]["namespace"] = "default"
    with lab.check(manifest) as check:
        ready = check.wait_condition("Ready", "NamespaceNotAllowed", status="False")
        assert "checkNamespaces" in ready["message"]
        assert check.jobs() == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine.model": {}}, "exactly one of engine.model.path"),
        ({"engine.arguments": ["--model=other"]}, "an engine argument may not set the model"),
        ({"engine.kind": "VLLM"}, "engine.simulation may only be set when engine.kind is Simulated"),
        ({"launches": {"pinned": 16, "asServed": 1}}, "must be at most 16"),
    ],
    ids=["no model", "reserved argument", "simulation of a real engine", "too many launches"],
)
def test_a_spec_that_contradicts_itself_is_refused_by_the_server(lab: Lab, changes: Json, words: str) -> None:
    answer = lab.cluster.kubectl(
        "apply", "-f", "-", input=json.dumps(simulated("contradiction", changes)), check=False
    )
    assert answer.returncode != 0
    assert words in answer.stderr
