"""Every reason that a condition, an Event, a verdict or a metric of Steadyfleet can carry. One enum, so that people can
look each one up, and nothing else is ever said."""

from __future__ import annotations

from enum import Enum


class Reason(str, Enum):
    """CamelCase, as the Kubernetes API conventions ask. The comment on a group says where its members appear."""

    # The check as a whole (conditions Ready and Consistent).
    AS_EXPECTED = "AsExpected"
    SWEEPING = "Sweeping"
    SUSPENDED = "Suspended"
    SPEC_INVALID = "SpecInvalid"
    NAMESPACE_NOT_ALLOWED = "NamespaceNotAllowed"
    NO_NODES_SELECTED = "NoNodesSelected"
    POD_REFUSED = "PodRefused"
    VISITS_FAIL = "VisitsFail"
    ALL_CONSISTENT = "AllConsistent"
    NODES_DIVERGE = "NodesDiverge"
    NOT_YET_JUDGED = "NotYetJudged"

    # One GPU's verdict.
    MATCHES_BASELINE = "MatchesBaseline"
    DIFFERS_FROM_BASELINE = "DiffersFromBaseline"
    WRONG_WEIGHTS = "WrongWeights"
    CONFIRMING = "Confirming"
    NOT_CONFIRMED = "NotConfirmed"
    CONTROL_DISAGREES = "ControlDisagrees"
    NO_CONTROL = "NoControl"
    NO_MAJORITY = "NoMajority"
    FLEET_MOVED = "FleetMoved"
    DIFFERENCE_SHARED = "DifferenceShared"
    TOO_FEW_NODES = "TooFewNodes"
    SURROUNDINGS_DIFFER = "SurroundingsDiffer"
    REPEATS_DIFFER = "RepeatsDiffer"
    PIN_DOES_NOT_HOLD = "PinDoesNotHold"
    NO_RESULT = "NoResult"
    RESULT_EXPIRED = "ResultExpired"
    GPU_SHARED = "GPUShared"
    NODE_NOT_READY = "NodeNotReady"

    # How a visit ended without a result (also Events). The first ten are `Outcome` of the probe's report.
    ENGINE_EXITED = "EngineExited"
    ENGINE_NOT_READY = "EngineNotReady"
    ENGINE_ERROR = "EngineError"
    ENGINE_NOT_FOUND = "EngineNotFound"
    MODEL_NOT_FOUND = "ModelNotFound"
    ARGUMENT_REJECTED = "ArgumentRejected"
    PROMPTS_TOO_LONG = "PromptsTooLong"
    GPU_IN_USE = "GPUInUse"
    GPU_NOT_GIVEN = "GPUNotGiven"
    PROBE_ERROR = "ProbeError"
    NO_FREE_GPU = "NoFreeGPU"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_START_FAILED = "ContainerStartFailed"
    PREEMPTED = "Preempted"
    NODE_GONE = "NodeGone"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    REPORT_LOST = "ReportLost"
    POD_FAILED = "PodFailed"
    SUPERSEDED = "Superseded"

    # Marking (condition MarkingAllowed, node condition).
    OBSERVE_ONLY = "ObserveOnly"
    MARKING_NAMESPACE_NOT_ALLOWED = "MarkingNamespaceNotAllowed"
    MARKING_ALLOWED = "MarkingAllowed"
    TOO_MANY_DIVERGE = "TooManyDiverge"
    GPU_DIVERGES = "GPUDiverges"
    MARK_REFUSED = "MarkRefused"
    RECOVERED = "Recovered"

    # Events that are no reason of a condition.
    VISIT_STARTED = "VisitStarted"
    NODE_MARKED = "NodeMarked"
    NODE_UNMARKED = "NodeUnmarked"
