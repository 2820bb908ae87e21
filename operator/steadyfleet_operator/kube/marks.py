"""Our marks on a Node: one condition and one label, and nothing else.

Each write carries the node's uid, so that a deleted node is not created and a replaced one not marked. The condition
is a strategic merge patch on /status, the label a JSON merge patch; server-side apply is never used, since clearing by
it takes the conditions and taints of others along, and an apply to a deleted Node creates a ghost. A mark that stands
already is not written again, and `lastTransitionTime` moves on a flip alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timezone

from steadyfleet_operator.decide.observation import Node
from steadyfleet_operator.decide.times import text as time_text
from steadyfleet_operator.errors import Conflict, Refused
from steadyfleet_operator.kube.client import KubeClient, PatchType
from steadyfleet_operator.kube.fleet import parse_node
from steadyfleet_operator.kube.resources import NODES, JsonObject
from steadyfleet_operator.reasons import Reason
from steadyfleet_operator.resource import CONDITION_TYPE, LABEL_MARK

log = logging.getLogger(__name__)

LABEL_VALUE = "true"


class Marks:
    """Every method returns whether it wrote; a node that is gone, or another one by now, is left alone."""

    def __init__(self, client: KubeClient, *, now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)) -> None:
        self._client = client
        self._now = now

    async def mark(self, node: str, uid: str, *, reason: Reason, message: str) -> bool:
        """Condition True and label. The condition first: it is what tells why."""
        live = await self._live(node, uid)
        if live is None:
            return False
        condition = await self._set_condition(live, status="True", reason=reason, message=message)
        labelled = live.labels.get(LABEL_MARK) == LABEL_VALUE
        label = not labelled and await self._set_label(live, LABEL_VALUE)
        return condition or label

    async def recover(self, node: str, uid: str, *, reason: Reason, message: str) -> bool:
        """Condition False, no label: the node was marked, and its GPU is Consistent again."""
        live = await self._live(node, uid)
        if live is None:
            return False
        label = live.labelled and await self._set_label(live, None)
        condition = await self._set_condition(live, status="False", reason=reason, message=message)
        return condition or label

    async def remove(self, node: str, uid: str) -> bool:
        """Neither condition nor label: nothing is said of the node any more."""
        live = await self._live(node, uid)
        return False if live is None else await self._remove(live)

    async def clear_all(self) -> int:
        """Takes our marks from every node, for the uninstall; returns how many nodes carried one."""
        listing = await self._client.list_all(NODES, parse_node)
        marked = [node for node in listing.items if node.mark is not None or node.labelled]
        cleared = 0
        for node in marked:
            cleared += await self._remove(node)
        return cleared

    async def _live(self, name: str, uid: str) -> Node | None:
        item = await self._client.get(NODES, name)
        if item is None:
            log.info("node %s is gone; nothing written to it", name)
            return None
        live = parse_node(item)
        if live.uid != uid:
            log.info("node %s was replaced (uid %s, expected %s); nothing written to it", name, live.uid, uid)
            return None
        return live

    async def _remove(self, live: Node) -> bool:
        label = live.labelled and await self._set_label(live, None)
        condition = live.mark is not None and await self._patch_status(
            live, {"type": CONDITION_TYPE, "$patch": "delete"}
        )
        return label or condition

    async def _set_condition(self, live: Node, *, status: str, reason: Reason, message: str) -> bool:
        stands = live.mark
        if stands and (stands.status, stands.reason, stands.message) == (status, reason.value, message):
            return False
        now = time_text(self._now())
        # Another writer may have left the time out, and the API server takes no empty one.
        since = stands.last_transition_time if stands and stands.status == status else ""
        return await self._patch_status(
            live,
            {
                "type": CONDITION_TYPE,
                "status": status,
                "reason": reason.value,
                "message": message,
                "lastHeartbeatTime": now,
                "lastTransitionTime": since or now,
            },
        )

    async def _patch_status(self, live: Node, condition: JsonObject) -> bool:
        body = {"metadata": {"uid": live.uid}, "status": {"conditions": [condition]}}
        return await self._patch(live, body, kind=PatchType.STRATEGIC, subresource="status")

    async def _set_label(self, live: Node, value: str | None) -> bool:
        body = {"metadata": {"uid": live.uid, "labels": {LABEL_MARK: value}}}
        return await self._patch(live, body, kind=PatchType.MERGE, subresource="")

    async def _patch(self, live: Node, body: JsonObject, *, kind: PatchType, subresource: str) -> bool:
        try:
            return await self._client.patch(NODES, live.name, body, kind=kind, subresource=subresource) is not None
        except (Conflict, Refused):
            # Either our uid is not the node's any more, which is no error, or the server means it.
            if await self._live(live.name, live.uid) is None:
                return False
            raise
