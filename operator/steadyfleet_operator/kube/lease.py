"""The fence against a second operator: a small elector of our own on a coordination.k8s.io/v1 Lease.

One replica with the strategy Recreate should be alone anyway; the Lease makes it certain. The official async elector
can't be used: it never creates a Lease, and after a refused connection or a hung request two leaders go on.

    acquire()   waits until the Lease is ours
    hold()      renews until cancelled; raises LeaseLost as soon as it is not certain any more that it is ours
    check()     raises LeaseLost unless it is held now: called before each write
    release()   gives it up, so that the next one need not wait

Only durations on our own monotonic clock count: another's Lease is taken when we have not seen it change for its whole
duration, whatever times are written in it. The times written are for people.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone

from steadyfleet_operator.errors import Conflict, KubernetesError, LeaseLost
from steadyfleet_operator.kube import fields
from steadyfleet_operator.kube.client import KubeClient
from steadyfleet_operator.kube.resources import LEASES, JsonObject

log = logging.getLogger(__name__)

RENEW_DEADLINE_SHARE = 2 / 3
"""Of the duration: who could not renew for this long stops writing, well before another may take over."""

RETRY_SHARE = 2 / 15
"""Of the duration: how often it is renewed, and looked at by those who wait (2 s of 15 s, as client-go does)."""

RELEASED_SECONDS = 1
"""Duration written on release: the API server takes nothing below 1."""


@dataclass(frozen=True, slots=True)
class _Record:
    holder: str = ""
    acquired: str = ""
    transitions: int = 0
    duration_seconds: float = 0.0
    resource_version: str = ""


_NOBODY = _Record()


class Lease:
    """`holder` must be unique to this process, or two processes of one name would both hold it.

    `client` must have no fence of its own, and is best not shared: a full connection pool must not delay a renewal.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        name: str,
        holder: str,
        duration_seconds: float = 15,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._holder = holder
        self._duration_seconds = duration_seconds
        self._renew_deadline_seconds = duration_seconds * RENEW_DEADLINE_SHARE
        self._retry_seconds = duration_seconds * RETRY_SHARE
        self._clock = clock
        self._held_until: float | None = None
        self._seen = _NOBODY
        self._seen_at = 0.0

    @property
    def held(self) -> bool:
        return self._held_until is not None and self._clock() < self._held_until

    def check(self) -> None:
        if not self.held:
            raise LeaseLost(f"lease {self._namespace}/{self._name} is not held by {self._holder}")

    async def acquire(self) -> None:
        """Waits without end. An API server that is away is waited for as well."""
        while True:
            try:
                async with asyncio.timeout(self._renew_deadline_seconds):
                    if await self._try_to_take():
                        log.info("lease %s/%s acquired by %s", self._namespace, self._name, self._holder)
                        return
            except (KubernetesError, TimeoutError) as error:
                log.warning("lease %s/%s cannot be acquired yet: %s", self._namespace, self._name, error or "time-out")
            await asyncio.sleep(self._retry_seconds)

    async def hold(self) -> None:
        """Until cancelled. Raises LeaseLost; the process must end then."""
        self.check()
        while True:
            await asyncio.sleep(self._retry_seconds)
            await self._renew_in_time()

    async def release(self) -> None:
        """Best effort: who can't reach the API server lets the Lease run out."""
        if not self.held:
            return
        self._held_until = None
        try:
            async with asyncio.timeout(self._retry_seconds):
                await self._write(self._seen, holder="", duration_seconds=RELEASED_SECONDS)
            log.info("lease %s/%s released", self._namespace, self._name)
        except (KubernetesError, TimeoutError) as error:
            log.warning("lease %s/%s was not released: %s", self._namespace, self._name, error or "time-out")

    async def _renew_in_time(self) -> None:
        """One renewal, tried again until the deadline. The first sign of another holder ends it at once."""
        self.check()
        try:
            async with asyncio.timeout((self._held_until or 0.0) - self._clock()):
                renewed = await self._renew_once()
                while not renewed:
                    await asyncio.sleep(self._retry_seconds / 2)
                    renewed = await self._renew_once()
        except TimeoutError:
            self._held_until = None
            raise LeaseLost(
                f"lease {self._namespace}/{self._name} could not be renewed for {self._renew_deadline_seconds:g} s"
            ) from None

    async def _renew_once(self) -> bool:
        self.check()
        started = self._clock()
        try:
            async with asyncio.timeout(self._retry_seconds):
                await self._write(self._seen, holder=self._holder, duration_seconds=self._duration_seconds)
        except Conflict:
            return await self._look_again()
        except (KubernetesError, TimeoutError) as error:
            log.warning("lease %s/%s not renewed: %s", self._namespace, self._name, error or "time-out")
            return await self._look_again()
        self._held_until = started + self._renew_deadline_seconds
        return True

    async def _look_again(self) -> bool:
        """Somebody wrote to the Lease, or our write got lost on the way: still ours? False: try to renew again."""
        try:
            async with asyncio.timeout(self._retry_seconds):
                current = await self._read()
        except (KubernetesError, TimeoutError):
            return False
        if current is None or current.holder != self._holder:
            self._held_until = None
            by = current.holder if current and current.holder else "nobody"
            raise LeaseLost(f"lease {self._namespace}/{self._name} is held by {by}")
        self._seen = current
        return False

    async def _try_to_take(self) -> bool:
        started = self._clock()
        current = await self._read()
        if current is None:
            body = self._body(_NOBODY, holder=self._holder, duration_seconds=self._duration_seconds)
            try:
                answer = await self._client.create(LEASES, body, namespace=self._namespace)
            except Conflict:
                return False
            self._seen = _parse(answer)
            self._held_until = started + self._renew_deadline_seconds
            return True
        if current != self._seen:
            self._seen, self._seen_at = current, started
        if current.holder not in ("", self._holder):
            patience = max(current.duration_seconds, self._duration_seconds)
            if started - self._seen_at < patience:
                return False
            log.warning("lease %s/%s of %s has run out", self._namespace, self._name, current.holder)
        try:
            await self._write(current, holder=self._holder, duration_seconds=self._duration_seconds)
        except Conflict:
            return False
        self._held_until = started + self._renew_deadline_seconds
        return True

    async def _read(self) -> _Record | None:
        item = await self._client.get(LEASES, self._name, namespace=self._namespace)
        return None if item is None else _parse(item)

    async def _write(self, current: _Record, *, holder: str, duration_seconds: float) -> None:
        """Guarded by the record's resource version; a Lease that somebody deleted is made anew by this (the API server
        creates Leases on update)."""
        body = self._body(current, holder=holder, duration_seconds=duration_seconds)
        body["metadata"]["resourceVersion"] = current.resource_version
        answer = await self._client.replace(LEASES, self._name, body, namespace=self._namespace)
        if answer is None:
            raise Conflict(f"lease {self._namespace}/{self._name} was deleted", status=409)
        self._seen = _parse(answer)

    def _body(self, before: _Record, *, holder: str, duration_seconds: float) -> JsonObject:
        # UTC with microseconds, whatever the local time zone: the API's MicroTime.
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        same = holder == before.holder
        changes_hands = bool(before.resource_version and holder and not same)
        return {
            "apiVersion": LEASES.api_version,
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": max(1, round(duration_seconds)),
                "acquireTime": before.acquired if same and before.acquired else now,
                "renewTime": now,
                "leaseTransitions": before.transitions + changes_hands,
            },
        }


def _parse(item: JsonObject) -> _Record:
    spec = fields.child(item, "spec")
    return _Record(
        holder=fields.text(spec, "holderIdentity"),
        acquired=fields.text(spec, "acquireTime"),
        transitions=int(spec.get("leaseTransitions") or 0),
        duration_seconds=float(spec.get("leaseDurationSeconds") or 0),
        resource_version=item["metadata"]["resourceVersion"],
    )
