"""The chart's roles are the operator's own table of what it does (kube/permissions.py): no verb more, none less."""

from __future__ import annotations

import pytest

from steadyfleet_operator.kube.permissions import PERMISSIONS, Scope
from tests.chart.helm import NAMESPACE, Helm, Json, Rendered, value

Grant = tuple[str, str, frozenset[str], frozenset[str]]
"""Group, resource, verbs, names."""

ACCOUNT = {"kind": "ServiceAccount", "name": "steadyfleet-operator", "namespace": NAMESPACE}


@pytest.fixture(scope="module")
def rendered(helm: Helm) -> Rendered:
    return helm.template(value("checkNamespaces", ["serving", "training"]))


def wanted(scope: Scope) -> set[Grant]:
    return {(p.group, p.resource, p.verbs, p.names) for p in PERMISSIONS if p.scope is scope}


def granted(role: Json) -> set[Grant]:
    grants = [
        (group, resource, frozenset(rule["verbs"]), frozenset(rule.get("resourceNames", ())))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    ]
    assert len(grants) == len(set(grants))
    return set(grants)


def test_the_table_has_one_line_for_each_resource_scope_and_names() -> None:
    lines = [(p.group, p.resource, p.scope, p.names) for p in PERMISSIONS]
    assert len(lines) == len(set(lines))


def test_cluster_wide_permissions_are_those_of_the_table(rendered: Rendered) -> None:
    assert granted(rendered.of("ClusterRole", "steadyfleet-operator")) == wanted(Scope.CLUSTER)


def test_permissions_in_check_namespaces_are_those_of_the_table(rendered: Rendered) -> None:
    roles = rendered.all("Role", "steadyfleet-probes")
    assert [role["metadata"]["namespace"] for role in roles] == ["serving", "training"]
    assert [granted(role) for role in roles] == [wanted(Scope.CHECK_NAMESPACES)] * 2


def test_permissions_in_the_own_namespace_are_those_of_the_table(rendered: Rendered) -> None:
    role = rendered.of("Role", "steadyfleet-operator")
    assert role["metadata"]["namespace"] == NAMESPACE
    assert granted(role) == wanted(Scope.OWN_NAMESPACE)


def test_each_role_is_bound_to_the_operators_account_alone(rendered: Rendered) -> None:
    bindings = rendered.all("ClusterRoleBinding") + rendered.all("RoleBinding")
    assert all(binding["subjects"] == [ACCOUNT] for binding in bindings)
    bound = {(b["roleRef"]["kind"], b["roleRef"]["name"], b["metadata"].get("namespace")) for b in bindings}
    roles = [*rendered.all("Role"), rendered.of("ClusterRole", "steadyfleet-operator")]
    assert bound == {(r["kind"], r["metadata"]["name"], r["metadata"].get("namespace")) for r in roles}


@pytest.mark.parametrize("scope", Scope)
def test_nothing_is_a_wildcard(scope: Scope) -> None:
    assert [grant for grant in wanted(scope) if "*" in {grant[0], grant[1], *grant[2]}] == []


def test_pods_and_jobs_are_created_in_check_namespaces_alone(rendered: Rendered) -> None:
    creators = {
        (role["kind"], role["metadata"].get("namespace"))
        for role in rendered.all("Role") + rendered.all("ClusterRole")
        for _, resource, verbs, _ in granted(role)
        if resource in ("pods", "jobs") and "create" in verbs
    }
    assert creators == {("Role", "serving"), ("Role", "training")}


def test_built_in_roles_get_the_checks_and_only_admin_may_mark(rendered: Rendered) -> None:
    verbs: dict[str, set[str]] = {"view": set(), "edit": set(), "admin": set()}
    for role in rendered.all("ClusterRole"):
        on_checks = {verb for _, resource, some, _ in granted(role) if resource == "consistencychecks" for verb in some}
        for built_in, collected in verbs.items():
            if role["metadata"]["labels"].get(f"rbac.authorization.k8s.io/aggregate-to-{built_in}") == "true":
                collected |= on_checks
    read, write = {"get", "list", "watch"}, {"create", "update", "patch", "delete", "deletecollection"}
    assert verbs == {"view": read, "edit": read | write, "admin": read | write | {"mark"}}
