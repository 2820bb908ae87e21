"""A ladder by the `steadyfleet` command on the fake engine, and what it printed and left."""

import gzip
from dataclasses import dataclass
from pathlib import Path

import pytest

from steadyfleet_contract.report import Report
from steadyfleet_probe.cli import main
from steadyfleet_probe.ladder_result import LadderResult
from tests.unit.probe.builders import FAKE_VLLM


@dataclass
class Climbed:
    status: int
    output: str
    progress: str
    result: LadderResult
    out: Path

    def report(self, launch: int, kind: str = "") -> Report:
        content = gzip.decompress((self.out / f"launch-{launch:02}{kind}.json.gz").read_bytes())
        return Report.model_validate_json(content)


class FakeLadder:
    """The command, on an engine whose faults are set by FAKE_* variables."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._monkeypatch, self._capsys = folder, monkeypatch, capsys
        monkeypatch.syspath_prepend(str(FAKE_VLLM))
        monkeypatch.setenv("PYTHONPATH", str(FAKE_VLLM))
        monkeypatch.setenv("FAKE_STARTS", str(folder / "starts"))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def __call__(self, *options: str, **environment: str) -> Climbed:
        for name, value in environment.items():
            self._monkeypatch.setenv(name, value)
        out = self.folder / "out"
        status = main(["ladder", "--model", "synthetic:Tiny", "--out", str(out), "--max-tokens", "4", *options])
        printed = self._capsys.readouterr()
        result = LadderResult.model_validate_json((out / "ladder.json").read_bytes())
        return Climbed(status, printed.out, printed.err, result, out)
