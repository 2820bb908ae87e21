"""Pairs of real launches: each on the level, cause and blame that the measurement proves."""

from __future__ import annotations

import pytest

from steadyfleet_contract.causes import Blames, Cause, Certainty
from steadyfleet_contract.levels import Level
from tests.unit.compare.records import compared

IDENTICAL = (Level.IDENTICAL, Cause.NONE, Certainty.FACT, Blames.NOBODY)
PLAN = (Level.TIE_FLIP, Cause.KERNEL_PLAN, Certainty.CANNOT_TELL, Blames.NOBODY)
EAGER = (Level.TIE_FLIP, Cause.CONFIGURATION, Certainty.LIKELY, Blames.NOBODY)
RECIPE_AND_PLAN = (Level.TIE_FLIP, Cause.CONFIGURATION, Certainty.CANNOT_TELL, Blames.NOBODY)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        pytest.param("a1", "a1", IDENTICAL, id="itself"),
        pytest.param("a1", "a3", IDENTICAL, id="the same on another card"),
        pytest.param("a1", "n4", IDENTICAL, id="busy neighbour without drift"),
        pytest.param("a3", "w1", IDENTICAL, id="warm restart without drift"),
        pytest.param("a1", "d1", IDENTICAL, id="deterministic recipe"),
        pytest.param("b1", "s1", IDENTICAL, id="other plan, same bits"),
        pytest.param("a1", "n5", PLAN, id="natural drift of both kernels"),
        pytest.param("a1", "n7", PLAN, id="natural drift of one kernel"),
        pytest.param("n5", "n7", PLAN, id="two natural drifts"),
        pytest.param("n5", "x2", PLAN, id="warm restart that drifts"),
        pytest.param("a1", "b1", PLAN, id="timings turned round"),
        pytest.param("a1", "c2", PLAN, id="random timings"),
        pytest.param("a1", "s1", PLAN, id="second best forced"),
        pytest.param("a1", "e1", EAGER, id="eager against compiled"),
        pytest.param("d1", "e1", EAGER, id="eager against deterministic"),
        pytest.param("n5", "e1", EAGER, id="eager against drifted"),
        pytest.param("d1", "b1", RECIPE_AND_PLAN, id="recipe and plan differ"),
    ],
)
def test_real_pair_gets_its_level_cause_and_blame_from_both_sides(a: str, b: str, expected: tuple[object, ...]) -> None:
    for one, other in ((a, b), (b, a)):
        found = compared(one, other)
        assert (found.level, found.cause, found.certainty, found.blames) == expected
        assert found.cannot_tell == (found.certainty is Certainty.CANNOT_TELL)


def test_eager_against_compiled_names_the_argument_first() -> None:
    found = compared("a1", "e1")
    assert found.settings["configuration"][0].key == "engine.arguments.enforce_eager"
    assert "enforce_eager" in found.summary
    assert (found.a.plan, found.b.plan) == ("Read", "None")
    assert "eager" in found.b.plan_detail


def test_other_plan_names_kernels_with_both_configurations() -> None:
    found = compared("a1", "n5")
    explaining = {kernel.name for kernel in found.plan if kernel.explains}
    assert explaining == {"triton_red_fused_1", "triton_red_fused_3"}
    assert any("X64/R64/w16" in line and "X64/R4/w8" in line for line in found.explanation)


def test_warm_restart_that_drifts_is_said_in_words() -> None:
    found = compared("n5", "x2")
    assert any("B is a warm restart from the cache tree that A left" in line for line in found.explanation)
    (kernel,) = (kernel for kernel in found.plan if kernel.explains)
    assert kernel.name == "triton_red_fused_1"
    assert kernel.remark == "A tuned it twice and runs the last choice; B runs the choice of A's first round"


def test_pointwise_kernels_are_reported_and_explain_nothing() -> None:
    kernels = [kernel for kernel in compared("n5", "x2").plan if kernel.name.startswith("triton_poi")]
    assert kernels
    assert not any(kernel.explains for kernel in kernels)


def test_kernels_compiled_only_to_be_timed_do_not_count() -> None:
    """In a1 and a3 they were tuned to other configurations."""
    assert not any("Placeholder" in kernel.name for kernel in compared("a1", "a3").plan)


def test_setting_of_the_tuner_acts_through_the_plan_alone() -> None:
    found = compared("a1", "b1")
    (key,) = found.settings["plan"]
    assert key.key == "environment.TORCHINDUCTOR_DISTORT_BENCHMARKING_RESULT"
    assert "configuration" not in found.settings


def test_margins_are_whole_quanta_of_the_grid() -> None:
    found = compared("a1", "e1")
    assert found.quantum == 0.0625
    margins = [margin for margin in found.decodes[0].margins_quanta if margin is not None]
    assert margins
    assert all(abs(margin - round(margin)) < 1e-3 and margin <= 3 for margin in margins)


def test_first_divergence_shows_both_candidates_in_both_launches() -> None:
    first = compared("n5", "x2").first_divergence
    assert first is not None
    assert (first.prompt_name, first.position) == ("p14", 9)
    assert (first.chosen_by_a.token, first.chosen_by_b.token) == (96566, 9105)
    assert first.chosen_by_a.logprob_a == pytest.approx(-3.6997077)
    assert first.chosen_by_b.logprob_a == pytest.approx(-3.7622077)
    assert first.margin_quanta == 1.0


def test_every_active_chooser_is_listed_with_its_state() -> None:
    states = {pair.name: (pair.a, pair.b) for pair in compared("a1", "e1").choosers}
    assert states["Inductor kernels"] == ("Recorded", "Absent")
    assert states["FlashInfer tactics"] == ("Absent", "Absent")
