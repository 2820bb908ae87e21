"""Hostile and broken reports: each is refused with the field, and what is only bad news about the engine is not."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from steadyfleet_contract import digest
from steadyfleet_contract.report import GPU, Outcome, PassName, PassResult, Repeats, Report
from steadyfleet_contract.spec import CacheState, LaunchKind
from steadyfleet_operator.errors import ReportRefused
from steadyfleet_operator.intake.accept import accept_query, accept_report
from tests.operator.builders import a_report, pass_result, probe_spec

Edit = Callable[[dict[str, Any]], object]


def body(report: Report, edit: Edit | None = None) -> bytes:
    raw = json.loads(report.model_dump_json(by_alias=True))
    if edit is not None:
        edit(raw)
    return json.dumps(raw).encode()


def test_a_sound_report_is_accepted_as_it_is() -> None:
    report = a_report()

    assert accept_report(body(report), probe_spec()) == report


def test_nan_logprobs_are_a_finding_and_no_error() -> None:
    arrays = digest.arrays([1, 2], [float("nan"), -1.0], [[(1, float("nan"))], [(2, -1.0)]], top=1)
    prompt = digest.prompt_result(arrays, with_arrays=True)
    decoded = PassResult(
        name=PassName.FULL_DECODE, digest=digest.pass_digest([prompt.digest]), prompts=(prompt,), seconds=1
    )
    report = a_report(full=False)
    report = report.model_copy(update={"passes": (*report.passes, decoded)})

    accepted = accept_report(body(report), probe_spec())

    assert accepted.passes[-1].prompts[0].non_finite == 2


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.COMPLETED])
def test_a_launch_that_failed_needs_no_result(outcome: Outcome) -> None:
    report = a_report(outcome=outcome, digest=None, prompt_set_digest=None, passes=(), repeats=None, gpus=())

    assert accept_report(body(report), probe_spec()).outcome is outcome


def test_a_pinned_launch_may_turn_out_as_served() -> None:
    assert accept_report(body(a_report(kind=LaunchKind.AS_SERVED)), probe_spec()).kind is LaunchKind.AS_SERVED


def at(*path: str | int, value: object) -> Edit:
    def edit(raw: dict[str, Any]) -> None:
        target: Any = raw
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = value

    return edit


def u32(*values: int) -> str:
    return base64.b64encode(np.array(values, dtype="<u4").tobytes()).decode()


REFUSED = {
    "unknown schema": (at("schemaVersion", value=2), "SchemaUnknown", "schemaVersion"),
    "unknown schema with fields of its own": (
        lambda raw: raw.update(schemaVersion=2, novelty=1), "SchemaUnknown", "schemaVersion",
    ),
    "unknown field": (at("node", value="gpu-9"), "FieldInvalid", "node"),
    "wrong type": (at("launch", value="first"), "FieldInvalid", "launch"),
    "launch out of range": (at("launch", value=64), "FieldInvalid", "launch"),
    "negative launch": (at("launch", value=-1), "FieldInvalid", "launch"),
    "launch that was not asked": (at("launch", value=9), "NotAsked", "launch"),
    "another epoch": (at("epoch", value="f" * 16), "NotAsked", "epoch"),
    "another recipe": (at("recipe", value=99), "NotAsked", "recipe"),
    "another cache": (at("cache", value="Warm"), "NotAsked", "cache"),
    "as served reported as pinned": (at("launch", value=2), "NotAsked", "kind"),
    "no digest": (at("digest", value=None), "FieldInvalid", "digest"),
    "no prompt set digest": (at("promptSetDigest", value=None), "FieldInvalid", "promptSetDigest"),
    "no gpu": (at("gpus", value=[]), "FieldInvalid", "gpus"),
    "a digest that is none": (at("digest", value="sha256:xyz"), "FieldInvalid", "digest"),
    "a digest of something else": (at("digest", value="sha256:" + "0" * 64), "FieldInvalid", "digest"),
    "a pass digest of something else": (
        at("passes", 0, "digest", value="sha256:" + "0" * 64), "FieldInvalid", "passes[ShortDecode].digest",
    ),
    "a pass twice": (lambda raw: raw["passes"].append(raw["passes"][0]), "FieldInvalid", "passes"),
    "tokens of another length": (
        at("passes", 2, "prompts", 0, "tokens", value=u32(1, 2)), "FieldInvalid", "passes[FullDecode].prompts[0]",
    ),
    "arrays without tokens": (
        at("passes", 2, "prompts", 0, "tokens", value=""), "FieldInvalid", "passes[FullDecode].prompts[0].tokens",
    ),
    "an array that is no base64": (
        at("passes", 2, "prompts", 0, "logprobs", value="%%%"), "FieldInvalid", "passes[FullDecode].prompts[0]",
    ),
    "a count of non-finite values that is wrong": (
        at("passes", 2, "prompts", 0, "nonFinite", value=3), "FieldInvalid", "passes[FullDecode].prompts[0].nonFinite",
    ),
    "a repeat of a prompt that is not there": (
        at("repeats", "differingPrompts", value=[3]), "FieldInvalid", "repeats.differingPrompts",
    ),
    "more rounds differ than there were": (
        at("repeats", "differingRounds", value=6), "FieldInvalid", "repeats.differingRounds",
    ),
    "a time of infinity": (at("passes", 0, "seconds", value=float("inf")), "FieldInvalid", "passes.0.seconds"),
    "a time that is no number": (at("timings", 0, "seconds", value=float("nan")), "FieldInvalid", "timings.0.seconds"),
    "a uuid with a path in it": (at("gpus", 0, "uuid", value="../../etc"), "FieldInvalid", "gpus.0.uuid"),
    "too many sections": (
        at("fingerprint", value={f"s{number}": {} for number in range(33)}), "FieldInvalid", "fingerprint",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "reason", "field"), REFUSED.values(), ids=REFUSED.keys())
def test_what_contradicts_itself_or_the_order_is_refused_with_the_field(edit: Edit, reason: str, field: str) -> None:
    with pytest.raises(ReportRefused) as caught:
        accept_report(body(a_report(), edit), probe_spec())

    assert (caught.value.reason, caught.value.field) == (reason, field)
    assert caught.value.message
    assert 400 <= caught.value.status < 500


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"null", b"[1]", b"\xff\xfe", b"[" * 100_000],
    ids=["empty", "cut", "null", "list", "no text", "deep"],
)
def test_what_is_no_report_at_all_is_refused(raw: bytes) -> None:
    with pytest.raises(ReportRefused) as caught:
        accept_report(raw, probe_spec())

    assert caught.value.status in (400, 422)


def full_decode(**arrays: Any) -> Report:
    report = a_report(full=False)
    decoded = pass_result(PassName.FULL_DECODE, seed=9, prompts=1, with_arrays=True, **arrays)
    return report.model_copy(update={"passes": (*report.passes, decoded)})


@pytest.mark.parametrize(
    ("report", "field"),
    [
        (full_decode(tokens=65), "passes[FullDecode].prompts[0].tokens"),
        (full_decode(top=21), "passes[FullDecode].prompts[0].topIds"),
    ],
    ids=["more tokens", "wider top"],
)
def test_more_than_was_asked_for_is_refused(report: Report, field: str) -> None:
    with pytest.raises(ReportRefused) as caught:
        accept_report(body(report), probe_spec())

    assert caught.value.field == field


@pytest.mark.parametrize("name", ["tokens", "topIds"])
def test_a_token_id_beyond_any_vocabulary_is_refused(name: str) -> None:
    ids = [2**31, 5] if name == "tokens" else [1, 2]
    rows = [[(2**32 - 1 if name == "topIds" else 3, -1.0)], [(3, -1.0)]]
    prompt = digest.prompt_result(digest.arrays(ids, [-1.0, -1.0], rows, top=1), with_arrays=True)
    decoded = PassResult(
        name=PassName.FULL_DECODE, digest=digest.pass_digest([prompt.digest]), prompts=(prompt,), seconds=1
    )
    report = a_report(full=False)

    with pytest.raises(ReportRefused) as caught:
        accept_report(body(report.model_copy(update={"passes": (*report.passes, decoded)})), probe_spec())

    assert caught.value.field == f"passes[FullDecode].prompts[0].{name}"


@pytest.mark.parametrize(
    "gpus", [(GPU(uuid="GPU-other"),), (GPU(uuid="GPU-wanted"), GPU(uuid="GPU-other"))], ids=["another", "one too many"]
)
def test_a_result_of_another_gpu_than_the_wanted_one_is_refused(gpus: tuple[GPU, ...]) -> None:
    with pytest.raises(ReportRefused) as caught:
        accept_report(body(a_report(gpus=gpus)), probe_spec(wanted_gpu="GPU-wanted"))

    assert (caught.value.reason, caught.value.field) == ("NotAsked", "gpus")


def test_a_wanted_gpu_and_the_partners_of_a_model_that_needs_several_are_accepted() -> None:
    report = a_report(gpus=(GPU(uuid="GPU-wanted"), GPU(uuid="GPU-partner")))

    assert accept_report(body(report), probe_spec(wanted_gpu="GPU-wanted", gpus_per_probe=2)) == report


@pytest.mark.parametrize(
    "uuids",
    [("GPU-partner", "GPU-wanted"), ("GPU-wanted",), ("GPU-wanted", "GPU-partner", "GPU-third")],
    ids=["not first", "alone", "one too many"],
)
def test_other_partners_than_asked_for_are_refused(uuids: tuple[str, ...]) -> None:
    report = a_report(gpus=tuple(GPU(uuid=uuid) for uuid in uuids))

    with pytest.raises(ReportRefused, match="asked for 2, GPU-wanted first"):
        accept_report(body(report), probe_spec(wanted_gpu="GPU-wanted", gpus_per_probe=2))


def test_that_the_wanted_gpu_was_not_given_can_be_told_with_all_that_were() -> None:
    given = tuple(GPU(uuid=f"GPU-{number}") for number in range(8))
    report = a_report(outcome=Outcome.GPU_NOT_GIVEN, digest=None, passes=(), repeats=None, gpus=given)

    assert accept_report(body(report), probe_spec(wanted_gpu="GPU-wanted")).gpus == given


def test_a_digest_query_must_be_for_a_launch_that_was_asked() -> None:
    query = {"launch": 0, "kind": "Pinned", "cache": "Cold", "digest": "sha256:" + "1" * 64}

    assert accept_query(json.dumps(query).encode(), probe_spec()).cache is CacheState.COLD
    with pytest.raises(ReportRefused, match="asked for"):
        accept_query(json.dumps({**query, "launch": 5}).encode(), probe_spec())


def test_repeats_that_differ_are_a_finding_and_no_error() -> None:
    report = a_report(repeats=Repeats(rounds=5, differing_rounds=2, differing_prompts=(0, 2)))

    assert accept_report(body(report), probe_spec()).repeats == report.repeats
