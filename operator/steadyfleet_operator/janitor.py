"""What no check's own pass can tidy, because the check is gone: its entries, the marks that followed, its evidence.

No finalizer does this: it would block the deletion of a check, of its namespace and of the CRD whenever the operator is
not there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from steadyfleet_operator.errors import Refused
from steadyfleet_operator.reconcile import Reconciler

log = logging.getLogger(__name__)

TIDY_SECONDS = 60.0
"""How long after its check's deletion a mark may stand, if the deletion's own event was lost."""

RELOAD_SECONDS = 300.0
"""How long an edit of a NodeConsistency by somebody else may stand."""

EVIDENCE_SECONDS = 86_400.0
"""How long the evidence of a deleted check is kept, at least: deleting the wrong check must not destroy it at once."""


class Janitor:
    """`ensure` is called with each living check: should the watch have lost its event, it gets its task here."""

    def __init__(self, reconciler: Reconciler, ensure: Callable[[str, str], None] = lambda *_: None) -> None:
        self._reconciler = reconciler
        self._ensure = ensure
        self._gone_since: dict[str, float] = {}
        self._loaded = time.monotonic()

    async def tidy(self) -> None:
        """Removes what belongs to no living check, then settles the marks of every node. Raises SteadyfleetError."""
        cluster = self._reconciler.cluster
        if time.monotonic() - self._loaded > RELOAD_SECONDS:
            await cluster.results.load()
            self._loaded = time.monotonic()
        living = {(check.namespace, check.name): check.uid for check in await cluster.checks.list_all()}
        for key in living:
            self._ensure(*key)
        nodes = cluster.fleet.snapshot()
        for name in cluster.results.names() - nodes.keys():
            cluster.results.forget(name)
        for name, entry in cluster.results.orphans(living):
            log.info("check %s/%s is gone: its entry for node %s goes", entry.namespace, entry.name, name)
            try:
                await cluster.results.drop(nodes[name], namespace=entry.namespace, check=entry.name)
            except Refused as refused:
                log.warning("the entry of node %s stays for now: %s", name, refused.message)
        for namespace, check in self._reconciler.metrics.views.keys() - living.keys():
            self._reconciler.metrics.forget(namespace, check)
        await self._reconciler.settle_marks(nodes)
        await self._delete_old_evidence(frozenset(living.values()))

    async def _delete_old_evidence(self, living: frozenset[str]) -> None:
        gone = self._reconciler.cluster.store.check_uids() - living
        now = time.monotonic()
        self._gone_since = {uid: self._gone_since.get(uid, now) for uid in gone}
        for uid, since in self._gone_since.items():
            if now - since > EVIDENCE_SECONDS:
                await self._reconciler.cluster.store.delete_check(uid)
