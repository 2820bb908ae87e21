"""What no check's own pass can tidy, because the check is gone: its entries, and the marks that followed from them.

No finalizer does this: it would block the deletion of a check, of its namespace and of the CRD whenever the operator is
not there.
"""

from __future__ import annotations

import logging

from steadyfleet_operator.reconcile import Reconciler

log = logging.getLogger(__name__)

TIDY_SECONDS = 60.0
"""How long after its check's deletion a mark may stand, if the deletion's own event was lost."""

RELOAD_SECONDS = 300.0
"""How long an edit of a NodeConsistency by somebody else may stand."""


async def tidy(reconciler: Reconciler) -> None:
    """Removes entries of checks that do not live, then settles the marks of every node. Raises KubernetesError."""
    cluster = reconciler.cluster
    living = {(check.namespace, check.name): check.uid for check in await cluster.checks.list_all()}
    nodes = cluster.fleet.snapshot()
    for name in cluster.results.names() - nodes.keys():
        cluster.results.forget(name)
    for name, entry in cluster.results.orphans(living):
        log.info("check %s/%s is gone: its entry for node %s goes", entry.namespace, entry.name, name)
        await cluster.results.drop(nodes[name], namespace=entry.namespace, check=entry.name)
    for namespace, check in reconciler.metrics.views.keys() - living.keys():
        reconciler.metrics.forget(namespace, check)
    await reconciler.settle_marks(nodes)
