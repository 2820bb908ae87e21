"""The termination message stays within the kubelet's bytes and keeps what the operator can't know yet."""

from pathlib import Path

import pytest

from steadyfleet_contract.report import GPU, Outcome, TerminationMessage
from steadyfleet_contract.wire import MAX_TERMINATION_MESSAGE_BYTES
from steadyfleet_probe.draft import Draft
from steadyfleet_probe.termination import TerminationLog
from tests.unit.probe.builders import GPU_UUID, launches, probe_spec

DIGEST = f"sha256:{'a' * 64}"


def record(log: TerminationLog, count: int, *, posted: set[int] = frozenset(), message: str = "") -> None:  # type: ignore[assignment]
    for request in launches(*["Pinned"] * count):
        draft = Draft.begin(probe_spec(), request)
        draft.gpus = (GPU(uuid=GPU_UUID),)
        draft.weights_digest = DIGEST
        draft.fail(Outcome.ENGINE_EXITED, message)
        log.record(draft.report(), posted=request.index in posted)


def read(path: Path) -> TerminationMessage:
    assert len(path.read_bytes()) <= MAX_TERMINATION_MESSAGE_BYTES
    return TerminationMessage.model_validate_json(path.read_bytes())


def test_each_launch_is_there_with_its_digest(tmp_path: Path) -> None:
    record(TerminationLog(tmp_path / "log"), 2, posted={0}, message="why")
    message = read(tmp_path / "log")
    assert [(launch.launch, launch.posted, launch.gpu) for launch in message.launches] == [
        (0, True, GPU_UUID),
        (1, False, GPU_UUID),
    ]
    assert message.launches[0].weights_digest == DIGEST
    assert message.message == "why"


def test_too_many_launches_drop_the_delivered_ones_first(tmp_path: Path) -> None:
    record(TerminationLog(tmp_path / "log"), 12, posted=set(range(3, 12)))
    kept = [launch.launch for launch in read(tmp_path / "log").launches]
    assert {0, 1, 2} <= set(kept)
    assert kept == sorted(kept)
    assert len(kept) < 12


def test_too_many_undelivered_launches_drop_the_oldest(tmp_path: Path) -> None:
    record(TerminationLog(tmp_path / "log"), 20, message="x" * 2000)
    kept = [launch.launch for launch in read(tmp_path / "log").launches]
    assert kept == list(range(20 - len(kept), 20))


def test_file_that_can_not_be_written_does_not_end_the_visit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    TerminationLog(tmp_path / "no" / "folder").say("x")
    assert "the termination message can't be written" in caplog.text
