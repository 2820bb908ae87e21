"""The kinds of objects that the operator touches, by their place in the API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from steadyfleet_operator.resource import GROUP, VERSION

JsonObject = dict[str, Any]
"""A Kubernetes object as it travels; nothing outside of `kube` sees one."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object by its place in the API. `group` is empty for core."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, *, name: str = "", namespace: str = "", subresource: str = "") -> str:
        """Without a namespace: of all namespaces."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [self.plural, name, subresource]
        return "/" + "/".join(quote(part, safe="") for part in parts if part)


NODES = Resource("", "v1", "nodes", namespaced=False)
PODS = Resource("", "v1", "pods")
EVENTS = Resource("", "v1", "events")
SECRETS = Resource("", "v1", "secrets")
DEPLOYMENTS = Resource("apps", "v1", "deployments")
JOBS = Resource("batch", "v1", "jobs")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", namespaced=False)
CHECKS = Resource(GROUP, VERSION, "consistencychecks")
BASELINES = Resource(GROUP, VERSION, "consistencybaselines")
NODE_CONSISTENCIES = Resource(GROUP, VERSION, "nodeconsistencies", namespaced=False)
