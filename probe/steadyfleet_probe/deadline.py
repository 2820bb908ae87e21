"""A moment by which something must be done, on the monotonic clock."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Deadline:
    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    @property
    def remaining_seconds(self) -> float:
        """Never below zero."""
        return max(0.0, self.at - time.monotonic())

    @property
    def is_over(self) -> bool:
        return self.remaining_seconds == 0.0

    def sooner(self, seconds: float) -> Deadline:
        """This deadline or `seconds` from now, whichever comes first."""
        return Deadline(min(self.at, time.monotonic() + seconds))
