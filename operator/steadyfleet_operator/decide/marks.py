"""What a node shall carry of ours, over all checks that speak of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from steadyfleet_operator.decide.observation import Node
from steadyfleet_operator.decide.thresholds import MAX_MESSAGE
from steadyfleet_operator.reasons import Reason
from steadyfleet_operator.resource import LABEL_EXCLUDE, NodeStatus


class MarkAction(str, Enum):
    MARK = "Mark"
    """Condition True, label set."""
    RECOVER = "Recover"
    """Condition False, label gone: a check that may mark still watches the node."""
    REMOVE = "Remove"
    """Neither: nothing that may mark speaks of the node any more."""


@dataclass(frozen=True, slots=True)
class WantedMark:
    action: MarkAction
    reason: Reason
    message: str


def wanted_mark(node: Node, status: NodeStatus) -> WantedMark | None:
    """None if the node carries what it shall. Judged from the node as it is, so that foreign edits are mended."""
    marking = [entry for entry in status.checks if entry.marked]
    if marking and node.labels.get(LABEL_EXCLUDE) != "true":
        message = "; ".join(f"{entry.namespace}/{entry.name}: {entry.message}" for entry in marking)[:MAX_MESSAGE]
        stands = node.mark is not None and node.mark.status == "True" and node.mark.message == message and node.labelled
        return None if stands else WantedMark(MarkAction.MARK, Reason.GPU_DIVERGES, message)
    if node.mark is None and not node.labelled:
        return None
    if any(entry.may_mark for entry in status.checks) and node.labels.get(LABEL_EXCLUDE) != "true":
        recovered = node.mark is not None and node.mark.status == "False" and not node.labelled
        return None if recovered else WantedMark(MarkAction.RECOVER, Reason.RECOVERED, "no check finds a divergent GPU")
    return WantedMark(MarkAction.REMOVE, Reason.RECOVERED, "")
