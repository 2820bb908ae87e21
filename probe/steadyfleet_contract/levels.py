"""How far two launches are apart: Identical, LogprobDrift, TieFlip, Divergent, Corrupt, and the thresholds between.

    Identical      every bit that both have is the same
    LogprobDrift   same tokens, logprobs within what a change of rounding does
    TieFlip        other tokens, but each only where two candidates were as good as tied, and logprobs as above
    Divergent      beyond rounding, without being clearly wrong
    Corrupt        clearly wrong: not finite, far off, or tokens that their own row does not favour
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from steadyfleet_contract.sizes import DecodeSizes, Deltas, ForcedSizes

_NOISE_NATS = 2e-5
"""Logprobs are float32: a margin of three quanta is three quanta give or take this."""


class Level(str, Enum):
    IDENTICAL = "Identical"
    LOGPROB_DRIFT = "LogprobDrift"
    TIE_FLIP = "TieFlip"
    DIVERGENT = "Divergent"
    CORRUPT = "Corrupt"


@dataclass(frozen=True)
class Thresholds:
    """Defaults from one model on H200 (vLLM 0.26.0): 28 benign differences between launches (other reductions, eager
    against compiled) and what is known of 10 launches with wrong weights. `q` is one quantum of the logit grid.
    Statistics of few positions scatter, so those of rounding count only by what they are beyond two standard errors."""

    rounding_median_quanta: float = 0.35
    """Of the median's lower bound. Benign medians go up to 0.15 q, one norm weight divided by 16 makes it 0.69 q."""
    rounding_p99_quanta: float = 2.25
    """Of its lower bound. Benign up to 1.94 q."""
    rounding_largest_quanta: float = 4.0
    """Benign up to 2.87 q in 1,024 positions; extremes grow with their number. No gap above 4 q ever flipped."""
    rounding_bias_nats: float = 0.01
    """Beside two standard errors. Benign up to 0.0028 in 1,024 positions."""
    rounding_divergence: float = 5e-4
    """Mean KL. Benign up to 2.7e-4."""
    rounding_agreement: float = 0.94
    """Less two standard errors. Benign down to 0.967 in 1,024 positions."""
    rounding_margin_quanta: float = 3.0
    """Of 378 benign flips none was larger."""
    corrupt_p99_nats: float = 0.7
    corrupt_divergence: float = 5e-3
    corrupt_agreement: float = 0.8
    corrupt_margin_quanta: float = 8.0
    assumed_quantum: float = 0.0625
    """Unit where no grid shows (float32 logits): bfloat16 logits between 8 and 16."""


@dataclass(frozen=True)
class Measured:
    """What the level is decided by. `decodes` and `forced` hold the passes of which both launches have numbers."""

    bits_equal: bool
    tokens_equal: bool
    quantum: float
    decodes: tuple[DecodeSizes, ...]
    forced: ForcedSizes | None
    a_non_finite: int
    b_non_finite: int


@dataclass(frozen=True)
class Judged:
    level: Level | None
    """None if the numbers that would tell it are missing."""
    reasons: tuple[str, ...]


def judge(measured: Measured, thresholds: Thresholds) -> Judged:
    if measured.bits_equal:
        return Judged(Level.IDENTICAL, ())
    if corrupt := tuple(_corrupt(measured, thresholds)):
        return Judged(Level.CORRUPT, corrupt)
    if not measured.decodes and measured.forced is None:
        return Judged(None, ("neither pass has its numbers in both files",))
    if divergent := tuple(_divergent(measured, thresholds)):
        return Judged(Level.DIVERGENT, divergent)
    if measured.tokens_equal:
        return Judged(Level.LOGPROB_DRIFT, ())
    # A short decode has no top; the full decode that goes with it shows the margins.
    if not any(found.margin is not None for sizes in measured.decodes for found in sizes.divergences):
        return Judged(None, ("tokens differ, no decode with its top logprobs is in both files: no margin is known",))
    return Judged(Level.TIE_FLIP, ())


def _corrupt(measured: Measured, limits: Thresholds) -> Iterator[str]:
    for side, count in (("A", measured.a_non_finite), ("B", measured.b_non_finite)):
        if count:
            yield f"{count} logprobs of {side} are not finite"
    for sizes in measured.decodes:
        # If both break it alike, it is the sampler's settings (a penalty, say) and no fault of one launch.
        if bool(sizes.a_not_greedy) != bool(sizes.b_not_greedy):
            side, count = ("A", sizes.a_not_greedy) if sizes.a_not_greedy else ("B", sizes.b_not_greedy)
            yield f"{count} tokens of {side} are not the best of their own row"
        for found in sizes.divergences:
            margin, unit = found.margin, found.quantum or measured.quantum
            if found.missing:
                yield f"prompt {found.prompt} parts at a token that the other launch has not in its top"
            elif margin is not None and margin >= limits.corrupt_margin_quanta * unit - _NOISE_NATS:
                yield f"prompt {found.prompt} parts over a margin of {margin / unit:.1f} quanta"
    for name, deltas in _all_deltas(measured):
        if deltas.p99 > limits.corrupt_p99_nats:
            yield f"{name} p99 |delta| {deltas.p99:.3f} > {limits.corrupt_p99_nats}"
    forced = measured.forced
    if forced is not None and forced.divergence is not None and forced.divergence > limits.corrupt_divergence:
        yield f"mean KL {forced.divergence:.2g} > {limits.corrupt_divergence}"
    if forced is not None and forced.agreement is not None and forced.agreement < limits.corrupt_agreement:
        yield f"best tokens agree in {forced.agreement:.3f} < {limits.corrupt_agreement}"


def _divergent(measured: Measured, limits: Thresholds) -> Iterator[str]:
    quantum = measured.quantum
    for name, deltas in _all_deltas(measured):
        for what, value, most in (
            ("median |delta|", deltas.median_at_least, limits.rounding_median_quanta),
            ("p99 |delta|", deltas.p99_at_least, limits.rounding_p99_quanta),
            ("largest |delta|", deltas.largest, limits.rounding_largest_quanta),
        ):
            if value > most * quantum:
                yield f"{name} {what} {value / quantum:.2f} quanta > {most}"
    forced = measured.forced
    if forced is not None:
        bias, allowed = forced.deltas.bias, limits.rounding_bias_nats + 2 * forced.deltas.bias_error
        if abs(bias) > allowed:
            yield f"teacher-forced bias {bias:+.4f} beyond {allowed:.4f}"
    if forced is not None and forced.divergence is not None and forced.divergence > limits.rounding_divergence:
        yield f"mean KL {forced.divergence:.2g} > {limits.rounding_divergence}"
    if forced is not None and forced.agreement is not None and forced.deltas.positions:
        least = limits.rounding_agreement - 2 * _standard_error(limits.rounding_agreement, forced.deltas.positions)
        if forced.agreement < least:
            yield f"best tokens agree in {forced.agreement:.3f} < {least:.3f}"
    for sizes in measured.decodes:
        for found in sizes.divergences:
            unit = found.quantum or quantum
            if found.margin is not None and found.margin > limits.rounding_margin_quanta * unit + _NOISE_NATS:
                yield f"prompt {found.prompt} parts over a margin of {found.margin / unit:.1f} quanta"


def _standard_error(share: float, positions: int) -> float:
    return math.sqrt(share * (1 - share) / positions)


def _all_deltas(measured: Measured) -> Iterator[tuple[str, Deltas]]:
    if measured.forced is not None:
        yield "teacher-forced", measured.forced.deltas
    for sizes in measured.decodes:
        yield "decode", sizes.deltas
