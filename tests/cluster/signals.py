"""Ctrl-C and SIGTERM: both end a program through its `finally` blocks, and neither disturbs a take-down."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tests.cluster.progress import say

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM came. A KeyboardInterrupt, for that is what pytest ends on instead of going on to the next test."""


@contextmanager
def termination_raises() -> Iterator[None]:
    """Within, SIGTERM raises Terminated in the main thread, so that `finally` blocks run as they do on Ctrl-C."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def undisturbed(what: str) -> Iterator[None]:
    """Within, Ctrl-C and SIGTERM only say that `what` is under way."""

    def answer(_number: int, _frame: FrameType | None) -> None:
        say(f"{what} is under way; it ends in a moment")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, answer) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
