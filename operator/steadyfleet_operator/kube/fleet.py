"""The fleet: one trimmed snapshot of all Nodes for all checks, fed by list, watch and list again.

A LIST of five thousand nodes is 84 MB, so it is paid once, not per check and pass; and only the fields in use are kept.
Whoever is about to write to a Node reads it again (`marks`).
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import aclosing
from types import MappingProxyType

from steadyfleet_operator.decide.observation import Node, NodeMark, Taint
from steadyfleet_operator.kube import fields
from steadyfleet_operator.kube.client import KubeClient, Listing
from steadyfleet_operator.kube.resources import NODES, JsonObject
from steadyfleet_operator.kube.watch import Changed, Deleted, follow
from steadyfleet_operator.resource import CONDITION_TYPE, LABEL_MARK

log = logging.getLogger(__name__)

RELIST_SECONDS = 300.0
"""How long a change that a watch lost can stay unseen."""


class Fleet:
    """`changed` is called with the names of nodes that came, went or changed in a field that is kept: heartbeats don't
    count. It must not block."""

    def __init__(
        self,
        client: KubeClient,
        *,
        changed: Callable[[frozenset[str]], None] = lambda _: None,
        relist_seconds: float = RELIST_SECONDS,
    ) -> None:
        self._client = client
        self._changed = changed
        self._relist_seconds = relist_seconds
        self._nodes: dict[str, Node] = {}
        self.ready = asyncio.Event()
        """Set once the first list is complete; before that a snapshot would look like an empty fleet."""

    async def run(self) -> None:
        """Until cancelled."""
        steps = follow(self._client, NODES, parse_node, relist_seconds=self._relist_seconds)
        async with aclosing(steps):
            async for step in steps:
                match step:
                    case Listing():
                        self._replace({node.name: node for node in step.items})
                    case Changed():
                        self._put(step.item)
                    case Deleted():
                        if self._nodes.pop(step.item.name, None) is not None:
                            self._changed(frozenset({step.item.name}))

    def snapshot(self) -> Mapping[str, Node]:
        """By name; a copy that later changes don't reach."""
        return MappingProxyType(dict(self._nodes))

    def _replace(self, nodes: dict[str, Node]) -> None:
        before, self._nodes = self._nodes, nodes
        names = before.keys() | nodes.keys()
        different = frozenset(name for name in names if before.get(name) != nodes.get(name))
        if not self.ready.is_set():
            log.info("fleet: %d nodes", len(nodes))
            self.ready.set()
        if different:
            self._changed(different)

    def _put(self, node: Node) -> None:
        if self._nodes.get(node.name) != node:
            self._nodes[node.name] = node
            self._changed(frozenset({node.name}))


def parse_node(item: JsonObject) -> Node:
    metadata, spec, status = fields.child(item, "metadata"), fields.child(item, "spec"), fields.child(item, "status")
    labels = fields.labels_of(item)
    ready = fields.condition(item, "Ready")
    return Node(
        name=metadata["name"],
        uid=metadata["uid"],
        # Interned: the same few hundred strings stand on every node.
        labels={sys.intern(key): sys.intern(value) for key, value in labels.items()},
        taints=tuple(
            Taint(key=fields.text(taint, "key"), effect=fields.text(taint, "effect"), value=fields.text(taint, "value"))
            for taint in fields.children(spec, "taints")
        ),
        unschedulable=bool(spec.get("unschedulable")),
        ready=ready is not None and ready.get("status") == "True",
        deleting=fields.is_deleting(item),
        allocatable={
            sys.intern(name): fields.whole(amount)
            for name, amount in fields.child(status, "allocatable").items()
            if "/" in name
        },
        capacity={
            sys.intern(name): fields.whole(amount)
            for name, amount in fields.child(status, "capacity").items()
            if "/" in name
        },
        mark=_mark(item),
        labelled=LABEL_MARK in labels,
    )


def _mark(item: JsonObject) -> NodeMark | None:
    found = fields.condition(item, CONDITION_TYPE)
    if found is None:
        return None
    return NodeMark(
        status=fields.text(found, "status"),
        reason=fields.text(found, "reason"),
        message=fields.text(found, "message"),
        last_transition_time=fields.text(found, "lastTransitionTime"),
    )
