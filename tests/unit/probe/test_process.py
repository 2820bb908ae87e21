"""Nothing of a child stays: not its group, not what left the group, on every way out."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from steadyfleet_probe.process import ChildProcess
from tests.unit.probe.builders import alive, wait_for

TREE = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
inner = '''
import os, subprocess, time
os.write(1, f"{os.getpid()} {subprocess.Popen(['sleep', '600']).pid}{chr(10)}".encode())
time.sleep(600)
'''
children = [subprocess.Popen([sys.executable, "-c", inner]),
            subprocess.Popen([sys.executable, "-c", inner], start_new_session=True)]
os.write(1, f"{os.getpid()}{chr(10)}".encode())
time.sleep(600)
"""


def start(tmp_path: Path, code: str) -> ChildProcess:
    return ChildProcess([sys.executable, "-c", code], environment=dict(os.environ), folder=tmp_path)


def pids(child: ChildProcess, count: int) -> list[int]:
    found: list[int] = []

    def there() -> bool:
        found[:] = [int(word) for line in child.last_lines() for word in line.split()]
        return len(found) == count

    wait_for(there, what=f"{count} processes")
    return found


def test_stop_ends_the_group_and_what_left_it(tmp_path: Path) -> None:
    child = start(tmp_path, TREE)
    try:
        family = pids(child, 5)
        assert alive(family) == family
    finally:
        child.stop(grace_seconds=0)
    assert alive(family) == []


def test_process_that_ignores_the_request_is_killed_after_its_grace(tmp_path: Path) -> None:
    child = start(tmp_path, TREE)
    family = pids(child, 5)
    started = time.monotonic()
    child.stop(grace_seconds=0.3)
    assert time.monotonic() - started < 5
    assert alive(family) == []


def test_what_the_child_left_behind_is_ended_when_it_ended_by_itself(tmp_path: Path) -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True)"
    child = start(tmp_path, code)
    [orphan] = pids(child, 1)
    wait_for(lambda: child.exit_status == 0)
    assert alive([orphan]) == [orphan]
    child.stop(grace_seconds=1)
    assert alive([orphan]) == []


def test_children_that_were_there_before_are_spared(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        start(tmp_path, "pass").stop(grace_seconds=1)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_children_of_other_threads_are_neither_killed_nor_reaped(tmp_path: Path) -> None:
    """nvidia-smi of the thread that looks around: whoever started it waits for it."""
    child = start(tmp_path, "import time; time.sleep(600)")
    other = subprocess.Popen(["sh", "-c", "sleep 0.5; exit 7"])
    try:
        child.stop(grace_seconds=0)
        assert other.wait(timeout=10) == 7
    finally:
        other.kill()


def test_stop_twice_is_harmless(tmp_path: Path) -> None:
    child = start(tmp_path, "import time; time.sleep(600)")
    child.stop(grace_seconds=1)
    child.stop(grace_seconds=1)
    assert child.exit_status == -2


def test_output_is_followed_line_by_line_and_kept_within_bounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    child = start(tmp_path, "import sys\nfor n in range(1000): print(n)\nprint('x' * 9000, file=sys.stderr)")
    wait_for(lambda: child.exit_status is not None)
    lines = child.last_lines()
    child.stop(grace_seconds=0)
    assert lines[:2] == ["601", "602"]
    assert len(lines) == 400
    assert len(lines[-1]) == 2000
    assert "\n0\n1\n" in f"\n{capsys.readouterr().out}"


def test_command_that_does_not_exist_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nothing-here"):
        ChildProcess(["/nothing-here"], environment={}, folder=tmp_path)
