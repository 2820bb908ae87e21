"""The story of one visit: every launch that the operator asked for, each reported before the next one starts.

A report that can't be delivered waits and is tried again after each further launch and at the end, so an operator that
restarts costs nothing. A refusal ends the visit: the GPU is not held for answers that nobody takes.
"""

from __future__ import annotations

import logging

from steadyfleet_contract.report import DigestQuery, Outcome, Report
from steadyfleet_contract.spec import EngineKind, LaunchRequest
from steadyfleet_probe.deadline import Deadline
from steadyfleet_probe.draft import Draft
from steadyfleet_probe.errors import ReportRefused, ReportUndelivered
from steadyfleet_probe.launch import run_launch
from steadyfleet_probe.publish import ReportServer
from steadyfleet_probe.settings import Settings
from steadyfleet_probe.simulated import run_simulated_launch
from steadyfleet_probe.termination import TerminationLog

_BETWEEN_LAUNCHES_SECONDS = 60
_AT_THE_END_SECONDS = 600
"""An operator that restarts needs well below a minute; a cluster without one should get its GPU back."""

_SAME_AGAIN = {
    Outcome.ENGINE_NOT_FOUND,
    Outcome.MODEL_NOT_FOUND,
    Outcome.ARGUMENT_REJECTED,
    Outcome.PROMPTS_TOO_LONG,
    Outcome.GPU_IN_USE,
    Outcome.GPU_NOT_GIVEN,
}
"""Another launch in this pod would end like this one; it is reported without being tried."""

_log = logging.getLogger(__name__)


def run_visit(settings: Settings, server: ReportServer, log: TerminationLog) -> bool:
    """Whether every report was delivered. Raises ReportRefused."""
    waiting: list[Report] = []
    hopeless: Report | None = None
    for request in settings.spec.launches:
        report = _run(settings, request, server) if hopeless is None else _untried(settings, request, hopeless)
        if report.outcome in _SAME_AGAIN:
            hopeless = hopeless or report
        words = f": {report.message}" if report.message else ""
        _log.info("launch %d: %s %s%s", report.launch, report.outcome.value, report.digest or "", words)
        log.record(report, posted=False)
        waiting.append(report)
        waiting = _deliver(server, log, waiting, Deadline.after(_BETWEEN_LAUNCHES_SECONDS))
    return not _deliver(server, log, waiting, Deadline.after(_AT_THE_END_SECONDS))


def _run(settings: Settings, request: LaunchRequest, server: ReportServer) -> Report:
    def digest_is_known(digest: str) -> bool:
        return server.knows(
            DigestQuery(launch=request.index, kind=request.kind, cache=request.cache, digest=digest)
        )

    run = run_simulated_launch if settings.spec.engine is EngineKind.SIMULATED else run_launch
    return run(settings, request, digest_is_known=digest_is_known)


def _untried(settings: Settings, request: LaunchRequest, like: Report) -> Report:
    draft = Draft.begin(settings.spec, request)
    draft.gpus = like.gpus
    draft.fail(like.outcome, f"not tried, since launch {like.launch} ended so: {like.message}")
    return draft.report()


def _deliver(
    server: ReportServer, log: TerminationLog, reports: list[Report], deadline: Deadline
) -> list[Report]:
    """Those that are still not delivered at the deadline, in order."""
    for number, report in enumerate(reports):
        try:
            receipt = server.deliver(report, deadline)
        except ReportUndelivered as error:
            _log.warning("%s", error)
            return reports[number:]
        except ReportRefused as error:
            log.say(str(error))
            raise
        _log.info("launch %d reported%s", report.launch, " (again)" if receipt.duplicate else "")
        log.record(report, posted=True)
    return []
