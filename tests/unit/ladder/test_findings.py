"""What is concluded from launches, and, as important, what is not."""

import re
from collections.abc import Sequence

import pytest

from steadyfleet_contract.report import Outcome
from steadyfleet_contract.spec import CacheState
from steadyfleet_probe.ladder import Launched
from steadyfleet_probe.ladder_findings import result
from steadyfleet_probe.ladder_result import Cause, LadderResult, Rate
from steadyfleet_probe.ladder_table import render
from tests.unit.ladder.launched import launched


def found(*launches: Launched, asked: int | None = None) -> LadderResult:
    return result(launches, model="synthetic:Tiny", arguments=(), asked=asked or len(launches))


def rate(result: LadderResult, cache: str = "Cold", *, tree_of: int | None = None) -> Rate:
    [one] = [rate for rate in result.rates if rate.cache is CacheState(cache) and rate.tree_of == tree_of]
    return one


def test_launches_with_the_same_bits_have_the_same_letter() -> None:
    lines = found(launched(0), launched(1, bits=1), launched(2), launched(3, bits=2)).launches
    assert [line.variant for line in lines] == ["A", "B", "A", "C"]


def test_equal_launches_exclude_a_rate_and_no_more() -> None:
    one = rate(found(*(launched(index) for index in range(5))))
    assert (one.launches, one.differing, one.low) == (5, 0, 0.0)
    assert one.excluded_above == one.high == pytest.approx(0.4507, abs=1e-4)


def test_launches_that_differ_from_the_most_common_bits_are_counted() -> None:
    one = rate(found(*(launched(index, bits) for index, bits in enumerate([1, 0, 0, 2]))))
    assert one.variants == {"A": (0,), "B": (1, 2), "C": (3,)}
    assert (one.launches, one.differing, one.excluded_above) == (4, 2, None)
    assert (one.low, one.high) == pytest.approx((0.0676, 0.9324), abs=1e-4)


def test_launches_that_failed_are_no_evidence() -> None:
    result = found(launched(0), launched(1, outcome=Outcome.ENGINE_EXITED), launched(2))
    assert rate(result).launches == 2
    assert "launch 1: EngineExited: the reason" in render(result)


def test_of_warm_launches_the_first_of_each_tree_counts() -> None:
    result = found(
        launched(0), launched(1, filled_by=0), launched(2, filled_by=0, bits=1), launched(3, filled_by=0),
        launched(4), launched(5, filled_by=4),
    )  # fmt: skip
    assert (rate(result).launches, rate(result, "Warm").launches) == (2, 2)
    assert rate(result, "Warm").differing == 0
    of_one_tree = rate(result, "Warm", tree_of=0)
    assert (of_one_tree.launches, of_one_tree.differing) == (3, 1)


def test_pinned_and_as_served_launches_are_never_held_against_each_other() -> None:
    result = found(launched(0, kind="Pinned"), launched(1, bits=1), launched(2, kind="Pinned"), launched(3, bits=1))
    assert result.changes == ()
    assert [rate.differing for rate in result.rates] == [0, 0]


CAUSES: list[tuple[str, Sequence[tuple[int, int | None]], Cause]] = [
    ("both plans ran twice and gave one set of bits each", [(0, 64), (1, 8), (0, 64), (1, 8)], Cause.KERNEL_PLAN),
    ("the other plan ran once", [(0, 64), (0, 64), (1, 8)], Cause.CANNOT_TELL),
    ("both plans ran once", [(0, 64), (1, 8)], Cause.CANNOT_TELL),
    ("the plan is the same", [(0, 64), (1, 64), (0, 64)], Cause.UNEXPLAINED),
    ("the other plan gave two sets of bits", [(0, 64), (0, 64), (1, 8), (2, 8)], Cause.UNEXPLAINED),
    ("no plan can be read", [(0, None), (0, None), (1, None)], Cause.CANNOT_TELL),
    ("one of the plans can not be read", [(0, 64), (0, 64), (1, None)], Cause.CANNOT_TELL),
]


