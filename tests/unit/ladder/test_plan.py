"""Plans side by side and lost settings, on reports of real launches on an H200 and on made ones."""

import gzip
import json
from pathlib import Path

import pytest

from steadyfleet_contract.report import Report
from steadyfleet_probe.ladder_plan import (
    ABSENT,
    ONLY,
    KernelChange,
    kernel_changes,
    lost_settings,
    plan_digest,
    used_kernels,
)
from tests.unit.ladder.launched import launched

H200 = Path(__file__).parents[2] / "data" / "h200"


def reports(name: str) -> list[Report]:
    content = json.loads(gzip.decompress((H200 / f"{name}.json.gz").read_bytes()))
    return [Report.model_validate(entry) for entry in content]


def with_plan(**plan: str) -> Report:
    return launched(0, plan={key.replace("__", "/"): value for key, value in plan.items()}).report


def of_kernels_on_both_sides(before: Report, after: Report) -> list[KernelChange]:
    """The recorded plans also hold compiled graphs, whose names change with settings (the probe read them then)."""
    return [change for change in kernel_changes(before, after) if ABSENT not in (change.before, change.after)]


def test_forced_drift_of_a_real_gpu_is_named() -> None:
    changes = of_kernels_on_both_sides(reports("quiet")[1], reports("inverse")[1])
    assert {(change.kernel, change.before, change.after) for change in changes} == {
        (
            name,
            "XBLOCK=64 R0_BLOCK=64 num_warps=16 num_stages=1",
            "XBLOCK=2 R0_BLOCK=128 num_warps=2 num_stages=1",
        )
        for name in ("triton_red_fused_1", "triton_red_fused_3")
    }


def test_pinned_launches_of_two_real_gpus_run_the_same_configurations() -> None:
    first, other = reports("quiet")[0], reports("inverse")[0]
    assert of_kernels_on_both_sides(first, other) == []
    assert {kernel.configuration for kernel in used_kernels(first).values()} == {ONLY}


def test_kernel_of_one_side_is_absent_on_the_other() -> None:
    [change] = kernel_changes(with_plan(), with_plan(inductor__c1="triton_red_fused_9 reduction no flags only"))
    assert (change.kernel, change.before, change.after) == ("triton_red_fused_9", ABSENT, ONLY)


def test_choices_of_tritons_own_tuner_and_of_flashinfer_count() -> None:
    before = with_plan(triton__h="", flashinfer__f="sha256:1")
    after = with_plan(triton__h='{"kwargs": {"BLOCK": 32}, "num_warps": 4}', flashinfer__f="sha256:2")
    assert [(change.before, change.after) for change in kernel_changes(before, after)] == [
        ("sha256:1", "sha256:2"),
        (ONLY, "BLOCK=32 num_warps=4"),
    ]


def test_launch_without_kernels_has_no_plan() -> None:
    assert plan_digest(launched(0, block=None).report) is None


def with_settings(
    flags: str, *, environment: dict[str, str] | None = None, engine: dict[str, str] | None = None
) -> Report:
    report = with_plan(
        inductor__c1=f"triton_red_fused_1 reduction {flags} only",
        inductor__c2="triton_red_fused_2 reduction deterministic+force_filter_reduction_configs only",
        inductor__c3="triton_poi_fused_3 pointwise no flags only",
    )
    sections = {"environment": environment or {}, "engine": engine or {}}
    return report.model_copy(update={"fingerprint": {**report.fingerprint, **sections}})


DOTTED = json.dumps(["python3", "--compilation-config.inductor_compile_config.deterministic=true"])
NESTED = json.dumps(["python3", '--compilation-config={"inductor_compile_config": {"deterministic": true}}'])


@pytest.mark.parametrize(
    ("asked", "flags", "lost"),
    [
        ({"environment": {"TORCHINDUCTOR_DETERMINISTIC": "1"}}, "no flags", "TORCHINDUCTOR_DETERMINISTIC=1"),
        ({"environment": {"TORCHINDUCTOR_BATCH_INVARIANT": "1"}}, "no flags", "TORCHINDUCTOR_BATCH_INVARIANT=1"),
        (
            {"environment": {"TORCHINDUCTOR_FORCE_FILTER_REDUCTION_CONFIGS": "1"}},
            "deterministic",
            "TORCHINDUCTOR_FORCE_FILTER_REDUCTION_CONFIGS=1",
        ),
        ({"engine": {"arguments": DOTTED}}, "no flags", "inductor_compile_config.deterministic=true"),
        ({"engine": {"arguments": NESTED}}, "no flags", "inductor_compile_config.deterministic=true"),
        (
            {"engine": {"compilation_config.inductor_compile_config.deterministic": "true"}},
            "no flags",
            "inductor_compile_config.deterministic=true",
        ),
        ({"environment": {"TORCHINDUCTOR_DETERMINISTIC": "1"}}, "deterministic", None),
        ({"environment": {"TORCHINDUCTOR_DETERMINISTIC": "0"}}, "no flags", None),
        ({"engine": {"arguments": DOTTED.replace("true", "false")}}, "no flags", None),
        ({}, "no flags", None),
    ],
)
def test_setting_that_did_not_reach_a_kernel_is_told(
    asked: dict[str, dict[str, str]], flags: str, lost: str | None
) -> None:
    found = lost_settings(with_settings(flags, **asked))
    assert [(one.setting, one.carried, one.kernels) for one in found] == ([(lost, 1, 2)] if lost else [])


def test_settings_of_real_pinned_launches_reached_every_kernel() -> None:
    for report in (*reports("quiet"), *reports("inverse")):
        assert lost_settings(report) == ()


def test_setting_of_a_real_launch_that_did_not_survive_is_told() -> None:
    as_served = reports("quiet")[1]
    environment = {**as_served.fingerprint["environment"], "TORCHINDUCTOR_DETERMINISTIC": "1"}
    asked = as_served.model_copy(update={"fingerprint": {**as_served.fingerprint, "environment": environment}})
    [lost] = lost_settings(asked)
    assert (lost.flag, lost.carried) == ("deterministic", 0)
    assert lost.kernels == len(used_kernels(asked)) > 1
