"""One launch against a server with the faults that a real engine can't be made to have, and every way it can end."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from steadyfleet_contract.digest import check_report, unpack
from steadyfleet_contract.report import Outcome, PassName, Report
from steadyfleet_contract.spec import ModelSource
from steadyfleet_probe import installed, launch
from steadyfleet_probe.launch import run_launch
from steadyfleet_probe.plan import read_plan
from tests.unit.probe.builders import FAKE_VLLM, GPU_UUID, alive, launches, probe_settings, probe_spec, witness

TINY_DIGEST = "sha256:3198ee7c063da1c056822c41610c549172a6a3c87a3f854715f3d57706d144fe"


@pytest.fixture(autouse=True)
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FAKE_VLLM))


def run(
    tmp_path: Path, fault: str = "", *, kind: str = "Pinned", known: bool = False, length: int = 2048, **spec: Any
) -> Report:
    environment = {"FAKE_FAULT": fault, "FAKE_WITNESS": str(tmp_path / "witness"), "FAKE_LENGTH": str(length)}
    settings = probe_settings(tmp_path, probe_spec(environment=environment, **spec))
    report = run_launch(settings, launches(kind)[0], digest_is_known=lambda digest: known)
    if (tmp_path / "witness").exists():
        assert alive(witness(tmp_path / "witness")["pids"]) == []
    return Report.model_validate_json(report.model_dump_json(by_alias=True))


def test_launch_that_goes_well_is_complete(tmp_path: Path) -> None:
    report = run(tmp_path)
    check_report(report)
    assert (report.outcome, report.message) == (Outcome.COMPLETED, "")
    assert report.weights_digest == TINY_DIGEST
    assert [gpu.uuid for gpu in report.gpus] == [GPU_UUID]
    assert [part.name for part in report.passes] == [
        PassName.SHORT_DECODE,
        PassName.TEACHER_FORCED,
        PassName.FULL_DECODE,
    ]
    assert report.repeats is not None
    assert report.repeats.differing_rounds == 0
    assert {"versions", "engine", "environment", "gpu", "host", "weights", "image", "plan"} == report.fingerprint.keys()
    assert report.fingerprint["plan"]["pin"] == "holds"
    assert report.fingerprint["engine"]["model_config.dtype"] == "torch.bfloat16"
    assert "secret" not in report.model_dump_json()
    steps = [timing.step for timing in report.timings]
    assert steps == [
        "prepare", "engineStart", "shortDecode", "teacherForced", "repeats", "digestQuery", "fullDecode", "fingerprint",
        "engineStop", "weightsWait", "total",
    ]  # fmt: skip


def test_two_launches_agree_and_share_no_folder_content(tmp_path: Path) -> None:
    first, second = run(tmp_path), run(tmp_path)
    assert first.digest == second.digest


def test_pinned_and_as_served_differ_in_arguments_only(tmp_path: Path) -> None:
    run(tmp_path, kind="AsServed", arguments=("--dtype=bfloat16",))
    assert witness(tmp_path / "witness")["arguments"][-1] == "--dtype=bfloat16"
    assert "TORCHINDUCTOR_FORCE_FILTER_REDUCTION_CONFIGS" not in witness(tmp_path / "witness")["environment"]
    run(tmp_path, kind="Pinned", arguments=("--dtype=bfloat16",))
    assert "--seed=0" in witness(tmp_path / "witness")["arguments"]
    assert "TORCHINDUCTOR_FORCE_FILTER_REDUCTION_CONFIGS" in witness(tmp_path / "witness")["environment"]


def test_engine_sees_nothing_of_the_probe(tmp_path: Path) -> None:
    run(tmp_path)
    seen = witness(tmp_path / "witness")
    assert not [name for name in seen["environment"] if name.startswith("STEADYFLEET_")]
    assert not [entry for entry in seen["path"] if "probe.pyz" in entry]
    assert seen["files"] == []
    assert Path(seen["folder"]).is_relative_to(tmp_path)
    assert seen["environment"]["HOME"].startswith(str(tmp_path))


def test_known_digest_sends_digests_only(tmp_path: Path) -> None:
    report = run(tmp_path, known=True)
    assert [part.name for part in report.passes] == [PassName.SHORT_DECODE, PassName.TEACHER_FORCED]
    assert all(unpack(prompt) is None for part in report.passes for prompt in part.prompts)


def test_nan_logprobs_are_measured_not_lost(tmp_path: Path) -> None:
    report = run(tmp_path, "nan")
    check_report(report)
    assert report.outcome is Outcome.COMPLETED
    assert all(prompt.non_finite > 0 for part in report.passes for prompt in part.prompts)
    assert report.digest != run(tmp_path).digest


def test_engine_that_disagrees_with_itself_is_told(tmp_path: Path) -> None:
    report = run(tmp_path, "flaky")
    assert report.repeats is not None
    assert report.repeats.differing_rounds == report.repeats.rounds == 5
    assert report.repeats.differing_prompts == tuple(range(8))


@pytest.mark.parametrize(
    ("fault", "outcome", "words"),
    [
        ("exit", Outcome.ENGINE_EXITED, "exited with status 1 before it was ready: ValueError: No available memory"),
        ("download", Outcome.MODEL_NOT_FOUND, "model.repository: OSError: nobody/none is not a local folder"),
        ("argument", Outcome.ARGUMENT_REJECTED, "error: unrecognized arguments: --no-such-thing"),
        ("error", Outcome.ENGINE_ERROR, "HTTP 500: .*EngineCore encountered an issue"),
        ("dies", Outcome.ENGINE_ERROR, "it exited with status 1; its log: RuntimeError: CUDA error: an illegal memory"),
        ("prompt", Outcome.ENGINE_ERROR, "the engine changed the prompt's tokens"),
    ],
)
def test_every_fault_ends_in_a_report_that_names_it(
    tmp_path: Path, fault: str, outcome: Outcome, words: str
) -> None:
    report = run(tmp_path, fault)
    assert report.outcome is outcome
    assert re.search(words, report.message), report.message
    assert report.digest is None
    assert report.passes == ()
    assert report.weights_digest == TINY_DIGEST, "wrong weights may be the reason, so they are hashed all the same"
    assert report.fingerprint["host"]


def test_engine_that_never_gets_ready_ends_at_the_launch_deadline(tmp_path: Path) -> None:
    report = run(tmp_path, "silent", launch_deadline_seconds=1)
    assert report.outcome is Outcome.ENGINE_NOT_READY
    assert "was not ready before the launch deadline; last: it wrote nothing" in report.message


def test_engine_that_never_answers_ends_at_the_launch_deadline(tmp_path: Path) -> None:
    report = run(tmp_path, "hangs", launch_deadline_seconds=2)
    assert report.outcome is Outcome.ENGINE_ERROR
    assert "did not answer (ReadTimeout); it is still running" in report.message


def test_prompts_that_do_not_fit_are_told_before_anything_is_started(tmp_path: Path) -> None:
    report = run(tmp_path, arguments=("--max-model-len=256",))
    assert report.outcome is Outcome.PROMPTS_TOO_LONG
    assert "needs sequences of 577 tokens, the engine takes 256" in report.message
    assert not (tmp_path / "witness").exists()


def test_prompts_that_do_not_fit_the_engines_own_limit_are_told(tmp_path: Path) -> None:
    report = run(tmp_path, length=300)
    assert report.outcome is Outcome.PROMPTS_TOO_LONG
    assert "the engine takes 300" in report.message


def test_missing_model_is_told_before_anything_is_started(tmp_path: Path) -> None:
    report = run(tmp_path, model=ModelSource(path="/models/none"))
    assert report.outcome is Outcome.MODEL_NOT_FOUND
    assert "/models/none is no folder in this pod" in report.message
    assert not (tmp_path / "witness").exists()


def test_image_without_vllm_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    report = run(tmp_path)
    assert report.outcome is Outcome.ENGINE_NOT_FOUND
    assert "has no vllm package; set engine.python" in report.message


def test_work_folder_that_can_not_be_written_is_a_probe_error(tmp_path: Path) -> None:
    (tmp_path / "launches").write_text("a file in the way")
    report = run(tmp_path)
    assert report.outcome is Outcome.PROBE_ERROR
    assert "launches/Pinned: Not a directory" in report.message


def test_pinned_launch_in_which_a_reduction_was_tuned_is_reported_as_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_a_tuned_reduction(root: Path) -> object:
        folder = root / "inductor" / "cz"
        folder.mkdir()
        (folder / "cz1.py").write_text(
            "@triton_heuristics.reduction(inductor_meta={'kernel_name': 'triton_red_fused_1', 'deterministic': True})\n"
        )
        (folder / "0.best_config").write_text('{"R0_BLOCK": 8}')
        return read_plan(root)

    monkeypatch.setattr(launch, "read_plan", with_a_tuned_reduction)
    report = run(tmp_path)
    assert report.kind.value == "AsServed"
    assert report.message == "reported as AsServed: 1 reductions were tuned, among them triton_red_fused_1"
    assert report.fingerprint["plan"]["pin"].startswith("does not hold: ")


def test_kernel_plan_that_can_not_be_read_costs_the_pin_and_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(root: Path) -> object:
        raise IndexError("list index out of range")

    monkeypatch.setattr(launch, "read_plan", unreadable)
    report = run(tmp_path)
    check_report(report)
    assert (report.outcome, report.kind.value) == (Outcome.COMPLETED, "AsServed")
    assert report.fingerprint["plan"]["unavailable"] == (
        "the kernel plan can't be read: IndexError: list index out of range"
    )


def test_engine_that_can_not_tell_its_configuration_costs_no_result(tmp_path: Path) -> None:
    report = run(tmp_path, "info")
    assert (report.outcome, report.message) == (Outcome.COMPLETED, "")
    assert report.fingerprint["engine"]["unavailable"].startswith("JSONDecodeError: ")


def test_surroundings_that_can_not_be_told_cost_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> dict[str, str]:
        raise ValueError("not a version")

    monkeypatch.setattr("steadyfleet_probe.surroundings.versions", broken)
    report = run(tmp_path)
    assert (report.outcome, report.weights_digest) == (Outcome.COMPLETED, TINY_DIGEST)
    assert report.fingerprint["host"] == {"unavailable": "ValueError: not a version"}


def test_fault_of_the_probe_itself_ends_in_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty(*_: object, **__: object) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(launch, "measure", faulty)
    report = run(tmp_path)
    assert (report.outcome, report.message) == (Outcome.PROBE_ERROR, "RuntimeError: no such thing")
    assert "Traceback" in caplog.text


def test_gpu_that_was_not_given_is_told_with_those_that_were(tmp_path: Path) -> None:
    report = run(tmp_path, wanted_gpu="GPU-gone")
    assert report.outcome is Outcome.GPU_NOT_GIVEN
    assert [gpu.uuid for gpu in report.gpus] == [GPU_UUID]


def test_what_the_probe_sets_to_choose_a_gpu_is_no_surrounding(tmp_path: Path) -> None:
    other = "GPU-00000000-0000-4000-8000-000000000002"
    environment = {"FAKE_WITNESS": str(tmp_path / "witness"), "CUDA_LAUNCH_BLOCKING": "0"}
    spec = probe_spec(environment=environment, wanted_gpu=other)
    settings = probe_settings(tmp_path, spec, environment={"NVIDIA_VISIBLE_DEVICES": f"{GPU_UUID},{other}"})
    report = run_launch(settings, launches("Pinned")[0], digest_is_known=lambda digest: True)
    assert [gpu.uuid for gpu in report.gpus] == [other]
    assert witness(tmp_path / "witness")["environment"]["CUDA_VISIBLE_DEVICES"] == "1"
    told = {name for name in report.fingerprint["environment"] if name.startswith("CUDA_")}
    assert told == {"CUDA_LAUNCH_BLOCKING"}


def test_secrets_of_the_command_line_reach_no_report(tmp_path: Path) -> None:
    arguments = ("--hf-token=hf_abc", "--ssl-password", "sk-abc", "--max-num-batched-tokens=8192")
    report = run(tmp_path, arguments=arguments)
    assert "_abc" not in report.model_dump_json()
    assert "sk-abc" not in report.model_dump_json()
    told = report.fingerprint["engine"]["arguments"]
    assert '"--hf-token=***", "--ssl-password", "***", "--max-num-batched-tokens=8192"' in told


def test_weights_written_during_the_launch_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steadyfleet_probe.weights.Weights.unchanged", lambda weights: False)
    assert "a weight file was written" in run(tmp_path).fingerprint["weights"]["changed"]


def test_build_is_read_from_files_without_importing_vllm() -> None:
    assert installed.find_build().has_flashinfer_autotune
    assert installed.find_command()[1:] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert "vllm" not in sys.modules
