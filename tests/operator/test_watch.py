"""Watches: what they tell, and that no answer of a sick API server turns them into a busy loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from aiohttp import web

from steadyfleet_operator.kube import fields, watch
from steadyfleet_operator.kube.client import KubeClient, Listing, PatchType
from steadyfleet_operator.kube.resources import NODES
from steadyfleet_operator.kube.watch import Changed, Deleted, Step, follow
from tests.operator.conftest import MakeNode
from tests.operator.faulty_server import Answer, faulty_server, hang, objects, status

NODE = {"metadata": {"name": "a", "uid": "u"}}


def list_then(watching: Answer) -> Answer:
    """Lists are healthy, watches are as scripted."""
    listing = objects(NODE)

    async def answer(request: web.Request) -> web.StreamResponse:
        return await (watching if "watch" in request.query else listing)(request)

    return answer


def stream(*lines: bytes, then: Answer | None = None) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for line in lines:
            await response.write(line)
        if then is not None:
            await then(request)
        return response

    return answer


def event(kind: str, **item: Any) -> bytes:
    return json.dumps({"type": kind, "object": item or NODE}).encode() + b"\n"


async def take(steps: AsyncIterator[Step[str]], count: int, *, seconds: float = 20) -> list[Step[str]]:
    found: list[Step[str]] = []
    async with asyncio.timeout(seconds):
        async for step in steps:
            found.append(step)
            if len(found) == count:
                return found
    raise AssertionError("the stream ended by itself")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits start at a tenth of a second instead of one, and grow just the same."""
    monkeypatch.setattr(watch, "FIRST_WAIT_SECONDS", 0.1)


SICK = {
    "429": list_then(status(429)),
    "502": list_then(status(502, body=b"<html>bad gateway</html>")),
    "503": list_then(status(503)),
    "empty 200": list_then(status(200, body=b"")),
    "200 with an error text": list_then(status(200, body=b"upstream connect error")),
    "410 in the stream": list_then(stream(event("ERROR", code=410, message="too old resource version"))),
    "list 503": status(503),
    "all 429": status(429),
}


@pytest.mark.parametrize("answer", SICK.values(), ids=SICK.keys())
async def test_a_sick_server_is_asked_less_and_less(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The official watch makes 2,300 requests a second here."""
    monkeypatch.setattr("steadyfleet_operator.kube.client.READ_ATTEMPTS", 1)
    async with faulty_server(answer) as (server, client):
        steps = follow(client, NODES, fields.name_of)

        async def consume() -> None:
            async with aclosing(steps):
                async for _ in steps:
                    pass

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await consume()

    # Waits of .1 .2 .4 .8 s, halved at most by jitter, with two requests each: about 12; without any wait thousands.
    assert 2 <= len(server.requests) <= 16


async def test_a_watch_always_carries_a_timeout_and_asks_for_bookmarks() -> None:
    async with faulty_server(list_then(stream(event("ADDED"), then=hang))) as (server, client):
        steps = follow(client, NODES, fields.name_of, relist_seconds=120, labels="a=b")
        async with aclosing(steps):
            await take(steps, 2)

    (watching,) = (line for line in server.requests if "watch=true" in line)
    for part in ("timeoutSeconds=120", "allowWatchBookmarks=true", "resourceVersion=5", "labelSelector=a%3Db"):
        assert part in watching


async def test_a_broken_stream_is_followed_by_a_fresh_list() -> None:
    async with faulty_server(list_then(stream(event("MODIFIED"), b'{"type": "MODI'))) as (_, client):
        steps = follow(client, NODES, fields.name_of)
        async with aclosing(steps):
            found = await take(steps, 4)

    assert found == [Listing(("a",), "5"), Changed("a"), Listing(("a",), "5"), Changed("a")]


async def test_a_silent_stream_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SILENCE_SECONDS", 0.3)
    async with faulty_server(list_then(stream(then=hang))) as (_, client):
        steps = follow(client, NODES, fields.name_of)
        async with aclosing(steps):
            found = await take(steps, 2)

    assert found == [Listing(("a",), "5")] * 2


async def test_an_event_larger_than_any_buffer_arrives_whole() -> None:
    large = event("ADDED", metadata={"name": "a", "annotations": {"x": "y" * 6_000_000}})
    async with faulty_server(list_then(stream(large[:1_000_000], large[1_000_000:], event("DELETED"), then=hang))) as (
        _,
        client,
    ):
        steps = follow(client, NODES, fields.name_of)
        async with aclosing(steps):
            found = await take(steps, 3)

    assert found[1:] == [Changed("a"), Deleted("a")]


async def test_bookmarks_are_no_changes() -> None:
    bookmark = event("BOOKMARK", metadata={"resourceVersion": "9"})
    async with faulty_server(list_then(stream(bookmark, event("MODIFIED"), then=hang))) as (_, client):
        steps = follow(client, NODES, fields.name_of)
        async with aclosing(steps):
            found = await take(steps, 2)

    assert found[1] == Changed("a")


async def test_the_real_server_tells_of_coming_changing_and_going(
    client: KubeClient, admin: KubeClient, make_node: MakeNode
) -> None:
    steps = follow(client, NODES, fields.name_of)
    async with aclosing(steps):
        (listing,) = await take(steps, 1)
        node = await make_node()
        await admin.patch(NODES, node.name, {"metadata": {"labels": {"a": "b"}}}, kind=PatchType.MERGE)
        await admin.delete(NODES, node.name, uid=node.uid)
        changes: list[Step[str]] = []
        while Deleted(node.name) not in changes:
            changes += await take(steps, 1)

    assert isinstance(listing, Listing)
    assert node.name not in listing.items
    assert changes.count(Changed(node.name)) >= 2


async def test_the_real_server_ends_a_watch_in_time_and_it_is_listed_again(client: KubeClient) -> None:
    steps = follow(client, NODES, fields.name_of, relist_seconds=1)
    async with aclosing(steps):
        found = await take(steps, 3)

    assert all(isinstance(step, Listing) for step in found)
