"""The three admission policies on a real API server: each refuses some attempts and lets others pass."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml

from steadyfleet_operator.resource import API_VERSION, CONDITION_TYPE, LABEL_EXCLUDE, LABEL_MARK
from tests.chart.checks import check
from tests.chart.helm import NAMESPACE, Json
from tests.cluster.commands import wait_for
from tests.cluster.control_plane import ControlPlane

OPERATOR = f"system:serviceaccount:{NAMESPACE}:steadyfleet-operator"
NODE = "gpu-1"
TIME = "2030-01-01T00:00:00Z"


def condition(kind: str, status: str = "True") -> Json:
    return {
        "type": kind, "status": status, "reason": "Test", "message": "",
        "lastHeartbeatTime": TIME, "lastTransitionTime": TIME,
    }  # fmt: skip


FAKE_NODE: Json = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {
        "name": NODE,
        "labels": {"zone": "a", LABEL_EXCLUDE: "false"},
        "annotations": {"example.org/note": "theirs"},
    },
    "spec": {"taints": [{"key": "example.org/theirs", "effect": "NoSchedule"}]},
    "status": {
        "capacity": {"cpu": "8", "nvidia.com/gpu": "2"},
        "allocatable": {"cpu": "8", "nvidia.com/gpu": "2"},
        "addresses": [{"type": "InternalIP", "address": "198.51.100.11"}],
        "conditions": [condition("Ready"), condition("TheirProblem", "False")],
        "images": [{"names": [f"example.org/image-{number}:1"], "sizeBytes": number} for number in range(50)],
    },
}

MERGE = ("", "application/merge-patch+json")
MERGE_STATUS = ("/status", "application/merge-patch+json")
STATUS = ("/status", "application/strategic-merge-patch+json")
"""Subresource and content type, as kube/marks.py sends them."""


def conditions(*changed: Json) -> Json:
    return {"status": {"conditions": list(changed)}}


NODE_WRITES_ALLOWED: dict[str, tuple[tuple[str, str], Json]] = {
    "own condition": (STATUS, conditions(condition(CONDITION_TYPE))),
    "own condition, flipped": (STATUS, conditions(condition(CONDITION_TYPE, "False"))),
    "own condition, removed": (STATUS, conditions({"type": CONDITION_TYPE, "$patch": "delete"})),
    "own label": (MERGE, {"metadata": {"labels": {LABEL_MARK: "true"}}}),
    "own label, removed": (MERGE, {"metadata": {"labels": {LABEL_MARK: None}}}),
}

NODE_WRITES_REFUSED: dict[str, tuple[tuple[str, str], Json, str]] = {
    "Ready": (STATUS, conditions(condition("Ready", "False")), "no condition of a Node but"),
    "foreign condition": (STATUS, conditions(condition("TheirProblem", "True")), "no condition of a Node but"),
    "new foreign condition": (STATUS, conditions(condition("Other")), "no condition of a Node but"),
    "foreign condition, removed": (
        STATUS,
        conditions({"type": "TheirProblem", "$patch": "delete"}),
        "no condition of a Node but",
    ),
    "all conditions, removed": (
        MERGE_STATUS,
        {"status": {"conditions": None}},
        "no condition of a Node but",
    ),
    "own and foreign condition": (
        STATUS,
        conditions(condition(CONDITION_TYPE), condition("Ready", "False")),
        "no condition of a Node but",
    ),
    "cordon": (MERGE, {"spec": {"unschedulable": True}}, "may not change the spec of a Node"),
    "taint": (
        MERGE,
        {"spec": {"taints": [{"key": "steadyfleet.dev/divergent", "effect": "NoExecute"}]}},
        "may not change the spec of a Node",
    ),
    "no taints": (MERGE, {"spec": {"taints": None}}, "may not change the spec of a Node"),
    "capacity": (STATUS, {"status": {"capacity": {"nvidia.com/gpu": "0"}}}, "nothing but conditions in the status"),
    "allocatable": (STATUS, {"status": {"allocatable": {"cpu": "1"}}}, "nothing but conditions in the status"),
    "images": (STATUS, {"status": {"images": None}}, "nothing but conditions in the status"),
    "new status field": (
        STATUS,
        {"status": {"volumesInUse": ["theirs"]}},
        "nothing but conditions in the status",
    ),
    "foreign label": (MERGE, {"metadata": {"labels": {"zone": "b"}}}, "no label of a Node but"),
    "new foreign label": (MERGE, {"metadata": {"labels": {"other": "b"}}}, "no label of a Node but"),
    "foreign label, removed": (MERGE, {"metadata": {"labels": {"zone": None}}}, "no label of a Node but"),
    "foreign label by the status": (
        MERGE_STATUS,
        {"metadata": {"labels": {"zone": "b"}}},
        "no label of a Node but",
    ),
    "opt-out label": (MERGE, {"metadata": {"labels": {LABEL_EXCLUDE: "true"}}}, "which is the administrator's"),
    "opt-out label, removed": (MERGE, {"metadata": {"labels": {LABEL_EXCLUDE: None}}}, "is the administrator's"),
    "annotation": (MERGE, {"metadata": {"annotations": {"a": "b"}}}, "nothing but labels in the metadata"),
    "annotation, removed": (MERGE, {"metadata": {"annotations": None}}, "nothing but labels in the metadata"),
    "finalizer": (MERGE, {"metadata": {"finalizers": ["example.org/a"]}}, "nothing but labels in the metadata"),
}


@pytest.fixture(scope="module")
def cluster(server: ControlPlane) -> ControlPlane:
    """With a node, people of different rights, and every policy in force."""
    server.kubectl("create", "-f", "-", input=json.dumps(FAKE_NODE))
    for person, role in {"edith": "edit", "adam": "admin"}.items():
        grant(server, person, "clusterrole", role)
    server.kubectl(
        "create", "role", "checks-only", "-n", NAMESPACE,
        "--verb=get,create,update,patch", "--resource=consistencychecks.steadyfleet.dev",
    )  # fmt: skip
    grant(server, "carl", "role", "checks-only")
    cordon = {"spec": {"unschedulable": True}}
    wait_for(lambda: patch_node(server, MERGE, cordon, trial=True), what="policies in force")
    wait_for(lambda: can(server, "edith", "create") and can(server, "adam", "mark"), what="roles aggregated")
    return server


@pytest.fixture
def operator_with_every_right(cluster: ControlPlane) -> Iterator[ControlPlane]:
    """As if the operator's role had been widened: the policy alone holds then."""
    arguments = ("create", "clusterrolebinding", "everything", "--clusterrole=cluster-admin")
    cluster.kubectl(*arguments, f"--serviceaccount={NAMESPACE}:steadyfleet-operator")
    wait_for(lambda: can(cluster, OPERATOR, "delete", "nodes"), what="rights in force")
    yield cluster
    cluster.kubectl("delete", "clusterrolebinding", "everything")


