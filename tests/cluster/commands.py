"""Running a command to its end and waiting for a condition, each with a deadline."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tests.cluster.errors import CommandFailed, WaitTimedOut

_OUTPUT_TAIL_CHARACTERS = 4000

T = TypeVar("T")


def run(
    *argv: str | Path,
    input: str | None = None,  # noqa: A002 - the name that subprocess uses
    check: bool = True,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_seconds: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run `argv` and return what it printed.

    Raises CommandFailed when it runs longer than `timeout_seconds`, cannot be started, or (with `check`) exits with
    another status than 0; the message carries the end of its output.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words, input=input, capture_output=True, text=True, cwd=cwd, env=env, timeout=timeout_seconds, check=False
        )
    except subprocess.TimeoutExpired as late:
        output = late.stderr.decode(errors="replace") if isinstance(late.stderr, bytes) else (late.stderr or "")
        raise CommandFailed(f"{_shown(words)}: not done after {timeout_seconds:.0f} s\n{_tail(output)}") from late
    except OSError as unstartable:
        raise CommandFailed(f"{_shown(words)}: {unstartable}") from unstartable
    if check and done.returncode != 0:
        raise CommandFailed(f"{_shown(words)}: exit status {done.returncode}\n{_tail(done.stdout + done.stderr)}")
    return done


def wait_for(
    condition: Callable[[], T | None],
    *,
    what: str,
    timeout_seconds: float = 60,
    poll_seconds: float = 0.1,
    retry: tuple[type[Exception], ...] = (),
) -> T:
    """Call `condition` until it returns something true, and return that.

    Exceptions of the types in `retry` count as "not yet". Raises WaitTimedOut, which tells `what` was awaited and the
    last such exception.
    """
    deadline = time.monotonic() + timeout_seconds
    last: Exception | None = None
    while True:
        try:
            if value := condition():
                return value
        except retry as error:
            last = error
        if time.monotonic() > deadline:
            raise WaitTimedOut(f"{what}: not within {timeout_seconds:.0f} s" + (f"; last: {last}" if last else ""))
        time.sleep(poll_seconds)


def tail_of_file(path: Path, *, lines: int = 25) -> str:
    """The last lines of a log file; says so when there is none."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return f"(no file {path})"


def _shown(words: Sequence[str]) -> str:
    text = " ".join(words)
    return text if len(text) <= 300 else text[:300] + "..."


def _tail(output: str) -> str:
    return output[-_OUTPUT_TAIL_CHARACTERS:].strip()
