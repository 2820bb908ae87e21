"""Which nodes a check is about, and which of them can be visited now."""

from __future__ import annotations

from collections.abc import Iterable

from steadyfleet_operator.decide.observation import Node
from steadyfleet_operator.reasons import Reason
from steadyfleet_operator.resource import LABEL_EXCLUDE, Engine, Nodes, Requirement, Selector

GOING_AWAY_TAINTS = frozenset({"karpenter.sh/disrupted", "ToBeDeletedByClusterAutoscaler"})
VIRTUAL_LABELS = {"type": "virtual-kubelet", "eks.amazonaws.com/compute-type": "fargate"}
SHARING_LABEL = "nvidia.com/gpu.sharing-strategy"


def matches(selector: Selector, node: Node) -> bool:
    """The meaning of metav1.LabelSelector; an empty one matches everything."""
    return all(node.labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        _holds(requirement, node) for requirement in selector.match_expressions
    )


def selected(nodes: Iterable[Node], wanted: Nodes) -> tuple[Node, ...]:
    """By name. Left out are nodes that an administrator excluded, that are virtual, or that are being removed."""
    return tuple(
        sorted(
            (node for node in nodes if matches(wanted.selector, node) and not _left_out(node)),
            key=lambda node: node.name,
        )
    )


def cannot_visit(node: Node, wanted: Nodes, engine: Engine) -> tuple[Reason, str] | None:
    """Why no probe may be sent to the node now, or None if one may."""
    if not node.ready:
        return Reason.NODE_NOT_READY, f"node {node.name} is not Ready"
    if node.unschedulable:
        return Reason.NODE_NOT_READY, f"node {node.name} is cordoned"
    if is_shared(node):
        # A time-sliced or MPS "GPU" is a slice of a card that serves; an engine would take its memory.
        return Reason.GPU_SHARED, f"the GPUs of node {node.name} are shared ({SHARING_LABEL}); they are left alone"
    offered = node.allocatable.get(wanted.resource_name, 0)
    if offered < engine.gpus_per_probe:
        return (
            Reason.NO_FREE_GPU,
            f"node {node.name} offers {offered} {wanted.resource_name}, a probe needs {engine.gpus_per_probe}",
        )
    return None


def is_shared(node: Node) -> bool:
    strategy = node.labels.get(SHARING_LABEL, "none")
    return (
        strategy not in ("", "none")
        or node.labels.get("nvidia.com/gpu.product", "").endswith("-SHARED")
        or node.labels.get("nvidia.com/mps.capable") == "true"
        or node.labels.get("nvidia.com/gpu.replicas", "1") not in ("", "0", "1")
    )


def _left_out(node: Node) -> bool:
    return (
        node.labels.get(LABEL_EXCLUDE) == "true"
        or node.deleting
        or any(taint.key in GOING_AWAY_TAINTS for taint in node.taints)
        or any(node.labels.get(key) == value for key, value in VIRTUAL_LABELS.items())
    )


def _holds(requirement: Requirement, node: Node) -> bool:
    value = node.labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
