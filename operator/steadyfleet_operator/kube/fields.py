"""Readers of single fields of raw Kubernetes objects. None of them raises for what is absent or null."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from decimal import ROUND_FLOOR
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from steadyfleet_operator.kube.resources import JsonObject


def child(item: Mapping[str, Any], name: str) -> JsonObject:
    value = item.get(name)
    return value if isinstance(value, dict) else {}


def children(item: Mapping[str, Any], name: str) -> list[JsonObject]:
    value = item.get(name)
    return value if isinstance(value, list) else []


def text(item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    return value if isinstance(value, str) else ""


def moment(item: Mapping[str, Any], name: str) -> datetime | None:
    """RFC 3339, whole seconds or micro-time."""
    value = text(item, name)
    return datetime.fromisoformat(value) if value else None


def created(item: Mapping[str, Any]) -> datetime:
    return moment(child(item, "metadata"), "creationTimestamp") or datetime.fromtimestamp(0, timezone.utc)


def is_deleting(item: Mapping[str, Any]) -> bool:
    return bool(child(item, "metadata").get("deletionTimestamp"))


def name_of(item: Mapping[str, Any]) -> str:
    return text(child(item, "metadata"), "name")


def labels_of(item: Mapping[str, Any]) -> dict[str, str]:
    return child(child(item, "metadata"), "labels")


def annotations_of(item: Mapping[str, Any]) -> dict[str, str]:
    return child(child(item, "metadata"), "annotations")


def owner_uid(item: Mapping[str, Any], kind: str) -> str:
    """Uid of the owner of this kind, empty if there is none."""
    for owner in children(child(item, "metadata"), "ownerReferences"):
        if owner.get("kind") == kind:
            return text(owner, "uid")
    return ""


def condition(item: Mapping[str, Any], kind: str) -> JsonObject | None:
    for found in children(child(item, "status"), "conditions"):
        if found.get("type") == kind:
            return found
    return None


def whole(quantity: object) -> int:
    """A quantity of an extended resource; the API server may write 2000 as 2k."""
    try:
        amount = parse_quantity(quantity)  # type: ignore[no-untyped-call]
        return int(amount.to_integral_value(rounding=ROUND_FLOOR))
    except ValueError:
        return 0
