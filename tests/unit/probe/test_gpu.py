"""GPUs by the device plugin's variable and by nvidia-smi, here a script that answers as the real one does."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from steadyfleet_contract.report import Outcome
from steadyfleet_probe import gpu
from steadyfleet_probe.errors import LaunchFailed

UUIDS = ("GPU-aaaaaaaa-0000-4000-8000-000000000001", "GPU-aaaaaaaa-0000-4000-8000-000000000002")
Install = Callable[[str], None]

TWO_GPUS = """
case "$1" in
  *uuid,name*) for u in GPU-aaaaaaaa-0000-4000-8000-000000000001 GPU-aaaaaaaa-0000-4000-8000-000000000002; do
      echo "$u, NVIDIA H200, 143771, 2, 580.159.04"; done;;
  *,*) echo "Field \\"clocks_throttle_reasons.active\\" is not a valid field to query."; exit 2;;
  *ecc.mode.current*) echo Enabled;;
  *) exit 2;;
esac
"""


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    def install(script: str) -> None:
        file = tmp_path / "nvidia-smi"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return install


def test_without_nvidia_smi_the_device_plugins_ids_are_the_gpus() -> None:
    gpus = gpu.look({"NVIDIA_VISIBLE_DEVICES": ",".join(UUIDS)})
    assert [found.uuid for found in gpus.found] == list(UUIDS)
    assert gpu.describe(gpus) == {"0.uuid": UUIDS[0], "1.uuid": UUIDS[1]}


@pytest.mark.parametrize("value", ["all", "none", "void", "0,1", ""])
def test_values_that_name_no_gpu_give_none(value: str) -> None:
    assert gpu.look({"NVIDIA_VISIBLE_DEVICES": value}).found == ()


def test_nvidia_smi_tells_product_and_memory(nvidia_smi: Install) -> None:
    nvidia_smi(TWO_GPUS)
    gpus = gpu.check_free({}, count=8)
    assert [(found.uuid, found.product, found.memory_bytes) for found in gpus.found] == [
        (uuid, "NVIDIA H200", 143771 * 1024 * 1024) for uuid in UUIDS
    ]


def test_one_unknown_field_does_not_hide_the_others(nvidia_smi: Install) -> None:
    nvidia_smi(TWO_GPUS)
    facts = gpu.describe(gpu.look({}))
    assert facts["1.ecc.mode.current"] == "Enabled"
    assert facts["0.driver_version"] == "580.159.04"
    assert "0.memory.used" not in facts


def test_gpu_with_memory_in_use_is_left_alone(nvidia_smi: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_RELEASE_SECONDS", 0)
    nvidia_smi(f'echo "{UUIDS[0]}, NVIDIA H200, 143771, 60000, 580.159.04"')
    with pytest.raises(LaunchFailed, match="60000 MiB of GPU memory are in use before the start") as raised:
        gpu.check_free({}, count=8)
    assert raised.value.outcome is Outcome.GPU_IN_USE
    assert [found.uuid for found in raised.value.gpus] == [UUIDS[0]]


def test_memory_of_a_process_that_just_ended_is_waited_for(nvidia_smi: Install, tmp_path: Path) -> None:
    nvidia_smi(
        f'if [ -e {tmp_path}/asked ]; then used=3; else used=60000; touch {tmp_path}/asked; fi\n'
        f'echo "{UUIDS[0]}, NVIDIA H200, 143771, $used, 580.159.04"'
    )
    assert gpu.check_free({}, count=8).used_bytes == 3 * 1024 * 1024


def test_mig_instance_is_known_by_its_own_id_and_its_neighbours_do_not_make_it_busy(nvidia_smi: Install) -> None:
    nvidia_smi(f'echo "{UUIDS[0]}, NVIDIA H200, 143771, 60000, 580.159.04"')
    gpus = gpu.check_free({"NVIDIA_VISIBLE_DEVICES": "MIG-bbbbbbbb-0000-4000-8000-000000000001"}, count=8)
    assert [found.uuid for found in gpus.found] == ["MIG-bbbbbbbb-0000-4000-8000-000000000001"]
    assert gpus.found[0].product == "NVIDIA H200"


def test_failing_card_without_a_uuid_is_no_gpu_and_breaks_nothing(nvidia_smi: Install) -> None:
    nvidia_smi('echo "[Unknown Error], NVIDIA H200, [Unknown Error], [Unknown Error], 580.159.04"')
    gpus = gpu.look({"NVIDIA_VISIBLE_DEVICES": UUIDS[0]})
    assert ([found.uuid for found in gpus.found], gpus.nameless) == ([UUIDS[0]], 1)


def test_beside_a_card_without_a_uuid_no_gpu_is_chosen_by_index(nvidia_smi: Install) -> None:
    nvidia_smi(
        'echo "[Unknown Error], NVIDIA H200, 1, 1, 580"\n'
        + "\n".join(f'echo "{uuid}, NVIDIA H200, 143771, 2, 580"' for uuid in UUIDS)
    )
    with pytest.raises(LaunchFailed, match="names no UUID for 1 GPUs") as raised:
        gpu.check_free({}, count=1, wanted=UUIDS[1])
    assert raised.value.outcome is Outcome.PROBE_ERROR
    assert [found.uuid for found in raised.value.gpus] == list(UUIDS)


@pytest.mark.parametrize("script", ["exit 9", "echo 'No devices were found'", "echo 'a, b'"])
def test_failing_nvidia_smi_is_like_none(nvidia_smi: Install, script: str) -> None:
    nvidia_smi(script)
    assert gpu.look({"NVIDIA_VISIBLE_DEVICES": UUIDS[0]}).found[0].uuid == UUIDS[0]
