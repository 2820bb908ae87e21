"""`helm uninstall` takes everything of ours out of the cluster, in whatever state the operator is, and nothing else.
The CRDs and the checks stay on purpose: a new installation goes on with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e import platform
from tests.e2e.checks import simulated
from tests.e2e.foreign import foreign
from tests.e2e.lab import Lab
from tests.e2e.operator import DEPLOYMENT
from tests.e2e.platform import NAMESPACE

STANDING = simulated(
    "standing", {"engine.simulation.divergentNodes": ["gpu-2"], "action.mode": "Mark", "schedule.maxConcurrent": 2}
)
AT_WORK = simulated(
    "at-work", {"engine.simulation.hangNodes": ["gpu-3"], "schedule.launchDeadlineSeconds": 600}, nodes=["gpu-3"]
)
RELEASE_KINDS = (
    "deployments,services,configmaps,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,"
    "priorityclasses,validatingadmissionpolicies,validatingadmissionpolicybindings,networkpolicies,jobs,pods"
)


def _leave_running(lab: Lab) -> None:
    lab.operator.wait_ready()


def _kill(lab: Lab) -> None:
    lab.operator.kill_pod(lab.operator.pod()["metadata"]["name"])


def _scale_to_zero(lab: Lab) -> None:
    lab.operator.scale(0)
    lab.cluster.wait_for(lambda: not lab.operator.pods(), what="no operator")


def _break_image(lab: Lab) -> None:
    lab.cluster.kubectl("set", "image", f"deployment/{DEPLOYMENT}", "operator=localhost/absent:1", "-n", NAMESPACE)
    lab.cluster.wait_for(
        lambda: any(
            status["state"].get("waiting", {}).get("reason") == "ErrImageNeverPull"
            for pod in lab.operator.pods()
            for status in pod["status"].get("containerStatuses", [])
        ),
        what="the operator's image cannot start",
    )


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "prepare", [_leave_running, _kill, _scale_to_zero, _break_image], ids=["running", "killed", "scaled to 0", "broken"]
)
def test_uninstalling_leaves_nothing_of_ours_and_everything_of_others(
    lab: Lab, prepare: Callable[[Lab], None]
) -> None:
    with foreign(lab, "gpu-2") as others, lab.check(STANDING) as standing, lab.check(AT_WORK) as at_work:
        try:
            standing.wait(lambda: lab.marks() == {"gpu-2"}, what="gpu-2 is marked", timeout_seconds=90)
            at_work.wait_running()
            prepare(lab)
            platform.uninstall(lab.cluster)
            assert lab.traces() == []
            assert others.intact()
            assert _left(lab) == []
            for check in (standing, at_work):
                assert "finalizers" not in check.get()["metadata"], "a finalizer would block the deletion of a check"
        finally:
            if not lab.is_installed():
                lab.install()
        standing.wait(lambda: lab.marks() == {"gpu-2"}, what="gpu-2 is marked again", timeout_seconds=120)
        at_work.wait_running()
        assert others.intact()


def _left(lab: Lab) -> list[str]:
    """Everything of ours beside CRDs and checks (with their baselines), in words."""
    ours = lab.cluster.kubectl(
        "get", RELEASE_KINDS, "--all-namespaces", "-l", "app.kubernetes.io/name=steadyfleet", "-o", "name"
    ).stdout.split()
    probes = lab.cluster.kubectl(
        "get", "jobs,pods", "--all-namespaces", "-l", "app.kubernetes.io/managed-by=steadyfleet", "-o", "name"
    ).stdout.split()
    results = lab.cluster.kubectl("get", "nodeconsistencies", "-o", "name").stdout.split()
    own = lab.cluster.kubectl("get", "leases,secrets", "-n", NAMESPACE, "-o", "name").stdout.split()
    return [*ours, *probes, *results, *own]


