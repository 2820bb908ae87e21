"""ConsistencyBaselines: one a group, owned by its check. The spec is the group's key and never changes."""

from __future__ import annotations

from steadyfleet_operator.decide.observation import Baseline, Check
from steadyfleet_operator.errors import Conflict, SpecInvalid
from steadyfleet_operator.kube import fields
from steadyfleet_operator.kube.checks import KIND as CHECK_KIND
from steadyfleet_operator.kube.checks import dump, owner_reference, parse_part
from steadyfleet_operator.kube.client import KubeClient
from steadyfleet_operator.kube.resources import BASELINES, JsonObject
from steadyfleet_operator.resource import BaselineSpec, BaselineStatus

KIND = "ConsistencyBaseline"


class Baselines:
    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def list_of(self, check: Check) -> tuple[Baseline, ...]:
        """Those that this very check owns. Raises SpecInvalid if one of them is none that the models take."""
        listing = await self._client.list_all(
            BASELINES,
            lambda item: parse_baseline(item) if fields.owner_uid(item, CHECK_KIND) == check.uid else None,
            namespace=check.namespace,
        )
        return tuple(found for found in listing.items if found is not None)

    async def write(self, check: Check, name: str, spec: BaselineSpec, status: BaselineStatus) -> Baseline:
        """Creates it if need be, and writes the status if it changes. Raises Conflict: read again, decide again."""
        item = await self._client.get(BASELINES, name, namespace=check.namespace)
        if item is None:
            item = await self._client.create(BASELINES, _new(check, name, spec), namespace=check.namespace)
        elif fields.owner_uid(item, CHECK_KIND) != check.uid:
            # Left behind by a check of the same name that was deleted; the garbage collector takes it soon.
            raise Conflict(f"consistencybaseline {check.namespace}/{name} belongs to another check", status=409)
        current = parse_baseline(item)
        if current.status == status:
            return current
        body = _new(check, name, spec)
        body["metadata"] |= {"uid": current.uid, "resourceVersion": current.resource_version}
        body["status"] = dump(status)
        answer = await self._client.replace(BASELINES, name, body, namespace=check.namespace, subresource="status")
        if answer is None:
            raise Conflict(f"consistencybaseline {check.namespace}/{name} was deleted while it was written", status=409)
        return parse_baseline(answer)


def parse_baseline(item: JsonObject) -> Baseline:
    metadata = item["metadata"]
    try:
        spec, status = parse_part(BaselineSpec, item, "spec"), parse_part(BaselineStatus, item, "status")
    except SpecInvalid as error:
        # Not taken as empty: what was accepted once must not be forgotten because of a typing error.
        raise SpecInvalid(f"consistencybaseline {metadata['namespace']}/{metadata['name']}: {error}") from error
    return Baseline(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        spec=spec,
        status=status,
    )


def _new(check: Check, name: str, spec: BaselineSpec) -> JsonObject:
    return {
        "apiVersion": BASELINES.api_version,
        "kind": KIND,
        "metadata": {"name": name, "namespace": check.namespace, "ownerReferences": [owner_reference(check)]},
        "spec": dump(spec),
    }
