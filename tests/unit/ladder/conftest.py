"""The command on the fake engine."""

from pathlib import Path

import pytest

from tests.unit.ladder.fake import FakeLadder


@pytest.fixture
def ladder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> FakeLadder:
    return FakeLadder(tmp_path, monkeypatch, capsys)
