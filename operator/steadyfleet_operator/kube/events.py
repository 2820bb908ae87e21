"""Events on a check or a node: what happened, for people who run `kubectl describe`.

Helpful but auxiliary: an Event that can't be written is logged and never stops a pass. The same reason and message on
the same object is one Event with a count, not many.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Literal

from steadyfleet_operator.decide.observation import Check, Node
from steadyfleet_operator.decide.times import text as time_text
from steadyfleet_operator.errors import KubernetesError
from steadyfleet_operator.kube.checks import KIND as CHECK_KIND
from steadyfleet_operator.kube.checks import InvalidCheck
from steadyfleet_operator.kube.client import KubeClient, PatchType
from steadyfleet_operator.kube.resources import CHECKS, EVENTS, JsonObject
from steadyfleet_operator.reasons import Reason

log = logging.getLogger(__name__)

COMPONENT = "steadyfleet"

NODE_EVENTS_NAMESPACE = "default"
"""Where Events on objects without a namespace live."""

MAX_MESSAGE_CHARACTERS = 1024
"""The API server's own limit for an Event's message."""

QUEUE_LIMIT = 1000
REMEMBERED = 1000
"""Distinct Events whose count can still go up."""

EventType = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class _Key:
    kind: str
    namespace: str
    name: str
    uid: str
    type: EventType
    reason: str
    message: str


@dataclass(slots=True)
class _Posted:
    name: str
    count: int


class Events:
    """`post_*` only queue; `run` writes until cancelled, `drain` writes what is queued."""

    def __init__(self, client: KubeClient, *, now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)) -> None:
        self._client = client
        self._now = now
        self._queue: asyncio.Queue[_Key] = asyncio.Queue(QUEUE_LIMIT)
        self._posted: OrderedDict[_Key, _Posted] = OrderedDict()

    def post_check(self, check: Check | InvalidCheck, *, type: EventType, reason: Reason, message: str) -> None:  # noqa: A002
        self._put(_Key(CHECK_KIND, check.namespace, check.name, check.uid, type, reason.value, message))

    def post_node(self, node: Node, *, type: EventType, reason: Reason, message: str) -> None:  # noqa: A002
        self._put(_Key("Node", "", node.name, node.uid, type, reason.value, message))

    async def run(self) -> None:
        while True:
            await self._write(await self._queue.get())

    async def drain(self) -> None:
        with suppress(asyncio.QueueEmpty):
            while True:
                await self._write(self._queue.get_nowait())

    def _put(self, key: _Key) -> None:
        try:
            self._queue.put_nowait(key)
        except asyncio.QueueFull:
            log.warning("event dropped, %d are waiting: %s %s: %s", QUEUE_LIMIT, key.kind, key.name, key.reason)

    async def _write(self, key: _Key) -> None:
        try:
            if not await self._count_up(key):
                await self._create(key)
        except KubernetesError as error:
            log.warning("event %s on %s %s/%s not written: %s", key.reason, key.kind, key.namespace, key.name, error)

    async def _count_up(self, key: _Key) -> bool:
        """False if there is no such Event: never posted by this process, or forgotten by the API server (an hour)."""
        posted = self._posted.get(key)
        if posted is None:
            return False
        body = {"count": posted.count + 1, "lastTimestamp": time_text(self._now())}
        answer = await self._client.patch(
            EVENTS, posted.name, body, kind=PatchType.MERGE, namespace=key.namespace or NODE_EVENTS_NAMESPACE
        )
        if answer is None:
            del self._posted[key]
            return False
        posted.count += 1
        self._posted.move_to_end(key)
        return True

    async def _create(self, key: _Key) -> None:
        namespace = key.namespace or NODE_EVENTS_NAMESPACE
        now = time_text(self._now())
        # A Kubernetes name has at most 253 characters; a node's may use them all.
        name = f"{key.name[:200]}.{secrets.token_hex(8)}"
        body: JsonObject = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": CHECKS.api_version if key.kind == CHECK_KIND else "v1",
                "kind": key.kind,
                "namespace": key.namespace,
                "name": key.name,
                "uid": key.uid,
            },
            "type": key.type,
            "reason": key.reason,
            "message": key.message[:MAX_MESSAGE_CHARACTERS],
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        await self._client.create(EVENTS, body, namespace=namespace)
        self._posted[key] = _Posted(name, 1)
        while len(self._posted) > REMEMBERED:
            self._posted.popitem(last=False)
