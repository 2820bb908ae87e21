"""`steadyfleet compare`: what people read, what programs read, and the exit codes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from steadyfleet_probe import cli_compare
from tests.unit.compare.records import FOLDER, Fault, not_a_number, record, weights_unknown

A1, A3, N5, X2, E1 = (str(FOLDER / f"{name}.json.gz") for name in ("a1", "a3", "n5", "x2", "e1"))


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser(prog="steadyfleet")
    cli_compare.add_parser(parser.add_subparsers(required=True))
    chosen = parser.parse_args(["compare", *arguments])
    code: int = chosen.run(chosen)
    return code


def written(folder: Path, name: str, *faults: Fault) -> str:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(record(name, *faults)))
    return str(path)


def test_exit_code_tells_whether_the_launches_differ(tmp_path: Path) -> None:
    broken = not_a_number(prompt=0, position=0, field="decode")
    assert run(A1, A3) == 0
    assert run(A1, N5) == 1
    assert run(A1, str(tmp_path / "absent")) == 2
    assert run(written(tmp_path, "a1", broken), written(tmp_path, "a3", broken)) == 3


def test_people_read_level_cause_blame_and_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(N5, X2) == 1
    shown = capsys.readouterr().out
    for expected in (
        "level    TieFlip",
        "cause    KernelPlan (cannot tell)",
        "blames   Nobody",
        "first divergence: FullDecode, prompt p14, token 9: A chose 96566, B chose 9105, margin 1 q",
        "96566 (A's)  -3.699708     -3.703295",
        "triton_red_fused_1",
        "X64/R4/w8/s1",
        "no, pointwise",
        "what may choose kernels",
    ):
        assert expected in shown
    assert max(map(len, shown.splitlines())) < 300


def test_identical_launches_show_no_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(A1, A3) == 0
    shown = capsys.readouterr().out
    assert "level    Identical" in shown
    assert "first divergence" not in shown


def test_programs_read_json_with_stable_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(A1, E1, "--json") == 1
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["schemaVersion"] == 1
    assert (found["level"], found["cause"], found["certainty"]) == ("TieFlip", "Configuration", "Likely")
    assert sorted(found) == [
        "a", "b", "bits", "blames", "cannotTell", "cause", "certainty", "choosers", "circumstances", "decodes",
        "divergences", "explanation", "firstDivergence", "forced", "identical", "level", "levelReasons", "nextStep",
        "notes", "plan", "quantum", "schemaVersion", "settings", "sound", "summary", "suspect",
    ]  # fmt: skip


def test_json_stays_json_when_a_logprob_is_not_a_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = written(tmp_path, "n5", not_a_number(prompt=3, position=9, field="decode"))
    assert run(A1, broken, "--json") == 1
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["level"] == "Corrupt"


def test_what_is_missing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(A1, written(tmp_path, "a3", weights_unknown)) == 0
    shown = capsys.readouterr().out
    assert "weights not recorded" in shown
    assert "note: B: no digest of its weights" in shown


def test_bad_input_is_one_line_that_names_file_field_and_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def cut(found: dict[str, object]) -> None:
        found.pop("model")

    assert run(A1, written(tmp_path, "a3", cut)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("steadyfleet compare: ")
    assert "a3.json: model: Field required; write it as launch-record-1 has it" in captured.err
    assert len(captured.err.splitlines()) == 1
