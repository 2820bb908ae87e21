"""The format of one bundle of the evidence store: a gzip file of two lines of JSON.

    line 1   an object: what the operator knows of a launch (`content`, `launch`) or of a visit (`visit`)
    line 2   the report itself, every array as it came (launches only)

The operator writes and reads bundles, `steadyfleet compare` reads them without it. Bytes from outside are never
trusted: what is unpacked is bounded.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from steadyfleet_contract.report import Report

MAX_UNPACKED_BYTES = 64 * 1024 * 1024
"""A full report is about 0.3 MiB, a launch record of 16 prompts x 64 tokens x top-20 as text about 2 MiB."""

COMPRESSION = 6
"""Packed logprobs hardly shrink; the rest does at any level."""

GZIP_MAGIC = b"\x1f\x8b"

_GZIP_WINDOW = zlib.MAX_WBITS | 16


class BundleInvalid(ValueError):
    """Not a whole bundle; says what is wrong with it."""


def pack(head: Mapping[str, Any], report: bytes = b"") -> bytes:
    line = json.dumps(head, separators=(",", ":"), ensure_ascii=True).encode()
    # mtime 0: equal content makes an equal file.
    return gzip.compress(line + b"\n" + report + (b"\n" if report else b""), compresslevel=COMPRESSION, mtime=0)


def gunzip(data: bytes, *, limit: int = MAX_UNPACKED_BYTES) -> bytes:
    """At most `limit` bytes. The checksum at the end of a gzip file also tells a half-written one. Raises
    BundleInvalid."""
    parts: list[bytes] = []
    size = 0
    rest = data
    while rest:
        member = zlib.decompressobj(_GZIP_WINDOW)
        try:
            part = member.decompress(rest, limit - size + 1)
        except zlib.error as error:
            raise BundleInvalid(f"not a whole gzip file: {error}") from error
        size += len(part)
        if size > limit:
            raise BundleInvalid(f"unpacks to more than {limit} bytes")
        if not member.eof:
            raise BundleInvalid("not a whole gzip file: it ends too early")
        parts.append(part)
        rest = member.unused_data
    if not data:
        raise BundleInvalid("not a whole gzip file: it is empty")
    return b"".join(parts)


def head(data: bytes) -> Mapping[str, Any]:
    """Line 1. Raises BundleInvalid."""
    return head_of(gunzip(data))


def report(data: bytes) -> Report:
    """Line 2. Raises BundleInvalid."""
    return report_of(gunzip(data))


def head_of(unpacked: bytes) -> Mapping[str, Any]:
    """Raises BundleInvalid."""
    try:
        found = json.loads(unpacked.partition(b"\n")[0])
    except (ValueError, RecursionError) as error:
        raise BundleInvalid(f"line 1 is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise BundleInvalid("line 1 is not an object")
    return found


def report_of(unpacked: bytes) -> Report:
    """Raises BundleInvalid."""
    line = unpacked.partition(b"\n")[2].partition(b"\n")[0]
    if not line:
        raise BundleInvalid("no report: line 2 is missing")
    try:
        return Report.model_validate_json(line)
    except ValidationError as error:
        raise BundleInvalid(f"no report: {error}") from error
