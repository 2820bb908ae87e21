"""Progress lines on stderr: what is being done and how long it took."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_STARTED = time.monotonic()
_STILL_AT_WORK_SECONDS = 20.0
"""A longer step says that often that it is still at work."""


def say(text: str) -> None:
    """Print one line, prefixed by the seconds since this program started."""
    print(f"[cluster {time.monotonic() - _STARTED:6.1f}s] {text}", file=sys.stderr, flush=True)


@contextmanager
def step(text: str) -> Iterator[None]:
    """Say `text` before, and how long it took after; in between say now and then that the work goes on."""
    begun = time.monotonic()
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(_STILL_AT_WORK_SECONDS):
            say(f"{text} ... {time.monotonic() - begun:.0f} s so far")

    say(f"{text} ...")
    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    outcome = "failed"
    try:
        yield
        outcome = "done"
    finally:
        ended.set()
        ticker.join()
        say(f"{text}: {outcome} in {time.monotonic() - begun:.1f} s")
