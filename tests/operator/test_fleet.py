"""The snapshot of the fleet: complete before it is used, right again after every fault, quiet about heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from steadyfleet_operator.kube import watch
from steadyfleet_operator.kube.client import KubeClient, PatchType
from steadyfleet_operator.kube.fleet import Fleet
from steadyfleet_operator.kube.resources import NODES
from tests.operator.builders import node_manifest
from tests.operator.conftest import MakeNode, eventually
from tests.operator.faulty_server import faulty_server, objects, status


class Watcher:
    def __init__(self) -> None:
        self.changed: list[frozenset[str]] = []

    def __call__(self, names: frozenset[str]) -> None:
        self.changed.append(names)

    def told(self, name: str) -> int:
        return sum(name in names for names in self.changed)


@asynccontextmanager
async def running(client: KubeClient, **options: Any) -> AsyncIterator[tuple[Fleet, Watcher]]:
    watcher = Watcher()
    fleet = Fleet(client, changed=watcher, **options)
    task = asyncio.create_task(fleet.run())
    try:
        async with asyncio.timeout(20):
            await fleet.ready.wait()
        yield fleet, watcher
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_it_is_ready_with_all_nodes_and_follows_them(
    client: KubeClient, admin: KubeClient, make_node: MakeNode
) -> None:
    early = await make_node(gpus=8, labels={"pool": "a"})
    async with running(client) as (fleet, watcher):
        assert fleet.snapshot()[early.name].allocatable == {"nvidia.com/gpu": 8}

        late = await make_node()
        await eventually("a new node is seen", lambda: _holds(lambda: late.name in fleet.snapshot()))
        body = {"spec": {"unschedulable": True}}
        await admin.patch(NODES, late.name, body, kind=PatchType.MERGE)
        await eventually("a cordon is seen", lambda: _holds(lambda: fleet.snapshot()[late.name].unschedulable))
        await admin.delete(NODES, late.name, uid=late.uid)
        await eventually("a deletion is seen", lambda: _holds(lambda: late.name not in fleet.snapshot()))

        assert watcher.told(late.name) >= 3


async def test_a_heartbeat_wakes_nobody(client: KubeClient, admin: KubeClient, make_node: MakeNode) -> None:
    beating, marker = await make_node(), await make_node()
    async with running(client) as (fleet, watcher):
        before = watcher.told(beating.name)
        condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-06-01T00:00:00Z"}
        beat = {"status": {"conditions": [condition]}}
        await admin.patch(NODES, beating.name, beat, kind=PatchType.STRATEGIC, subresource="status")
        # Events come in order: once the later one is seen, the heartbeat has been.
        await admin.patch(NODES, marker.name, {"metadata": {"labels": {"x": "y"}}}, kind=PatchType.MERGE)
        await eventually("the later change", lambda: _holds(lambda: "x" in fleet.snapshot()[marker.name].labels))

        assert watcher.told(beating.name) == before


async def test_a_snapshot_does_not_change_under_its_reader(client: KubeClient, make_node: MakeNode) -> None:
    async with running(client) as (fleet, _):
        before = fleet.snapshot()
        node = await make_node()
        await eventually("the node is seen", lambda: _holds(lambda: node.name in fleet.snapshot()))

        assert node.name not in before


async def test_what_a_broken_watch_lost_comes_with_the_next_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch that ends at once tells nothing: neither the node that went nor the one that came."""
    monkeypatch.setattr(watch, "FIRST_WAIT_SECONDS", 0.05)

    def listed(*names: str) -> Any:
        nodes = []
        for name in names:
            manifest = node_manifest(name)
            manifest["metadata"]["uid"] = f"uid-{name}"
            nodes.append(manifest)
        listing, no_watch = objects(*nodes), status(200, body=b"")

        async def answer(request: web.Request) -> web.StreamResponse:
            return await (no_watch if "watch" in request.query else listing)(request)

        return answer

    async with faulty_server(listed("a", "b")) as (server, client), running(client) as (fleet, watcher):
        watcher.changed.clear()
        server.answer = listed("b", "c")
        await eventually("the next list counts", lambda: _holds(lambda: set(fleet.snapshot()) == {"b", "c"}))

        assert watcher.changed == [frozenset({"a", "c"})]


async def test_before_the_first_list_it_is_not_ready() -> None:
    async with faulty_server(status(503)) as (_, client):
        fleet = Fleet(client)
        task = asyncio.create_task(fleet.run())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await fleet.ready.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def _holds(condition: Any) -> bool:
    return bool(condition())
