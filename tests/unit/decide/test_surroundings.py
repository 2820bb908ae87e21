"""What may explain a difference, and what may not: on visits of two real H200 cards, and by table."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from steadyfleet_contract.report import Report
from steadyfleet_contract.spec import LaunchKind
from steadyfleet_operator.decide.observation import LaunchRecord
from steadyfleet_operator.decide.surroundings import changing_keys, differing_keys, named
from steadyfleet_operator.decide.verdict import judge_group
from steadyfleet_operator.resource import Purpose
from tests.unit.decide.fleet import START

H200 = Path(__file__).resolve().parents[2] / "data" / "h200"


def visit(file: str, *, node: str) -> list[LaunchRecord]:
    reports = [
        Report.model_validate(raw) for raw in json.loads(gzip.decompress((H200 / f"{file}.json.gz").read_bytes()))
    ]
    return [
        LaunchRecord(
            evidence=f"{node}/{report.launch}",
            namespace="serving",
            check="x",
            check_uid="u",
            epoch="e",
            version="v",
            purpose=Purpose.SWEEP,
            visit_started_at=START,
            asked=len(reports),
            slot=0,
            attempt=1,
            node=node,
            node_uid=node,
            pod_uid=f"pod-{node}",
            received_at=START + timedelta(minutes=report.launch),
            launch=report.launch,
            kind=report.kind,
            cache=report.cache,
            outcome=report.outcome,
            gpus=tuple(gpu.uuid for gpu in report.gpus),
            product=report.gpus[0].product,
            digest=report.digest or "",
            prompt_set_digest=report.prompt_set_digest or "",
            weights_digest=report.weights_digest or "",
            repeat_rounds=report.repeats.rounds if report.repeats else 0,
            differing_rounds=report.repeats.differing_rounds if report.repeats else 0,
            fingerprint=report.fingerprint,
        )
        for report in reports
    ]


def pinned(launches: list[LaunchRecord]) -> list[LaunchRecord]:
    return [launch for launch in launches if launch.kind is LaunchKind.PINNED]


def test_pinned_launches_have_the_same_bits_on_two_cards_and_with_inverted_timings() -> None:
    launches = visit("quiet", node="a") + visit("inverse", node="b")
    assert len({launch.gpu for launch in launches}) == 2
    assert len({launch.digest for launch in pinned(launches)}) == 1


def test_as_served_launches_drift_with_the_autotuner() -> None:
    launches = visit("quiet", node="a") + visit("inverse", node="b")
    as_served = [launch.digest for launch in launches if launch.kind is LaunchKind.AS_SERVED]
    assert len(set(as_served)) == 2
    assert not set(as_served) & {launch.digest for launch in pinned(launches)}


def test_two_launches_of_one_pod_differ_in_nothing_that_is_compared() -> None:
    first, second = pinned(visit("quiet", node="a"))
    assert differing_keys(first, second) == ()
    assert first.fingerprint["gpu"] != second.fingerprint["gpu"], "temperature and clocks do differ"


def test_two_cards_differ_only_in_what_the_user_set() -> None:
    one, other = pinned(visit("quiet", node="a"))[0], pinned(visit("inverse", node="b"))[0]
    keys = differing_keys(one, other)
    assert keys
    assert all("TORCHINDUCTOR_DISTORT_BENCHMARKING_RESULT" in key or key == "host.kernel" for key in keys), keys


def test_a_key_that_each_process_draws_anew_is_learned_from_the_visits() -> None:
    def drawn(launch: LaunchRecord, name: str) -> LaunchRecord:
        engine = {**launch.fingerprint["engine"], "env.VLLM_SOMETHING_NEW": name}
        return replace(launch, fingerprint={**launch.fingerprint, "engine": engine})

    first, second = pinned(visit("quiet", node="a"))
    first, second = drawn(first, "1"), drawn(second, "2")
    assert differing_keys(first, second) == ("engine.env.VLLM_SOMETHING_NEW",)
    ignored = changing_keys([first, second])
    assert differing_keys(first, second, ignored=ignored) == ()


def test_a_bad_card_among_real_ones_is_not_excused_by_its_surroundings() -> None:
    """Four nodes with what real cards report; one of them gives other bits in a visit and in its confirmation."""
    good = [
        replace(
            launch,
            node=node,
            node_uid=node,
            gpus=(f"GPU-{node}",),
            pod_uid=f"{pod}-{node}",
            received_at=launch.received_at + timedelta(hours=hours),
            visit_started_at=START + timedelta(hours=hours),
            asked=2,
        )
        for node in ("a", "b", "c")
        for pod, hours in (("first", 0), ("control", 3))
        for launch in pinned(visit("quiet", node=node))
    ]
    bad = [
        replace(
            launch,
            node="d",
            node_uid="d",
            gpus=("GPU-d",),
            pod_uid=f"{pod}-d",
            digest="sha256:" + "0" * 64,
            received_at=launch.received_at + timedelta(hours=hours),
            visit_started_at=START + timedelta(hours=hours),
            asked=2,
        )
        for pod, hours in (("first", 1), ("again", 2))
        for launch in pinned(visit("quiet", node="d"))
    ]
    launches = sorted(good + bad, key=lambda launch: launch.received_at)
    result = judge_group(launches, stated_weights="", all_tried=True)
    verdicts = {judged.uuid: judged.verdict.value for judged in result.gpus}
    assert verdicts == {"GPU-a": "Consistent", "GPU-b": "Consistent", "GPU-c": "Consistent", "GPU-d": "Divergent"}


@pytest.mark.parametrize(
    "key",
    [
        "gpu.0.uuid",
        "gpu.0.ecc.errors.uncorrected.volatile.total",
        "gpu.0.temperature.gpu",
        "host.bootID",
        "environment.NVIDIA_VISIBLE_DEVICES",
        "engine.cache_config.num_gpu_blocks",
        "engine.parallel_config.data_parallel_master_ip",
        "engine.system.gpu_topo",
    ],
)
def test_facts_of_one_card_or_process_are_not_compared(key: str) -> None:
    assert differing_keys(*_differing_in(key)) == ()


@pytest.mark.parametrize(
    "key",
    [
        "gpu.0.driver_version",
        "gpu.0.vbios_version",
        "versions.torch",
        "image.CUDA_VERSION",
        "engine.model_config.dtype",
        "environment.NCCL_ALGO",
        "host.kernel",
    ],
)
def test_facts_that_may_explain_other_bits_are_compared_and_named(key: str) -> None:
    one, other = _differing_in(key)
    assert differing_keys(one, other) == (key,)
    assert named((key,), one, other) == (key if key.startswith("environment.") else f"{key} (1 / 2)")


@pytest.mark.parametrize("key", ["environment.VLLM_X", "engine.env.VLLM_X", "engine.arguments"])
def test_values_that_may_hold_a_secret_are_not_told(key: str) -> None:
    assert named((key,), *_differing_in(key)) == key


def _differing_in(key: str) -> tuple[LaunchRecord, LaunchRecord]:
    section, _, name = key.partition(".")
    base = pinned(visit("quiet", node="a"))[0]

    def with_value(value: str) -> LaunchRecord:
        facts = {**base.fingerprint, section: {**base.fingerprint.get(section, {}), name: value}}
        return replace(base, fingerprint=facts)

    return with_value("1"), with_value("2")
