"""The Job of a visit, field by field: what it asks of the cluster, and what it leaves to the user."""

from __future__ import annotations

import json
from typing import Any

import pytest

from steadyfleet_contract import wire
from steadyfleet_contract.spec import EnvironmentVariable, ProbeSpec
from steadyfleet_operator.decide.observation import Check
from steadyfleet_operator.errors import SpecInvalid
from steadyfleet_operator.kube.podspec import build_job, pod_of
from steadyfleet_operator.resource import Engine, Nodes, PodTemplate
from tests.operator.builders import a_check, a_visit, check_spec, probe_spec, settings


def job(
    check: Check | None = None, *, gpus: int = 1, configuration: dict[str, Any] | None = None, **probe: Any
) -> dict[str, Any]:
    visit = a_visit(check or a_check(), "gpu-1", "node-uid", gpus=gpus, **probe)
    return build_job(visit, settings=settings(**(configuration or {})), report_ca="PEM")


def with_pod(**template: Any) -> Check:
    engine = Engine(model=probe_spec().model, pod=PodTemplate(**template))
    return a_check(spec=check_spec(engine=engine))


def pod_spec(built: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = built["spec"]["template"]["spec"]
    return spec


def engine(built: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod_spec(built)["containers"]
    assert container["name"] == "engine"
    return dict(container)


def environment(built: dict[str, Any]) -> dict[str, Any]:
    return {variable["name"]: variable for variable in engine(built)["env"]}


def test_the_slot_owns_the_name_and_the_check_the_job() -> None:
    metadata = job()["metadata"]

    assert (metadata["name"], metadata["namespace"]) == ("sfl-qwen-0", "serving")
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (
        "ConsistencyCheck", a_check().uid, True, False,
    )  # fmt: skip


def test_a_check_with_the_longest_name_has_a_valid_job_name() -> None:
    assert len(job(a_check(name="x" * 40))["metadata"]["name"]) <= 63


def test_job_and_pod_carry_what_the_visit_is_for() -> None:
    built = job()

    for metadata in (built["metadata"], built["spec"]["template"]["metadata"]):
        assert (
            metadata["labels"].items()
            >= {
                "app.kubernetes.io/managed-by": "steadyfleet",
                "steadyfleet.dev/check": "qwen",
                "steadyfleet.dev/check-uid": a_check().uid,
                "steadyfleet.dev/slot": "0",
            }.items()
        )
        assert (
            metadata["annotations"].items()
            >= {
                "steadyfleet.dev/attempt": "1",
                "steadyfleet.dev/node": "gpu-1",
                "steadyfleet.dev/node-uid": "node-uid",
                "steadyfleet.dev/version": "stable",
                "steadyfleet.dev/epoch": "0123456789abcdef",
                "steadyfleet.dev/purpose": "Sweep",
                "steadyfleet.dev/gpu": "",
            }.items()
        )


def test_preemption_fails_the_job_in_a_way_of_its_own_and_nothing_is_tried_twice() -> None:
    spec = job()["spec"]

    assert spec["backoffLimit"] == 0
    assert spec["podFailurePolicy"]["rules"] == [
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    ]
    assert pod_spec(job())["restartPolicy"] == "Never"


def test_the_pod_can_run_on_its_node_alone() -> None:
    required = pod_spec(job())["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]

    assert required["nodeSelectorTerms"] == [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}]}
    ]


def test_the_deadline_counts_the_run_and_the_job_has_none_that_counts_pending() -> None:
    built = job()

    # Image pull (the pending deadline), three launches, margin.
    assert pod_spec(built)["activeDeadlineSeconds"] == 300 + 3 * 1200 + 120
    assert "activeDeadlineSeconds" not in built["spec"]


def test_a_preempting_pod_need_not_wait_for_long() -> None:
    assert pod_spec(job())["terminationGracePeriodSeconds"] <= 10


def test_no_service_and_no_api_token_reaches_the_engine() -> None:
    spec = pod_spec(job())

    assert spec["enableServiceLinks"] is False
    assert spec["automountServiceAccountToken"] is False


