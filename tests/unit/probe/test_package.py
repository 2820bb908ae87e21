"""The zip: the same bytes each time, pure Python, and a launcher that finds the Python of vLLM or says why not."""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyfleet_contract import wire
from steadyfleet_contract.spec import SimulationSpec
from steadyfleet_probe import package, settings
from steadyfleet_probe.errors import PackageError
from tests.unit.probe.builders import FAKE_VLLM, alive, launches, probe_spec, wait_for, witness
from tests.unit.probe.report_server import ReportServerForTests, refusal, serving

THIS_PYTHON = f'#!/bin/sh\nexec {sys.executable} "$@"'
"""A link would not do: the interpreter finds its environment beside the name that it was called by."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("steadyfleet")
    package.build(made)
    return made


@pytest.fixture
def server() -> Iterator[ReportServerForTests]:
    with serving() as running:
        yield running


def start(folder: Path, tmp_path: Path, server: ReportServerForTests, **environment: str) -> subprocess.Popen[str]:
    (tmp_path / "token").write_text("a-token")
    spec = probe_spec(engine="Simulated", simulation=SimulationSpec(), launches=launches("Pinned", "AsServed"))
    known = {
        "PATH": os.environ["PATH"],
        wire.ENV_SPEC: spec.model_dump_json(by_alias=True),
        wire.ENV_REPORT_URL: server.url,
        wire.ENV_REPORT_CA: server.ca,
        settings.ENV_WORK_DIR: str(tmp_path),
        settings.ENV_TOKEN_FILE: str(tmp_path / "token"),
        settings.ENV_TERMINATION_MESSAGE_FILE: str(tmp_path / "termination-log"),
        "STEADYFLEET_PYTHON": sys.executable,
    } | environment
    return subprocess.Popen(
        [folder / "run"], env=known, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=30)
    return process.returncode, output


def test_same_sources_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    package.build_archive(tmp_path / "again.pyz")
    assert (tmp_path / "again.pyz").read_bytes() == (folder / "probe.pyz").read_bytes()


def test_zip_has_what_it_needs_and_nothing_compiled(folder: Path) -> None:
    names = zipfile.ZipFile(folder / "probe.pyz").namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"__main__.py", "steadyfleet_contract", "steadyfleet_probe", "licenses", *package._VENDORED}
    assert [name for name in names if not name.endswith(".py") and not name.startswith("licenses/")] == [
        "steadyfleet_probe/run"
    ]
    assert {name.split("/")[1] for name in names if name.startswith("licenses/")} == set(package._VENDORED)


def test_compiled_module_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fast.so").write_bytes(b"")
    with pytest.raises(PackageError, match=r"fast.so is compiled"):
        package._tree(tmp_path, "x")


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(package, "_VENDORED", ("no-such-package",))
    with pytest.raises(PackageError, match="no-such-package is not installed here"):
        package.build_archive(tmp_path / "x.pyz")


def test_zip_makes_a_visit_by_itself(folder: Path, tmp_path: Path, server: ReportServerForTests) -> None:
    status, output = finish(start(folder, tmp_path, server))
    assert status == 0, output
    assert [report.kind.value for report in server.reports] == ["Pinned", "AsServed"]
    assert len(json.loads((tmp_path / "termination-log").read_text())["launches"]) == 2


def script(path: Path, first_line: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{first_line}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("form", ["#!{}", "#! {} -sP", "#!/usr/bin/env python-of-vllm"])
def test_launcher_takes_the_python_of_the_vllm_script(
    folder: Path, tmp_path: Path, server: ReportServerForTests, form: str
) -> None:
    script(tmp_path / "bin" / "python-of-vllm", THIS_PYTHON)
    script(tmp_path / "bin" / "vllm", form.format(sys.executable))
    script(tmp_path / "bin" / "python3", "#!/bin/false")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    status, output = finish(start(folder, tmp_path, server, STEADYFLEET_PYTHON="", PATH=path))
    assert status == 0, output


def test_launcher_falls_back_to_python3(folder: Path, tmp_path: Path, server: ReportServerForTests) -> None:
    script(tmp_path / "bin" / "python3", THIS_PYTHON)
    status, output = finish(start(folder, tmp_path, server, STEADYFLEET_PYTHON="", PATH=str(tmp_path / "bin")))
    assert status == 0, output


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"STEADYFLEET_PYTHON": "/opt/none/python"}, "engine.python: /opt/none/python can not be executed"),
        ({"STEADYFLEET_PYTHON": "", "PATH": "/none"}, "neither vllm nor python on PATH; set engine.python"),
    ],
    ids=["named python missing", "no python"],
)
def test_launcher_says_what_is_wrong_also_in_the_termination_message(
    folder: Path, tmp_path: Path, server: ReportServerForTests, environment: dict[str, str], words: str
) -> None:
    status, output = finish(start(folder, tmp_path, server, **environment))
    assert status == 2
    assert words in output
    assert words in json.loads((tmp_path / "termination-log").read_text())["message"]


def test_python_without_pydantic_is_told(folder: Path, tmp_path: Path, server: ReportServerForTests) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True, timeout=60)
    python = str(tmp_path / "bare" / "bin" / "python")
    status, output = finish(start(folder, tmp_path, server, STEADYFLEET_PYTHON=python))
    assert status == 2
    assert "can not import numpy and pydantic 2" in output
    message = json.loads((tmp_path / "termination-log").read_text())["message"]
    assert message.startswith(f"engine.python: {python}")


def test_bad_setting_is_told_also_in_the_termination_message(
    folder: Path, tmp_path: Path, server: ReportServerForTests
) -> None:
    status, output = finish(start(folder, tmp_path, server, **{wire.ENV_SPEC: "{}"}))
    assert status == 2
    assert "STEADYFLEET_PROBE_SPEC: check: Field required" in output
    assert "check: Field required" in json.loads((tmp_path / "termination-log").read_text())["message"]


def test_refused_report_ends_with_status_1(folder: Path, tmp_path: Path, server: ReportServerForTests) -> None:
    server.before_accepting = [refusal(409, "NotOurs")]
    status, output = finish(start(folder, tmp_path, server))
    assert status == 1
    assert "NotOurs" in output


def test_sigterm_ends_probe_and_engine_at_once(folder: Path, tmp_path: Path, server: ReportServerForTests) -> None:
    seen = tmp_path / "witness"
    spec = probe_spec(environment={"FAKE_FAULT": "silent", "FAKE_WITNESS": str(seen)})
    environment = {wire.ENV_SPEC: spec.model_dump_json(by_alias=True), "PYTHONPATH": str(FAKE_VLLM)}
    # Isolated mode hides PYTHONPATH from the probe, as it should; the fake has to be where an image's vLLM is.
    site = tmp_path / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", site], check=True, timeout=60)
    [packages] = site.glob("lib/python3*/site-packages")
    paths = [str(FAKE_VLLM), *(path for path in sys.path if "site-packages" in path)]
    (packages / "here.pth").write_text("\n".join(paths))
    process = start(folder, tmp_path, server, STEADYFLEET_PYTHON=str(site / "bin" / "python"), **environment)
    try:
        wait_for(seen.exists, what="the start of the engine")
        wait_for(lambda: seen.stat().st_size > 0)
        pids = witness(seen)["pids"]
        assert alive(pids) == pids
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        status, output = finish(process)
    finally:
        process.kill()
    assert status == 128 + signal.SIGTERM, output
    assert time.monotonic() - started < 3
    assert alive(pids) == []
    assert server.reports == []
