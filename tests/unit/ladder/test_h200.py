"""A ladder that ran on a real H200: what it says of it, and that results of this form stay readable."""

import gzip
import re
from pathlib import Path

import pytest

from steadyfleet_probe.ladder_result import Cause, LadderResult
from steadyfleet_probe.ladder_table import render

RECORDED = Path(__file__).parents[2] / "data" / "h200" / "ladder.json.gz"


@pytest.fixture(scope="module")
def result() -> LadderResult:
    return LadderResult.model_validate_json(gzip.decompress(RECORDED.read_bytes()))


def test_pinned_launches_kept_their_bits_cold_and_warm(result: LadderResult) -> None:
    assert result.pin is not None
    assert (result.pin.kept, result.pin.launches, result.pin.plan_readable) == (True, 2, True)


def test_warm_restart_drifted_by_itself_and_its_kernel_is_named(result: LadderResult) -> None:
    drifted = [change for change in result.warm if change.moved]
    assert [(change.launch, change.against, change.cause) for change in drifted] == [(3, 1, Cause.CANNOT_TELL)]
    assert [(kernel.kernel, kernel.before, kernel.after) for kernel in drifted[0].kernels] == [
        (
            "triton_red_fused_3",
            "XBLOCK=64 R0_BLOCK=64 num_warps=16 num_stages=1",
            "XBLOCK=8 R0_BLOCK=128 num_warps=8 num_stages=1",
        )
    ]


def test_batching_is_told_apart_from_restarts(result: LadderResult) -> None:
    assert [line.differing_repeats for line in result.launches] == [0, 0, 0, 0]
    assert all(len(found.changed) == 16 and found.changed_again for found in result.batched)


def test_probe_costs_a_few_percent_at_most(result: LadderResult) -> None:
    for line in result.launches:
        assert line.overhead_seconds / (line.engine_seconds + line.asking_seconds) < 0.05


def test_table_says_each_thing_once(result: LadderResult) -> None:
    table = re.sub(r"\s+", " ", render(result))
    assert table.count("triton_red_fused_3: XBLOCK=64") == 1
    assert "launch 3 against launch 1: not the same bits, see above" in table
    assert "Batching launch 0: all at once changes 16 of 16 prompts, tokens in 12; the same again changes 7" in table
    assert "2 launches not run: interrupted" in table