@pytest.mark.parametrize("case", NODE_WRITES_ALLOWED)
def test_the_operator_marks_a_node(cluster: ControlPlane, case: str) -> None:
    """In the order of the table, by the roles of the chart alone."""
    how, body = NODE_WRITES_ALLOWED[case]
    assert patch_node(cluster, how, body) == ""


@pytest.mark.parametrize("case", NODE_WRITES_REFUSED)
def test_the_operator_changes_nothing_else_on_a_node(cluster: ControlPlane, case: str) -> None:
    how, body, words = NODE_WRITES_REFUSED[case]
    assert words in patch_node(cluster, how, body)


@pytest.mark.parametrize("case", NODE_WRITES_REFUSED)
def test_others_change_a_node_as_before(cluster: ControlPlane, case: str) -> None:
    how, body, _ = NODE_WRITES_REFUSED[case]
    assert patch_node(cluster, how, body, person="admin", trial=True) == ""


def test_the_operator_neither_creates_nor_deletes_nodes(operator_with_every_right: ControlPlane) -> None:
    ghost = json.dumps({**FAKE_NODE, "metadata": {"name": "ghost"}})
    created = as_person(operator_with_every_right, OPERATOR, "create", "-f", "-", body=ghost)
    deleted = as_person(operator_with_every_right, OPERATOR, "delete", "node", NODE)
    assert "may neither create nor delete a Node" in created
    assert "may neither create nor delete a Node" in deleted


def test_more_rights_do_not_lift_the_policy(operator_with_every_right: ControlPlane) -> None:
    answer = patch_node(operator_with_every_right, MERGE, {"spec": {"unschedulable": True}})
    assert "may not change the spec of a Node" in answer


MARK = check({"action.mode": "Mark"}, name="marks")
OBSERVE = check(name="observes")
MARK_REFUSED = (
    "action.mode Mark needs the verb mark on consistencychecks.steadyfleet.dev in namespace steadyfleet, "
    "which edith does not have; use Observe, or ask an administrator for it"
)


@pytest.fixture
def checks(cluster: ControlPlane) -> Iterator[ControlPlane]:
    """One check of each mode, made by an administrator of the cluster."""
    for document in (MARK, OBSERVE):
        cluster.apply(json.dumps(document))
    yield cluster
    cluster.kubectl("delete", "consistencychecks", "--all", "--namespace", NAMESPACE)


