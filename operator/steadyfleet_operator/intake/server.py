"""The report server: what a probe posts is checked, made durable, and only then acknowledged.

    token -> TokenReview -> pod -> Job -> body within the limits -> as asked -> evidence store -> 200 -> the check wakes

The sender is known before its body is read, so that strangers can't fill the memory. While the API server is away or
the disk is full, the answer is 503 with Retry-After, and nothing is acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

from aiohttp import web

from steadyfleet_contract.report import DigestAnswer, ErrorAnswer, ReportReceipt
from steadyfleet_contract.spec import ContractModel
from steadyfleet_contract.wire import DIGESTS_PATH, REPORTS_PATH
from steadyfleet_operator.decide.observation import LaunchRecord
from steadyfleet_operator.errors import EvidenceError, ReportRefused
from steadyfleet_operator.intake.accept import accept_query, accept_report
from steadyfleet_operator.intake.answers import ReportResult, refused
from steadyfleet_operator.intake.authenticate import Authenticator
from steadyfleet_operator.intake.body import MAX_QUERY_BYTES, read_body
from steadyfleet_operator.intake.store import EvidenceStore
from steadyfleet_operator.kube.pki import Authority
from steadyfleet_operator.kube.probes import Probes
from steadyfleet_operator.settings import Settings

log = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 5
SHUTDOWN_SECONDS = 5.0

BODIES_AT_ONCE = 16
"""Bodies parsed at a time: each may take a few times the size limit. A body that is still read takes no place, or a
few slow senders would hold up all others."""

BODIES_OF_A_POD = 2
"""A probe sends one after the other; the second is for one that lost its connection and comes again."""

MAX_MESSAGE_CHARACTERS = 2048

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ReportServer:
    """`wake(namespace, check)` is called after a report is durable, and for a duplicate too: the first wake-up may have
    been lost. `count_report` is called once a report, `count_launch` once a launch that is new."""

    def __init__(
        self,
        settings: Settings,
        *,
        probes: Probes,
        store: EvidenceStore,
        authority: Authority,
        wake: Callable[[str, str], None] = lambda *_: None,
        count_report: Callable[[ReportResult], None] = lambda _: None,
        count_launch: Callable[[LaunchRecord], None] = lambda _: None,
    ) -> None:
        self._port = settings.report_port
        self._authenticator = Authenticator(probes, namespaces=settings.check_namespaces)
        self._store = store
        self._authority = authority
        self._wake = wake
        self._count_report = count_report
        self._count_launch = count_launch
        self._bodies = asyncio.Semaphore(BODIES_AT_ONCE)
        self._pods: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self.ready = asyncio.Event()
        """Set once it listens."""

    async def run(self) -> None:
        """Until cancelled. The store must be open and the authority loaded. Raises OSError if the port is taken."""
        app = web.Application(middlewares=[_errors_as_answers])
        app.router.add_post(REPORTS_PATH, self._report)
        app.router.add_post(DIGESTS_PATH, self._digest)
        # The HTTP library's own decompression has no limit that fits; body.py does it.
        runner = web.AppRunner(app, access_log=None, auto_decompress=False, shutdown_timeout=SHUTDOWN_SECONDS)
        await runner.setup()
        try:
            await web.TCPSite(runner, port=self._port, ssl_context=self._authority.server_context()).start()
            self.ready.set()
            await asyncio.Event().wait()
        finally:
            self.ready.clear()
            await runner.cleanup()

    async def _report(self, request: web.Request) -> web.StreamResponse:
        result = ReportResult.INTERNAL_ERROR
        try:
            receipt = await self._take(request)
            result = ReportResult.DUPLICATE if receipt.duplicate else ReportResult.ACCEPTED
            return _answer(receipt)
        except ReportRefused as error:
            result = ReportResult(error.reason)
            raise
        finally:
            self._count_report(result)

    async def _take(self, request: web.Request) -> ReportReceipt:
        sender = await self._authenticator.sender(request.headers.get("Authorization", ""))
        async with self._pods.setdefault(sender.pod_uid, asyncio.Semaphore(BODIES_OF_A_POD)):
            body = await read_body(request)
            async with self._bodies:
                report = await asyncio.to_thread(accept_report, body, sender.asked)
        try:
            record, duplicate = await self._store.put_launch(sender, report)
        except EvidenceError as error:
            log.error("report of %s/%s from node %s not stored: %s", sender.namespace, sender.check, sender.node, error)
            raise refused(ReportResult.EVIDENCE_UNAVAILABLE, f"the report could not be stored: {error}") from error
        log.info(
            "report %s%s: %s on node %s, gpu %s",
            record.evidence, " (again)" if duplicate else "", record.outcome.value, record.node, record.gpu or "none",
        )  # fmt: skip
        if not duplicate:
            self._count_launch(record)
        self._wake(record.namespace, record.check)
        return ReportReceipt(accepted=True, duplicate=duplicate)

    async def _digest(self, request: web.Request) -> web.StreamResponse:
        sender = await self._authenticator.sender(request.headers.get("Authorization", ""))
        query = accept_query(await read_body(request, limit_bytes=MAX_QUERY_BYTES), sender.asked)
        known = self._store.known(
            sender.check_uid,
            epoch=sender.asked.epoch,
            version=sender.version,
            kind=query.kind,
            digest=query.digest,
        )
        return _answer(DigestAnswer(known=known))


@web.middleware
async def _errors_as_answers(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ReportRefused as error:
        log.warning("%s %s refused: %s %s: %s", request.method, request.path, error.reason, error.field, error.message)
        return _refusal(error)
    except web.HTTPException as error:
        # The router's own 404 and 405.
        return _refusal(refused(ReportResult.UNKNOWN_PATH, f"{request.method} {request.path}: {error.reason}"))
    except Exception:  # the border: a fault of ours must reach the log, and the probe as something to try again
        log.exception("%s %s failed", request.method, request.path)
        return _refusal(refused(ReportResult.INTERNAL_ERROR, "the operator failed; its log says how"))


def _refusal(error: ReportRefused) -> web.Response:
    body = ErrorAnswer(reason=error.reason, field=error.field[:256], message=error.message[:MAX_MESSAGE_CHARACTERS])
    response = _answer(body, status=error.status)
    if error.status >= 500:
        response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return response


def _answer(body: ContractModel, *, status: int = 200) -> web.Response:
    return web.Response(text=body.model_dump_json(by_alias=True), status=status, content_type="application/json")
