"""What one pass shall do. `reconcile` carries it out in the order of the fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from steadyfleet_contract.spec import ProbeSpec
from steadyfleet_operator.decide.observation import Job, Node, VisitRecord
from steadyfleet_operator.reasons import Reason
from steadyfleet_operator.resource import (
    BaselineSpec,
    BaselineStatus,
    Cause,
    CheckStatus,
    NodeCheck,
    Slot,
    Verdict,
    Version,
)


@dataclass(frozen=True, slots=True)
class Start:
    """A visit whose Job is to be created once the status with its raised attempt is written."""

    slot: Slot
    node: Node
    version: Version
    probe: ProbeSpec
    whole_node: bool
    """Ask for all free GPUs of the node: the visit has to meet one of them."""


@dataclass(frozen=True, slots=True)
class EventNote:
    """An Event on the check."""

    type: Literal["Normal", "Warning"]
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class BaselineWrite:
    name: str
    spec: BaselineSpec
    status: BaselineStatus


@dataclass(frozen=True, slots=True)
class GPUJudgement:
    """What is said of one GPU in one version."""

    uuid: str
    node: str
    version: str
    epoch: str
    verdict: Verdict
    reason: Reason
    message: str
    cause: Cause = Cause.NONE
    since: datetime | None = None
    """When the state began: the first novel launch, else the newest result."""
    evidence: str = ""
    newest: datetime | None = None
    """When the newest launch that counts was received."""


@dataclass(frozen=True, slots=True)
class Plan:
    visits: tuple[VisitRecord, ...] = ()
    """To be recorded before the Jobs are deleted."""
    delete: tuple[Job, ...] = ()
    baselines: tuple[BaselineWrite, ...] = ()
    node_checks: Mapping[str, NodeCheck | None] = field(default_factory=dict)
    """Node -> the entry it shall carry, None to remove it. Only those that change."""
    status: CheckStatus = field(default_factory=CheckStatus)
    start: tuple[Start, ...] = ()
    ended: tuple[EventNote, ...] = ()
    """True once the visits are recorded."""
    marking: tuple[EventNote, ...] = ()
    """True once the entries are written."""
    begun: tuple[EventNote, ...] = ()
    """True once the status is written."""
    judgements: tuple[GPUJudgement, ...] = ()
    keep_evidence: frozenset[str] = frozenset()
    """Bundles that an open verdict points at."""
    requeue_seconds: float = 0.0
