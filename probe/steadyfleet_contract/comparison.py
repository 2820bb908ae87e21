"""What `steadyfleet compare` says, as it is written for programs (`--json`): schema version 1, no key changes meaning.

Logprobs are natural logarithms, null where they are not finite or not known; margins are in quanta of the logit grid.
"""

from __future__ import annotations

from typing import Literal

from steadyfleet_contract.causes import Blames, Cause, Certainty
from steadyfleet_contract.launches import ChooserState
from steadyfleet_contract.levels import Level
from steadyfleet_contract.spec import ContractModel


class Side(ContractModel):
    file: str
    format: str
    """launch-record-1, evidence or report."""
    name: str
    node: str
    gpu: str
    product: str
    weights: str
    """Digest; empty if not recorded."""
    plan: str
    """Read, None (no generated kernel ran) or Unreadable."""
    plan_detail: str
    non_finite: int
    """Logprobs that are NaN or infinite, over all positions of all passes."""
    differs_from_itself: bool | None
    """Whether a repeat in the same process had other bits; null if there was none."""


class PassBits(ContractModel):
    """One pass that both launches have."""

    name: str
    prompts: int
    differing_prompts: tuple[int, ...]
    """Indices of prompts in which any bit differs."""
    positions: int | None
    differing_tokens: int | None
    """Decodes only up to meaning: after the first other token all that follows differs by consequence."""
    differing_positions: int | None
    """Null if one file has only the digests of this pass."""


class Candidate(ContractModel):
    """A token with its logprob in both launches; null if it is not in the top there."""

    token: int
    logprob_a: float | None
    logprob_b: float | None


class FirstDivergence(ContractModel):
    pass_name: str
    prompt: int
    prompt_name: str
    position: int
    """Of the generated token, from 0."""
    chosen_by_a: Candidate
    chosen_by_b: Candidate
    quantum: float | None
    """Of these rows, in nats."""
    margin_quanta: float | None
    """The larger of both launches' gaps between their own token and the other's."""
    margin_is_lower_bound: bool


class DeltaSizes(ContractModel):
    """|B - A| of the chosen tokens' logprobs in nats, over positions with the same context."""

    positions: int
    fraction_differing: float
    median: float
    p99: float
    max: float
    bias: float


class DecodeComparison(ContractModel):
    pass_name: str
    prompts: int
    diverging_prompts: int
    margins_quanta: tuple[float | None, ...]
    before_divergence: DeltaSizes
    not_greedy_a: int
    not_greedy_b: int


class ForcedComparison(ContractModel):
    pass_name: str
    delta: DeltaSizes
    argmax_agreement: float | None
    kl_lower_bound: float | None
    """Mean, of the top-k with the rest as one event; the larger direction."""
    kl_tail_mass: float | None
    """Largest probability outside the top-k: what the bound knows nothing of."""


class SettingDifference(ContractModel):
    key: str
    a: str
    b: str


class PlanKernel(ContractModel):
    source: str
    name: str
    a: str
    """Configuration as JSON, `only` for a kernel with one candidate, empty if A does not use it."""
    b: str
    explains: bool
    """Whether another configuration of it can change the rounding."""
    remark: str


class ChooserPair(ContractModel):
    name: str
    a: ChooserState | None
    b: ChooserState | None
    detail_a: str
    detail_b: str


class Comparison(ContractModel):
    schema_version: Literal[1] = 1
    a: Side
    b: Side
    identical: bool
    sound: bool
    """No logprob of either is NaN or infinite."""
    level: Level | None
    level_reasons: tuple[str, ...]
    cause: Cause
    certainty: Certainty
    cannot_tell: bool
    blames: Blames
    suspect: Literal["", "A", "B"]
    summary: str
    explanation: tuple[str, ...]
    next_step: str
    bits: tuple[PassBits, ...]
    quantum: float | None
    """Step of the logit grid in nats; null if neither launch shows one."""
    first_divergence: FirstDivergence | None
    divergences: tuple[FirstDivergence, ...]
    """First of each prompt, in the order of the prompts."""
    decodes: tuple[DecodeComparison, ...]
    forced: tuple[ForcedComparison, ...]
    settings: dict[str, tuple[SettingDifference, ...]]
    """version, image, environment, configuration, and plan (what acts through the kernel plan alone)."""
    circumstances: tuple[SettingDifference, ...]
    plan: tuple[PlanKernel, ...]
    """Kernels in use that differ."""
    choosers: tuple[ChooserPair, ...]
    notes: tuple[str, ...]
