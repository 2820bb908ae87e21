"""Reading a request's body under limits: bytes as sent, bytes after decompression, and time."""

from __future__ import annotations

import asyncio
import zlib

from aiohttp import ClientPayloadError, web

from steadyfleet_contract.wire import MAX_REPORT_BYTES
from steadyfleet_operator.intake.answers import ReportResult, refused

BODY_SECONDS = 60.0
"""A report is 0.3 MiB; who needs longer is stuck, or means it."""

_GZIP = 16 + zlib.MAX_WBITS
_STEP_BYTES = 64 * 1024


async def read_body(request: web.Request) -> bytes:
    """Raises ReportRefused. Nothing larger than the limit is ever held, whatever a small body unpacks to."""
    encoding = request.headers.get("Content-Encoding", "identity").lower()
    if encoding not in ("gzip", "identity"):
        raise refused(ReportResult.UNREADABLE, f"{encoding} is not known, use gzip", field="Content-Encoding")
    if request.content_length is not None and request.content_length > MAX_REPORT_BYTES:
        raise _too_large()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            sent = await _read(request)
    except (ClientPayloadError, ConnectionError) as error:
        raise refused(ReportResult.UNREADABLE, f"the body ended early: {error}") from error
    except TimeoutError as error:
        raise refused(ReportResult.TOO_SLOW, f"the body did not arrive within {BODY_SECONDS:g} s") from error
    return await asyncio.to_thread(_unpack, sent) if encoding == "gzip" else sent


async def _read(request: web.Request) -> bytes:
    body = bytearray()
    async for piece in request.content.iter_chunked(_STEP_BYTES):
        body += piece
        if len(body) > MAX_REPORT_BYTES:
            raise _too_large()
    return bytes(body)


def _unpack(sent: bytes) -> bytes:
    unpacker = zlib.decompressobj(_GZIP)
    try:
        body = unpacker.decompress(sent, MAX_REPORT_BYTES + 1)
    except zlib.error as error:
        raise refused(ReportResult.UNREADABLE, f"the body is not gzip: {error}") from error
    if len(body) > MAX_REPORT_BYTES:
        raise _too_large()
    if not unpacker.eof or unpacker.unused_data:
        raise refused(ReportResult.UNREADABLE, "the body is not one whole gzip stream")
    return body


def _too_large() -> Exception:
    return refused(ReportResult.TOO_LARGE, f"a report may have {MAX_REPORT_BYTES} bytes, also after decompression")
