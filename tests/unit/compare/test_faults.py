"""Faults put into a real launch: found, on the right level, and blamed on nobody who may be innocent."""

from __future__ import annotations

import pytest

from steadyfleet_contract.causes import Blames, Cause, Certainty
from steadyfleet_contract.compare import compare
from steadyfleet_contract.levels import Level
from tests.unit.compare.records import (
    Fault,
    Record,
    compared,
    last_bit,
    launch,
    not_a_number,
    other_token,
    outputs_of,
    setting,
    shifted,
    weights_unknown,
    wrong_weights,
)

ONE_ULP = outputs_of("c2")
"""A weight changed by one bfloat16 step moves logprobs by as much as another reduction does: sizes can't tell."""


@pytest.mark.parametrize(
    ("fault", "level"),
    [
        pytest.param(last_bit(prompt=2, position=17), Level.LOGPROB_DRIFT, id="last bit of one logprob"),
        pytest.param(last_bit(prompt=0, position=0, field="decode"), None, id="last bit of the decode alone"),
        pytest.param(shifted(0.005), Level.LOGPROB_DRIFT, id="rounding"),
        pytest.param(ONE_ULP, Level.TIE_FLIP, id="one bfloat16 step"),
        pytest.param(shifted(0.06), Level.DIVERGENT, id="norm weight divided by 16"),
        pytest.param(shifted(0.12), Level.DIVERGENT, id="small exponent bit"),
        pytest.param(shifted(1.0), Level.CORRUPT, id="large exponent bit"),
        pytest.param(shifted(100.0), Level.CORRUPT, id="largest exponent bit"),
    ],
)
def test_same_plan_and_other_bits_is_never_a_recorded_choice(fault: Fault, level: Level | None) -> None:
    found = compared("a1", "a3", fault)
    if level is not None:
        assert found.level is level
    if not any(decode.not_greedy_a or decode.not_greedy_b for decode in found.decodes):
        assert (found.cause, found.blames, found.certainty) == (Cause.HARDWARE, Blames.GPU, Certainty.LIKELY)
    assert "never a recorded choice" in " ".join([found.summary, *found.explanation])


@pytest.mark.parametrize(
    "base",
    [
        pytest.param("a3", id="same plan"),
        pytest.param("n4", id="pointwise kernels tuned otherwise"),
        pytest.param("n5", id="other plan"),
        pytest.param("d1", id="other configuration"),
        pytest.param("e1", id="eager"),
    ],
)
def test_other_weights_are_blamed_before_anything_else(base: str) -> None:
    found = compared("a1", base, ONE_ULP, wrong_weights)
    assert (found.level, found.cause, found.certainty) == (Level.TIE_FLIP, Cause.WEIGHTS, Certainty.FACT)
    assert (found.blames, found.suspect) == (Blames.NODE, "")


def test_stated_digest_names_the_side_with_other_weights() -> None:
    good, bad = launch("a1"), launch("a3", ONE_ULP, wrong_weights)
    assert compare(good, bad, expected_weights=good.weights).suspect == "B"
    assert compare(bad, good, expected_weights=good.weights).suspect == "A"
    assert compare(bad, good, expected_weights="0" * 64).suspect == ""


def test_other_weights_with_the_same_output_are_identical() -> None:
    found = compared("a1", "a3", wrong_weights)
    assert (found.level, found.cause) == (Level.IDENTICAL, Cause.NONE)
    assert any("weight files differ" in line for line in found.explanation)


def test_weights_that_were_not_hashed_leave_the_cause_open() -> None:
    found = compared("a1", "a3", ONE_ULP, weights_unknown)
    assert (found.cause, found.certainty, found.blames) == (Cause.UNEXPLAINED, Certainty.CANNOT_TELL, Blames.UNKNOWN)
    assert "the weights" in found.summary


@pytest.mark.parametrize("nats", [0.06, 1.0])
def test_other_plan_does_not_excuse_what_no_plan_does(nats: float) -> None:
    found = compared("a1", "n5", shifted(nats))
    assert (found.cause, found.certainty, found.blames) == (Cause.UNEXPLAINED, Certainty.CANNOT_TELL, Blames.UNKNOWN)


def test_other_settings_do_not_excuse_what_no_kernel_does() -> None:
    found = compared("a1", "e1", shifted(1.0))
    assert (found.level, found.cause, found.certainty) == (Level.CORRUPT, Cause.CONFIGURATION, Certainty.CANNOT_TELL)


