"""The errors of the operator.

    SteadyfleetError
    ├── SettingsInvalid        the operator was started with something it cannot use
    ├── SpecInvalid            a check that the schema let through, but that cannot be run; told in its Ready condition
    ├── KubernetesError        the API server answered with an error; carries the HTTP status
    │   ├── Conflict           409: somebody else wrote first, or the object exists already; read again
    │   ├── Refused            403 or 422: the server will not have it; its message is for the user
    │   └── Unavailable        429, 5xx or no answer: try again later
    ├── ReportRefused          a probe's report that cannot be accepted; carries the HTTP status and the field
    └── EvidenceError          the evidence store cannot be read or written
    Stop (BaseException)       the process was asked to end
    LeaseLost (BaseException)  the fence is gone: nothing may be written any more, the process must end

404 is a value (None), not an error.
"""

from __future__ import annotations


class SteadyfleetError(Exception):
    """Base of all."""


class SettingsInvalid(SteadyfleetError):
    pass


class SpecInvalid(SteadyfleetError):
    pass


class KubernetesError(SteadyfleetError):
    """`message` is the server's own text; `status` is 0 when there was no answer at all."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class Conflict(KubernetesError):
    pass


class Refused(KubernetesError):
    pass


class Unavailable(KubernetesError):
    pass


class ReportRefused(SteadyfleetError):
    """`reason` and `field` go into the answer's body (`ErrorAnswer`)."""

    def __init__(self, message: str, *, status: int, reason: str, field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.reason = reason
        self.field = field


class EvidenceError(SteadyfleetError):
    pass


class Stop(BaseException):
    """Not an Exception: it ends everything, and is no failure."""


class LeaseLost(BaseException):
    """Not an Exception on purpose: no handler may survive it."""