def test_an_editor_may_observe(cluster: ControlPlane) -> None:
    assert create(cluster, "edith", check()) == ""


def test_an_editor_may_not_mark(cluster: ControlPlane) -> None:
    assert MARK_REFUSED in create(cluster, "edith", MARK)


def test_an_editor_may_not_turn_marking_on(checks: ControlPlane) -> None:
    assert MARK_REFUSED in patch_check(checks, "edith", "observes", {"spec": {"action": {"mode": "Mark"}}})


def test_an_editor_may_not_change_a_check_that_marks(checks: ControlPlane) -> None:
    changes = {"spec": {"acceptedVariants": ["sha256:" + "0" * 64]}}
    assert MARK_REFUSED in patch_check(checks, "edith", "marks", changes)


def test_an_editor_may_turn_marking_off(checks: ControlPlane) -> None:
    assert patch_check(checks, "edith", "marks", {"spec": {"action": {"mode": "Observe"}}}) == ""


def test_an_editor_may_label_a_check_that_marks(checks: ControlPlane) -> None:
    assert patch_check(checks, "edith", "marks", {"metadata": {"labels": {"team": "a"}}}) == ""


def test_an_administrator_of_the_namespace_may_mark(cluster: ControlPlane) -> None:
    assert create(cluster, "adam", MARK) == ""


def test_the_operator_writes_the_status_of_a_check_that_marks(checks: ControlPlane) -> None:
    path = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/consistencychecks/marks/status"
    assert patch(checks, OPERATOR, path, MERGE[1], {"status": {"observedGeneration": 1}}) == ""


PODS_REFUSED = "a ConsistencyCheck creates pods, which carl may not do in namespace steadyfleet"


def test_who_may_not_create_pods_may_not_create_a_check(cluster: ControlPlane) -> None:
    assert PODS_REFUSED in create(cluster, "carl", check())


def test_who_may_not_create_pods_may_not_change_a_check(checks: ControlPlane) -> None:
    assert PODS_REFUSED in patch_check(checks, "carl", "observes", {"spec": {"suspend": True}})


def test_who_may_not_create_pods_may_label_a_check(checks: ControlPlane) -> None:
    assert patch_check(checks, "carl", "observes", {"metadata": {"labels": {"team": "a"}}}) == ""


def grant(server: ControlPlane, person: str, kind: str, role: str) -> None:
    server.kubectl("create", "rolebinding", person, "-n", NAMESPACE, f"--{kind}={role}", f"--user={person}")


def can(server: ControlPlane, person: str, verb: str, resource: str = "consistencychecks.steadyfleet.dev") -> bool:
    arguments = ("auth", "can-i", verb, resource, "--namespace", NAMESPACE, "--as", person)
    return server.kubectl(*arguments, check=False).stdout.strip() == "yes"


def as_person(server: ControlPlane, person: str, *arguments: str, body: str | None = None) -> str:
    """The server's refusal, or nothing."""
    done = server.kubectl(*arguments, "--as", person, input=body, check=False)
    return done.stderr if done.returncode else ""


def patch_node(
    server: ControlPlane, how: tuple[str, str], body: Json, *, person: str = OPERATOR, trial: bool = False
) -> str:
    subresource, content_type = how
    return patch(server, person, f"/api/v1/nodes/{NODE}{subresource}", content_type, body, trial=trial)


def patch(server: ControlPlane, person: str, path: str, content_type: str, body: Json, *, trial: bool = False) -> str:
    """As the operator's own client does it: kubectl would first read the subresource, which the operator may not.

    The server's refusal, or nothing.
    """
    kubeconfig = yaml.safe_load(server.kubeconfig.read_text())
    headers = {"Content-Type": content_type, "Authorization": f"Bearer {kubeconfig['users'][0]['user']['token']}"}
    trust = ssl.create_default_context(cafile=kubeconfig["clusters"][0]["cluster"]["certificate-authority"])
    answer = httpx.patch(
        server.server + path,
        content=json.dumps(body),
        params={"dryRun": "All"} if trial else {},
        headers=headers if person == "admin" else {**headers, "Impersonate-User": person},
        verify=trust,
        timeout=10,
    )
    return "" if answer.is_success else str(answer.json()["message"])


def patch_check(server: ControlPlane, person: str, name: str, body: Any) -> str:
    arguments = ("patch", "consistencycheck", name, "--namespace", NAMESPACE, "--type=merge")
    return as_person(server, person, *arguments, "--patch", json.dumps(body))


def create(server: ControlPlane, person: str, document: Json) -> str:
    """A trial: admission is asked, nothing stays."""
    return as_person(server, person, "create", "--dry-run=server", "-f", "-", body=json.dumps(document))
