"""The canonical bytes: golden hashes, what must not matter, what must, and reports that contradict themselves."""

import hashlib
import math
import struct
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyfleet_contract import digest as d
from steadyfleet_contract.report import PassName, PassResult, PromptResult, Report

RESULT = d.arrays([7, 300], [-0.5, -1.25], [[(7, -0.5), (9, -2.0)], [(300, -1.25), (1, -1.25)]], top=2)


def test_prompt_digest_is_the_documented_hash_of_packed_numbers() -> None:
    tokens = hashlib.sha256(b"tok1" + struct.pack("<2I", 7, 300)).digest()
    rows = struct.pack("<fIfIf", -0.5, 7, -0.5, 9, -2.0) + struct.pack("<fIfIf", -1.25, 1, -1.25, 300, -1.25)
    logprobs = hashlib.sha256(b"lp1" + rows).digest()
    expected = hashlib.sha256(b"pr1" + tokens + logprobs).hexdigest()
    assert d.prompt_digest(RESULT) == f"sha256:{expected}"


def test_digests_never_change_between_releases() -> None:
    prompt = d.prompt_digest(RESULT)
    assert prompt == "sha256:7871d96a583a1f37c69c357f80f4ecff961e6c57661b0a77b6acc0e5884ac61e"
    assert d.pass_digest([prompt, prompt]) == "sha256:87a0e1cff6ecb101e173b376d5bee0e672792ea979df1113822f234b90ba5dd4"
    launch = d.launch_digest(short_decode=d.pass_digest([prompt]), teacher_forced=d.pass_digest([]))
    assert launch == "sha256:af765ef33ea51bbf54ef9d2f905679b5eba04d39ea878be75d169d8f931865d9"


def test_order_of_equal_logprobs_does_not_matter() -> None:
    swapped = d.arrays([7, 300], [-0.5, -1.25], [[(9, -2.0), (7, -0.5)], [(1, -1.25), (300, -1.25)]], top=2)
    assert d.prompt_digest(swapped) == d.prompt_digest(RESULT)


@pytest.mark.parametrize(
    ("tokens", "logprobs", "top"),
    [
        pytest.param([8, 300], [-0.5, -1.25], -2.0, id="another token"),
        pytest.param([7, 300], [float(np.nextafter(np.float32(-0.5), np.float32(0))), -1.25], -2.0, id="one ulp"),
        pytest.param([7, 300], [-0.5, -1.25], -2.25, id="a logprob in the top"),
        pytest.param([7, 300], [-0.5, math.nan], -2.0, id="NaN"),
    ],
)
def test_every_bit_matters(tokens: list[int], logprobs: list[float], top: float) -> None:
    changed = d.arrays(tokens, logprobs, [[(7, -0.5), (9, top)], [(300, -1.25), (1, -1.25)]], top=2)
    assert d.prompt_digest(changed) != d.prompt_digest(RESULT)


def test_nan_hashes_alike_whatever_its_payload() -> None:
    quiet, other = (np.array([bits], np.uint32).view(np.float32) for bits in (0x7FC00000, 0xFFC00001))
    empty = np.zeros((1, 0), np.uint32), np.zeros((1, 0), np.float32)
    assert d.logprobs_hash(quiet, *empty) == d.logprobs_hash(other, *empty)


def test_nan_sorts_after_all_numbers() -> None:
    row = d.arrays([1], [math.nan], [[(5, math.nan), (4, -math.inf), (9, -1.0), (3, math.nan)]], top=4)
    assert row.top_ids.tolist() == [[9, 4, 3, 5]]


def test_best_entries_of_a_longer_row_are_kept() -> None:
    """vLLM adds the chosen token to the top-k if it is not among them."""
    row = d.arrays([1], [-9.0], [[(1, -9.0), (2, -0.5), (3, -1.0)]], top=2)
    assert row.top_ids.tolist() == [[2, 3]]


def test_short_row_is_refused() -> None:
    with pytest.raises(ValueError, match="position 0 has 1 top logprobs, 2 were asked for"):
        d.arrays([1], [-1.0], [[(1, -1.0)]], top=2)


def test_non_finite_counts_nan_infinity_and_the_clamp_of_the_completions_api() -> None:
    row = d.arrays([1, 2], [math.nan, -1.0], [[(1, -9999.0), (2, -math.inf)], [(3, -1.0), (4, -2.0)]], top=2)
    assert row.non_finite == 3


