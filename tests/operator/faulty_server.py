"""An HTTP server on loopback that answers as a test scripts it: for faults that a healthy API server can't be made to
produce (429, 502, an empty 200, a silent stream, a hang)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from kubernetes.aio import client as official

from steadyfleet_operator.kube.client import KubeClient

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FaultyServer:
    """`answer` may be replaced at any time; `requests` holds `METHOD path?query` of all that came."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.runner: web.AppRunner | None = None
        self.requests: list[str] = []

    async def stop(self) -> None:
        """From now on connections are refused."""
        if self.runner is not None:
            await self.runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path_qs}")
        return await self.answer(request)


@asynccontextmanager
async def faulty_server(answer: Answer) -> AsyncIterator[tuple[FaultyServer, KubeClient]]:
    server = FaultyServer(answer)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server._handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    server.runner = runner
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    configuration = official.Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")
    client = KubeClient(official.ApiClient(configuration))
    try:
        yield server, client
    finally:
        await client.close()
        await runner.cleanup()


def status(code: int, *, message: str = "as scripted", body: bytes | None = None) -> Answer:
    """A `Status` object as the API server sends it, or any other body."""
    default = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=code, body=json.dumps(default).encode() if body is None else body)

    return answer


def objects(*items: dict[str, Any], version: str = "5") -> Answer:
    """A whole list in one page."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"kind": "List", "metadata": {"resourceVersion": version}, "items": list(items)})

    return answer


async def hang(_: web.Request) -> web.Response:
    await asyncio.sleep(3600)
    raise AssertionError("nobody waits that long")
