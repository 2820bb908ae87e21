"""`python -m steadyfleet_operator` runs the operator; with the argument `cleanup` it does what uninstalling needs."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys

from steadyfleet_operator.app import run
from steadyfleet_operator.cleanup import cleanup
from steadyfleet_operator.errors import LeaseLost, SettingsInvalid, SteadyfleetError
from steadyfleet_operator.settings import Settings

log = logging.getLogger("steadyfleet_operator")


def main() -> int:
    parser = argparse.ArgumentParser(prog="steadyfleet_operator", description=__doc__)
    parser.add_argument("command", nargs="?", choices=("run", "cleanup"), default="run")
    command = parser.parse_args().command
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    in_cluster = "KUBERNETES_SERVICE_HOST" in os.environ
    try:
        settings = Settings.from_environment(os.environ)
        work = (
            cleanup(settings, in_cluster=in_cluster) if command == "cleanup" else run(settings, in_cluster=in_cluster)
        )
        asyncio.run(work)
    except SettingsInvalid as error:
        log.error("%s", error)
        return 2
    except SteadyfleetError as error:
        log.error("%s", error)
        return 1
    except BaseExceptionGroup as group:
        lost = group.subgroup(LeaseLost)
        if lost is not None:
            # Nothing of ours may be written from here on; the next process starts from what is stored.
            log.error("the Lease is lost: %s", _leaf(lost))
            os._exit(3)
        log.error("the operator failed", exc_info=group)
        return 1
    return 0


def _leaf(error: BaseException) -> BaseException:
    """Task groups wrap what happened once for each level."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    sys.exit(main())