def test_the_projected_token_is_for_our_audience_and_where_the_probe_looks() -> None:
    built = job()
    (volume,) = (volume for volume in pod_spec(built)["volumes"] if "projected" in volume)
    (source,) = volume["projected"]["sources"]
    (mount,) = (mount for mount in engine(built)["volumeMounts"] if mount["name"] == volume["name"])

    assert source["serviceAccountToken"] == {
        "audience": wire.AUDIENCE, "expirationSeconds": 3600, "path": "token",
    }  # fmt: skip
    assert f"{mount['mountPath']}/token" == wire.TOKEN_FILE


def test_no_mesh_injects_a_sidecar_and_no_autoscaler_waits_for_a_probe() -> None:
    metadata = job()["spec"]["template"]["metadata"]

    assert metadata["labels"]["sidecar.istio.io/inject"] == "false"
    assert metadata["annotations"]["sidecar.istio.io/inject"] == "false"
    assert metadata["annotations"]["linkerd.io/inject"] == "disabled"
    assert metadata["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "true"


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ("nvidia.com/gpu", ["nvidia.com/gpu", "steadyfleet.dev/divergent"]),
        ("amd.com/gpu", ["nvidia.com/gpu", "amd.com/gpu", "steadyfleet.dev/divergent"]),
    ],
)
def test_gpu_taints_and_our_own_are_tolerated(resource: str, expected: list[str]) -> None:
    check = a_check(spec=check_spec(nodes=Nodes(resource_name=resource)))

    tolerations = pod_spec(job(check))["tolerations"]

    assert [toleration["key"] for toleration in tolerations] == expected
    assert all(toleration["operator"] == "Exists" for toleration in tolerations)


@pytest.mark.parametrize(("gpus", "limits"), [(1, {"nvidia.com/gpu": "1"}), (8, {"nvidia.com/gpu": "8"}), (0, {})])
def test_gpus_are_asked_for_as_limits(gpus: int, limits: dict[str, str]) -> None:
    assert engine(job(gpus=gpus))["resources"]["limits"] == limits


def test_the_users_own_gpu_count_does_not_count() -> None:
    gpus = {"nvidia.com/gpu": "8"}
    check = with_pod(resources={"limits": {**gpus, "memory": "64Gi"}, "requests": gpus})

    resources = engine(job(check))["resources"]

    assert resources == {"limits": {"nvidia.com/gpu": "1", "memory": "64Gi"}, "requests": {}}


def test_resources_of_a_wrong_type_are_told_by_their_field() -> None:
    with pytest.raises(SpecInvalid, match=r"spec\.engine\.pod\.resources\.limits"):
        job(with_pod(resources={"limits": "much"}))


def test_the_probe_starts_the_users_image_by_the_injected_launcher() -> None:
    built = job()
    container = engine(built)

    assert container["image"] == "registry.example/vllm:1"
    assert container["command"] == ["/bin/sh", "/steadyfleet/run"]
    assert "args" not in container


def test_the_probe_comes_from_its_own_image_into_a_folder_that_the_engine_cannot_change() -> None:
    built = job()
    (copy,) = pod_spec(built)["initContainers"]
    (mount,) = (mount for mount in engine(built)["volumeMounts"] if mount["mountPath"] == wire.PROBE_DIR)

    assert copy["name"] == "steadyfleet-probe-copy"
    assert copy["image"] == "registry.example/steadyfleet-probe:1"
    assert copy["args"] == [wire.PROBE_DIR]
    assert copy["securityContext"]["readOnlyRootFilesystem"] is True
    assert copy["securityContext"]["runAsNonRoot"] is True
    assert mount["readOnly"] is True


def test_the_order_survives_the_environment_of_kubernetes() -> None:
    """Kubernetes expands $(NAME) and $$ in values."""
    values = (EnvironmentVariable(name="A", value="$(STEADYFLEET_REPORT_URL) $$ $HOME"),)

    value = environment(job(environment=values))[wire.ENV_SPEC]["value"]

    assert "$" not in value
    assert ProbeSpec.model_validate_json(value).environment == values


def test_the_users_environment_is_for_the_engine_and_not_for_the_probe() -> None:
    built = job(environment=(EnvironmentVariable(name="HF_HOME", value="/models"),))

    assert set(environment(built)) == {
        wire.ENV_SPEC, wire.ENV_REPORT_URL, wire.ENV_REPORT_CA, wire.ENV_NODE_NAME, wire.ENV_POD_UID,
    }  # fmt: skip
    assert environment(built)[wire.ENV_REPORT_CA]["value"] == "PEM"


