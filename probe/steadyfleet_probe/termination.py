"""The termination message: what the operator still learns if no report reached it.

Written anew after each launch, within the bytes that the kubelet keeps. If it grows too large, launches whose report
was delivered go first, then the oldest.
"""

from __future__ import annotations

import logging
from pathlib import Path

from steadyfleet_contract.report import Report, TerminationLaunch, TerminationMessage
from steadyfleet_contract.wire import MAX_TERMINATION_MESSAGE_BYTES

_MAX_LAUNCHES = 16
_MAX_MESSAGE_CHARACTERS = 256

_log = logging.getLogger(__name__)


class TerminationLog:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._launches: dict[int, TerminationLaunch] = {}
        self._message = ""

    def record(self, report: Report, *, posted: bool) -> None:
        self._launches[report.launch] = TerminationLaunch(
            launch=report.launch,
            outcome=report.outcome,
            kind=report.kind,
            cache=report.cache,
            gpu=",".join(gpu.uuid for gpu in report.gpus)[:256],
            digest=report.digest,
            weights_digest=report.weights_digest,
            posted=posted,
        )
        if report.message:
            self._message = report.message
        self._write()

    def say(self, message: str) -> None:
        self._message = message
        self._write()

    def _write(self) -> None:
        try:
            self._path.write_bytes(self.content())
        except OSError as error:
            # The reports are the main way; without this file only the belt to their braces is missing.
            _log.warning("the termination message can't be written to %s: %s", self._path, error)

    def content(self) -> bytes:
        launches = sorted(self._launches.values(), key=lambda launch: (launch.posted, -launch.launch))[:_MAX_LAUNCHES]
        while True:
            kept = TerminationMessage(
                launches=tuple(sorted(launches, key=lambda launch: launch.launch)),
                message=self._message[:_MAX_MESSAGE_CHARACTERS],
            )
            content = kept.model_dump_json(by_alias=True, exclude_defaults=True).encode()
            if len(content) <= MAX_TERMINATION_MESSAGE_BYTES or not launches:
                return content
            launches.pop()
