"""/metrics, /livez and /readyz. Both probes tell the truth about this process, not only that it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

Check = Callable[[], str]
"""Returns why not, or an empty string."""


def application(registry: CollectorRegistry, *, alive: Check, ready: Check) -> web.Application:
    app = web.Application()

    async def metrics(_: web.Request) -> web.Response:
        # A hundred thousand series take seconds, in which the Lease must be renewed.
        body = await asyncio.to_thread(generate_latest, registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    def probe(check: Check) -> Callable[[web.Request], object]:
        async def answer(_: web.Request) -> web.Response:
            why_not = check()
            return web.Response(status=500 if why_not else 200, text=why_not or "ok")

        return answer

    app.router.add_get("/metrics", metrics)
    app.router.add_get("/livez", probe(alive))  # type: ignore[arg-type]
    app.router.add_get("/readyz", probe(ready))  # type: ignore[arg-type]
    return app


async def serve(app: web.Application, port: int) -> web.AppRunner:
    """Listens on all addresses; the caller cleans the runner up."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()
    return runner
