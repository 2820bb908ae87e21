"""The report of a launch while it is being written: what is known so far is kept, however the launch ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone

from steadyfleet_contract.report import GPU, Outcome, Report, Timing
from steadyfleet_contract.spec import CacheState, LaunchKind, LaunchRequest, ProbeSpec
from steadyfleet_probe.errors import LaunchFailed, SettingsInvalid
from steadyfleet_probe.measure import Measured
from steadyfleet_probe.surroundings import Section, bounded, redacted

_MAX_MESSAGE_CHARACTERS = 2048

_log = logging.getLogger(__name__)


@dataclass
class Draft:
    spec: ProbeSpec
    request: LaunchRequest
    kind: LaunchKind
    cache: CacheState
    started_at: str
    outcome: Outcome = Outcome.COMPLETED
    message: str = ""
    gpus: tuple[GPU, ...] = ()
    prompt_set_digest: str | None = None
    weights_digest: str | None = None
    measured: Measured | None = None
    fingerprint: dict[str, Section] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)

    @classmethod
    def begin(cls, spec: ProbeSpec, request: LaunchRequest) -> Draft:
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return cls(spec=spec, request=request, kind=request.kind, cache=request.cache, started_at=now)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.timings[step] = time.monotonic() - started

    def fail(self, outcome: Outcome, message: str) -> None:
        self.outcome = outcome
        self.message = redacted(message)[:_MAX_MESSAGE_CHARACTERS]

    def fail_with(self, error: Exception) -> None:
        """Whatever ended the launch. What is not foreseen is logged with its traceback, and is the probe's fault."""
        match error:
            case LaunchFailed():
                self.fail(error.outcome, str(error))
                self.gpus = self.gpus or error.gpus
            case SettingsInvalid():
                self.fail(Outcome.PROBE_ERROR, str(error))
            case OSError():
                self.fail(Outcome.PROBE_ERROR, f"{error.filename or 'a system call'}: {error.strerror or error}")
            case _:
                _log.error("launch %d failed", self.request.index, exc_info=error)
                self.fail(Outcome.PROBE_ERROR, f"{type(error).__name__}: {error}")

    def report(self) -> Report:
        """An engine that did not complete has no digest: half a measurement is not to be compared."""
        measured = self.measured if self.outcome is Outcome.COMPLETED else None
        return Report(
            recipe=self.spec.recipe,
            epoch=self.spec.epoch,
            launch=self.request.index,
            kind=self.kind,
            cache=self.cache,
            outcome=self.outcome,
            message=self.message,
            started_at=self.started_at,
            gpus=self.gpus,
            digest=measured.digest if measured else None,
            prompt_set_digest=self.prompt_set_digest,
            passes=tuple(measured.passes) if measured else (),
            repeats=measured.repeats if measured else None,
            weights_digest=self.weights_digest,
            fingerprint={name: bounded(section) for name, section in self.fingerprint.items()},
            timings=tuple(Timing(step=step, seconds=round(value, 3)) for step, value in self.timings.items()),
        )
