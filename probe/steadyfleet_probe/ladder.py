"""The local ladder: one model launched fresh several times on this machine, by the code that a probe pod runs.

Steps of the ladder are the questions in which variance is told apart: the same process again, another process with
empty caches, another process on the caches of an earlier one, and (if asked for) all prompts at once. This module does
the launches; `ladder_findings` says what follows from their reports.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TextIO

from steadyfleet_contract.report import Outcome, Report
from steadyfleet_contract.spec import CacheState, LaunchKind, LaunchRequest, ModelSource, ProbeSpec, epoch
from steadyfleet_probe import caches, model
from steadyfleet_probe.draft import Draft
from steadyfleet_probe.errors import SettingsInvalid
from steadyfleet_probe.ladder_batched import BATCHED, BatchedPass
from steadyfleet_probe.launch import Extras, run_launch
from steadyfleet_probe.settings import Settings

MAX_LAUNCHES = 64
"""Of all kinds together: the contract numbers the launches of one place from 0 to 63."""

MAX_TOKENS = 4096
"""As in the contract."""

MAX_WORK_CHARACTERS = 48
"""vLLM makes sockets in TMPDIR, far below the work folder, and the kernel takes paths of 107 characters for them."""


class CacheOrder(str, Enum):
    """What the launches of one kind find: nothing; all but the first what the first left; or nothing and what the
    launch before left, in turns."""

    COLD = "cold"
    WARM = "warm"
    COLD_THEN_WARM = "cold-then-warm"

    def state(self, number: int) -> CacheState:
        """Of the launch with this number (from 0) among those of its kind."""
        warm = number > 0 if self is CacheOrder.WARM else number % 2 == 1
        return CacheState.WARM if warm and self is not CacheOrder.COLD else CacheState.COLD


@dataclass(frozen=True)
class Ladder:
    """What is asked for."""

    model: ModelSource
    launches: int
    """Of each kind."""
    kinds: tuple[LaunchKind, ...]
    cache: CacheOrder
    batched: bool
    max_tokens: int
    """Of the full decode."""
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    """Of the engine."""
    work: Path
    """Absolute. Holds caches and generated models; a second ladder finds the models there."""
    deadline_seconds: int
    gpus_per_launch: int = 1
    wanted_gpu: str = ""

    def check(self) -> None:
        """Raises SettingsInvalid that names the option."""
        total = self.launches * len(self.kinds)
        if self.launches < 1 or total > MAX_LAUNCHES:
            raise SettingsInvalid(f"--launches: {total} launches in all, 1 to {MAX_LAUNCHES} are possible")
        if self.cache is not CacheOrder.COLD and self.launches < 2:
            raise SettingsInvalid(f"--launches: {self.cache.value} needs two of each kind: the first fills the caches")
        if not 1 <= self.max_tokens <= MAX_TOKENS:
            raise SettingsInvalid(f"--max-tokens: {self.max_tokens}, 1 to {MAX_TOKENS} are possible")
        if len(str(self.work)) > MAX_WORK_CHARACTERS:
            raise SettingsInvalid(
                f"--work: {self.work} is longer than {MAX_WORK_CHARACTERS} characters, and the engine's sockets lie "
                "below it"
            )
        model.check_source(self.model)


@dataclass(frozen=True)
class Launched:
    request: LaunchRequest
    report: Report
    filled_by: int | None
    """The launch that left the caches that a warm one found."""
    batched: BatchedPass | None

    @property
    def is_complete(self) -> bool:
        return self.report.outcome is Outcome.COMPLETED


Progress = Callable[[LaunchRequest, str], None]
"""Told when a step of a launch begins."""


def requests(ladder: Ladder) -> tuple[LaunchRequest, ...]:
    """Kinds take turns, so that what changes with time (clocks, neighbours) meets both."""
    turns = [(number, kind) for number in range(ladder.launches) for kind in ladder.kinds]
    return tuple(
        LaunchRequest(index=index, kind=kind, cache=ladder.cache.state(number))
        for index, (number, kind) in enumerate(turns)
    )


def run(
    ladder: Ladder, *, progress: Progress, engine_log: Callable[[LaunchRequest], TextIO]
) -> Generator[Launched, None, None]:
    """Each launch as soon as it has ended; close it to end early.

    A kind whose first launch fails is not tried again, nor is a warm launch after a cold one that failed.
    Raises LaunchFailed if the model can't be had, SettingsInvalid, OSError.
    """
    ladder.check()
    settings = _settings(ladder)
    model.before_start(ladder.model, ladder.work)
    first: dict[LaunchKind, Report] = {}
    filled: dict[LaunchKind, Report] = {}
    try:
        for request in requests(ladder):
            needed = filled if request.cache is CacheState.WARM else first
            before = needed.get(request.kind)
            if before is not None and before.outcome is not Outcome.COMPLETED:
                launched = Launched(request, _untried(settings, request, before), None, None)
            else:
                launched = _launch(ladder, settings, request, before, progress, engine_log)
            first.setdefault(request.kind, launched.report)
            if request.cache is CacheState.COLD:
                filled[request.kind] = launched.report
            yield launched
    finally:
        for folder in ("launches", "kept"):
            caches.remove(ladder.work / folder)


def _launch(
    ladder: Ladder,
    settings: Settings,
    request: LaunchRequest,
    before: Report | None,
    progress: Progress,
    engine_log: Callable[[LaunchRequest], TextIO],
) -> Launched:
    batched = BatchedPass(settings.spec) if ladder.batched else None
    extras = Extras(
        on_step=lambda step: progress(request, step),
        passes={BATCHED: batched} if batched else {},
    )
    # A launch passes the engine's output on to stdout, for the log of a pod; here stdout is for the result.
    with engine_log(request) as log, contextlib.redirect_stdout(log):
        report = run_launch(settings, request, digest_is_known=lambda digest: False, extras=extras)
    is_warm = report.cache is CacheState.WARM
    return Launched(request, report, before.launch if is_warm and before is not None else None, batched)


def _settings(ladder: Ladder) -> Settings:
    """Nothing is reported from here, so what leads to a report server is empty."""
    spec = ProbeSpec(
        check="local/ladder",
        epoch="",
        version="local",
        image="local",
        model=ladder.model,
        arguments=ladder.arguments,
        max_tokens=ladder.max_tokens,
        gpus_per_probe=ladder.gpus_per_launch,
        wanted_gpu=ladder.wanted_gpu,
        launches=requests(ladder),
        launch_deadline_seconds=ladder.deadline_seconds,
    )
    return Settings(
        spec=spec.model_copy(update={"epoch": epoch(spec)}),
        report_url="",
        report_ca="",
        node_name="",
        pod_uid="",
        work_dir=ladder.work,
        token_file=ladder.work / "none",
        termination_message_file=ladder.work / "none",
        environment=ladder.environment,
    )


def _untried(settings: Settings, request: LaunchRequest, before: Report) -> Report:
    draft = Draft.begin(settings.spec, request)
    draft.fail(before.outcome, f"not tried, since launch {before.launch} ended so")
    return draft.report()
