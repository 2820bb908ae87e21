"""Reports and bundles of the evidence store say of the same launches what their records say."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from steadyfleet_contract import evidence
from steadyfleet_contract.causes import Cause, Certainty
from steadyfleet_contract.compare import compare
from steadyfleet_contract.digest import Arrays, launch_digest, pass_digest, prompt_result
from steadyfleet_contract.errors import InputInvalid
from steadyfleet_contract.launches import Launch, Outputs
from steadyfleet_contract.levels import Level
from steadyfleet_contract.readlaunch import EVIDENCE, REPORT, parse_launch
from steadyfleet_contract.report import GPU, Outcome, PassName, PassResult, Repeats, Report
from steadyfleet_contract.spec import CacheState, LaunchKind
from tests.unit.compare.records import FOLDER, launch

H200 = FOLDER.parent / "h200"
WEIGHTS = "sha256:" + "a" * 64
PROMPTS = "sha256:" + "b" * 64


def prompts(outputs: Outputs, *, top: bool = True) -> list[Arrays]:
    found = []
    for index in range(len(outputs.lengths)):
        mine = outputs.prompt == index
        width = outputs.top if top else 0
        found.append(
            Arrays(
                outputs.tokens[mine],
                outputs.logprobs[mine],
                outputs.top_ids[mine][:, :width],
                outputs.top_logprobs[mine][:, :width],
            )
        )
    return found


def passed(name: PassName, arrays: list[Arrays], *, with_arrays: bool) -> PassResult:
    results = tuple(prompt_result(entry, with_arrays=with_arrays) for entry in arrays)
    return PassResult(
        name=name, digest=pass_digest(entry.digest for entry in results), prompts=results, seconds=1.0
    )


def plan_section(found: Launch) -> dict[str, str]:
    if not found.plan.kernels:
        return {"digest": "x", "kernels": "none: the launch compiled no Triton kernel (eager, or a CPU build)"}
    lines = {
        f"inductor/{kernel.source}": (
            f"{kernel.name} {'reduction' if kernel.reduces else 'pointwise'} no flags {kernel.config}"
        )
        for kernel in found.plan.kernels.values()
    }
    return {"digest": "x", "kernels": str(len(lines)), **lines}


def report(name: str, *, with_arrays: bool = True, **changes: Any) -> Report:
    """What the probe would have reported of this launch."""
    found = launch(name)
    decode, forced = found.passes["FullDecode"].outputs, found.passes["TeacherForced"].outputs
    assert decode is not None
    assert forced is not None
    short = passed(PassName.SHORT_DECODE, prompts(decode, top=False), with_arrays=with_arrays)
    scored = passed(PassName.TEACHER_FORCED, prompts(forced), with_arrays=with_arrays)
    passes = [short, scored]
    if with_arrays:
        passes.append(passed(PassName.FULL_DECODE, prompts(decode), with_arrays=True))
    eager = "true" if name.startswith("e") else "false"
    fields: dict[str, Any] = {
        "recipe": 1,
        "epoch": "0" * 16,
        "launch": 0,
        "kind": LaunchKind.AS_SERVED,
        "cache": CacheState.COLD,
        "outcome": Outcome.COMPLETED,
        "started_at": "2026-12-01T00:00:00+00:00",
        "gpus": (GPU(uuid=f"GPU-{name}", product="NVIDIA H200"),),
        "digest": launch_digest(short_decode=short.digest, teacher_forced=scored.digest),
        "prompt_set_digest": PROMPTS,
        "passes": tuple(passes),
        "repeats": Repeats(rounds=5, differing_rounds=0),
        "weights_digest": WEIGHTS,
        "fingerprint": {
            "plan": plan_section(found),
            "engine": {"model_config.enforce_eager": eager, "kernel_config.enable_flashinfer_autotune": "false"},
            "environment": {"VLLM_TRITON_FORCE_FIRST_CONFIG": "1"},
            "host": {"bootID": name},
        },
    } | changes
    return Report(**fields)


def read(found: Report, *, packed: bool = False, name: str = "r.json") -> Launch:
    data = found.model_dump_json(by_alias=True).encode()
    return parse_launch(gzip.compress(data) if packed else data, file=name)


def bundle(found: Report, **known: str) -> bytes:
    head = {"content": "0", "launch": {"node": "gpu-1", "evidence": "u/e/gpu-1/p/launch-0", **known}}
    return evidence.pack(head, found.model_dump_json(by_alias=True).encode())


@pytest.mark.parametrize(("a", "b"), [("a1", "a3"), ("a1", "n5"), ("n5", "x2"), ("a1", "e1"), ("b1", "s1")])
def test_reports_are_judged_as_the_records_of_the_same_launches(a: str, b: str) -> None:
    by_record, by_report = compare(launch(a), launch(b)), compare(read(report(a)), read(report(b), packed=True))
    for key in ("level", "cause", "certainty", "blames"):
        assert getattr(by_report, key) == getattr(by_record, key)
    assert by_report.a.format == REPORT
    explaining = {kernel.source for kernel in by_record.plan if kernel.explains}
    assert {kernel.source for kernel in by_report.plan if kernel.explains} == explaining
    sizes = {entry.pass_name: entry for entry in by_report.forced}["TeacherForced"]
    assert sizes == {entry.pass_name: entry for entry in by_record.forced}["TeacherForced"]


def test_bundle_of_the_store_tells_node_and_evidence() -> None:
    found = compare(parse_launch(bundle(report("a1")), file="a"), parse_launch(bundle(report("n5")), file="b"))
    assert (found.a.format, found.a.node, found.a.name) == (EVIDENCE, "gpu-1", "u/e/gpu-1/p/launch-0")
    assert (found.level, found.cause) == (Level.TIE_FLIP, Cause.KERNEL_PLAN)


@pytest.mark.parametrize(
    ("key", "cause"), [("version", Cause.VERSION), ("image_id", Cause.IMAGE)], ids=["version", "image"]
)
def test_what_the_operator_knew_is_compared(key: str, cause: Cause) -> None:
    a = parse_launch(bundle(report("a1"), **{key: "one"}), file="a")
    b = parse_launch(bundle(report("c2", fingerprint=report("a1").fingerprint), **{key: "two"}), file="b")
    found = compare(a, b)
    assert (found.cause, found.certainty) == (cause, Certainty.LIKELY)


def test_report_without_numbers_is_compared_by_digests() -> None:
    known = read(report("a1", with_arrays=False))
    same = compare(read(report("a3")), known)
    assert (same.level, same.identical) == (Level.IDENTICAL, True)
    other = compare(read(report("n5")), known)
    assert (other.level, other.identical) == (None, False)
    assert other.cause is Cause.KERNEL_PLAN
    assert any("compared by digests alone" in note for note in other.notes)


def test_decode_without_a_top_leaves_the_level_open() -> None:
    def short_only(name: str) -> Launch:
        found = report(name)
        return read(found.model_copy(update={"passes": tuple(p for p in found.passes if p.name != "FullDecode")}))

    found = compare(short_only("a1"), short_only("e1"))
    assert (found.level, found.cause) == (None, Cause.CONFIGURATION)
    assert "no margin is known" in found.level_reasons[0]


def test_same_plan_in_pinned_reports_points_at_a_gpu() -> None:
    suspect = report("c2", fingerprint=report("a1").fingerprint)
    found = compare(read(report("a1")), read(suspect))
    assert (found.cause, found.certainty) == (Cause.HARDWARE, Certainty.LIKELY)


def test_not_finite_number_travels_through_a_report() -> None:
    broken = report("a1")
    outputs = launch("a1").passes["TeacherForced"].outputs
    assert outputs is not None
    arrays = prompts(outputs)
    arrays[0].logprobs[5] = np.nan
    scored = passed(PassName.TEACHER_FORCED, arrays, with_arrays=True)
    passes = tuple(scored if entry.name is PassName.TEACHER_FORCED else entry for entry in broken.passes)
    short = next(entry.digest for entry in broken.passes if entry.name is PassName.SHORT_DECODE)
    digest = launch_digest(short_decode=short, teacher_forced=scored.digest)
    found = compare(read(report("a3")), read(report("a1", passes=passes, digest=digest)))
    assert (found.level, found.suspect, found.b.non_finite) == (Level.CORRUPT, "B", 1)


def test_report_that_contradicts_its_digests_is_refused() -> None:
    raw = json.loads(report("a1").model_dump_json(by_alias=True))
    raw["passes"][1]["prompts"][0]["logprobs"] = raw["passes"][1]["prompts"][1]["logprobs"]
    with pytest.raises(InputInvalid, match=r"TeacherForced.*is not the hash"):
        parse_launch(json.dumps(raw).encode(), file="r.json")


def test_launch_that_did_not_complete_is_refused() -> None:
    failed = report("a1", outcome=Outcome.ENGINE_EXITED, passes=(), digest=None)
    with pytest.raises(InputInvalid, match="outcome: EngineExited"):
        read(failed)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(evidence.pack({"visit": {}}), "a visit holds no outputs", id="visit"),
        pytest.param(evidence.pack({"content": "0", "launch": {}}), "without its report", id="no second line"),
        pytest.param(evidence.pack({"content": "0", "launch": {}}, b'{"a": 1}'), "recipe", id="no report"),
        pytest.param(evidence.pack({"content": "0", "launch": 3}, b"{}"), "recipe", id="no launch"),
    ],
)
def test_bundle_of_something_else_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(InputInvalid, match=message):
        parse_launch(data, file="x.json.gz")


def test_pinned_and_as_served_launches_of_a_real_card_differ_by_configuration() -> None:
    """These reports have no numbers: they are compared by digests."""
    reports = json.loads(gzip.decompress((H200 / "quiet.json.gz").read_bytes()))
    pinned, served, again = (parse_launch(json.dumps(entry).encode(), file="r") for entry in reports)
    assert compare(pinned, again).level is Level.IDENTICAL
    found = compare(pinned, served)
    assert found.cause is Cause.CONFIGURATION
    assert not any("/steadyfleet-work" in key.a for key in found.settings["configuration"] if "CACHE" in key.key)


def test_bundle_that_the_operator_wrote_is_read() -> None:
    pytest.importorskip("kopf", reason="the operator's own packages")
    from steadyfleet_operator.intake import bundle as operator_bundle
    from tests.unit.test_store import sender

    found = report("a1")
    record = operator_bundle.launch_record(sender(), found, evidence="e", received_at=datetime(2026, 1, 1, tzinfo=UTC))
    data = operator_bundle.pack_launch(record, found, content="0")
    read_back = parse_launch(data, file="launch-0.json.gz")
    assert (read_back.format, read_back.node, read_back.gpu) == (EVIDENCE, "gpu-1", "GPU-a1")
    assert operator_bundle.unpack_report(data) == found
