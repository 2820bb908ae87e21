"""Canonical bytes of tokens and logprobs, and the hashes over them that both sides compute alike.

    prompt digest = sha256("pr1" tokens-hash logprobs-hash)
        tokens-hash   = sha256("tok1" u32le of each token)
        logprobs-hash = sha256("lp1", for each position: f32le of the chosen token's logprob,
                               then for each of the top-k, by falling logprob, then rising id: u32le id, f32le logprob)
    pass digest   = sha256("ps1" prompt digests in order)
    launch digest = sha256("la1" digest of the short decode, digest of the teacher-forced pass)

Only bits count: numbers are never hashed as text. Every NaN is hashed as the one quiet NaN, since its payload does
not survive JSON. A NaN sorts after all numbers.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from steadyfleet_contract.report import PassName, PassResult, PromptResult, Report

U32 = npt.NDArray[np.uint32]
F32 = npt.NDArray[np.float32]

CLAMPED_LOGPROB = -9999.0
"""What vLLM's completions API says instead of minus infinity; counted as not finite."""


class DigestMismatch(ValueError):
    """A report contradicts itself: a digest is not the hash of what it stands for, or an array has another shape."""


@dataclass(frozen=True)
class Arrays:
    """Tokens and logprobs of one prompt: T tokens, top-k (k may be 0). Rows of the top are in canonical order."""

    tokens: U32
    logprobs: F32
    top_ids: U32
    top_logprobs: F32

    @property
    def non_finite(self) -> int:
        """How many logprobs are NaN, infinite, or vLLM's stand-in for minus infinity."""
        return sum(
            int(np.count_nonzero(~np.isfinite(values) | (values == np.float32(CLAMPED_LOGPROB))))
            for values in (self.logprobs, self.top_logprobs)
        )


def arrays(
    tokens: Sequence[int],
    logprobs: Sequence[float],
    tops: Sequence[Iterable[tuple[int, float]]],
    *,
    top: int,
) -> Arrays:
    """Canonical arrays of one prompt from plain numbers; of each row the best `top` entries are kept.

    Raises ValueError if a row has fewer than `top` entries or the lengths differ.
    """
    if not len(tokens) == len(logprobs) == len(tops):
        raise ValueError(f"{len(tokens)} tokens, {len(logprobs)} logprobs and {len(tops)} rows of top logprobs")
    ids = np.zeros((len(tokens), top), dtype=np.uint32)
    values = np.zeros((len(tokens), top), dtype=np.float32)
    for position, row in enumerate(tops):
        best = sorted(row, key=_by_falling_logprob)[:top]
        if len(best) < top:
            raise ValueError(f"position {position} has {len(best)} top logprobs, {top} were asked for")
        for rank, (token, logprob) in enumerate(best):
            ids[position, rank] = token
            values[position, rank] = logprob
    return Arrays(
        tokens=np.asarray(tokens, dtype=np.uint32),
        logprobs=np.asarray(logprobs, dtype=np.float32),
        top_ids=ids,
        top_logprobs=values,
    )


def tokens_hash(tokens: U32) -> bytes:
    return hashlib.sha256(b"tok1" + _u32_bytes(tokens)).digest()


def logprobs_hash(logprobs: F32, top_ids: U32, top_logprobs: F32) -> bytes:
    length, top = top_ids.shape
    row = np.zeros(length, dtype=[("chosen", "<u4"), ("top", [("id", "<u4"), ("logprob", "<u4")], (top,))])
    row["chosen"] = _canonical_bits(logprobs)
    if top:
        row["top"]["id"] = top_ids
        row["top"]["logprob"] = _canonical_bits(top_logprobs)
    return hashlib.sha256(b"lp1" + row.tobytes()).digest()


def prompt_digest(result: Arrays) -> str:
    tokens = tokens_hash(result.tokens)
    logprobs = logprobs_hash(result.logprobs, result.top_ids, result.top_logprobs)
    return _name(hashlib.sha256(b"pr1" + tokens + logprobs))


def pass_digest(prompt_digests: Iterable[str]) -> str:
    return _name(hashlib.sha256(b"ps1" + b"".join(map(_raw, prompt_digests))))


def launch_digest(*, short_decode: str, teacher_forced: str) -> str:
    return _name(hashlib.sha256(b"la1" + _raw(short_decode) + _raw(teacher_forced)))


