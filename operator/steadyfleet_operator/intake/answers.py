"""What the report server can answer, with the HTTP status of each. A probe tries again after 408 and 5xx alone."""

from __future__ import annotations

from enum import Enum

from steadyfleet_operator.errors import ReportRefused


class ReportResult(str, Enum):
    """Also the label `result` of the metric `steadyfleet_reports_total`."""

    ACCEPTED = "Accepted"
    DUPLICATE = "Duplicate"

    # Who asks.
    NO_TOKEN = "NoToken"  # noqa: S105  a reason, not a secret
    TOKEN_REFUSED = "TokenRefused"  # noqa: S105
    TOKEN_WITHOUT_POD = "TokenWithoutPod"  # noqa: S105
    NOT_A_PROBE = "NotAProbe"
    IMAGE_CHANGED = "ImageChanged"
    WRONG_NODE = "WrongNode"
    POD_GONE = "PodGone"
    JOB_GONE = "JobGone"

    # What is said.
    TOO_LARGE = "TooLarge"
    TOO_SLOW = "TooSlow"
    UNREADABLE = "Unreadable"
    SCHEMA_UNKNOWN = "SchemaUnknown"
    FIELD_INVALID = "FieldInvalid"
    NOT_ASKED = "NotAsked"
    CONFLICTING = "Conflicting"
    UNKNOWN_PATH = "UnknownPath"

    # What the operator lacks.
    KUBERNETES_UNAVAILABLE = "KubernetesUnavailable"
    EVIDENCE_UNAVAILABLE = "EvidenceUnavailable"
    INTERNAL_ERROR = "InternalError"


STATUS = {
    ReportResult.NO_TOKEN: 401,
    ReportResult.TOKEN_REFUSED: 401,
    ReportResult.TOKEN_WITHOUT_POD: 403,
    ReportResult.NOT_A_PROBE: 403,
    ReportResult.IMAGE_CHANGED: 403,
    ReportResult.WRONG_NODE: 403,
    ReportResult.POD_GONE: 410,
    ReportResult.JOB_GONE: 410,
    ReportResult.TOO_LARGE: 413,
    ReportResult.TOO_SLOW: 408,
    ReportResult.UNREADABLE: 400,
    ReportResult.SCHEMA_UNKNOWN: 422,
    ReportResult.FIELD_INVALID: 422,
    ReportResult.NOT_ASKED: 422,
    ReportResult.CONFLICTING: 409,
    ReportResult.UNKNOWN_PATH: 404,
    ReportResult.KUBERNETES_UNAVAILABLE: 503,
    ReportResult.EVIDENCE_UNAVAILABLE: 503,
    ReportResult.INTERNAL_ERROR: 500,
}


def refused(result: ReportResult, message: str, *, field: str = "") -> ReportRefused:
    return ReportRefused(message, status=STATUS[result], reason=result.value, field=field)
