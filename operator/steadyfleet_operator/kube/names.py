"""Names on the cluster: what marks a Job and its Pod as ours, and what they were made for (docs/architecture.md)."""

from __future__ import annotations

from steadyfleet_operator.resource import GROUP

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "steadyfleet"

LABEL_CHECK = f"{GROUP}/check"
LABEL_CHECK_UID = f"{GROUP}/check-uid"
LABEL_SLOT = f"{GROUP}/slot"

ANNOTATION_ATTEMPT = f"{GROUP}/attempt"
ANNOTATION_NODE = f"{GROUP}/node"
ANNOTATION_NODE_UID = f"{GROUP}/node-uid"
ANNOTATION_VERSION = f"{GROUP}/version"
ANNOTATION_EPOCH = f"{GROUP}/epoch"
ANNOTATION_PURPOSE = f"{GROUP}/purpose"
ANNOTATION_GPU = f"{GROUP}/gpu"

TAINT_KEY = f"{GROUP}/divergent"
"""Tolerated by probes, so that a tainted node can be tried again."""

ENGINE_CONTAINER = "engine"
COPY_CONTAINER = "steadyfleet-probe-copy"


def job_name(check: str, slot: int) -> str:
    """At most 63 characters, since a check's name has at most 40."""
    return f"sfl-{check}-{slot}"


def selector(check: str = "") -> str:
    """Label selector of the Jobs and Pods of one check, or of all; by name, so that those of a predecessor count."""
    ours = f"{MANAGED_BY}={MANAGER}"
    return f"{ours},{LABEL_CHECK}={check}" if check else f"{ours},{LABEL_CHECK}"
