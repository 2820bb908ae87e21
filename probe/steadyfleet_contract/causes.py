"""Why two launches differ, as far as two launches can tell, and whom that blames.

The order of the questions is the order of what explains most: other inputs (weights, version, image, environment,
configuration), then other kernels, then nothing that is recorded. Another plan acquits nothing: faults have other plans
as well. Two launches never convict: what looks like hardware is a suspicion, and says which launch would settle it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from steadyfleet_contract.launches import Chooser, ChooserState, Launch
from steadyfleet_contract.levels import Level
from steadyfleet_contract.plans import PlanDifference, PlanState
from steadyfleet_contract.settings import Differing, KeyDifference


class Cause(str, Enum):
    NONE = "None"
    WEIGHTS = "Weights"
    VERSION = "Version"
    IMAGE = "Image"
    ENVIRONMENT = "Environment"
    CONFIGURATION = "Configuration"
    WITHIN_LAUNCH = "WithinLaunch"
    KERNEL_PLAN = "KernelPlan"
    HARDWARE = "Hardware"
    UNEXPLAINED = "Unexplained"


class Certainty(str, Enum):
    """FACT: read off both files. LIKELY: all else that is known is equal. CANNOT_TELL: two launches do not decide."""

    FACT = "Fact"
    LIKELY = "Likely"
    CANNOT_TELL = "CannotTell"


class Blames(str, Enum):
    NOBODY = "Nobody"
    NODE = "Node"
    GPU = "GPU"
    VERSION = "Version"
    UNKNOWN = "Unknown"


@dataclass(frozen=True)
class Found:
    """All that the cause is decided by."""

    a: Launch
    b: Launch
    level: Level | None
    bits_equal: bool
    settings: Differing
    plan: PlanDifference
    a_not_greedy: int = 0
    b_not_greedy: int = 0
    expected_weights: str = ""
    """Digest that both should have, if it was stated."""


@dataclass(frozen=True)
class Judgement:
    cause: Cause
    certainty: Certainty
    blames: Blames
    summary: str
    explanation: tuple[str, ...] = ()
    next_step: str = ""
    suspect: str = ""
    """`A` or `B` if one of the two is pointed at."""
    keys: tuple[KeyDifference, ...] = field(default=())
    """The settings that the cause names."""


_SETTINGS_CAUSES = (
    (Cause.VERSION, "version"),
    (Cause.IMAGE, "image"),
    (Cause.ENVIRONMENT, "environment"),
    (Cause.CONFIGURATION, "configuration"),
)

_CROSS_REPLAY = (
    "cross-replay: start both GPUs or versions warm from copies of one cache tree; with equal plans, equal bits mean"
    " that the plan explained it, other bits that it did not"
)


_SHORT = {"XBLOCK": "X", "YBLOCK": "Y", "R0_BLOCK": "R", "R1_BLOCK": "R1_", "num_warps": "w", "num_stages": "s"}


def judge(found: Found) -> Judgement:
    if found.bits_equal:
        return _identical(found)
    a, b = found.a, found.b
    if a.weights and b.weights and a.weights != b.weights:
        return _weights(found)
    if a.self_differing or b.self_differing:
        return _within_launch(found)
    for cause, kind in _SETTINGS_CAUSES:
        if keys := found.settings.of(kind):
            return _settings(found, cause, keys)
    if PlanState.UNREADABLE in (a.plan.state, b.plan.state):
        return _unreadable(found)
    if found.plan.explaining:
        return _kernel_plan(found)
    return _same_plan(found)


def _identical(found: Found) -> Judgement:
    also = []
    if found.a.weights and found.b.weights and found.a.weights != found.b.weights:
        also.append("the weight files differ, yet not in anything that these prompts show")
    if found.plan.explaining:
        also.append("the kernel plans differ, and gave the same bits")
    if any(found.settings.of(kind) for _, kind in _SETTINGS_CAUSES):
        also.append("settings differ, and gave the same bits")
    return Judgement(
        Cause.NONE, Certainty.FACT, Blames.NOBODY, "every bit that both launches have is the same", tuple(also)
    )


def _weights(found: Found) -> Judgement:
    suspect, words = "", "which of them is right, two launches can't tell"
    if found.expected_weights:
        wrong = [
            side for side, launch in (("A", found.a), ("B", found.b)) if launch.weights != found.expected_weights
        ]
        words = f"{' and '.join(wrong)} differ{'s' * (len(wrong) == 1)} from the digest that was stated"
        suspect = wrong[0] if len(wrong) == 1 else ""
    more = [f"the weight files have other digests; {words}"]
    if found.plan.explaining:
        more.append("the kernel plans differ as well; that does not excuse other weights")
    if named := _named_settings(found):
        more.append(f"settings differ as well: {named}")
    return Judgement(
        Cause.WEIGHTS,
        Certainty.FACT,
        Blames.NODE,
        f"the launches read other weights: {found.a.weights[-12:]} (A) and {found.b.weights[-12:]} (B)",
        tuple(more),
        "hash the files again and compare them with the digest of the source (--weights DIGEST names the wrong side)",
        suspect,
    )


def _within_launch(found: Found) -> Judgement:
    sides = [side for side, launch in (("A", found.a), ("B", found.b)) if launch.self_differing]
    return Judgement(
        Cause.WITHIN_LAUNCH,
        Certainty.CANNOT_TELL,
        Blames.UNKNOWN,
        f"{' and '.join(sides)} already disagree{'s' * (len(sides) == 1)} with itself: a repeat in the same process had"
        " other bits",
        ("the version, if GPUs of other nodes show it as well; else this GPU",),
        "launch the same on a GPU of another node",
        sides[0] if len(sides) == 1 else "",
    )


def _settings(found: Found, cause: Cause, keys: Sequence[KeyDifference]) -> Judgement:
    doubts = []
    plans = (found.a.plan.state, found.b.plan.state)
    if found.plan.explaining and plans == (PlanState.READ, PlanState.READ):
        doubts.append("the kernel plans differ as well, which alone can change the bits")
    if found.level in (Level.DIVERGENT, Level.CORRUPT):
        doubts.append("the difference is larger than another choice of kernels makes, so the settings may not be all")
    others = [
        kind for other, kind in _SETTINGS_CAUSES if other is not cause and found.settings.of(kind)
    ]
    # Another version or image brings other libraries and defaults with it.
    if others and cause in (Cause.ENVIRONMENT, Cause.CONFIGURATION):
        doubts.append(f"{' and '.join(others)} differ as well")
    named = _named(keys)
    if doubts:
        summary = f"{cause.value.lower()} differs ({named}); cannot tell whether it explains all"
    else:
        summary = f"{cause.value.lower()} differs ({named}), all else that is known is equal"
    return Judgement(
        cause,
        Certainty.CANNOT_TELL if doubts else Certainty.LIKELY,
        Blames.VERSION if cause is Cause.VERSION else Blames.NOBODY,
        summary,
        tuple(doubts),
        f"launch A again with B's {cause.value.lower()} and nothing else changed",
        keys=tuple(keys),
    )


def _unreadable(found: Found) -> Judgement:
    words = [
        f"the plan of {side} can't be read: {launch.plan.detail}"
        for side, launch in (("A", found.a), ("B", found.b))
        if launch.plan.state is PlanState.UNREADABLE
    ]
    return Judgement(
        Cause.UNEXPLAINED,
        Certainty.CANNOT_TELL,
        Blames.UNKNOWN,
        "the bits differ, and a kernel plan can't be read: cannot tell whether another plan explains it",
        tuple(words),
        "launch both pinned (deterministic compilation): then no plan is chosen",
    )


def _kernel_plan(found: Found) -> Judgement:
    names = ", ".join(
        f"{kernel.name} {short_config(kernel.a)} / {short_config(kernel.b)}" for kernel in found.plan.explaining[:3]
    )
    rest = len(found.plan.explaining) - 3
    named = names + (f" and {rest} more" if rest > 0 else "")
    words = [f"kernels that the model uses were chosen otherwise: {named}"]
    words += _warm_words(found)
    if found.level in (Level.DIVERGENT, Level.CORRUPT):
        return Judgement(
            Cause.UNEXPLAINED,
            Certainty.CANNOT_TELL,
            Blames.UNKNOWN,
            "plan differs, but the difference is larger than another choice of kernels makes: cannot tell what else is"
            " at work",
            tuple(words),
            _CROSS_REPLAY,
            _sided(found),
        )
    return Judgement(
        Cause.KERNEL_PLAN,
        Certainty.CANNOT_TELL,
        Blames.NOBODY,
        "plan differs; cannot tell whether it explains all",
        (*words, "another plan acquits nothing: launches with a fault have other plans as well"),
        _CROSS_REPLAY,
    )


def _warm_words(found: Found) -> list[str]:
    words = []
    for side, mine, other_side, other in (("A", found.a, "B", found.b), ("B", found.b, "A", found.a)):
        if mine.warm_from and mine.warm_from == other.name:
            words.append(
                f"{side} is a warm restart from the cache tree that {other_side} left: it restores the choices of the"
                f" first tuning round, and {other_side} ran with those of its last"
            )
    if not words and bool(found.a.warm_from) != bool(found.b.warm_from):
        warm = "A" if found.a.warm_from else "B"
        words.append(f"{warm} started from a cache tree, the other one cold: it restored choices that were made before")
    return words


def _same_plan(found: Found) -> Judgement:
    words = ["both launches used the same kernels with the same configurations: this is never a recorded choice"]
    if PlanState.NONE in (found.a.plan.state, found.b.plan.state):
        words = [f"no generated kernel ran ({found.a.plan.detail}): this is never a recorded choice"]
    if bool(found.a_not_greedy) != bool(found.b_not_greedy):
        side = "A" if found.a_not_greedy else "B"
        return Judgement(
            Cause.UNEXPLAINED,
            Certainty.CANNOT_TELL,
            Blames.UNKNOWN,
            f"{side} emitted tokens that its own logprobs do not favour: its sampler or its record, not rounding",
            tuple(words),
            "look at the sampling settings of that launch, then launch it again",
            side,
        )
    hidden = invisible(found.a.choosers) | invisible(found.b.choosers)
    unknown = [
        what
        for what, missing in (
            ("the weights", not (found.a.weights and found.b.weights)),
            ("the settings", not (found.a.facts and found.b.facts)),
        )
        if missing
    ]
    if hidden or unknown:
        what = [f"choices of {name}" for name in sorted(hidden)] + unknown
        return Judgement(
            Cause.UNEXPLAINED,
            Certainty.CANNOT_TELL,
            Blames.UNKNOWN,
            f"same plan, other bits: never a recorded choice; cannot tell hardware from what is not recorded"
            f" ({', '.join(what)})",
            tuple(words),
            "launch both pinned, which leaves nothing to choose; other bits again point at a GPU",
            _sided(found),
        )
    return Judgement(
        Cause.HARDWARE,
        Certainty.LIKELY,
        Blames.GPU,
        "same plan, same weights and settings, other bits: never a recorded choice; one of the GPUs computed otherwise,"
        " or its copy of the weights changed after they were hashed",
        (*words, "every chooser that is known was recorded or absent"),
        "launch both again, and a third GPU: the one that keeps differing is to blame",
        _sided(found),
    )


def invisible(choosers: Sequence[Chooser]) -> set[str]:
    return {chooser.name for chooser in choosers if chooser.state is ChooserState.INVISIBLE}


def short_config(config: str) -> str:
    """`{"XBLOCK": 64, "R0_BLOCK": 4, "num_warps": 8}` as `X64/R4/w8`, for people."""
    parts = _parameters(config)
    if not config:
        return "absent"
    if not parts:
        return config[:60]
    return "/".join(f"{short}{parts[name]}" for name, short in _SHORT.items() if name in parts) or config[:60]


def _parameters(config: str) -> Mapping[str, object]:
    try:
        found = json.loads(config)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _sided(found: Found) -> str:
    """Only what is wrong in itself points at one of two."""
    if bool(found.a.non_finite) == bool(found.b.non_finite):
        return ""
    return "A" if found.a.non_finite else "B"


def _named(keys: Sequence[KeyDifference], limit: int = 3) -> str:
    shown = ", ".join(f"{key.key} {key.a[:40]} / {key.b[:40]}" for key in keys[:limit])
    rest = len(keys) - limit
    return shown + (f" and {rest} more" if rest > 0 else "")


def _named_settings(found: Found) -> str:
    keys = [key for _, kind in _SETTINGS_CAUSES for key in found.settings.of(kind)]
    return _named(keys) if keys else ""
