"""The fence: at most one holder at any moment, whatever dies, hangs, sleeps or lies about the time."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from steadyfleet_operator.errors import LeaseLost
from steadyfleet_operator.kube import fields
from steadyfleet_operator.kube.client import KubeClient, PatchType
from steadyfleet_operator.kube.lease import Lease
from steadyfleet_operator.kube.resources import LEASES
from tests.operator.conftest import OWN_NAMESPACE, eventually
from tests.operator.faulty_server import faulty_server, hang, status

NAME = "steadyfleet-operator"
DURATION_SECONDS = 3
RENEW_DEADLINE_SECONDS = 2

MakeLease = Callable[..., Lease]


@pytest.fixture
async def no_lease(admin: KubeClient) -> AsyncIterator[None]:
    await _delete(admin)
    yield
    await _delete(admin)


@pytest.fixture
def make_lease(client: KubeClient, no_lease: None) -> MakeLease:
    return lambda holder, using=client: Lease(
        using, namespace=OWN_NAMESPACE, name=NAME, holder=holder, duration_seconds=DURATION_SECONDS
    )


async def _delete(admin: KubeClient) -> None:
    item = await admin.get(LEASES, NAME, namespace=OWN_NAMESPACE)
    if item is not None:
        await admin.delete(LEASES, NAME, uid=item["metadata"]["uid"], namespace=OWN_NAMESPACE)


async def stored(client: KubeClient) -> dict[str, Any]:
    item = await client.get(LEASES, NAME, namespace=OWN_NAMESPACE)
    assert item is not None
    return fields.child(item, "spec")


async def write(admin: KubeClient, **spec: object) -> None:
    await admin.patch(LEASES, NAME, {"spec": spec}, kind=PatchType.MERGE, namespace=OWN_NAMESPACE)


async def test_nothing_may_be_written_before_the_lease_is_held(make_lease: MakeLease) -> None:
    lease = make_lease("a")

    with pytest.raises(LeaseLost):
        lease.check()

    await lease.acquire()
    lease.check()


async def test_it_is_renewed_for_as_long_as_it_is_held(make_lease: MakeLease, client: KubeClient) -> None:
    lease = make_lease("a")
    await lease.acquire()
    first = await stored(client)
    holding = asyncio.create_task(lease.hold())
    try:
        await asyncio.sleep(DURATION_SECONDS + 1)
        lease.check()
    finally:
        holding.cancel()
    last = await stored(client)

    assert last["renewTime"] > first["renewTime"]
    assert last["acquireTime"] == first["acquireTime"]
    assert (last["holderIdentity"], last["leaseTransitions"]) == ("a", 0)


async def test_times_are_utc_microtimes_in_any_time_zone(
    make_lease: MakeLease, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "XYZ-14")
    time.tzset()
    try:
        await make_lease("a").acquire()
    finally:
        monkeypatch.undo()
        time.tzset()

    renewed = (await stored(client))["renewTime"]
    assert renewed.endswith("Z")
    assert abs((datetime.fromisoformat(renewed) - datetime.now(UTC)).total_seconds()) < 60


async def test_a_released_lease_is_taken_at_once(make_lease: MakeLease, client: KubeClient) -> None:
    first, second = make_lease("a"), make_lease("b")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())

    await first.release()

    with pytest.raises(LeaseLost):
        first.check()
    async with asyncio.timeout(DURATION_SECONDS / 2):
        await waiting
    assert (await stored(client))["leaseTransitions"] == 1


async def test_a_dead_holder_is_waited_out(make_lease: MakeLease) -> None:
    dead, living = make_lease("a"), make_lease("b")
    await dead.acquire()
    started = time.monotonic()

    async with asyncio.timeout(DURATION_SECONDS * 3):
        await living.acquire()

    assert time.monotonic() - started >= DURATION_SECONDS
    assert not dead.held


@pytest.mark.parametrize("written", ["2001-01-01T00:00:00.000000Z", "2099-01-01T00:00:00.000000Z"])
async def test_another_clock_neither_hurries_nor_delays_a_takeover(
    written: str, make_lease: MakeLease, admin: KubeClient
) -> None:
    await make_lease("a").acquire()
    await write(admin, renewTime=written)
    started = time.monotonic()

    async with asyncio.timeout(DURATION_SECONDS * 3):
        await make_lease("b").acquire()

    assert time.monotonic() - started >= DURATION_SECONDS


async def test_a_holder_that_renews_is_never_overtaken(make_lease: MakeLease) -> None:
    holder, other = make_lease("a"), make_lease("b")
    await holder.acquire()
    holding = asyncio.create_task(holder.hold())
    try:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(DURATION_SECONDS * 2):
                await other.acquire()
        holder.check()
    finally:
        holding.cancel()


async def test_a_longer_duration_in_the_record_is_respected(make_lease: MakeLease, admin: KubeClient) -> None:
    await make_lease("a").acquire()
    await write(admin, leaseDurationSeconds=60)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(DURATION_SECONDS * 2):
            await make_lease("b").acquire()


async def test_a_takeover_by_force_is_noticed_at_the_next_renewal(make_lease: MakeLease, admin: KubeClient) -> None:
    lease = make_lease("a")
    await lease.acquire()
    await write(admin, holderIdentity="somebody")

    with pytest.raises(LeaseLost, match="held by somebody"):
        async with asyncio.timeout(RENEW_DEADLINE_SECONDS):
            await lease.hold()
    assert not lease.held


async def test_a_lease_that_was_deleted_is_made_anew_by_its_holder(
    make_lease: MakeLease, client: KubeClient, admin: KubeClient
) -> None:
    lease = make_lease("a")
    await lease.acquire()
    await _delete(admin)
    holding = asyncio.create_task(lease.hold())
    try:
        await asyncio.sleep(DURATION_SECONDS)
        lease.check()
    finally:
        holding.cancel()

    assert (await stored(client))["holderIdentity"] == "a"


async def test_a_lease_that_was_deleted_and_taken_is_lost(make_lease: MakeLease, admin: KubeClient) -> None:
    lease, other = make_lease("a"), make_lease("b")
    await lease.acquire()
    await _delete(admin)
    await other.acquire()

    with pytest.raises(LeaseLost, match="held by b"):
        async with asyncio.timeout(RENEW_DEADLINE_SECONDS):
            await lease.hold()


async def test_an_edit_that_is_no_takeover_is_survived(make_lease: MakeLease, admin: KubeClient) -> None:
    lease = make_lease("a")
    await lease.acquire()
    body = {"metadata": {"annotations": {"a": "b"}}}
    await admin.patch(LEASES, NAME, body, kind=PatchType.MERGE, namespace=OWN_NAMESPACE)
    holding = asyncio.create_task(lease.hold())
    try:
        await asyncio.sleep(DURATION_SECONDS)
        lease.check()
    finally:
        holding.cancel()


@pytest.mark.parametrize("fault", ["hang", "503", "refused"])
async def test_an_api_server_that_fails_ends_the_holding_before_another_may_start(fault: str) -> None:
    record = {"metadata": {"resourceVersion": "1"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 3}}

    async def healthy(_: web.Request) -> web.Response:
        return web.json_response(record)

    async with faulty_server(healthy) as (server, client):
        lease = Lease(client, namespace="n", name="l", holder="a", duration_seconds=DURATION_SECONDS)
        await lease.acquire()
        acquired = time.monotonic()
        server.answer = hang if fault == "hang" else status(503)
        if fault == "refused":
            await server.stop()

        with pytest.raises(LeaseLost, match="could not be renewed"):
            await lease.hold()

        # Half a second for a busy machine; another holder starts a second later at the earliest.
        assert time.monotonic() - acquired < RENEW_DEADLINE_SECONDS + 0.5
        assert not lease.held


async def test_a_lease_is_waited_for_while_the_api_server_is_away() -> None:
    async with faulty_server(status(503)) as (server, client):
        lease = Lease(client, namespace="n", name="l", holder="a", duration_seconds=DURATION_SECONDS)
        acquiring = asyncio.create_task(lease.acquire())

        async def asked() -> bool:
            return len(server.requests) >= 3

        await eventually("it goes on asking", asked)
        assert not acquiring.done()
        acquiring.cancel()


HOLDER = """
import asyncio, sys, time
from steadyfleet_operator.errors import LeaseLost
from steadyfleet_operator.kube.client import KubeClient
from steadyfleet_operator.kube.lease import Lease

