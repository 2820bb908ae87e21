"""A child process in a group of its own, whose output is followed, and of which nothing stays when it ends.

A child may start processes that leave its group (`setsid`). While it runs, this process therefore adopts orphans (as a
child subreaper; in a pod it is pid 1 anyway) and ends them with the group. Children that were there before are spared,
and so are those that other threads of this process start meanwhile: they are of its session, which nobody can join.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_KEPT_LINES = 400
_LINE_CHARACTERS = 2000
_READ_SECONDS = 0.5
"""For the last output of an ended process; a left-over of it may hold the pipe open for ever."""
_KILL_SECONDS = 10
"""How long the kernel may take to end a killed process; a process in uninterruptible sleep may outlive this."""


class ChildProcess:
    """Started on construction. `stop` ends every process of it; call it in a `finally`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        on_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Raises OSError if the command can't be started."""
        self._spared = set(_children())
        _adopt_orphans(True)
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._on_line = on_line
        self._process = subprocess.Popen(
            command,
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._follower = threading.Thread(target=self._follow, name="engine-output", daemon=True)
        self._follower.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def last_lines(self) -> list[str]:
        """The last lines of output, oldest first; all of them if the process has ended."""
        if self.exit_status is not None:
            self._follower.join(timeout=_READ_SECONDS)
        return list(self._lines)

    def stop(self, *, grace_seconds: float) -> None:
        """Ask the process to end if it gets any grace, then kill whatever is left of it. Safe to call twice."""
        try:
            if grace_seconds and self._process.poll() is None:
                self._process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=grace_seconds)
        finally:
            self._kill_all()

    def _kill_all(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_KILL_SECONDS)
        _end_children(self._spared, time.monotonic() + _KILL_SECONDS)
        _adopt_orphans(False)
        self._follower.join(timeout=_KILL_SECONDS)
        if self._process.stdout is not None and not self._follower.is_alive():
            self._process.stdout.close()

    def _follow(self) -> None:
        assert self._process.stdout is not None  # noqa: S101  for the type checker: PIPE was asked for
        for raw in self._process.stdout:
            line = raw.decode(errors="replace").rstrip()
            self._lines.append(line[:_LINE_CHARACTERS])
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
            self._on_line(line)


def _adopt_orphans(adopt: bool) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


def _end_children(spared: set[int], until: float) -> None:
    """Kill and reap all other children, theirs too: each killed parent hands us its children."""
    while children := {pid for pid in set(_children()) - spared if not _is_of_our_session(pid)}:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > until:
            return
        time.sleep(0.01)


def _is_of_our_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == os.getsid(0)
    except ProcessLookupError:
        return False


def _children() -> list[int]:
    """Of every thread of this process: a child belongs to the thread that started it, an orphan to any of them."""
    found = []
    for file in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in file.read_text().split()]
    return found
