"""The `steadyfleet` command does what it says or says why not."""

from pathlib import Path

import pytest

from steadyfleet_probe.cli import main

TINY_DIGEST = "sha256:3198ee7c063da1c056822c41610c549172a6a3c87a3f854715f3d57706d144fe"


def test_synthetic_writes_a_model_and_prints_its_digest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["synthetic", "Tiny", str(tmp_path / "tiny")]) == 0
    assert main(["weights-digest", str(tmp_path / "tiny")]) == 0
    assert capsys.readouterr().out.split() == [TINY_DIGEST, TINY_DIGEST]


def test_probe_zip_writes_both_files(tmp_path: Path) -> None:
    assert main(["probe-zip", str(tmp_path / "out")]) == 0
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"probe.pyz", "run"}


@pytest.mark.parametrize("command", [["weights-digest"], ["synthetic", "Tiny"]])
def test_folder_that_does_not_fit_is_one_clear_line(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    assert main([*command, str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("steadyfleet: ")
    assert len(error.splitlines()) == 1


def test_unknown_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["nothing"])
    assert raised.value.code == 2
    assert "probe-zip" in capsys.readouterr().err
