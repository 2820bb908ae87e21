"""The operator's pod, and the cleanup Job's: what settings.py reads, and nothing that a strict cluster refuses."""

from __future__ import annotations

import pytest

from steadyfleet_operator.settings import PREFIX, Settings
from tests.chart.helm import NAMESPACE, Helm, Json, Rendered, environment, pod, value

WORKLOADS = ("Deployment", "Job")


@pytest.fixture(scope="module")
def rendered(helm: Helm) -> Rendered:
    return helm.template(value("checkNamespaces", ["serving", NAMESPACE]))


@pytest.mark.parametrize("kind", WORKLOADS)
def test_environment_is_every_setting_and_is_understood(rendered: Rendered, kind: str) -> None:
    variables = environment(rendered.of(kind))
    by_downward_api = {f"{PREFIX}NAMESPACE": NAMESPACE, f"{PREFIX}POD_NAME": "steadyfleet-operator-0"}
    settings = Settings.from_environment({**variables, **by_downward_api})
    assert {PREFIX + name.upper() for name in Settings.model_fields} == set(variables)
    assert settings.check_namespaces == ("serving", NAMESPACE)
    assert settings.mark_namespaces == (NAMESPACE,)


def test_probes_reach_the_report_service(rendered: Rendered) -> None:
    variables = environment(rendered.of("Deployment"))
    service = rendered.of("Service", "steadyfleet-report")
    (port,) = service["spec"]["ports"]
    assert variables["STEADYFLEET_REPORT_URL"] == f"https://steadyfleet-report.{NAMESPACE}.svc:{port['port']}"
    labels = rendered.of("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    ports = {p["name"]: str(p["containerPort"]) for p in pod(rendered.of("Deployment"))["containers"][0]["ports"]}
    assert ports == {"report": variables["STEADYFLEET_REPORT_PORT"], "metrics": variables["STEADYFLEET_METRICS_PORT"]}


def test_there_is_one_operator_and_never_two(rendered: Rendered) -> None:
    spec = rendered.of("Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_health_is_asked_on_the_metrics_port(rendered: Rendered) -> None:
    container = pod(rendered.of("Deployment"))["containers"][0]
    asked = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert asked == {
        "startup": {"path": "/livez", "port": "metrics"},
        "liveness": {"path": "/livez", "port": "metrics"},
        "readiness": {"path": "/readyz", "port": "metrics"},
    }


@pytest.mark.parametrize("kind", WORKLOADS)
def test_services_inject_no_variables(rendered: Rendered, kind: str) -> None:
    """A Service steadyfleet-report becomes STEADYFLEET_REPORT_SERVICE_HOST, which is no setting: no start."""
    assert pod(rendered.of(kind))["enableServiceLinks"] is False


@pytest.mark.parametrize("kind", WORKLOADS)
def test_file_system_is_read_only_but_for_what_is_mounted(rendered: Rendered, kind: str) -> None:
    container = pod(rendered.of(kind))["containers"][0]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == ({"/tmp", "/evidence"} if kind == "Deployment" else {"/tmp"})


def test_cleanup_is_the_operators_own_program_and_account(rendered: Rendered) -> None:
    job, operator = rendered.of("Job"), pod(rendered.of("Deployment"))
    container = pod(job)["containers"][0]
    assert container["args"] == ["cleanup"]
    assert container["image"] == operator["containers"][0]["image"]
    assert pod(job)["serviceAccountName"] == operator["serviceAccountName"]


def test_cleanup_runs_before_anything_is_deleted_and_leaves_nothing(rendered: Rendered) -> None:
    annotations = rendered.of("Job")["metadata"]["annotations"]
    assert annotations["helm.sh/hook"] == "pre-delete"
    assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
    hooks = [o["kind"] for o in rendered.objects if "helm.sh/hook" in o["metadata"].get("annotations", {})]
    assert hooks == ["Job"], "its account and roles must not be hooks: they would be gone or doubled"


def test_cleanup_pod_is_not_taken_for_the_operator(rendered: Rendered) -> None:
    """Else the Services would send reports to it, and it would wait for itself to end."""
    selector: Json = rendered.of("Deployment")["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= rendered.of("Job")["spec"]["template"]["metadata"]["labels"].items()
