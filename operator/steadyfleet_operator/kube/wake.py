"""Changes of our Jobs and Pods, as the name of the check that they belong to. They wake a pass; a LIST then decides."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

from steadyfleet_operator.kube import fields, names
from steadyfleet_operator.kube.client import KubeClient, Listing
from steadyfleet_operator.kube.resources import JsonObject, Resource
from steadyfleet_operator.kube.watch import follow


async def wake_by(client: KubeClient, resource: Resource, namespace: str, wake: Callable[[str, str], None]) -> None:
    """`wake(namespace, check)` for each change of a Job or Pod of ours in the namespace. Until cancelled."""
    steps = follow(client, resource, _check_of, namespace=namespace, labels=names.selector())
    async with aclosing(steps):
        async for step in steps:
            for check in set(step.items) if isinstance(step, Listing) else {step.item}:
                wake(namespace, check)


def _check_of(item: JsonObject) -> str:
    return fields.labels_of(item).get(names.LABEL_CHECK, "")
