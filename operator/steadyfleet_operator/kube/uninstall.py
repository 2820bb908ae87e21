"""What only the uninstall does: ends the operator, and deletes what it made for itself at run time."""

from __future__ import annotations

import asyncio
import logging

from steadyfleet_operator.errors import Unavailable
from steadyfleet_operator.kube import fields
from steadyfleet_operator.kube.client import KubeClient, PatchType
from steadyfleet_operator.kube.resources import DEPLOYMENTS, LEASES, PODS, SECRETS, JsonObject
from steadyfleet_operator.settings import Settings

log = logging.getLogger(__name__)

DEPLOYMENT = "steadyfleet-operator"
OPERATOR_PODS = "app.kubernetes.io/name=steadyfleet,app.kubernetes.io/component=operator"

STOP_SECONDS = 60.0
"""Its grace period is shorter; a pod on a dead node never goes, and its Lease has run out by then."""


async def stop_operator(client: KubeClient, namespace: str) -> None:
    """Scales the Deployment to zero and waits for its pods: an operator at work would mark again what is cleared."""
    body = {"spec": {"replicas": 0}}
    await client.patch(
        DEPLOYMENTS, DEPLOYMENT, body, kind=PatchType.MERGE, namespace=namespace, subresource="scale"
    )
    deadline = asyncio.get_running_loop().time() + STOP_SECONDS
    while asyncio.get_running_loop().time() < deadline:
        pods = await client.list_all(PODS, _name_of, namespace=namespace, labels=OPERATOR_PODS)
        if not pods.items:
            return
        await asyncio.sleep(0.5)
    log.warning("the operator's pods did not end within %.0f s; going on without them", STOP_SECONDS)


async def delete_own_objects(client: KubeClient, settings: Settings) -> None:
    """The Lease and the TLS Secret."""
    for resource, name in ((LEASES, settings.lease_name), (SECRETS, settings.tls_secret_name)):
        found = await client.get(resource, name, namespace=settings.namespace)
        if found is not None:
            uid = fields.child(found, "metadata").get("uid")
            if not isinstance(uid, str):
                raise Unavailable(f"{resource.plural} {name} came back without a uid")
            await client.delete(resource, name, uid=uid, namespace=settings.namespace)


def _name_of(item: JsonObject) -> str:
    return fields.text(fields.child(item, "metadata"), "name")
