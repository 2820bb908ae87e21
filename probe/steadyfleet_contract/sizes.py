"""How much the numbers of two launches differ. Sizes describe; alone they acquit nobody and convict nobody.

A decode feeds its own tokens back: after the first other token two decodes answer different questions, so only
positions up to it are compared, and there the margins between both candidates. A teacher-forced pass asks the same
question at every position. Logprobs are natural logarithms; a quantum is the step of the logit grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from steadyfleet_contract.digest import F32, U32
from steadyfleet_contract.launches import Mask, Outputs, Positions
from steadyfleet_contract.quantum import row_quanta

F64 = npt.NDArray[np.float64]

_SMALLEST_MASS = 1e-12

_TELLING_TOP = 5
"""A token that is missing in a shorter top may still be close to the best."""


@dataclass(frozen=True)
class Deltas:
    """b - a over positions with the same context, in nats. Positions that are not finite in both are left out."""

    positions: int
    fraction: float
    """Share of positions whose logprob has other bits."""
    median: float
    median_at_least: float
    """Two standard errors below. Rounding moves a logprob by nearly nothing or by about one quantum, in almost equal
    parts: the plain median of few positions may be either."""
    p99: float
    p99_at_least: float
    """Two standard errors below."""
    largest: float
    """medians, p99 and largest are of the absolute difference."""
    bias: float
    """Mean of the signed difference."""
    bias_error: float
    """Its standard error."""


NO_DELTAS = Deltas(
    positions=0,
    fraction=0.0,
    median=0.0,
    median_at_least=0.0,
    p99=0.0,
    p99_at_least=0.0,
    largest=0.0,
    bias=0.0,
    bias_error=0.0,
)


@dataclass(frozen=True)
class Divergence:
    """Where one prompt's decodes part. Logprobs are those of both candidates in both launches; None if the candidate is
    not in that launch's top."""

    prompt: int
    position: int
    a_token: int
    b_token: int
    a_of_a: float
    a_of_b: float | None
    b_of_b: float
    b_of_a: float | None
    quantum: float | None
    """Of these two rows; None if they show no grid."""
    margin: float | None
    """The larger of both launches' gaps between their own token and the other's, in nats. None if it can't be told."""
    missing: bool
    """A candidate is not in the other launch's top: the margin is a lower bound."""


@dataclass(frozen=True)
class DecodeSizes:
    prompts: int
    divergences: tuple[Divergence, ...]
    """First of each prompt that parts, in the order of the prompts."""
    deltas: Deltas
    """Before the first other token."""
    a_not_greedy: int
    b_not_greedy: int
    """Emitted tokens that are not the best of their own row: no change of rounding does that."""


@dataclass(frozen=True)
class ForcedSizes:
    deltas: Deltas
    agreement: float | None
    """Share of positions with the same best token."""
    divergence: float | None
    """Mean Kullback-Leibler divergence of the top-k with the rest as one event, the larger of both directions: a lower
    bound of the whole one."""
    tail_mass: float | None
    """Largest probability that is not in the top-k: what the bound knows nothing of."""


def differing(a: Outputs, b: Outputs) -> tuple[Mask, Mask]:
    """Positions with another token, and positions with other bits of any logprob or any other id in the top."""
    other_bits = _bits(a.logprobs) != _bits(b.logprobs)
    other_bits |= (a.top_ids != b.top_ids).any(axis=1)
    other_bits |= (_bits(a.top_logprobs) != _bits(b.top_logprobs)).any(axis=1)
    return a.tokens != b.tokens, other_bits


def decode_sizes(a: Outputs, b: Outputs) -> DecodeSizes:
    rows = _first_rows(a, a.tokens != b.tokens)
    limit = np.asarray(a.lengths, dtype=np.int64)
    limit[a.prompt[rows]] = a.position[rows]
    before = a.position < limit[a.prompt]
    return DecodeSizes(
        prompts=len(a.lengths),
        divergences=_divergences(a, b, rows),
        deltas=_deltas(a, b, before),
        a_not_greedy=_not_greedy(a),
        b_not_greedy=_not_greedy(b),
    )


def forced_sizes(a: Outputs, b: Outputs) -> ForcedSizes:
    deltas = _deltas(a, b, np.ones(len(a.tokens), dtype=bool))
    whole = a.finite & b.finite
    if not a.top or not whole.any():
        return ForcedSizes(deltas, agreement=None, divergence=None, tail_mass=None)
    # No probability is above one, but a broken launch or a hostile file may say so.
    a_ids, a_logprobs = a.top_ids[whole], np.minimum(a.top_logprobs[whole].astype(np.float64), 0.0)
    b_ids, b_logprobs = b.top_ids[whole], np.minimum(b.top_logprobs[whole].astype(np.float64), 0.0)
    there, back = _divergence(a_ids, a_logprobs, b_ids, b_logprobs)
    tail = min(np.exp(a_logprobs).sum(axis=1).min(), np.exp(b_logprobs).sum(axis=1).min())
    return ForcedSizes(
        deltas,
        agreement=float((a_ids[:, 0] == b_ids[:, 0]).mean()),
        divergence=max(float(there.mean()), float(back.mean()), 0.0),
        tail_mass=float(np.clip(1.0 - tail, 0.0, 1.0)),
    )


