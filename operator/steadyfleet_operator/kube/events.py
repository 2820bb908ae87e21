"""Events on a check: what happened, for people who run `kubectl describe`.

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

from steadyfleet_operator.decide.observation import Check
from steadyfleet_operator.decide.times import text as time_text
from steadyfleet_operator.errors import KubernetesError
from steadyfleet_operator.kube.checks import KIND as CHECK_KIND
from steadyfleet_operator.kube.checks import InvalidCheck
from steadyfleet_operator.kube.client import KubeClient, PatchType
from steadyfleet_operator.kube.resources import CHECKS, EVENTS, JsonObject
from steadyfleet_operator.reasons import Reason

log = logging.getLogger(__name__)

COMPONENT = "steadyfleet"

MAX_MESSAGE_CHARACTERS = 1024
"""The API server's own limit for an Event's message."""

QUEUE_LIMIT = 1000
REMEMBERED = 1000
"""Distinct Events whose count can still go up."""

DRAIN_SECONDS = 5.0
"""A process that was asked to stop has half a minute for all that it must end."""

EventType = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class _Key:
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
        self._put(_Key(check.namespace, check.name, check.uid, type, reason.value, message))

    async def run(self) -> None:
        while True:
            await self._write(await self._queue.get())

    async def drain(self) -> None:
        """What is not written within DRAIN_SECONDS is lost, and said so."""
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                with suppress(asyncio.QueueEmpty):
                    while True:
                        await self._write(self._queue.get_nowait())
        except TimeoutError:
            log.warning("%d events or more are lost, not written within %g s", self._queue.qsize() + 1, DRAIN_SECONDS)

    def _put(self, key: _Key) -> None:
        try:
            self._queue.put_nowait(key)
        except asyncio.QueueFull:
            log.warning("event dropped, %d are waiting: check %s: %s", QUEUE_LIMIT, key.name, key.reason)

    async def _write(self, key: _Key) -> None:
        try:
            if not await self._count_up(key):
                await self._create(key)
        except KubernetesError as error:
            log.warning("event %s on check %s/%s not written: %s", key.reason, key.namespace, key.name, error)

    async def _count_up(self, key: _Key) -> bool:
        """False if there is no such Event: never posted by this process, or forgotten by the API server (an hour)."""
        posted = self._posted.get(key)
        if posted is None:
            return False
        body = {"count": posted.count + 1, "lastTimestamp": time_text(self._now())}
        answer = await self._client.patch(EVENTS, posted.name, body, kind=PatchType.MERGE, namespace=key.namespace)
        if answer is None:
            del self._posted[key]
            return False
        posted.count += 1
        self._posted.move_to_end(key)
        return True

    async def _create(self, key: _Key) -> None:
        now = time_text(self._now())
        name = f"{key.name}.{secrets.token_hex(8)}"
        body: JsonObject = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": key.namespace},
            "involvedObject": {
                "apiVersion": CHECKS.api_version,
                "kind": CHECK_KIND,
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
        await self._client.create(EVENTS, body, namespace=key.namespace)
        self._posted[key] = _Posted(name, 1)
        while len(self._posted) > REMEMBERED:
            self._posted.popitem(last=False)
