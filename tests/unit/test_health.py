"""The health server answers while a large fleet's metrics are being written out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import aiohttp
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from steadyfleet_operator import health


class Slow(Collector):
    def __init__(self) -> None:
        self.asked = threading.Event()
        self.go_on = threading.Event()

    def describe(self) -> Iterator[Metric]:
        yield from ()

    def collect(self) -> Iterator[Metric]:
        self.asked.set()
        assert self.go_on.wait(10), "nothing else was answered in the meantime"
        yield from ()


async def test_writing_out_the_metrics_holds_up_nothing_else() -> None:
    registry, slow = CollectorRegistry(), Slow()
    registry.register(slow)
    runner = await health.serve(health.application(registry, alive=lambda: "", ready=lambda: "not yet"), 0)
    try:
        # Each address family has a port of its own when any port will do.
        port = next(address[1] for address in runner.addresses if len(address) == 2)
        url = f"http://127.0.0.1:{port}"
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as client:
            metrics = asyncio.create_task(client.get(f"{url}/metrics"))
            assert await asyncio.to_thread(slow.asked.wait, 5)
            for path, status, words in (("/livez", 200, "ok"), ("/readyz", 500, "not yet")):
                async with client.get(url + path) as answer:
                    assert (answer.status, await answer.text()) == (status, words)
            slow.go_on.set()
            async with await metrics as answer:
                assert answer.status == 200
    finally:
        slow.go_on.set()
        await runner.cleanup()
