"""What a count of launches says of a rate: exact binomial bounds (Clopper and Pearson, 1934), without scipy.

The coverage is at least what is asked for, at every rate. The launches must be independent of each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

CONFIDENCE = 0.95

_HALVINGS = 60
"""Of the interval from 0 to 1: beyond the precision of a double around any bound that a count of launches can have."""


@dataclass(frozen=True)
class Interval:
    low: float
    high: float


def excluded_above(launches: int, *, confidence: float = CONFIDENCE) -> float:
    """No launch out of so many differed: any rate above this one would have shown, with this confidence (one-sided).

    Raises ValueError if there was no launch.
    """
    if launches < 1:
        raise ValueError("no launch says nothing of a rate")
    return -math.expm1(math.log1p(-confidence) / launches)


def interval(differing: int, launches: int, *, confidence: float = CONFIDENCE) -> Interval:
    """The rates that are not excluded by `differing` out of `launches` (two-sided). Raises ValueError."""
    if not 0 <= differing <= launches or launches < 1:
        raise ValueError(f"{differing} of {launches} is no count")
    tail = (1 - confidence) / 2
    low, high = 0.0, 1.0
    if differing > 0:
        low = _root(lambda rate: _probability(range(differing, launches + 1), launches, rate) > tail)
    if differing < launches:
        high = _root(lambda rate: _probability(range(differing + 1), launches, rate) < tail)
    return Interval(low=low, high=high)


def _root(is_above: Callable[[float], bool]) -> float:
    """The rate from which on the monotonic condition holds."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if is_above(middle):
            high = middle
        else:
            low = middle
    return (low + high) / 2


def _probability(counts: Iterable[int], launches: int, rate: float) -> float:
    """That the number of differing launches is one of `counts`, for a rate strictly between 0 and 1."""
    log_rate, log_rest = math.log(rate), math.log1p(-rate)
    return math.fsum(
        math.exp(
            math.lgamma(launches + 1)
            - math.lgamma(count + 1)
            - math.lgamma(launches - count + 1)
            + count * log_rate
            + (launches - count) * log_rest
        )
        for count in counts
    )