@pytest.mark.parametrize(("launches", "cause"), [case[1:] for case in CAUSES], ids=[case[0] for case in CAUSES])
def test_plan_explains_only_what_it_was_seen_to_decide(
    launches: Sequence[tuple[int, int | None]], cause: Cause
) -> None:
    result = found(*(launched(index, bits, block=block) for index, (bits, block) in enumerate(launches)))
    assert result.changes[0].cause is cause


def test_changed_kernel_is_named_with_both_configurations_and_harmless_ones_are_not() -> None:
    [change] = found(launched(0), launched(1), launched(2, bits=1, block=8)).changes
    assert [(kernel.kernel, kernel.before, kernel.after) for kernel in change.kernels] == [
        ("triton_red_fused_1", "XBLOCK=64 R0_BLOCK=64 num_warps=16", "XBLOCK=64 R0_BLOCK=8 num_warps=16")
    ]


def test_passes_that_moved_are_told_apart() -> None:
    [change] = found(launched(0), launched(1), launched(2, decode_bits=10)).changes
    assert [(part.name, len(part.changed), len(part.tokens_changed)) for part in change.passes] == [
        ("ShortDecode", 3, 3),
        ("TeacherForced", 0, 0),
        ("FullDecode", 3, 3),
    ]
    table = re.sub(r"\s+", " ", render(found(launched(0), launched(1), launched(2, decode_bits=10))))
    assert "short decode in 3 of 3 prompts, tokens in 3; teacher-forced in none" in table


def test_warm_launch_is_held_against_the_cold_one_that_filled_its_caches() -> None:
    result = found(
        launched(0, bits=1, block=8), launched(1, filled_by=0), launched(2), launched(3, filled_by=2)
    )
    assert [(change.launch, change.against, bool(change.moved)) for change in result.warm] == [
        (1, 0, True),
        (3, 2, False),
    ]
    table = re.sub(r"\s+", " ", render(result))
    assert "Warm against cold the bits of the cold launch that filled the caches: 3 as 2" in table
    assert "as served, launch 1 against launch 0: short decode in 3 of 3" in table


@pytest.mark.parametrize(
    ("launches", "kept", "words"),
    [
        ([launched(0, kind="Pinned"), launched(1, kind="Pinned", filled_by=0)], True, "kept: 2 pinned launches, one"),
        ([launched(0, kind="Pinned", block=None)], True, "no kernel can be read here"),
        ([launched(0, kind="Pinned"), launched(1, 1, kind="Pinned")], False, "the pinned launches gave 2 sets of bits"),
        ([launched(0, kind="Pinned", turned_out="AsServed")], False, "not kept in launch 0: the reason"),
    ],
    ids=["kept cold and warm", "kept as far as bits tell", "other bits", "a kernel was tuned"],
)
def test_pin_is_kept_or_not(launches: Sequence[Launched], kept: bool, words: str) -> None:
    result = found(*launches)
    assert result.pin is not None
    assert result.pin.kept is kept
    assert words in render(result)


def test_interrupted_ladder_says_what_is_missing() -> None:
    assert "2 launches not run: interrupted" in render(found(launched(0), asked=3))
    assert "3 launches not run: interrupted" in render(found(asked=3))


def test_overhead_is_all_but_the_engine_and_the_questions() -> None:
    [line] = found(launched(0)).launches
    assert (line.engine_seconds, line.asking_seconds, line.overhead_seconds) == (30, 1, 1)
    assert "1.00 (3.2 %)" in render(found(launched(0)))


def test_no_conclusion_claims_determinism() -> None:
    results = [
        found(*(launched(index, bits, kind=kind, block=block) for index, (bits, block) in enumerate(launches)))
        for _, launches, _ in CAUSES
        for kind in ("Pinned", "AsServed")
    ]
    assert not [result for result in results if "determinis" in render(result).lower()]


def test_result_survives_json() -> None:
    result = found(launched(0), launched(1, bits=1, block=8), launched(2, filled_by=1))
    assert LadderResult.model_validate_json(result.model_dump_json(by_alias=True)) == result