floats = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), floats), min_size=1, max_size=20), st.integers(0, 3))
def test_arrays_survive_the_report_bit_by_bit(positions: list[tuple[int, float]], top: int) -> None:
    tokens = [token for token, _ in positions]
    logprobs = [logprob for _, logprob in positions]
    rows = [[(token ^ step, logprob) for step in range(top)] for token, logprob in positions]
    sent = d.arrays(tokens, logprobs, rows, top=top)
    wire = d.prompt_result(sent, with_arrays=True).model_dump_json(by_alias=True)
    received = d.unpack(PromptResult.model_validate_json(wire))
    assert received is not None
    for name in ("tokens", "logprobs", "top_ids", "top_logprobs"):
        assert getattr(received, name).tobytes() == getattr(sent, name).tobytes()
        assert getattr(received, name).shape == getattr(sent, name).shape
    assert d.prompt_digest(received) == d.prompt_digest(sent)


def test_digest_alone_has_no_arrays() -> None:
    assert d.unpack(d.prompt_result(RESULT, with_arrays=False)) is None


@pytest.mark.parametrize("text", ["@@@@", "AAA"])
def test_text_that_is_not_base64_is_refused(text: str) -> None:
    with pytest.raises(d.DigestMismatch, match="not base64"):
        d.unpack_u32(text, (1,))


def test_array_of_another_shape_is_refused() -> None:
    with pytest.raises(d.DigestMismatch, match="an array of 8 bytes can't have the shape"):
        d.unpack_f32(d.pack_f32(np.array([1, 2], np.float32)), (3,))


def a_pass(name: PassName, *, with_arrays: bool = True) -> PassResult:
    prompt = d.prompt_result(RESULT, with_arrays=with_arrays)
    return PassResult(name=name, digest=d.pass_digest([prompt.digest]), prompts=(prompt,), seconds=1)


def a_report() -> Report:
    short, forced = a_pass(PassName.SHORT_DECODE), a_pass(PassName.TEACHER_FORCED, with_arrays=False)
    return Report(
        recipe=1,
        epoch="0" * 16,
        launch=0,
        kind="Pinned",
        cache="Cold",
        outcome="Completed",
        started_at="2026-11-30T10:00:00Z",
        digest=d.launch_digest(short_decode=short.digest, teacher_forced=forced.digest),
        passes=(short, forced),
    )


def test_consistent_report_passes() -> None:
    d.check_report(a_report())


def test_report_without_passes_passes() -> None:
    d.check_report(a_report().model_copy(update={"outcome": "EngineExited", "digest": None, "passes": ()}))


def _other_prompt(report: Report) -> Report:
    short, forced = report.passes
    prompt = short.prompts[0].model_copy(update={"digest": d.prompt_digest(d.arrays([], [], [], top=0))})
    changed = short.model_copy(update={"prompts": (prompt,), "digest": d.pass_digest([prompt.digest])})
    return report.model_copy(update={"passes": (changed, forced)})


def _fewer_non_finite(report: Report) -> Report:
    short, forced = report.passes
    prompt = short.prompts[0].model_copy(update={"non_finite": 5})
    return report.model_copy(update={"passes": (short.model_copy(update={"prompts": (prompt,)}), forced)})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param(
            lambda report: report.model_copy(update={"digest": f"sha256:{'0' * 64}"}), "digest: ", id="launch digest"
        ),
        pytest.param(
            lambda report: report.model_copy(update={"passes": report.passes[:1]}),
            "digest: set, but the short decode or the teacher-forced pass is missing",
            id="pass missing",
        ),
        pytest.param(
            lambda report: report.model_copy(update={"passes": report.passes[:1] * 2}),
            "is there twice",
            id="pass twice",
        ),
        pytest.param(
            lambda report: report.model_copy(
                update={
                    "passes": (
                        report.passes[0].model_copy(update={"prompts": report.passes[0].prompts * 2}),
                        report.passes[1],
                    )
                }
            ),
            r"passes\[ShortDecode\].digest",
            id="prompt added",
        ),
        pytest.param(_other_prompt, r"passes\[ShortDecode\].prompts\[0\].digest", id="digest of other arrays"),
        pytest.param(_fewer_non_finite, r"prompts\[0\].nonFinite: the arrays hold 0", id="count of non-finite"),
    ],
)
def test_report_that_contradicts_itself_is_refused(change: Callable[[Report], Report], field: str) -> None:
    with pytest.raises(d.DigestMismatch, match=field):
        d.check_report(change(a_report()))
