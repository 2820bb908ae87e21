"""What NodeConsistency objects say, kept between passes: five thousand small objects can't be listed each time.

The operator is their only writer, so the copy is right as long as nobody else edits them; `load` reads all anew, at
start and every few minutes. A node that was replaced under its name has no entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from steadyfleet_operator.decide.observation import Check, Node
from steadyfleet_operator.kube.results import NodeResults
from steadyfleet_operator.resource import NodeCheck, NodeStatus

NOTHING = NodeStatus()


class Results:
    def __init__(self, stored: NodeResults) -> None:
        self._stored = stored
        self._known: dict[str, tuple[str, NodeStatus]] = {}
        self._written: set[str] = set()
        self._writing = asyncio.Lock()
        """Two answers to writes of one object must not be remembered in the wrong order."""

    async def load(self) -> None:
        """What is written while the list is read wins over the list, which may be older."""
        self._written.clear()
        listed = {result.name: (result.node_uid, result.status) for result in await self._stored.list_all()}
        kept = {name: self._known[name] for name in self._written if name in self._known}
        self._known = listed | kept

    def of_check(self, check: Check, nodes: Mapping[str, Node]) -> dict[str, NodeCheck]:
        """Node name -> this check's entry; one of a deleted check of the same name is not this check's."""
        return {
            name: entry
            for name, node in nodes.items()
            for entry in self.status_of(node).checks
            if (entry.namespace, entry.name, entry.uid) == (check.namespace, check.name, check.uid)
        }

    def status_of(self, node: Node) -> NodeStatus:
        uid, status = self._known.get(node.name, ("", NOTHING))
        return status if uid == node.uid else NOTHING

    async def put(self, node: Node, entry: NodeCheck) -> None:
        async with self._writing:
            self._remember(node, await self._stored.put_entry(node, entry))

    async def drop(self, node: Node, *, namespace: str, check: str) -> None:
        async with self._writing:
            self._remember(node, await self._stored.drop_entry(node, namespace=namespace, check=check))

    def forget(self, node: str) -> None:
        """The Node is gone, and its object with it (they are owned)."""
        self._known.pop(node, None)

    def orphans(self, living: Mapping[tuple[str, str], str]) -> list[tuple[str, NodeCheck]]:
        """(node, entry) of checks that are not among `living`: (namespace, name) -> uid."""
        return [
            (node, entry)
            for node, (_, status) in self._known.items()
            for entry in status.checks
            if living.get((entry.namespace, entry.name)) != entry.uid
        ]

    def names(self) -> frozenset[str]:
        return frozenset(self._known)

    def _remember(self, node: Node, status: NodeStatus) -> None:
        self._known[node.name] = (node.uid, status)
        self._written.add(node.name)
