"""The kernels that a launch used, and how two launches differ in them.

A kernel is known by its source file, whose name is a hash of its content (names of kernels collide), and by the whole
configuration that it ran with. Another configuration of a pointwise kernel computes each element alone as before: it is
reported and explains nothing. Everything else may change the rounding: another configuration of a reduction, a kernel
that one launch has and the other has not, another choice of Triton's or FlashInfer's own tuner.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

ONLY = "only"
"""Configuration of a kernel with one candidate: nothing was chosen."""

_LINE = re.compile(r"(?P<name>\S+) (?P<heuristic>\S+) (?P<flags>no flags|\S+) (?P<chosen>only|\{.*\})", re.DOTALL)
_HARMLESS_HEURISTIC = "pointwise"


class PlanState(str, Enum):
    """READ: kernels are known. NONE: no generated kernel ran (eager, or a CPU build). UNREADABLE: not known."""

    READ = "Read"
    NONE = "None"
    UNREADABLE = "Unreadable"


@dataclass(frozen=True)
class UsedKernel:
    source: str
    name: str
    """For people alone."""
    reduces: bool
    config: str
    """Canonical JSON, or `only`."""
    rounds: tuple[str, ...] = ()
    """Winner of each tuning round in order, as far as recorded: evidence, not the plan."""


@dataclass(frozen=True)
class UsedPlan:
    state: PlanState
    detail: str = ""
    """Why the plan is not there."""
    kernels: Mapping[str, UsedKernel] = field(default_factory=dict)
    """By source file."""


@dataclass(frozen=True)
class KernelDifference:
    """One kernel that the launches did not use alike; a side that did not use it at all has an empty configuration."""

    source: str
    name: str
    a: str
    b: str
    explains: bool
    remark: str = ""


@dataclass(frozen=True)
class PlanDifference:
    kernels: tuple[KernelDifference, ...]

    @property
    def explaining(self) -> tuple[KernelDifference, ...]:
        return tuple(found for found in self.kernels if found.explains)

    @property
    def harmless(self) -> tuple[KernelDifference, ...]:
        return tuple(found for found in self.kernels if not found.explains)


def difference(a: UsedPlan, b: UsedPlan) -> PlanDifference:
    found = [
        _compared(a.kernels.get(source), b.kernels.get(source))
        for source in sorted(a.kernels.keys() | b.kernels.keys())
    ]
    kept = [entry for entry in found if entry is not None]
    return PlanDifference(tuple(sorted(kept, key=lambda entry: (not entry.explains, entry.name, entry.source))))


def config_text(config: Mapping[str, object]) -> str:
    """Canonical: without what says how long it took and which candidates there were."""
    return json.dumps(
        {key: value for key, value in config.items() if key not in ("time_taken_ms", "configs_hash")}, sort_keys=True
    )


def from_section(section: Mapping[str, str] | None) -> UsedPlan:
    """From the `plan` section of a report's fingerprint."""
    if section is None:
        return UsedPlan(PlanState.UNREADABLE, "the report has no plan")
    kernels = {key: _from_line(key, value) for key, value in section.items() if key.startswith("inductor/")}
    kernels |= {
        key: UsedKernel(source=key, name=key.rpartition("/")[2], reduces=True, config=value)
        for key, value in section.items()
        if key.startswith(("triton/", "flashinfer/"))
    }
    if kernels:
        return UsedPlan(PlanState.READ, kernels=kernels)
    told = section.get("kernels", "")
    if told.startswith("none"):
        return UsedPlan(PlanState.NONE, told.partition(": ")[2] or told)
    return UsedPlan(PlanState.UNREADABLE, "the report names no kernel")


def _from_line(key: str, value: str) -> UsedKernel:
    """A line that can't be read counts as a kernel of which nothing is known but its text."""
    found = _LINE.fullmatch(value)
    source = key.removeprefix("inductor/")
    if found is None:
        return UsedKernel(source=source, name="?", reduces=True, config=value)
    return UsedKernel(
        source=source,
        name=found["name"],
        reduces=found["heuristic"] != _HARMLESS_HEURISTIC,
        config=found["chosen"],
    )


def _compared(a: UsedKernel | None, b: UsedKernel | None) -> KernelDifference | None:
    either = a or b
    if either is None or (a is not None and b is not None and a.config == b.config):
        return None
    return KernelDifference(
        source=either.source,
        name=either.name,
        a=a.config if a else "",
        b=b.config if b else "",
        explains=either.reduces or a is None or b is None,
        remark=_round_remark(a, b) if a and b else "",
    )


def _round_remark(a: UsedKernel, b: UsedKernel) -> str:
    """A launch that tuned a kernel twice runs the last choice and leaves the first in its cache tree."""
    for side, tuned, other in (("A", a, b), ("B", b, a)):
        first, last = (tuned.rounds[0], tuned.rounds[-1]) if tuned.rounds else ("", "")
        choices = _core(other.config), _core(tuned.config)
        if first != last and all(choices) and choices == (_core(first), _core(last)):
            restored = "B" if side == "A" else "A"
            return f"{side} tuned it twice and runs the last choice; {restored} runs the choice of {side}'s first round"
    return ""


def _core(config: str) -> Mapping[str, object]:
    """A tuning round knows a candidate by its parameters alone."""
    try:
        found = json.loads(config)
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if key not in ("found_by_coordesc", "triton_cache_hash")}
