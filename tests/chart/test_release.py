"""A release on a real API server: one in a cluster, upgraded in place, and nothing of it left but what is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.chart.helm import CHART, MINIMAL_VALUES, NAMESPACE, Helm, Json, value
from tests.cluster.commands import wait_for
from tests.cluster.control_plane import ControlPlane

KINDS = (
    "deployments,jobs,services,serviceaccounts,configmaps,roles,rolebindings,clusterroles,clusterrolebindings,"
    "priorityclasses,networkpolicies,validatingadmissionpolicies,validatingadmissionpolicybindings,"
    "customresourcedefinitions"
)


@pytest.fixture
def empty() -> Iterator[ControlPlane]:
    with ControlPlane() as control_plane:
        control_plane.kubectl("create", "namespace", NAMESPACE)
        yield control_plane


def helm(server: ControlPlane, verb: str, release: str, *arguments: str, namespace: str = NAMESPACE) -> str:
    """The error, or nothing."""
    done = server.helm(verb, release, *arguments, "--namespace", namespace, check=False)
    return done.stderr if done.returncode else ""


def install_arguments(*values: str) -> tuple[str, ...]:
    return (str(CHART), "--values", str(MINIMAL_VALUES), *(word for one in values for word in ("--set-json", one)))


def objects(server: ControlPlane, release: str) -> set[str]:
    label = f"app.kubernetes.io/instance={release}"
    items = server.get(KINDS, "--all-namespaces", "--selector", label)["items"]
    return {f"{item['kind']}/{item['metadata']['name']}" for item in items}


def test_a_release_comes_changes_and_goes(empty: ControlPlane) -> None:
    assert helm(empty, "install", "steadyfleet", *install_arguments()) == ""
    installed = objects(empty, "steadyfleet")
    assert "Deployment/steadyfleet-operator" in installed

    second = helm(empty, "install", "another", *install_arguments(), namespace="default")
    assert "exists and cannot be imported into the current release" in second, "marks are on Nodes: one in a cluster"

    changes = (value("probe.priorityClass.value", -2000), value("networkPolicy.enabled", True))
    assert helm(empty, "upgrade", "steadyfleet", *install_arguments(*changes)) == ""
    assert objects(empty, "steadyfleet") - installed == {
        "PriorityClass/steadyfleet-probe-minus-2000",
        "NetworkPolicy/steadyfleet-operator",
    }

    # Nothing runs here, so the hook cannot; the tests on the three-node cluster have it.
    assert helm(empty, "uninstall", "steadyfleet", "--no-hooks") == ""
    kept = {
        f"CustomResourceDefinition/{name}.steadyfleet.dev"
        for name in ("consistencychecks", "nodeconsistencies", "consistencybaselines")
    }
    wait_for(lambda: objects(empty, "steadyfleet") == kept, what="all but the CRDs are gone")

    assert helm(empty, "install", "steadyfleet", *install_arguments(value("crds.keep", False))) == "", (
        "kept CRDs are taken over"
    )
    assert helm(empty, "uninstall", "steadyfleet", "--no-hooks") == ""
    wait_for(lambda: objects(empty, "steadyfleet") == set(), what="everything is gone")


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_pod_is_taken_where_pod_security_is_restricted(server: ControlPlane, helm: Helm, kind: str) -> None:
    server.kubectl("label", "--overwrite", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    template: Json = helm.template().of(kind)["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "trial", "namespace": NAMESPACE},
        "spec": template["spec"],
    }
    server.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(pod))
