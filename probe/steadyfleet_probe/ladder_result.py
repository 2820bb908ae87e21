"""The result of a ladder: what `--json` prints and `ladder.json` holds, schema version 1.

Letters name variants: launches with the same one gave the same tokens and logprobs in every sequential pass.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

from steadyfleet_contract.report import Outcome, Timing
from steadyfleet_contract.spec import CacheState, ContractModel, LaunchKind
from steadyfleet_probe.ladder_batched import BatchedFinding
from steadyfleet_probe.ladder_plan import KernelChange, LostSetting


class Cause(str, Enum):
    """What a change of bits comes with. `compare` and `explain` go further; here only these launches speak."""

    NONE = "None"
    """The bits are the same."""
    KERNEL_PLAN = "KernelPlan"
    """Bits follow the plan, and both plans ran in more than one launch."""
    CANNOT_TELL = "CannotTell"
    """The plans differ, but one of them ran only once; or no plan can be read."""
    UNEXPLAINED = "Unexplained"
    """Launches with one and the same recorded plan gave other bits."""


class LaunchLine(ContractModel):
    launch: int
    asked: LaunchKind
    kind: LaunchKind
    """What it turned out to be."""
    cache: CacheState
    filled_by: int | None
    outcome: Outcome
    message: str
    variant: str
    """A, B, ...; empty if the launch did not complete."""
    digest: str | None
    plan: str | None
    repeats: int
    differing_repeats: int
    differing_prompts: tuple[int, ...]
    non_finite: int
    timings: tuple[Timing, ...]
    engine_seconds: float
    asking_seconds: float
    overhead_seconds: float
    """All but the engine's start and the questions to it."""
    total_seconds: float


class Rate(ContractModel):
    """How often launches differ from the most common variant among them."""

    asked: LaunchKind
    cache: CacheState
    tree_of: int | None
    """Set if all these launches started from the caches that this one launch left: the rate holds for them alone."""
    launches: int
    differing: int
    variants: dict[str, tuple[int, ...]]
    excluded_above: float | None
    """95 %, one-sided; None if a launch differs."""
    low: float
    high: float
    """95 %, two-sided; 0 and `excluded_above` if no launch differs."""


class PassChange(ContractModel):
    name: str
    prompts: int
    changed: tuple[int, ...]
    tokens_changed: tuple[int, ...]
    """Prompts whose tokens differ, not only logprobs."""


class Change(ContractModel):
    """One launch held against another of the same kind."""

    asked: LaunchKind
    launch: int
    against: int
    passes: tuple[PassChange, ...]
    kernels: tuple[KernelChange, ...]
    plan_readable: bool
    cause: Cause

    @property
    def moved(self) -> tuple[PassChange, ...]:
        return tuple(part for part in self.passes if part.changed)


class Pin(ContractModel):
    """Whether launches that were asked for as pinned stayed so and gave the same bits, cold and warm."""

    launches: int
    kept: bool
    plan_readable: bool
    """False: the bits alone say so."""
    variants: tuple[str, ...]
    broken: dict[int, str]
    """Launch -> why it was reported as served."""


class Lost(ContractModel):
    launches: tuple[int, ...]
    setting: LostSetting


class LadderResult(ContractModel):
    schema_version: Literal[1] = 1
    model: str
    arguments: tuple[str, ...]
    gpus: tuple[str, ...]
    versions: dict[str, str]
    asked: int
    """Launches; fewer lines below mean that the ladder was interrupted."""
    launches: tuple[LaunchLine, ...]
    rates: tuple[Rate, ...]
    changes: tuple[Change, ...]
    """The first launch of each other variant against the first of the most common one, for each kind."""
    warm: tuple[Change, ...]
    """Each warm launch against the cold one that filled its caches."""
    pin: Pin | None
    lost: tuple[Lost, ...]
    batched: tuple[BatchedFinding, ...]