@pytest.mark.parametrize("field", ["decode", "teacher_forced"])
@pytest.mark.parametrize("position", [0, 31])
@pytest.mark.parametrize("written_as", [float("nan"), float("inf"), None, "NaN", -9999.0], ids=str)
def test_one_logprob_that_is_not_finite_is_corrupt_and_points_at_its_launch(
    field: str, position: int, written_as: object
) -> None:
    fault = not_a_number(prompt=3, position=position, field=field, written_as=written_as)
    found = compared("a1", "a3", fault)
    assert (found.level, found.suspect, found.sound) == (Level.CORRUPT, "B", False)
    assert (found.a.non_finite, found.b.non_finite) == (0, 1)
    assert found.cause is Cause.HARDWARE


def test_not_finite_in_the_prompt_counts_as_well() -> None:
    def fault(found: Record) -> None:
        found["teacher_forced"][1]["prompt_chosen_logprobs"][0] = float("nan")

    assert compared("a1", "a3", fault).level is Level.CORRUPT


def test_not_finite_in_both_alike_is_identical_and_not_sound() -> None:
    fault = not_a_number(prompt=0, position=0, field="decode")
    found = compare(launch("a1", fault), launch("a3", fault))
    assert (found.level, found.identical, found.sound) == (Level.IDENTICAL, True, False)
    assert any("NaN" in note for note in found.notes)


def test_token_that_its_own_row_does_not_favour_is_the_sampler_and_not_a_gpu() -> None:
    found = compared("a1", "a3", other_token(prompt=1, position=4, rank=15))
    assert (found.level, found.cause, found.suspect) == (Level.CORRUPT, Cause.UNEXPLAINED, "B")
    assert found.decodes[0].not_greedy_b == 1
    first = found.first_divergence
    assert first is not None
    assert (first.prompt, first.position) == (1, 4)


def test_launch_that_disagrees_with_itself_is_not_blamed_on_a_card() -> None:
    found = compared("a1", "a3", ONE_ULP, lambda record: record.update(repeat_identical=False))
    assert (found.cause, found.certainty, found.suspect) == (Cause.WITHIN_LAUNCH, Certainty.CANNOT_TELL, "B")


def _no_kernels(record: Record) -> None:
    record["kernel_plan"]["kernels"] = []


def test_plan_that_cannot_be_read_is_said_and_acquits_nobody() -> None:
    found = compared("a1", "a3", ONE_ULP, _no_kernels)
    assert (found.cause, found.certainty) == (Cause.UNEXPLAINED, Certainty.CANNOT_TELL)
    assert found.b.plan == "Unreadable"
    assert any("plan of B can't be read" in line for line in found.explanation)


def _flashinfer(record: Record) -> None:
    record["resolved"]["attention_backend"] = "FLASHINFER"


def test_invisible_chooser_keeps_a_gpu_from_being_blamed() -> None:
    a, b = launch("a1", _flashinfer), launch("a3", _flashinfer, ONE_ULP)
    found = compare(a, b)
    assert (found.cause, found.certainty, found.blames) == (Cause.UNEXPLAINED, Certainty.CANNOT_TELL, Blames.UNKNOWN)
    assert "FlashInfer" in found.summary


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        pytest.param(setting("versions", "driver", "581.1"), Cause.ENVIRONMENT, id="driver"),
        pytest.param(setting("gpu", "name", "NVIDIA H100"), Cause.ENVIRONMENT, id="product"),
        pytest.param(setting("versions", "vllm", "0.27.0"), Cause.VERSION, id="vLLM"),
        pytest.param(setting("resolved", "block_size", 32), Cause.CONFIGURATION, id="resolved setting"),
        pytest.param(setting("resolved", "num_gpu_blocks", 1), Cause.HARDWARE, id="free memory explains nothing"),
        pytest.param(setting("resolved", "aot_key", "x"), Cause.HARDWARE, id="cache name explains nothing"),
        pytest.param(setting("gpu", "uuid", "GPU-x"), Cause.HARDWARE, id="another card explains nothing"),
    ],
)
def test_what_else_differs_is_the_cause_only_if_it_can_be(fault: Fault, cause: Cause) -> None:
    assert compared("a1", "a3", ONE_ULP, fault).cause is cause


def test_driver_and_plan_together_cannot_be_told_apart() -> None:
    found = compared("a1", "n5", setting("versions", "driver", "581.1"))
    assert (found.cause, found.certainty) == (Cause.ENVIRONMENT, Certainty.CANNOT_TELL)
    assert any("plans differ as well" in line for line in found.explanation)


def test_record_changed_after_it_was_written_is_said() -> None:
    def stale(record: Record) -> None:
        record["digests"] = {"decode": "0" * 64, "teacher_forced": "0" * 64}

    notes = compared("a1", "a3", stale).notes
    assert sum("changed after it was written" in note for note in notes) == 2
