"""NodeConsistency: what all checks say of one node. One object a node, owned by the Node, written whole with a guard.

A Node that comes back under its name with another uid is another machine: its object starts anew. Which of two uids is
the older one only the live Node can tell, so it is read before an object is made or deleted for its sake.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from steadyfleet_operator.decide.observation import Node
from steadyfleet_operator.errors import Conflict, Refused, SpecInvalid
from steadyfleet_operator.kube import fields
from steadyfleet_operator.kube.checks import dump, parse_part
from steadyfleet_operator.kube.client import KubeClient
from steadyfleet_operator.kube.resources import NODE_CONSISTENCIES, NODES, JsonObject
from steadyfleet_operator.resource import VERDICT_SEVERITY, NodeCheck, NodeStatus

log = logging.getLogger(__name__)

KIND = "NodeConsistency"

GUARDED_TRIES = 5
"""Passes of several checks write to one node's object; each conflict means that one of them got through."""


@dataclass(frozen=True, slots=True)
class NodeResult:
    """A NodeConsistency as it is stored now. `name` is the node's."""

    name: str
    uid: str
    node_uid: str
    """Of the Node that it was made for."""
    resource_version: str
    status: NodeStatus


class NodeResults:
    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def get(self, node: str) -> NodeResult | None:
        item = await self._client.get(NODE_CONSISTENCIES, node)
        return None if item is None or fields.is_deleting(item) else parse_result(item)

    async def list_all(self) -> tuple[NodeResult, ...]:
        return (await self._client.list_all(NODE_CONSISTENCIES, parse_result)).items

    async def put_entry(self, node: Node, entry: NodeCheck) -> NodeStatus:
        """Sets one check's entry, leaves the others alone, and writes nothing if it is there already.

        Returns the status as it is now. Raises Refused if `node` is no more, or was replaced under its name.
        """
        return await self._change(node, lambda status: with_entry(status, entry))

    async def drop_entry(self, node: Node, *, namespace: str, check: str) -> NodeStatus:
        """Takes one check's entry away; an object that is empty then is deleted."""
        return await self._change(node, lambda status: without_entry(status, namespace=namespace, check=check))

    async def delete(self, result: NodeResult) -> None:
        await self._client.delete(NODE_CONSISTENCIES, result.name, uid=result.uid)

    async def _change(self, node: Node, compose: Callable[[NodeStatus], NodeStatus]) -> NodeStatus:
        for attempt in range(1, GUARDED_TRIES + 1):
            try:
                return await self._change_once(node, compose)
            except Conflict:
                if attempt == GUARDED_TRIES:
                    raise
        raise AssertionError("unreachable: the last try returns or raises")

    async def _change_once(self, node: Node, compose: Callable[[NodeStatus], NodeStatus]) -> NodeStatus:
        current = await self.get(node.name)
        if current is not None and current.node_uid != node.uid:
            await self._must_live(node)
            await self.delete(current)
            current = None
        before = current.status if current else NodeStatus()
        after = compose(before)
        if after == before:
            return after
        if current is None:
            await self._must_live(node)
            current = parse_result(await self._client.create(NODE_CONSISTENCIES, _new(node)))
        elif not after.checks:
            await self.delete(current)
            return after
        body = _new(node)
        body["metadata"] |= {"uid": current.uid, "resourceVersion": current.resource_version}
        body["status"] = dump(after)
        answer = await self._client.replace(NODE_CONSISTENCIES, node.name, body, subresource="status")
        if answer is None:
            raise Conflict(f"nodeconsistency {node.name} was deleted while it was written", status=409)
        return parse_result(answer).status

    async def _must_live(self, node: Node) -> None:
        item = await self._client.get(NODES, node.name)
        if item is None or fields.text(fields.child(item, "metadata"), "uid") != node.uid:
            raise Refused(f"node {node.name} was deleted or replaced since it was read; nothing is written", status=409)


def with_entry(status: NodeStatus, entry: NodeCheck) -> NodeStatus:
    """The worst verdict first, for `kubectl get` shows the first entry alone; then by key, so that equal contents are
    equal bytes."""
    others = without_entry(status, namespace=entry.namespace, check=entry.name).checks
    return NodeStatus(checks=tuple(sorted((*others, entry), key=_order)))


def without_entry(status: NodeStatus, *, namespace: str, check: str) -> NodeStatus:
    kept = (found for found in status.checks if (found.namespace, found.name) != (namespace, check))
    return NodeStatus(checks=tuple(kept))


def parse_result(item: JsonObject) -> NodeResult:
    """A status that the models do not take counts as empty: it holds nothing that the next passes don't write again."""
    metadata = item["metadata"]
    try:
        status = parse_part(NodeStatus, item, "status")
    except SpecInvalid as error:
        log.warning("nodeconsistency %s is not readable and will be written anew: %s", metadata["name"], error)
        status = NodeStatus()
    return NodeResult(
        name=metadata["name"],
        uid=metadata["uid"],
        node_uid=fields.owner_uid(item, "Node"),
        resource_version=metadata["resourceVersion"],
        status=status,
    )


def _new(node: Node) -> JsonObject:
    return {
        "apiVersion": NODE_CONSISTENCIES.api_version,
        "kind": KIND,
        "metadata": {
            "name": node.name,
            # No blockOwnerDeletion: it would need the right to update nodes/finalizers.
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}],
        },
    }


def _order(entry: NodeCheck) -> tuple[int, str, str]:
    return -VERDICT_SEVERITY[entry.verdict], entry.namespace, entry.name
