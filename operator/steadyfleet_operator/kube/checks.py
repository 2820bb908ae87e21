"""ConsistencyChecks: read as models, and their status written with a guard.

A stored object that the models do not take (the CRD is newer than the operator, or was edited) is an `InvalidCheck`:
it can be told so in its Ready condition, and hides no other check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TypeVar

from pydantic import ValidationError

from steadyfleet_operator.decide.observation import Check
from steadyfleet_operator.errors import KubernetesError, SpecInvalid
from steadyfleet_operator.kube import fields
from steadyfleet_operator.kube.client import KubeClient, PatchType
from steadyfleet_operator.kube.resources import CHECKS, JsonObject
from steadyfleet_operator.resource import ANNOTATION_RUN_AT, CheckSpec, CheckStatus, Condition, ResourceModel

M = TypeVar("M", bound=ResourceModel)

KIND = "ConsistencyCheck"


@dataclass(frozen=True, slots=True)
class InvalidCheck:
    """`error` names the field, e.g. `spec.engine.model: Field required`."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    conditions: tuple[Condition, ...]
    """Those stored now, as far as they can be read."""
    error: SpecInvalid


class Checks:
    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def get(self, namespace: str, name: str) -> Check | InvalidCheck | None:
        """None also for a check that is being deleted."""
        item = await self._client.get(CHECKS, name, namespace=namespace)
        return None if item is None or fields.is_deleting(item) else parse_check(item)

    async def list_all(self, namespace: str = "") -> tuple[Check | InvalidCheck, ...]:
        """Of one namespace or of all; without those that are being deleted."""
        listing = await self._client.list_all(
            CHECKS, lambda item: None if fields.is_deleting(item) else parse_check(item), namespace=namespace
        )
        return tuple(check for check in listing.items if check is not None)

    async def write_status(self, check: Check, status: CheckStatus) -> Check | None:
        """The whole status, guarded by the resource version that `check` was read with.

        Returns the check as it is now, None if it is gone. Raises Conflict if anybody wrote in between.
        """
        body = _identity(check) | {"status": dump(status)}
        answer = await self._client.replace(
            CHECKS, check.name, body, namespace=check.namespace, subresource="status"
        )
        if answer is None:
            return None
        written = parse_check(answer)
        if isinstance(written, InvalidCheck):
            raise KubernetesError(f"the API server changed the status that was written: {written.error}")
        return written

    async def write_conditions(self, check: InvalidCheck, conditions: Sequence[Condition]) -> bool:
        """Only the conditions and the observed generation: the rest of a status that can't be read is left as it is.

        False if the check is gone. Raises Conflict.
        """
        status = {"observedGeneration": check.generation, "conditions": [dump(condition) for condition in conditions]}
        body = _identity(check) | {"status": status}
        answer = await self._client.patch(
            CHECKS, check.name, body, kind=PatchType.MERGE, namespace=check.namespace, subresource="status"
        )
        return answer is not None


def parse_check(item: JsonObject) -> Check | InvalidCheck:
    metadata = fields.child(item, "metadata")
    try:
        return Check(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            generation=int(metadata.get("generation", 0)),
            resource_version=metadata["resourceVersion"],
            spec=parse_part(CheckSpec, item, "spec"),
            status=parse_part(CheckStatus, item, "status"),
            run_at=_run_at(fields.annotations_of(item).get(ANNOTATION_RUN_AT, "")),
        )
    except SpecInvalid as error:
        return InvalidCheck(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            generation=int(metadata.get("generation", 0)),
            resource_version=metadata["resourceVersion"],
            conditions=_readable_conditions(item),
            error=error,
        )


def parse_part(model: type[M], item: JsonObject, part: str) -> M:
    """Raises SpecInvalid, which names the field by its path in the object."""
    try:
        return model.model_validate(item.get(part) or {})
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join([part, *(str(step) for step in first["loc"])])
        raise SpecInvalid(f"{path}: {first['msg']}") from error


def dump(model: ResourceModel) -> JsonObject:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def owner_reference(check: Check) -> JsonObject:
    return {
        "apiVersion": CHECKS.api_version,
        "kind": KIND,
        "name": check.name,
        "uid": check.uid,
        "controller": True,
        # Else a check could not be deleted without the right to update its finalizers.
        "blockOwnerDeletion": False,
    }


def _identity(check: Check | InvalidCheck) -> JsonObject:
    return {
        "apiVersion": CHECKS.api_version,
        "kind": KIND,
        "metadata": {
            "namespace": check.namespace,
            "name": check.name,
            "uid": check.uid,
            "resourceVersion": check.resource_version,
        },
    }


def _readable_conditions(item: JsonObject) -> tuple[Condition, ...]:
    found = []
    for raw in fields.children(fields.child(item, "status"), "conditions"):
        try:
            found.append(Condition.model_validate(raw))
        except ValidationError:
            continue  # it is about to be written anew
    return tuple(found)


def _run_at(value: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