def pack_u32(array: U32) -> str:
    return base64.b64encode(_u32_bytes(array)).decode()


def pack_f32(array: F32) -> str:
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode()


def unpack_u32(text: str, shape: tuple[int, ...]) -> U32:
    """Raises DigestMismatch if `text` does not hold exactly this shape."""
    return np.frombuffer(_unpack(text, shape), dtype="<u4").reshape(shape).astype(np.uint32)


def unpack_f32(text: str, shape: tuple[int, ...]) -> F32:
    """Raises DigestMismatch if `text` does not hold exactly this shape."""
    return np.frombuffer(_unpack(text, shape), dtype="<f4").reshape(shape).astype(np.float32)


def prompt_result(result: Arrays, *, with_arrays: bool) -> PromptResult:
    digest = prompt_digest(result)
    if not with_arrays:
        return PromptResult(digest=digest, non_finite=result.non_finite)
    return PromptResult(
        digest=digest,
        tokens=pack_u32(result.tokens),
        logprobs=pack_f32(result.logprobs),
        top_ids=pack_u32(result.top_ids),
        top_logprobs=pack_f32(result.top_logprobs),
        non_finite=result.non_finite,
    )


def unpack(result: PromptResult) -> Arrays | None:
    """The arrays of one prompt, or None if the report carries only the digest. Raises DigestMismatch."""
    if not result.tokens:
        return None
    length = _items(result.tokens)
    top = _items(result.top_ids) // length if length else 0
    return Arrays(
        tokens=unpack_u32(result.tokens, (length,)),
        logprobs=unpack_f32(result.logprobs, (length,)),
        top_ids=unpack_u32(result.top_ids, (length, top)),
        top_logprobs=unpack_f32(result.top_logprobs, (length, top)),
    )


def check_report(report: Report) -> None:
    """Raises DigestMismatch unless each digest of the report is the hash of what the report carries below it."""
    for result in report.passes:
        _check_pass(result)
    by_name = {result.name: result.digest for result in report.passes}
    if len(by_name) != len(report.passes):
        raise DigestMismatch("passes: one of them is there twice")
    if report.digest is None:
        return
    if not {PassName.SHORT_DECODE, PassName.TEACHER_FORCED} <= by_name.keys():
        raise DigestMismatch("digest: set, but the short decode or the teacher-forced pass is missing")
    expected = launch_digest(
        short_decode=by_name[PassName.SHORT_DECODE], teacher_forced=by_name[PassName.TEACHER_FORCED]
    )
    if report.digest != expected:
        raise DigestMismatch(f"digest: {report.digest} is not the hash over its passes, {expected}")


def _check_pass(result: PassResult) -> None:
    field = f"passes[{result.name.value}]"
    if result.digest != pass_digest(prompt.digest for prompt in result.prompts):
        raise DigestMismatch(f"{field}.digest: is not the hash over its prompts")
    for index, prompt in enumerate(result.prompts):
        found = unpack(prompt)
        if found is None:
            continue
        if prompt.digest != prompt_digest(found):
            raise DigestMismatch(f"{field}.prompts[{index}].digest: is not the hash of its arrays")
        if prompt.non_finite != found.non_finite:
            raise DigestMismatch(f"{field}.prompts[{index}].nonFinite: the arrays hold {found.non_finite}")


def _by_falling_logprob(entry: tuple[int, float]) -> tuple[bool, float, int]:
    token, logprob = entry
    is_nan = logprob != logprob
    return is_nan, 0.0 if is_nan else -logprob, token


def _canonical_bits(values: F32) -> U32:
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4").copy()
    bits[np.isnan(values)] = 0x7FC00000
    return bits


def _u32_bytes(values: U32) -> bytes:
    return np.ascontiguousarray(values, dtype="<u4").tobytes()


def _unpack(text: str, shape: tuple[int, ...]) -> bytes:
    data = _decode(text)
    if len(data) != 4 * int(np.prod(shape)):
        raise DigestMismatch(f"an array of {len(data)} bytes can't have the shape {shape}")
    return data


def _items(text: str) -> int:
    return len(_decode(text)) // 4


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise DigestMismatch(f"an array is not base64: {error}") from error


def _raw(digest: str) -> bytes:
    return bytes.fromhex(digest.removeprefix("sha256:"))


def _name(digest: hashlib._Hash) -> str:
    return f"sha256:{digest.hexdigest()}"
