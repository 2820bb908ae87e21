"""Entry point in a pod: read the settings, make the visit, tell in the exit status how it went.

    0  every launch is reported (whatever its outcome)      2  the settings can't be used, nothing was launched
    1  a report was refused or could not be delivered     143  ended by SIGTERM
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from steadyfleet_probe.errors import ReportRefused, SettingsInvalid
from steadyfleet_probe.publish import ReportServer
from steadyfleet_probe.settings import read_settings, termination_message_file
from steadyfleet_probe.termination import TerminationLog
from steadyfleet_probe.visit import run_visit

_log = logging.getLogger(__name__)


class _Terminated(BaseException):
    """SIGTERM. Not an Exception: nothing on the way may take it for a failed launch."""


def main() -> int:
    logging.basicConfig(format="steadyfleet-probe: %(message)s", level=logging.INFO, stream=sys.stdout)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, _terminate)
    log = TerminationLog(termination_message_file())
    try:
        settings = read_settings()
        with ReportServer(settings.report_url, ca=settings.report_ca, token_file=settings.token_file) as server:
            spec = settings.spec
            _log.info("%s, version %s, epoch %s, node %s", spec.check, spec.version, spec.epoch, settings.node_name)
            delivered = run_visit(settings, server, log)
    except SettingsInvalid as error:
        _log.error("%s", error)
        log.say(str(error))
        return 2
    except ReportRefused as error:
        _log.error("%s", error)
        return 1
    except _Terminated:
        _log.warning("ended by SIGTERM")
        sys.stdout.flush()
        # Threads may still be hashing weights; the interpreter would wait for them past the grace period.
        os._exit(128 + signal.SIGTERM)
    return 0 if delivered else 1


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    # A second signal must not break into the clean-up that the first one started.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Terminated


if __name__ == "__main__":
    sys.exit(main())
