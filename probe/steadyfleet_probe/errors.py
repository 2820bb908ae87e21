"""What can go wrong in the probe.

ProbeError
├── SettingsInvalid      the environment of the pod or the spec in it can't be used; nothing was launched
├── LaunchFailed         a launch ended otherwise than Completed; carries the `Outcome` and words for people
├── ReportRefused        the report server refused for good; asking again can't heal it
├── ReportUndelivered    the report server could not be reached before the deadline
└── PackageError         the zip can't be built, or a generated model has other bytes than it must have
"""

from __future__ import annotations

from steadyfleet_contract.report import GPU, Outcome


class ProbeError(Exception):
    """Base of all errors of the probe."""


class SettingsInvalid(ProbeError):
    """The environment of the pod or the spec in it can't be used."""


class LaunchFailed(ProbeError):
    """A launch ended otherwise than Completed. The message is for people and goes into the report.

    `gpus`: those that the pod was given, if it failed before any was chosen.
    """

    def __init__(self, outcome: Outcome, message: str, *, gpus: tuple[GPU, ...] = ()) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.gpus = gpus


class ReportRefused(ProbeError):
    """The report server refused for good."""


class ReportUndelivered(ProbeError):
    """The report server could not be reached before the deadline."""


class PackageError(ProbeError):
    """The zip can't be built, or a generated model has other bytes than it must have."""
