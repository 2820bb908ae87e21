"""List, watch, list again: a stream of what is there and what changes, that never trusts a watch for long.

A watch may end at any moment, stay silent behind a load balancer, or be answered by 429, 502, 503 or an empty 200.
So each has a time-out on the server's side and on ours, each end is followed by a fresh list, and what ends early or
badly is followed by a wait that grows.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

from steadyfleet_operator.errors import KubernetesError, Unavailable
from steadyfleet_operator.kube.client import KubeClient, Listing
from steadyfleet_operator.kube.resources import JsonObject, Resource

log = logging.getLogger(__name__)

T = TypeVar("T")

SILENCE_SECONDS = 90.0
"""The API server sends a bookmark about every minute; a stream that is silent for longer is dead."""

FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 60.0

HEALTHY_SECONDS = 30.0
"""A watch that lived this long ends the growing of the waits."""


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """Added or modified."""

    item: T


@dataclass(frozen=True, slots=True)
class Deleted(Generic[T]):
    item: T


Step = Listing[T] | Changed[T] | Deleted[T]


async def follow(
    client: KubeClient,
    resource: Resource,
    parse: Callable[[JsonObject], T],
    *,
    namespace: str = "",
    labels: str = "",
    relist_seconds: float = 300.0,
) -> AsyncGenerator[Step[T], None]:
    """Without end: a Listing of everything, then each change, and a Listing again at least every `relist_seconds`.

    An API server that is away or answers nonsense is waited for, with a log line each time.
    """
    clock = asyncio.get_running_loop().time
    failures = 0
    while True:
        started = clock()
        try:
            listing = await client.list_all(resource, parse, namespace=namespace, labels=labels)
            yield listing
            steps = _watch(
                client,
                resource,
                parse,
                namespace=namespace,
                labels=labels,
                version=listing.resource_version,
                seconds=relist_seconds,
            )
            async with aclosing(steps):
                async for step in steps:
                    yield step
            # The usual end is the server's time-out. An end before it is no error, but must not become a busy loop.
            failures = 0 if clock() - started >= min(HEALTHY_SECONDS, relist_seconds) else failures + 1
            reason = "ended early"
        except KubernetesError as error:
            failures = failures + 1 if clock() - started < HEALTHY_SECONDS else 1
            reason = f"failed: {error}"
        if failures:
            wait = _wait_seconds(failures)
            log.warning("watch of %s %s; listing again in %.1f s", resource.plural, reason, wait)
            await asyncio.sleep(wait)


async def _watch(
    client: KubeClient,
    resource: Resource,
    parse: Callable[[JsonObject], T],
    *,
    namespace: str,
    labels: str,
    version: str,
    seconds: float,
) -> AsyncGenerator[Changed[T] | Deleted[T], None]:
    """One watch until the server ends it. Raises KubernetesError for an error within the stream, 410 included."""
    query = {
        "watch": "true",
        "resourceVersion": version,
        "allowWatchBookmarks": "true",
        "labelSelector": labels,
        "timeoutSeconds": str(max(1, round(seconds))),
    }
    pieces = client.stream(
        resource.path(namespace=namespace), query, total_seconds=seconds + 30, silence_seconds=SILENCE_SECONDS
    )
    async with aclosing(pieces), aclosing(_lines(pieces)) as lines:
        async for line in lines:
            kind, item = _event(line)
            match kind:
                case "ADDED" | "MODIFIED":
                    yield Changed(parse(item))
                case "DELETED":
                    yield Deleted(parse(item))
                case "BOOKMARK":
                    pass
                case _:
                    raise KubernetesError(str(item.get("message", line[:200])), status=int(item.get("code") or 0))


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Without the limit on a line's length that the HTTP library's own reader has."""
    rest = bytearray()
    async for piece in pieces:
        rest += piece
        *complete, last = rest.split(b"\n")
        rest = bytearray(last)
        for line in complete:
            if line.strip():
                yield bytes(line)


def _event(line: bytes) -> tuple[str, JsonObject]:
    try:
        event = json.loads(line)
        return str(event["type"]), dict(event["object"])
    except (ValueError, TypeError, KeyError) as error:
        raise Unavailable(f"a watch sent something that is no event: {line[:200]!r}") from error


def _wait_seconds(failures: int) -> float:
    """Doubling, capped, with jitter: many operators must not come back in step after an outage."""
    longest = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(failures - 1, 10))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311  no secret
