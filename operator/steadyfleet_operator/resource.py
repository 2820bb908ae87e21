"""The three custom resources as models. `crds/*.yaml` are the schemas that the API server enforces; a test holds the
two against each other in both directions."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from steadyfleet_contract.spec import EngineKind, EnvironmentVariable, ModelSource, SimulationSpec

GROUP = "steadyfleet.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

CONDITION_TYPE = "SteadyfleetDivergent"
"""Type of the node condition: True while a GPU of the node is Divergent in a check that may mark."""

LABEL_MARK = f"{GROUP}/divergent"
"""Label on a marked node, value "true"; absent otherwise."""

LABEL_EXCLUDE = f"{GROUP}/exclude"
"""An administrator's opt-out on a node: with the value "true" it is neither visited nor marked."""


ANNOTATION_RUN_AT = f"{GROUP}/run-at"
"""On a check, an RFC 3339 time: every node last visited before it is due at once (a sweep by hand)."""


class ResourceModel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class Requirement(ResourceModel):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()


class Selector(ResourceModel):
    """A label selector with the meaning of metav1.LabelSelector; empty selects every node."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[Requirement, ...] = ()


class Nodes(ResourceModel):
    selector: Selector = Selector()
    resource_name: str = "nvidia.com/gpu"


class PodTemplate(ResourceModel):
    """What a probe pod takes over from the user, verbatim Kubernetes objects: an explicit list, nothing else."""

    service_account_name: str = ""
    tolerations: tuple[dict[str, object], ...] = ()
    volumes: tuple[dict[str, object], ...] = ()
    volume_mounts: tuple[dict[str, object], ...] = ()
    security_context: dict[str, object] | None = None
    """Of the pod."""
    container_security_context: dict[str, object] | None = None
    runtime_class_name: str = ""
    image_pull_secrets: tuple[dict[str, object], ...] = ()
    image_pull_policy: Literal["", "Always", "IfNotPresent", "Never"] = ""
    resources: dict[str, object] | None = None
    """Requests and limits beside the GPUs, which the operator sets."""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Engine(ResourceModel):
    kind: EngineKind = EngineKind.VLLM
    model: ModelSource
    arguments: tuple[str, ...] = ()
    environment: tuple[EnvironmentVariable, ...] = ()
    gpus_per_probe: int = Field(default=1, alias="gpusPerProbe")
    python: str = ""
    pod: PodTemplate = PodTemplate()
    simulation: SimulationSpec | None = None


class Version(ResourceModel):
    """A named image and engine settings under test; `arguments` and `environment` are added to the engine's."""

    name: str
    image: str
    arguments: tuple[str, ...] = ()
    environment: tuple[EnvironmentVariable, ...] = ()


class Prompts(ResourceModel):
    set: Literal["standard-v1"] = "standard-v1"
    max_tokens: int = 64
    top_logprobs: int = 20


class Launches(ResourceModel):
    pinned: int = 2
    as_served: int = 1


class Schedule(ResourceModel):
    interval_seconds: int = 86400
    max_concurrent: int = 4
    pending_deadline_seconds: int = 300
    launch_deadline_seconds: int = 1200


class ActionMode(str, Enum):
    OBSERVE = "Observe"
    MARK = "Mark"


class Action(ResourceModel):
    mode: ActionMode = ActionMode.OBSERVE
    max_marked_nodes: int = 3
    max_marked_percent: int = 5


class CheckSpec(ResourceModel):
    nodes: Nodes = Nodes()
    engine: Engine
    versions: Annotated[tuple[Version, ...], Field(min_length=1)]
    accepted_variants: tuple[str, ...] = ()
    prompts: Prompts = Prompts()
    launches: Launches = Launches()
    schedule: Schedule = Schedule()
    action: Action = Action()
    suspend: bool = False
    suspend_reason: str = ""


class Verdict(str, Enum):
    CONSISTENT = "Consistent"
    DIVERGENT = "Divergent"
    NOT_COMPARABLE = "NotComparable"
    UNKNOWN = "Unknown"


