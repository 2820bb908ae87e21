"""One launch as it is compared, whatever it was read from.

Outputs are held by pass, all prompts in one table: N positions in the order of the prompts, top-k rows in canonical
order (falling logprob, then rising id; a NaN after all numbers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from steadyfleet_contract.digest import CLAMPED_LOGPROB, F32, U32, Arrays
from steadyfleet_contract.plans import UsedPlan

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Kind(str, Enum):
    """What a pass can tell: a decode feeds its own tokens back, so two of them part at the first other token."""

    DECODE = "Decode"
    FORCED = "Forced"


@dataclass(frozen=True)
class Outputs:
    """One pass with its numbers. k may be 0."""

    tokens: U32
    logprobs: F32
    top_ids: U32
    top_logprobs: F32
    lengths: tuple[int, ...]
    """Positions of each prompt; their sum is N."""

    @cached_property
    def prompt(self) -> Positions:
        """Index of the prompt of each position."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def position(self) -> Positions:
        """Position within its prompt, from 0."""
        starts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int64)
        return np.arange(len(self.tokens)) - np.repeat(starts, self.lengths)

    @property
    def top(self) -> int:
        return int(self.top_ids.shape[1])

    @cached_property
    def finite(self) -> Mask:
        """Positions whose logprobs are all numbers. vLLM's stand-in for minus infinity is none."""
        return _finite(self.logprobs) & _finite(self.top_logprobs).all(axis=1)

    @cached_property
    def non_finite(self) -> int:
        """How many logprobs are NaN, infinite, or vLLM's stand-in for minus infinity."""
        return int(np.count_nonzero(~_finite(self.logprobs)) + np.count_nonzero(~_finite(self.top_logprobs)))


@dataclass(frozen=True)
class Pass:
    name: str
    kind: Kind
    outputs: Outputs | None
    digests: tuple[str, ...] = ()
    """Of each prompt, for a pass whose numbers may have been left out."""


class ChooserState(str, Enum):
    """RECORDED: what it chose is known. ABSENT: it was off, or had nothing to choose. INVISIBLE: neither is known."""

    RECORDED = "Recorded"
    ABSENT = "Absent"
    INVISIBLE = "Invisible"


@dataclass(frozen=True)
class Chooser:
    """Something in the engine that may choose between kernels by timing them."""

    name: str
    state: ChooserState
    detail: str


@dataclass(frozen=True)
class Launch:
    file: str
    format: str
    name: str
    prompt_set: str
    """Digest; launches of other prompts are not comparable."""
    passes: Mapping[str, Pass]
    plan: UsedPlan
    choosers: tuple[Chooser, ...]
    weights: str = ""
    """Digest of the weight files, empty if not known."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """`section.key` -> value of everything that may explain other bits."""
    circumstances: Mapping[str, str] = field(default_factory=dict)
    """What can act through the kernel plan alone: caches at the start, test settings of the tuner, a busy neighbour."""
    self_differing: bool | None = None
    """Whether a repeat in the same process had other bits; None if nothing was repeated."""
    warm_from: str = ""
    """Name of the launch whose cache tree was there at the start; `warm` if only that is known."""
    gpu: str = ""
    product: str = ""
    node: str = ""
    prompt_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def non_finite(self) -> int:
        return sum(found.outputs.non_finite for found in self.passes.values() if found.outputs is not None)


def stacked(prompts: Sequence[Arrays]) -> Outputs:
    """Raises ValueError if prompts have tops of different size."""
    tops = {prompt.top_ids.shape[1] for prompt in prompts if len(prompt.tokens)} or {0}
    if len(tops) > 1:
        raise ValueError(f"prompts have tops of different size: {sorted(tops)}")
    top = tops.pop()
    return Outputs(
        tokens=np.concatenate([np.zeros(0, np.uint32), *(prompt.tokens for prompt in prompts)]),
        logprobs=np.concatenate([np.zeros(0, np.float32), *(prompt.logprobs for prompt in prompts)]),
        top_ids=np.concatenate(
            [np.zeros((0, top), np.uint32), *(prompt.top_ids.reshape(len(prompt.tokens), top) for prompt in prompts)]
        ),
        top_logprobs=np.concatenate(
            [
                np.zeros((0, top), np.float32),
                *(prompt.top_logprobs.reshape(len(prompt.tokens), top) for prompt in prompts),
            ]
        ),
        lengths=tuple(len(prompt.tokens) for prompt in prompts),
    )


def canonical(top_ids: U32, top_logprobs: F32) -> tuple[U32, F32]:
    """Rows by falling logprob, then rising id; a NaN after all numbers."""
    order = np.lexsort((top_ids, -top_logprobs), axis=-1)
    return np.take_along_axis(top_ids, order, axis=1), np.take_along_axis(top_logprobs, order, axis=1)


def _finite(values: F32) -> Mask:
    found: Mask = np.isfinite(values) & (values != np.float32(CLAMPED_LOGPROB))
    return found
