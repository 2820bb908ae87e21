"""`steadyfleet ladder` on the fake engine: what drifts, what fails, and what it leaves."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from steadyfleet_contract.digest import check_report, unpack
from steadyfleet_contract.report import Outcome, PassName
from steadyfleet_contract.spec import LaunchKind
from steadyfleet_probe import cli_ladder
from steadyfleet_probe.cli import main
from steadyfleet_probe.ladder_result import Cause, LadderResult
from tests.unit.ladder.fake import FakeLadder
from tests.unit.probe.builders import FAKE_VLLM, alive, wait_for, witness

SETTLED = "0,64,0,64"
"""Choices in the order of the launches: the pinned ones, in turns with the others, choose nothing."""


def test_launches_that_agree_are_all_one_variant(ladder: FakeLadder) -> None:
    climbed = ladder("--launches", "2", "--cache", "cold-then-warm", FAKE_BLOCKS=SETTLED)
    result = climbed.result
    assert climbed.status == 0
    assert [line.variant for line in result.launches] == ["A", "B", "A", "B"]
    assert [line.filled_by for line in result.launches] == [None, None, 0, 1]
    assert result.changes == ()
    assert [change.moved for change in result.warm] == [(), ()]
    assert result.pin is not None
    assert result.pin.kept


def test_every_launch_leaves_a_report_with_arrays_and_the_engines_output(ladder: FakeLadder) -> None:
    climbed = ladder("--launches", "1", "--kind", "pinned", "--pass", "batched", "--", "--dtype=bfloat16")
    report = climbed.report(0)
    check_report(report)
    check_report(climbed.report(0, "-batched"))
    assert report.kind is LaunchKind.PINNED
    assert [part.name for part in report.passes] == [
        PassName.SHORT_DECODE,
        PassName.TEACHER_FORCED,
        PassName.FULL_DECODE,
    ]
    assert all(unpack(prompt) for part in report.passes for prompt in part.prompts)
    assert "--dtype=bfloat16" in json.loads(report.fingerprint["engine"]["arguments"])
    assert climbed.out.joinpath("launch-00.log").exists()
    assert climbed.out.joinpath("ladder.txt").read_text() == climbed.output
    assert [timing.step for timing in report.timings].count("batched") == 1
    assert climbed.result.batched[0].prompts == 16


def test_restart_that_chooses_otherwise_is_told_with_the_kernel_while_the_pin_holds(ladder: FakeLadder) -> None:
    climbed = ladder("--launches", "4", "--cache", "cold-then-warm", FAKE_BLOCKS="0,64,0,64,0,8,0,8")
    [change] = climbed.result.changes
    assert (change.launch, change.against, change.cause) == (5, 1, Cause.KERNEL_PLAN)
    assert [part.name for part in change.moved] == ["ShortDecode", "TeacherForced", "FullDecode"]
    assert climbed.result.pin is not None
    assert (climbed.result.pin.kept, climbed.result.pin.launches) == (True, 4)
    assert "triton_red_fused_1: XBLOCK=64 R0_BLOCK=64 num_warps=16 -> XBLOCK=64 R0_BLOCK=8" in climbed.output


def test_warm_restart_that_differs_from_its_cold_launch_is_told(ladder: FakeLadder) -> None:
    climbed = ladder(
        "--launches", "3", "--kind", "as-served", "--cache", "warm", FAKE_BLOCKS="64,8,64", FAKE_FAULT="retunes"
    )
    assert [(change.launch, change.against, bool(change.moved)) for change in climbed.result.warm] == [
        (1, 0, True),
        (2, 0, False),
    ]
    assert climbed.result.warm[0].kernels[0].after == "XBLOCK=64 R0_BLOCK=8 num_warps=16"


def test_every_warm_launch_finds_what_the_cold_one_left_not_what_a_warm_one_changed(ladder: FakeLadder) -> None:
    tree = ladder("--launches", "3", "--kind", "as-served", "--cache", "warm", FAKE_BLOCKS="64,8,8").result
    assert [line.variant for line in tree.launches] == ["A", "A", "A"]


def test_decode_that_moves_alone_is_told_apart(ladder: FakeLadder) -> None:
    climbed = ladder("--launches", "2", "--kind", "as-served", FAKE_BLOCKS="64,8", FAKE_FAULT="decodes")
    [change] = climbed.result.changes
    assert [part.name for part in change.moved] == ["ShortDecode", "FullDecode"]
    assert change.cause is Cause.CANNOT_TELL


def test_engine_that_disagrees_with_itself_is_not_stable_within_a_process(ladder: FakeLadder) -> None:
    climbed = ladder("--launches", "1", "--kind", "pinned", FAKE_FAULT="flaky")
    assert climbed.result.launches[0].differing_repeats == 5
    assert "not stable in launch 0: 5 of 5 repeats differ" in climbed.output


def test_setting_that_did_not_reach_the_kernels_is_told_of_the_launches_it_was_lost_in(ladder: FakeLadder) -> None:
    climbed = ladder("--launches", "1", FAKE_BLOCKS="0,64", TORCHINDUCTOR_DETERMINISTIC="1")
    [lost] = climbed.result.lost
    assert (lost.launches, lost.setting.setting) == ((1,), "TORCHINDUCTOR_DETERMINISTIC=1")
    assert "TORCHINDUCTOR_DETERMINISTIC=1 was asked for, but 1 of 1 kernels" in climbed.output


def test_pin_that_does_not_hold_is_told(ladder: FakeLadder) -> None:
    climbed = ladder("--launches", "2", "--kind", "pinned", FAKE_BLOCKS="64,8", FAKE_FAULT="unpinned")
    assert climbed.result.pin is not None
    assert not climbed.result.pin.kept
    assert "pinned, pin broken" in climbed.output
    assert "not kept in launch 0: 1 reductions were tuned, among them triton_red_fused_1" in climbed.output


def test_kind_whose_first_launch_fails_is_not_tried_again(ladder: FakeLadder) -> None:
    climbed = ladder("--launches", "3", "--kind", "pinned", "--cache", "cold-then-warm", FAKE_FAULT="exit")
    assert climbed.status == 1
    assert {line.outcome for line in climbed.result.launches} == {Outcome.ENGINE_EXITED}
    assert [line.message for line in climbed.result.launches[1:]] == ["not tried, since launch 0 ended so"] * 2
    assert climbed.result.rates == ()
    assert "ValueError: No available memory" in re.sub(r"\s+", " ", climbed.output)


def test_json_is_all_there_is_on_stdout(ladder: FakeLadder) -> None:
    climbed = ladder("--launches", "1", "--kind", "pinned", "--json")
    assert LadderResult.model_validate_json(climbed.output) == climbed.result
    assert "launch 0 (1 of 1, Pinned, Cold): the engine starts" in climbed.progress


def test_engine_sees_the_users_environment_without_the_probe(ladder: FakeLadder, tmp_path: Path) -> None:
    probe = str(Path(cli_ladder.__file__).parent.parent)
    ladder(
        "--launches", "1", "--kind", "as-served",
        FAKE_WITNESS=str(tmp_path / "witness"), PYTHONPATH=os.pathsep.join((probe, str(FAKE_VLLM))), MY_OWN="1",
        XDG_CACHE_HOME="/caches",
    )  # fmt: skip
    seen = witness(tmp_path / "witness")["environment"]
    assert seen["PYTHONPATH"] == str(FAKE_VLLM)
    assert seen["MY_OWN"] == "1"
    assert seen["HF_HOME"] == "/caches/huggingface", "downloads of the user are used, as outside of the ladder"
    assert seen["HOME"].endswith("launches/AsServed/home")
    assert not Path(seen["HOME"]).exists(), "a temporary work folder is gone at the end"


def test_named_work_folder_keeps_models_and_no_caches(ladder: FakeLadder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ladder.folder)
    monkeypatch.setattr("steadyfleet_probe.ladder.MAX_WORK_CHARACTERS", 200)
    ladder("--launches", "2", "--kind", "pinned", "--cache", "warm", "--work", "work")
    assert [path.name for path in (ladder.folder / "work").iterdir()] == ["models"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "synthetic:Huge"], "--model: synthetic:Huge is unknown; it can be synthetic:Tiny or"),
        (["--model", "synthetic:Tiny", "--launches", "0"], "--launches: 0 launches"),
        (["--model", "synthetic:Tiny", "--work", "/tmp/" + "x" * 60], "--work: "),
    ],
)
def test_command_line_that_can_not_be_used_is_one_line_and_status_2(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "mkdir", lambda *args, **more: None)
    assert main(["ladder", *options]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"steadyfleet: {words}")


def test_missing_model_is_told_before_anything_is_launched(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ladder", "--model", "/models/none"]) == 1
    assert "/models/none is no folder" in capsys.readouterr().err


def run_by_itself(tmp_path: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "steadyfleet_probe.cli", "ladder", "--model", "synthetic:Tiny", *options]
    own = {**os.environ, "PYTHONPATH": str(FAKE_VLLM), "FAKE_WITNESS": str(tmp_path / "witness"), **environment}
    return subprocess.Popen(
        command, env=own, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("by", [[], ["--python", sys.executable]], ids=["itself", "another Python"])
def test_interrupted_ladder_ends_the_engine_and_shows_what_it_has(
    tmp_path: Path, number: signal.Signals, by: list[str]
) -> None:
    running = run_by_itself(tmp_path, *by, "--launches", "1", "--kind", "pinned", FAKE_FAULT="silent")
    try:
        wait_for(lambda: (tmp_path / "witness").exists() and bool((tmp_path / "witness").read_text()))
        pids = witness(tmp_path / "witness")["pids"]
        running.send_signal(number)
        output, progress = running.communicate(timeout=20)
    finally:
        if running.poll() is None:
            running.kill()
        running.communicate()
    assert running.returncode == 130, progress
    assert alive(pids) == []
    assert "0 of 1 launches" in output
    assert "1 launch not run: interrupted" in output


def test_another_python_runs_the_same_command_with_nothing_installed(tmp_path: Path) -> None:
    done = run_by_itself(
        tmp_path, "--launches", "1", "--kind", "as-served", "--json", "--python", sys.executable, "--", "--seed=3"
    )
    output, progress = done.communicate(timeout=50)
    assert done.returncode == 0, progress
    assert LadderResult.model_validate_json(output).arguments == ("--seed=3",)
    seen = witness(tmp_path / "witness")
    assert "--seed=3" in seen["arguments"]
    assert not [folder for folder in seen["path"] if folder.endswith(".pyz")]
    assert re.search(r"launches with .*python", progress)
