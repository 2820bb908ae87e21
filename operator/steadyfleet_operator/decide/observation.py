"""What the operator sees before it decides: the fleet, its own Jobs and Pods, and the stored results, as plain data.

`kube` and `intake` fill these in, `decide` reads them. All times are aware UTC datetimes by the API server's clock
(Jobs, Pods) or the operator's (launches, visits), never by a probe's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from steadyfleet_contract.report import Outcome, TerminationMessage
from steadyfleet_contract.spec import CacheState, LaunchKind
from steadyfleet_operator.reasons import Reason
from steadyfleet_operator.resource import BaselineSpec, BaselineStatus, CheckSpec, CheckStatus, NodeCheck, Purpose


@dataclass(frozen=True, slots=True)
class Check:
    """A ConsistencyCheck as it is stored now."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    """For the guarded write of the status."""
    spec: CheckSpec
    status: CheckStatus
    run_at: datetime | None = None
    """From the annotation steadyfleet.dev/run-at: nodes last visited before this moment are due at once. None also for
    a value that is no RFC 3339 time."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A ConsistencyBaseline as it is stored now."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    spec: BaselineSpec
    status: BaselineStatus


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    effect: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class NodeMark:
    """Our own condition as it stands on a Node."""

    status: str
    """True, False or Unknown."""
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """The fields of a Node that are in use, and no others: five thousand of these are held in memory."""

    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    deleting: bool = False
    allocatable: Mapping[str, int] = field(default_factory=dict)
    """Extended resources alone (names with a domain, e.g. nvidia.com/gpu), in units."""
    capacity: Mapping[str, int] = field(default_factory=dict)
    """The same, with those that the device plugin calls unhealthy."""
    mark: NodeMark | None = None
    """None while the Node carries no condition of ours."""
    labelled: bool = False
    """The Node carries our mark label, whatever its value."""


class JobEnd(str, Enum):
    """By the Job's Complete and Failed conditions; FailureTarget alone, while pods still end, is None."""

    NONE = "None"
    COMPLETE = "Complete"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Job:
    """A Job of ours. What it was made for is read from its own annotations, never from the check's status."""

    namespace: str
    name: str
    uid: str
    check_uid: str
    slot: int
    attempt: int
    node: str
    node_uid: str
    version: str
    epoch: str
    purpose: Purpose
    gpu: str
    """UUID that the visit must use, empty for any."""
    created: datetime
    deleting: bool = False
    end: JobEnd = JobEnd.NONE
    end_reason: str = ""
    """e.g. PodFailurePolicy (preempted or evicted), BackoffLimitExceeded (the container failed)."""
    end_message: str = ""
    ended_at: datetime | None = None


class PodPhase(str, Enum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a pod does not run yet, in Kubernetes' own words."""

    reason: str
    """Unschedulable, ImagePullBackOff, ErrImagePull, ErrImageNeverPull, InvalidImageName, CreateContainerError, ..."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Terminated:
    """How a container ended: the engine's, or that of the init container if it never came to the engine's."""

    container: str
    exit_code: int
    reason: str = ""
    """Error, OOMKilled, StartError, ..."""
    message: str = ""
    """Raw termination message; also parsed into `Pod.termination` if it is one of ours."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of one of our Jobs."""

    namespace: str
    name: str
    uid: str
    job: str
    """Name of the owning Job."""
    job_uid: str
    slot: int
    attempt: int
    phase: PodPhase
    created: datetime
    node: str = ""
    """Empty until it is bound."""
    running_at: datetime | None = None
    """When the engine container started."""
    deleting: bool = False
    waiting: Waiting | None = None
    terminated: Terminated | None = None
    termination: TerminationMessage | None = None
    disrupted: str = ""
    """Reason of the DisruptionTarget condition (PreemptionByScheduler, EvictionByEvictionAPI, ...), else empty."""
    disrupted_message: str = ""
    failed_reason: str = ""
    """The pod's own status.reason: UnexpectedAdmissionError, DeadlineExceeded, Evicted, NodeLost, ..."""
    failed_message: str = ""
    image: str = ""
    """Image of the engine container as the pod's spec has it."""
    image_id: str = ""
    """What the runtime says it runs; compare only within one runtime and architecture."""
    check_uid: str = ""
    """By its label; a pod left by a deleted check of the same name has another."""


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """One launch as it was accepted, without its arrays. The first block is the operator's own knowledge (from the
    token, the pod and the Job), the second is what the probe reported."""

    evidence: str
    """Name of the bundle in the evidence store."""
    namespace: str
    check: str
    check_uid: str
    epoch: str
    version: str
    purpose: Purpose
    slot: int
    attempt: int
    node: str
    node_uid: str
    pod_uid: str
    received_at: datetime

    launch: int
    kind: LaunchKind
    """What the launch turned out to be, which may differ from what was asked."""
    cache: CacheState
    outcome: Outcome
    message: str = ""
    gpus: tuple[str, ...] = ()
    """UUIDs, in the probe's order."""
    product: str = ""
    """Product of the first GPU."""
    digest: str = ""
    prompt_set_digest: str = ""
    weights_digest: str = ""
    repeat_rounds: int = 0
    differing_rounds: int = 0
    non_finite: int = 0
    """NaN or infinite logprobs over all passes."""
    fingerprint: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    image: str = ""
    image_id: str = ""
    wanted_gpu: str = ""
    visit_started_at: datetime | None = None
    """When the visit's Job was created: what it shows began after that. None in records of an older operator."""
    asked: int = 0
    """How many launches its Job asked of the visit; 0 in records of an older operator."""
    full: bool = False
    """The bundle holds the full decode with its arrays."""

    @property
    def gpu(self) -> str:
        """The first GPU's UUID, empty if the launch saw none."""
        return self.gpus[0] if self.gpus else ""


@dataclass(frozen=True, slots=True)
class VisitRecord:
    """The operator's own record that a visit ended, and how. (check uid, slot, attempt) names it."""

    namespace: str
    check: str
    check_uid: str
    epoch: str
    version: str
    purpose: Purpose
    slot: int
    attempt: int
    node: str
    node_uid: str
    reason: Reason
    """AsExpected if every launch asked for came in."""
    message: str
    started_at: datetime
    ended_at: datetime
    pod_uid: str = ""
    """Empty if no pod was ever made."""
    gpu: str = ""
    """The GPU that the visit had to use, empty for any."""
    launches: int = 0
    """How many launches were received."""


@dataclass(frozen=True, slots=True)
class Order:
    """A visit that could be started."""

    node: str
    version: str
    purpose: Purpose
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """All that one pass of one check knows. Jobs and Pods come from a fresh LIST, nodes from the fleet's snapshot."""

    now: datetime
    check: Check
    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...] = ()
    pods: tuple[Pod, ...] = ()
    launches: tuple[LaunchRecord, ...] = ()
    """Of this check and any epoch, oldest first."""
    visits: tuple[VisitRecord, ...] = ()
    """Of this check and any epoch, oldest first."""
    baselines: tuple[Baseline, ...] = ()
    node_checks: Mapping[str, NodeCheck] = field(default_factory=dict)
    """This check's entry in the NodeConsistency of each node that has one."""
    may_run: bool = True
    """The check's namespace is one that the administrator listed."""
    may_mark: bool = False
    """The check's namespace may mark nodes, and the operator is not on a dry run."""
    refusals: Mapping[Order, str] = field(default_factory=dict)
    """What the API server said of pods that it refused on trial in this pass."""
