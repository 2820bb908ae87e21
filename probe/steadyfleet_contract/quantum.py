"""The step of the logit grid, read off the logprobs.

Logits in bfloat16 lie on a grid; within a row a logprob is the logit less one number for the whole row, so the gaps
between entries of a row are multiples of the step. It doubles where logits pass a power of two, so it belongs to a row.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from steadyfleet_contract.digest import F32

F64 = npt.NDArray[np.float64]

STEPS = tuple(float(Fraction(2) ** -power) for power in range(-4, 11))
"""Candidates, 16 to 1/1024: finer steps can't be told from float32 logits."""

_SAMPLED_ROWS = 512
_NOISE = 2e-5
"""Gaps are differences of float32 numbers below 64: this much is rounding."""
_FEWEST_GAPS = 4
"""With fewer gaps a coarser step fits by chance."""


def row_quanta(top_logprobs: F32) -> F64:
    """Coarsest step that all gaps of a row are multiples of; NaN where there is none."""
    rows, top = top_logprobs.shape
    quanta = np.full(rows, np.nan)
    if top < 2 or not rows:
        return quanta
    with np.errstate(invalid="ignore"):
        values = top_logprobs.astype(np.float64)
        gaps = values[:, :1] - values[:, 1:]
        noise = np.maximum(_NOISE, np.abs(values[:, -1:]) * 2**-22)
        telling = np.count_nonzero(np.diff(gaps, axis=1, prepend=0.0) > noise, axis=1) >= _FEWEST_GAPS
        open_rows = telling & np.isfinite(gaps).all(axis=1)
        for step in STEPS:
            rest = np.abs(gaps - np.round(gaps / step) * step)
            fits = open_rows & (rest <= noise).all(axis=1)
            quanta[fits] = step
            open_rows &= ~fits
    return quanta


def quantum(top_logprobs: F32) -> float | None:
    """Step of the middle row of a sample; None if most rows show no grid, as with float32 logits."""
    sample = top_logprobs[:: max(1, len(top_logprobs) // _SAMPLED_ROWS)]
    found = row_quanta(sample)
    known = found[np.isfinite(found)]
    if len(known) * 2 <= len(found) or not len(known):
        return None
    return float(np.percentile(known, 50, method="lower"))