def _first_rows(outputs: Outputs, wanted: Mask) -> Positions:
    """Row of the first wanted position of each prompt that has one."""
    rows = np.flatnonzero(wanted)
    _, first = np.unique(outputs.prompt[rows], return_index=True)
    found: Positions = rows[first]
    return found


def _deltas(a: Outputs, b: Outputs, wanted: Mask) -> Deltas:
    wanted = wanted & np.isfinite(a.logprobs) & np.isfinite(b.logprobs)
    mine, theirs = a.logprobs[wanted], b.logprobs[wanted]
    if not len(mine):
        return NO_DELTAS
    delta = theirs.astype(np.float64) - mine.astype(np.float64)
    size = np.abs(delta)
    shares = np.array([0.5, 0.99])
    least = np.maximum(0.0, shares - 2 * np.sqrt(shares * (1 - shares) / len(size)))
    (median, p99), (median_at_least, p99_at_least) = np.quantile(size, shares), np.quantile(size, least)
    return Deltas(
        positions=len(delta),
        fraction=float((_bits(mine) != _bits(theirs)).mean()),
        median=float(median),
        median_at_least=float(median_at_least),
        p99=float(p99),
        p99_at_least=float(p99_at_least),
        largest=float(size.max()),
        bias=float(delta.mean()),
        bias_error=float(delta.std() / np.sqrt(len(delta))),
    )


def _divergences(a: Outputs, b: Outputs, rows: Positions) -> tuple[Divergence, ...]:
    a_tokens, b_tokens = a.tokens[rows], b.tokens[rows]
    a_other, a_margin, a_missing = _margins(a, rows, b_tokens)
    b_other, b_margin, b_missing = _margins(b, rows, a_tokens)
    quanta = np.fmin(row_quanta(a.top_logprobs[rows]), row_quanta(b.top_logprobs[rows]))
    margin = np.maximum(a_margin, b_margin)
    return tuple(
        Divergence(
            prompt=int(a.prompt[row]),
            position=int(a.position[row]),
            a_token=int(a_tokens[index]),
            b_token=int(b_tokens[index]),
            a_of_a=float(a.logprobs[row]),
            a_of_b=_or_none(a_other[index]),
            b_of_b=float(b.logprobs[row]),
            b_of_a=_or_none(b_other[index]),
            quantum=_or_none(quanta[index]),
            margin=_or_none(margin[index]),
            missing=bool(a_missing[index] or b_missing[index]),
        )
        for index, row in enumerate(rows)
    )


def _margins(outputs: Outputs, rows: Positions, others: U32) -> tuple[F64, F64, Mask]:
    """Logprob of the other launch's token in this one's row, the gap of the own token above it, and whether the other
    token is missing in the top (the gap is then at least that to the last of the top)."""
    if not outputs.top:
        nothing = np.full(len(rows), np.nan)
        return nothing, nothing, np.zeros(len(rows), dtype=bool)
    own = outputs.logprobs[rows].astype(np.float64)
    there = outputs.top_ids[rows] == others[:, None]
    missing = ~there.any(axis=1)
    top = outputs.top_logprobs[rows].astype(np.float64)
    value = top[np.arange(len(rows)), there.argmax(axis=1)]
    with np.errstate(invalid="ignore"):
        gap = own - np.where(missing, top[:, -1], value)
    unknown = ~np.isfinite(gap) | (missing if outputs.top < _TELLING_TOP else False)
    missing = missing & ~unknown
    return np.where(there.any(axis=1), value, np.nan), np.where(unknown, np.nan, gap), missing


def _not_greedy(outputs: Outputs) -> int:
    """Positions whose token is not one of the best in its own row, by bits; exact ties may go either way."""
    if not outputs.top:
        return 0
    best = outputs.top_logprobs == outputs.top_logprobs[:, :1]
    greedy = ((outputs.top_ids == outputs.tokens[:, None]) & best).any(axis=1)
    greedy &= outputs.logprobs == outputs.top_logprobs[:, 0]
    return int(np.count_nonzero(~greedy & outputs.finite))


def _divergence(a_ids: U32, a_logprobs: F64, b_ids: U32, b_logprobs: F64) -> tuple[F64, F64]:
    """Of each row, in both directions, over the tokens that both tops have and the rest as one event."""
    same = a_ids[:, :, None] == b_ids[:, None, :]
    shared = same.any(axis=2)
    partner = np.take_along_axis(b_logprobs, same.argmax(axis=2), axis=1)
    a_mass, b_mass = np.where(shared, np.exp(a_logprobs), 0.0), np.where(shared, np.exp(partner), 0.0)
    difference = a_logprobs - partner
    a_rest = np.clip(1.0 - a_mass.sum(axis=1), _SMALLEST_MASS, 1.0)
    b_rest = np.clip(1.0 - b_mass.sum(axis=1), _SMALLEST_MASS, 1.0)
    rest = np.log(a_rest / b_rest)
    return (
        (a_mass * difference).sum(axis=1) + a_rest * rest,
        -(b_mass * difference).sum(axis=1) - b_rest * rest,
    )


def _bits(values: F32) -> U32:
    """Every NaN is one NaN: its payload does not survive JSON."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    if np.isnan(values).any():
        bits = np.where(np.isnan(values), np.uint32(0x7FC00000), bits)
    return bits


def _or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
