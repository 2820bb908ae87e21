"""Which of the GPUs given to a pod its launches use."""

from __future__ import annotations

import pytest

from steadyfleet_contract.report import GPU, Outcome
from steadyfleet_probe.errors import LaunchFailed
from steadyfleet_probe.gpu import GPUs, choose

EIGHT = GPUs(
    found=tuple(GPU(uuid=f"GPU-{index}") for index in range(8)),
    used_bytes=7000 * 1024 * 1024,
    rows=tuple({"uuid": f"GPU-{index}", "memory.used": str(index * 1000)} for index in range(8)),
)


def test_a_pod_uses_all_that_it_was_given() -> None:
    one = GPUs(found=(GPU(uuid="GPU-0"),))
    assert choose(one, count=1) == one
    assert choose(GPUs(found=()), count=1) == GPUs(found=())


def test_the_wanted_gpu_is_used_alone_and_only_its_memory_counts() -> None:
    chosen = choose(EIGHT, count=1, wanted="GPU-5")
    assert [gpu.uuid for gpu in chosen.found] == ["GPU-5"]
    assert [row["uuid"] for row in chosen.rows] == ["GPU-5"]
    assert chosen.visible == "5"
    assert chosen.used_bytes == 5000 * 1024 * 1024


def test_the_wanted_gpu_comes_first_among_several() -> None:
    assert choose(EIGHT, count=2, wanted="GPU-5").visible == "5,0"
    chosen = choose(EIGHT, count=8, wanted="GPU-5")
    assert chosen.visible == "5,0,1,2,3,4,6,7"
    assert [gpu.uuid for gpu in chosen.found][:2] == ["GPU-5", "GPU-0"]
    assert choose(EIGHT, count=8, wanted="GPU-0") == EIGHT


def test_a_wanted_gpu_that_the_pod_did_not_get_is_said() -> None:
    with pytest.raises(LaunchFailed, match="GPU-9 was not among the 8") as failed:
        choose(EIGHT, count=1, wanted="GPU-9")
    assert failed.value.outcome is Outcome.GPU_NOT_GIVEN
    assert failed.value.gpus == EIGHT.found, "so that the operator can see that the GPU has left the node"
