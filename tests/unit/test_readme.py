"""The commands of the README are commands that exist, with files and names that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from steadyfleet_operator.resource import ANNOTATION_RUN_AT, CONDITION_TYPE, LABEL_EXCLUDE, LABEL_MARK, Verdict
from steadyfleet_probe.cli import main

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
VALUES = (ROOT / "charts/steadyfleet/values.yaml").read_text()


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"\bmake ([a-z-]+)", README))
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test", "help"} <= targets
    assert targets <= known


def test_every_file_and_link_exists() -> None:
    linked = set(re.findall(r"\]\(([\w./-]+)\)", README)) | set(re.findall(r"-f ([\w./-]+\.yaml)", README))
    assert linked
    assert [path for path in sorted(linked) if not (ROOT / path).exists()] == []


def test_every_chart_value_exists() -> None:
    named = set(re.findall(r"--set ([\w.]+)=", README)) | {"markNamespaces", "checkNamespaces", "crds.keep"}
    for value in named:
        for part in value.split("."):
            assert re.search(rf"^\s*{part}:", VALUES, re.MULTILINE), value


def test_names_on_the_cluster_are_the_ones_in_use() -> None:
    for name in (ANNOTATION_RUN_AT, LABEL_EXCLUDE, LABEL_MARK, CONDITION_TYPE, *(verdict.value for verdict in Verdict)):
        assert name in README


def test_the_dockerfile_has_the_targets() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    targets = re.findall(r"docker build --target (\w+)", README)
    assert targets == ["operator", "probe"]
    assert all(f" AS {target}\n" in dockerfile for target in targets)


@pytest.mark.parametrize("command", sorted(set(re.findall(r"^steadyfleet ([a-z-]+)", README, re.MULTILINE))))
def test_every_subcommand_exists(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert command in capsys.readouterr().out