VERDICT_SEVERITY = {
    Verdict.CONSISTENT: 0,
    Verdict.NOT_COMPARABLE: 1,
    Verdict.UNKNOWN: 2,
    Verdict.DIVERGENT: 3,
}
"""A node is as bad as the worst of its GPUs, a list begins with the worst."""


class Cause(str, Enum):
    NONE = ""
    WEIGHTS = "Weights"
    UNEXPLAINED = "Unexplained"


class Purpose(str, Enum):
    """Why a node is visited. Sweep: its turn. Confirm: its suspect GPU again. Control: a known-good GPU elsewhere."""

    SWEEP = "Sweep"
    CONFIRM = "Confirm"
    CONTROL = "Control"


class Condition(ResourceModel):
    """metav1.Condition."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str
    last_transition_time: str
    observed_generation: int = 0


class FleetCounts(ResourceModel):
    """Nodes by verdict; `stale` counts nodes without a result for twice the interval, whatever they were."""

    selected: int = 0
    consistent: int = 0
    divergent: int = 0
    not_comparable: int = 0
    unknown: int = 0
    stale: int = 0


class Sweep(ResourceModel):
    """A sweep ends when each selected node has been visited since `started_at`."""

    started_at: str = ""
    visited: int = 0


class Slot(ResourceModel):
    """One unit of the concurrency cap: it owns one Job name. `attempt` is raised before the Job is created."""

    slot: int
    attempt: int
    node: str = ""
    """Empty while the slot is free."""
    node_uid: str = ""
    version: str = ""
    purpose: Purpose = Purpose.SWEEP
    gpu: str = ""
    """The GPU that the visit must use, empty for any."""
    epoch: str = ""
    started_at: str = ""


class DivergentGPU(ResourceModel):
    node: str
    gpu: str
    cause: Cause = Cause.NONE
    since: str = ""


class CheckStatus(ResourceModel):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    fleet: FleetCounts = FleetCounts()
    sweep: Sweep = Sweep()
    slots: tuple[Slot, ...] = ()
    divergent: tuple[DivergentGPU, ...] = ()


class GPUEntry(ResourceModel):
    """A GPU that is not Consistent, in one version of one check."""

    uuid: str
    version: str
    verdict: Verdict
    cause: Cause = Cause.NONE
    reason: str = ""
    message: str = ""
    since: str = ""
    epoch: str = ""
    evidence: str = ""
    """Name of the bundle in the evidence store."""


class NodeCheck(ResourceModel):
    """One check's view of one node. `namespace` and `name` are the key of the list-map."""

    namespace: str
    name: str
    uid: str
    verdict: Verdict
    cause: Cause = Cause.NONE
    reason: str = ""
    message: str = ""
    may_mark: bool = False
    """The check is in Mark mode, in a namespace that may mark."""
    marked: bool = False
    """The check wants the node marked: it may mark, a GPU is Divergent, and the breaker let it through."""
    consistent_gpus: int = Field(default=0, alias="consistentGPUs")
    gpus: tuple[GPUEntry, ...] = ()
    """At most 16; only GPUs that are not Consistent."""
    since: str = ""
    last_visit_time: str = ""
    last_result_time: str = ""
    failed_visits: int = 0
    """In a row; the next visit waits longer for each."""


class NodeStatus(ResourceModel):
    checks: tuple[NodeCheck, ...] = ()


class VariantState(str, Enum):
    ACCEPTED = "Accepted"
    SEEN = "Seen"


class Variant(ResourceModel):
    digest: str
    state: VariantState
    launches: int
    nodes: int
    first_seen_time: str
    last_seen_time: str


class BaselineSpec(ResourceModel):
    """What the group is; immutable. Launches are compared only within one group."""

    check: str
    epoch: str
    version: str
    product: str
    prompt_set_digest: str


class BaselineStatus(ResourceModel):
    observed_generation: int = 0
    accepted: str = ""
    """The digest that pinned launches of the group are held against, empty while none is agreed."""
    accepted_by: Literal["", "Majority", "Spec"] = ""
    weights_digest: str = ""
    variants: tuple[Variant, ...] = ()
    """At most 32, the most seen first."""
    conditions: tuple[Condition, ...] = ()