def test_the_launcher_gets_the_python_that_the_check_names() -> None:
    named = a_check(spec=check_spec(engine=Engine(model=probe_spec().model, python="/opt/$(x)/bin/python")))

    assert environment(job(named))[wire.ENV_PYTHON]["value"] == "/opt/$$(x)/bin/python"
    assert wire.ENV_PYTHON not in environment(job())


def test_an_order_that_is_too_long_is_told_with_the_remedy() -> None:
    with pytest.raises(SpecInvalid, match="move long values into a file"):
        job(arguments=("x" * 200_000,))


def test_by_default_the_engine_is_confined_but_keeps_the_user_of_its_image() -> None:
    built = job()

    assert pod_spec(built)["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert engine(built)["securityContext"] == {
        "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip


def test_the_users_security_context_wins_field_by_field() -> None:
    check = with_pod(
        security_context={"runAsUser": 2000, "seccompProfile": {"type": "Unconfined"}},
        container_security_context={"capabilities": {"add": ["SYS_NICE"]}},
    )
    built = job(check)

    assert pod_spec(built)["securityContext"] == {"runAsUser": 2000, "seccompProfile": {"type": "Unconfined"}}
    assert engine(built)["securityContext"] == {
        "allowPrivilegeEscalation": False, "capabilities": {"add": ["SYS_NICE"]},
    }  # fmt: skip


def test_the_users_pod_fields_are_taken_over() -> None:
    check = with_pod(
        service_account_name="models",
        tolerations=({"key": "team", "operator": "Exists"},),
        volumes=({"name": "models", "hostPath": {"path": "/models"}},),
        volume_mounts=({"name": "models", "mountPath": "/models", "readOnly": True},),
        runtime_class_name="nvidia",
        image_pull_secrets=({"name": "registry"},),
        image_pull_policy="Never",
        labels={"kueue.x-k8s.io/queue-name": "probes", "steadyfleet.dev/slot": "7"},
        annotations={"team": "a"},
    )
    built = job(check)
    spec, metadata = pod_spec(built), built["spec"]["template"]["metadata"]

    assert spec["serviceAccountName"] == "models"
    assert spec["tolerations"][-1] == {"key": "team", "operator": "Exists"}
    assert spec["volumes"][-1]["name"] == "models"
    assert engine(built)["volumeMounts"][-1]["mountPath"] == "/models"
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert engine(built)["imagePullPolicy"] == "Never"
    assert metadata["labels"]["kueue.x-k8s.io/queue-name"] == "probes"
    assert metadata["annotations"]["team"] == "a"
    assert metadata["labels"]["steadyfleet.dev/slot"] == "0", "our own labels can't be overwritten"


def test_unset_fields_are_left_out() -> None:
    built = job()

    for name in ("serviceAccountName", "runtimeClassName", "imagePullSecrets", "priorityClassName"):
        assert name not in pod_spec(built)
    assert "imagePullPolicy" not in engine(built)


def test_the_priority_class_is_the_settings() -> None:
    assert pod_spec(job(configuration={"priority_class": "lowest"}))["priorityClassName"] == "lowest"


def test_shared_memory_is_given_unless_the_user_brings_it() -> None:
    own = with_pod(
        volumes=({"name": "shm", "emptyDir": {"medium": "Memory"}},),
        volume_mounts=({"name": "shm", "mountPath": "/dev/shm"},),
    )

    for built, names in ((job(), ["steadyfleet-shm"]), (job(own), ["shm"])):
        assert [mount["name"] for mount in engine(built)["volumeMounts"] if mount["mountPath"] == "/dev/shm"] == names
        assert len({volume["name"] for volume in pod_spec(built)["volumes"]}) == len(pod_spec(built)["volumes"])


def test_the_trial_pod_is_the_jobs_pod() -> None:
    built = job()
    pod = pod_of(built)

    assert pod["spec"] == pod_spec(built)
    assert pod["metadata"]["labels"] == built["spec"]["template"]["metadata"]["labels"]
    assert (pod["metadata"]["namespace"], pod["metadata"]["generateName"]) == ("serving", "sfl-qwen-0-")


def test_the_job_is_plain_json() -> None:
    assert json.loads(json.dumps(job())) == job()