async def main() -> None:
    client = await KubeClient.connect(kubeconfig=sys.argv[1])
    lease = Lease(client, namespace="steadyfleet", name="steadyfleet-operator", holder="asleep", duration_seconds=3)
    await lease.acquire()
    holding = asyncio.create_task(lease.hold())
    while not holding.done():
        print(f"{time.monotonic()} {lease.held}", flush=True)
        await asyncio.sleep(0.02)
    holding.result()

try:
    asyncio.run(main())
except LeaseLost as lost:
    print(lost, flush=True)
    sys.exit(3)
"""


@contextmanager
def holder_process(kubeconfig: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, kubeconfig], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=10)
        if process.stdout is not None:
            process.stdout.close()


async def test_a_process_that_slept_through_its_lease_never_believes_that_it_holds_it(
    operator_kubeconfig: str, make_lease: MakeLease
) -> None:
    """Stopped by SIGSTOP, as a frozen virtual machine is: it wakes in the middle of whatever it did."""
    with holder_process(operator_kubeconfig) as process:
        assert process.stdout is not None
        assert (await asyncio.to_thread(process.stdout.readline)).strip().endswith("True")
        os.kill(process.pid, signal.SIGSTOP)
        lease = make_lease("awake")
        async with asyncio.timeout(DURATION_SECONDS * 3):
            await lease.acquire()
        taken_at = time.monotonic()
        os.kill(process.pid, signal.SIGCONT)

        output = await asyncio.to_thread(process.communicate, timeout=10)

    lines = output[0].splitlines()
    believed = [float(line.split()[0]) for line in lines if line.endswith("True")]
    assert process.returncode == 3
    assert all(moment < taken_at for moment in believed)
    assert any("lease steadyfleet/steadyfleet-operator" in line for line in lines)


async def test_a_killed_process_is_followed_by_the_next(operator_kubeconfig: str, make_lease: MakeLease) -> None:
    with holder_process(operator_kubeconfig) as process:
        assert process.stdout is not None
        await asyncio.to_thread(process.stdout.readline)
        process.kill()
        lease = make_lease("next")
        async with asyncio.timeout(DURATION_SECONDS * 3):
            await lease.acquire()

    lease.check()
