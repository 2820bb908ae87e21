"""Reading a request's body under limits: bytes as sent, bytes after decompression, and time."""

from __future__ import annotations

import asyncio
import zlib

from aiohttp import ClientPayloadError, web

from steadyfleet_contract.wire import MAX_REPORT_BYTES
from steadyfleet_operator.intake.answers import ReportResult, refused

BODY_SECONDS = 60.0
"""A report is 0.3 MiB; who needs longer is stuck, or means it."""

MAX_QUERY_BYTES = 4096
"""A digest query has a few hundred."""

_GZIP = 16 + zlib.MAX_WBITS
_STEP_BYTES = 64 * 1024


async def read_body(request: web.Request, *, limit_bytes: int = MAX_REPORT_BYTES) -> bytes:
    """Raises ReportRefused. Nothing larger than the limit is ever held, whatever a small body unpacks to."""
    encoding = request.headers.get("Content-Encoding", "identity").lower()
    if encoding not in ("gzip", "identity"):
        raise refused(ReportResult.UNREADABLE, f"{encoding} is not known, use gzip", field="Content-Encoding")
    if request.content_length is not None and request.content_length > limit_bytes:
        raise _too_large(limit_bytes)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            sent = await _read(request, limit_bytes)
    except (ClientPayloadError, ConnectionError) as error:
        raise refused(ReportResult.UNREADABLE, f"the body ended early: {error}") from error
    except TimeoutError as error:
        raise refused(ReportResult.TOO_SLOW, f"the body did not arrive within {BODY_SECONDS:g} s") from error
    return await asyncio.to_thread(_unpack, sent, limit_bytes) if encoding == "gzip" else sent


async def _read(request: web.Request, limit_bytes: int) -> bytes:
    body = bytearray()
    async for piece in request.content.iter_chunked(_STEP_BYTES):
        body += piece
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes)
    return bytes(body)


def _unpack(sent: bytes, limit_bytes: int) -> bytes:
    unpacker = zlib.decompressobj(_GZIP)
    try:
        body = unpacker.decompress(sent, limit_bytes + 1)
    except zlib.error as error:
        raise refused(ReportResult.UNREADABLE, f"the body is not gzip: {error}") from error
    if len(body) > limit_bytes:
        raise _too_large(limit_bytes)
    if not unpacker.eof or unpacker.unused_data:
        raise refused(ReportResult.UNREADABLE, "the body is not one whole gzip stream")
    return body


def _too_large(limit_bytes: int) -> Exception:
    return refused(ReportResult.TOO_LARGE, f"the body may have {limit_bytes} bytes, also after decompression")
