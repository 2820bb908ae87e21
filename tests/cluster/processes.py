"""The cluster's processes: how they are started, found again and ended.

Every process is started with its run folder and its name in the environment, and its children inherit both. So a later
program can tell from /proc/PID/environ alone what belongs to which cluster: no list of pids that a killed harness
could not write, no pid that meanwhile belongs to somebody else. Signals go through a pidfd that was opened before the
environment was read, so they reach that very process or nobody.
"""

import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.commands import tail_of_file
from tests.cluster.errors import StartFailed, TearDownIncomplete
from tests.cluster.progress import say

_RUN_FOLDER = "STEADYFLEET_CLUSTER_RUN"
_NAME = "STEADYFLEET_CLUSTER_PROCESS"

KILL = signal.SIGKILL

_children: list[subprocess.Popen[bytes]] = []
"""What this program started itself, and must reap."""


@dataclass(frozen=True)
class Process:
    """A live process of a cluster."""

    pid: int
    name: str


def start(
    argv: Sequence[str | Path], *, name: str, run_folder: Path, log: Path, env: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a program in its own session (a terminal's Ctrl-C is not for it); its output goes to the end of `log`."""
    environment = {**os.environ, **(env or {}), _RUN_FOLDER: str(run_folder), _NAME: name}
    with log.open("ab") as output:
        child = subprocess.Popen(
            [str(word) for word in argv],
            cwd=run_folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _children.append(child)
    return child


def require_alive(child: subprocess.Popen[bytes], *, name: str, log: Path) -> None:
    """Raise StartFailed, with the end of its log, if a started program has ended."""
    if child.poll() is not None:
        raise StartFailed(f"{name} ended with status {child.returncode}; end of {log}:\n{tail_of_file(log)}")


def find(run_folder: Path, *, name: str | None = None) -> list[Process]:
    """Live processes of the cluster in `run_folder`; with `name`, those of that name. Children inherit the name."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (process := _ours(int(folder.name), run_folder)):
            found.append(process)
    return [process for process in found if name is None or process.name == name]


def stop(
    run_folder: Path, *, name: str | None = None, sign: signal.Signals = signal.SIGTERM, timeout_seconds: float = 15
) -> None:
    """Send `sign` to the processes of that name (or to all), and SIGKILL to those that outlive the time-out.

    Raises TearDownIncomplete if one outlives even that.
    """
    for attempt in (sign, signal.SIGKILL):
        deadline = time.monotonic() + timeout_seconds
        while processes := find(run_folder, name=name):
            for process in processes:
                _signal_and_wait(process, run_folder, attempt, deadline=deadline)
            if time.monotonic() > deadline:
                say(f"{', '.join(sorted({process.name for process in processes}))}: did not end on {attempt.name}")
                break
        else:
            _reap()
            return
    left = ", ".join(f"{process.name} (pid {process.pid})" for process in processes)
    raise TearDownIncomplete(f"still alive after SIGKILL: {left}")


def stop_program(run_folder: Path, *, name: str, program: Path, timeout_seconds: float = 15) -> None:
    """End those processes of that name that run this program file, and only those."""
    deadline = time.monotonic() + timeout_seconds
    for process in find(run_folder, name=name):
        if _program_of(process.pid) == str(program):
            _signal_and_wait(process, run_folder, signal.SIGTERM, deadline=deadline)


def forget_children() -> None:
    """Leave what was started running when this program ends, and make no noise about it."""
    for child in _children:
        child.returncode = child.returncode if child.returncode is not None else 0
    _children.clear()


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot (proc_pid_stat(5), field 22); None if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])


def _ours(pid: int, run_folder: Path) -> Process | None:
    """The process, if its environment names this run folder. A zombie has no environment, so it is not found."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    if f"{_RUN_FOLDER}={run_folder}".encode() not in environment or pid == os.getpid():
        return None
    prefix = f"{_NAME}=".encode()
    names = [variable[len(prefix) :].decode() for variable in environment if variable.startswith(prefix)]
    return Process(pid=pid, name=names[0] if names else "?")


def _program_of(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def _signal_and_wait(process: Process, run_folder: Path, sign: signal.Signals, *, deadline: float) -> None:
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if _ours(process.pid, run_folder) is None:
            return
        signal.pidfd_send_signal(descriptor, sign)
        select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)


def _reap() -> None:
    """Collect the exit status of our own children that have ended."""
    for child in list(_children):
        if child.poll() is not None:
            _children.remove(child)
