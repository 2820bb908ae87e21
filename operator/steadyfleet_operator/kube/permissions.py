"""What the operator may do on the API server: exactly the verbs that the code in this folder uses. The chart's roles
are held against this table by a test, and so are the requests that the operator's tests make."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from steadyfleet_operator.resource import GROUP


class Scope(str, Enum):
    CLUSTER = "Cluster"
    CHECK_NAMESPACES = "CheckNamespaces"
    """A Role in each namespace whose checks are run, and nowhere else."""
    OWN_NAMESPACE = "OwnNamespace"


@dataclass(frozen=True, slots=True)
class Permission:
    """One resource (`nodes/status` for a subresource). `names` empty: every object of it."""

    group: str
    resource: str
    verbs: frozenset[str]
    scope: Scope
    names: frozenset[str] = frozenset()


def _may(scope: Scope, group: str, resource: str, verbs: str, *, names: str = "") -> Permission:
    return Permission(group, resource, frozenset(verbs.split()), scope, frozenset(names.split()))


PERMISSIONS = (
    # No create on nodes: server-side apply of a label on a deleted Node would make a ghost.
    _may(Scope.CLUSTER, "", "nodes", "get list watch patch"),
    _may(Scope.CLUSTER, "", "nodes/status", "patch"),
    # To count the GPUs of a node that other people's pods have.
    _may(Scope.CLUSTER, "", "pods", "list"),
    _may(Scope.CLUSTER, "", "events", "create patch"),
    _may(Scope.CLUSTER, GROUP, "consistencychecks", "get list watch"),
    _may(Scope.CLUSTER, GROUP, "consistencychecks/status", "update patch"),
    _may(Scope.CLUSTER, GROUP, "nodeconsistencies", "get list create delete"),
    _may(Scope.CLUSTER, GROUP, "nodeconsistencies/status", "update"),
    _may(Scope.CLUSTER, GROUP, "consistencybaselines", "get list create"),
    _may(Scope.CLUSTER, GROUP, "consistencybaselines/status", "update"),
    _may(Scope.CLUSTER, "authentication.k8s.io", "tokenreviews", "create"),
    _may(Scope.CHECK_NAMESPACES, "batch", "jobs", "get list watch create delete"),
    # Create as a dry run alone: it tells why a Job's pod would be refused.
    _may(Scope.CHECK_NAMESPACES, "", "pods", "get list watch create"),
    # RBAC cannot bind `create` to a name.
    _may(Scope.OWN_NAMESPACE, "coordination.k8s.io", "leases", "create"),
    _may(Scope.OWN_NAMESPACE, "coordination.k8s.io", "leases", "get update delete", names="steadyfleet-operator"),
    _may(Scope.OWN_NAMESPACE, "", "secrets", "create"),
    _may(Scope.OWN_NAMESPACE, "", "secrets", "get update delete", names="steadyfleet-report-tls"),
    # The uninstall ends the operator before it clears what the operator would set again.
    _may(Scope.OWN_NAMESPACE, "apps", "deployments/scale", "patch", names="steadyfleet-operator"),
)
