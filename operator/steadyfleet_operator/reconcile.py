"""One pass of one check: look, decide, act, write the status, tell.

Every step can be interrupted and done again by the next pass. Whatever an event said, the pass reads the check, LISTs
its Jobs and Pods, and takes the stored results; what it decides is `decide`'s business, and pure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from steadyfleet_operator.decide import decide
from steadyfleet_operator.decide.marks import MarkAction, wanted_mark
from steadyfleet_operator.decide.observation import Check, Job, Node, Observation, Order, Pod, VisitRecord
from steadyfleet_operator.decide.plan import EventNote, Plan, Start
from steadyfleet_operator.decide.summary import invalid_conditions
from steadyfleet_operator.errors import Conflict, KubernetesError, Refused, SpecInvalid
from steadyfleet_operator.intake.store import EvidenceStore
from steadyfleet_operator.kube.baselines import Baselines
from steadyfleet_operator.kube.checks import Checks, InvalidCheck
from steadyfleet_operator.kube.events import Events
from steadyfleet_operator.kube.fleet import Fleet
from steadyfleet_operator.kube.jobs import Jobs
from steadyfleet_operator.kube.marks import Marks
from steadyfleet_operator.kube.podspec import Visit, build_job
from steadyfleet_operator.kube.resources import JsonObject
from steadyfleet_operator.metrics import CheckView, Metrics
from steadyfleet_operator.reasons import Reason
from steadyfleet_operator.resource import Slot
from steadyfleet_operator.results import Results
from steadyfleet_operator.settings import Settings

log = logging.getLogger(__name__)

TRIAL_ROUNDS = 3
"""Times that other visits are tried in place of refused ones, in one pass."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Everything a pass reads from and writes to."""

    checks: Checks
    jobs: Jobs
    baselines: Baselines
    results: Results
    marks: Marks
    events: Events
    fleet: Fleet
    store: EvidenceStore


@dataclass
class Reconciler:
    """Holds no decision from one pass to the next; `_counted` only keeps a latency from being observed twice."""

    cluster: Cluster
    settings: Settings
    metrics: Metrics
    report_ca: Callable[[], str]
    now: Callable[[], datetime]
    _counted: dict[tuple[str, str], datetime] = field(default_factory=dict)
    _marking: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Passes of several checks and the janitor settle marks of the same nodes."""

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """One pass. Returns in how many seconds to look again, None if the check is gone. Raises KubernetesError."""
        check = await self.cluster.checks.get(namespace, name)
        if check is None:
            self.metrics.forget(namespace, name)
            self._counted.pop((namespace, name), None)
            return None
        if isinstance(check, InvalidCheck):
            return await self._tell_invalid(check)
        seen = await self._observe(check)
        # In a thread: at thousands of nodes it takes longer than the Lease may wait.
        plan = await asyncio.to_thread(decide, seen)

        await self._record(check, plan)
        await self._delete_jobs(plan)
        await self._write_baselines(check, plan)
        plan, jobs = await self._try_pods(check, seen, plan)
        await self._write_entries(check, seen, plan)
        check = await self._write_status(check, plan)
        if check is None:
            return None
        await self._create_jobs(check, plan.start, jobs)
        self._tell(check, seen, plan)
        return plan.requeue_seconds

    async def _observe(self, check: Check) -> Observation:
        may_run = check.namespace in self.settings.check_namespaces
        jobs: tuple[Job, ...] = ()
        pods: tuple[Pod, ...] = ()
        if may_run:  # elsewhere there are no rights on Jobs and Pods, not even to read
            jobs, pods = await asyncio.gather(
                self.cluster.jobs.list_jobs(check.namespace, check.name),
                self.cluster.jobs.list_pods(check.namespace, check.name),
            )
        baselines = await self.cluster.baselines.list_of(check)
        # The stored results are read last: a Job that is seen to have ended has posted its reports before.
        nodes = self.cluster.fleet.snapshot()
        return Observation(
            now=self.now(),
            check=check,
            nodes=tuple(nodes.values()),
            jobs=jobs,
            pods=pods,
            # Whoever forges a report from another namespace must not count here.
            launches=tuple(
                launch for launch in self.cluster.store.launches(check.uid) if launch.namespace == check.namespace
            ),
            visits=self.cluster.store.visits(check.uid),
            baselines=baselines,
            node_checks=self.cluster.results.of_check(check, nodes),
            may_run=may_run,
            may_mark=check.namespace in self.settings.mark_namespaces and not self.settings.dry_run,
        )

    async def _try_pods(self, check: Check, seen: Observation, plan: Plan) -> tuple[Plan, dict[int, JsonObject]]:
        """The Jobs to create, by slot, and the plan without those whose pod the API server would refuse.

        Never fails: an API server that can't try a pod must not keep what is known from being told.
        Another visit may take the place of a refused one; after a few rounds the slots stay free until the next pass.
        """
        for _ in range(TRIAL_ROUNDS):
            jobs, refusals = await self._trial(check, plan.start)
            if not refusals:
                return plan, jobs
            seen = replace(seen, refusals={**seen.refusals, **refusals})
            plan = await asyncio.to_thread(decide, seen)
        jobs, _ = await self._trial(check, plan.start)
        return without_untried(plan, jobs), jobs

    async def _trial(self, check: Check, starts: Sequence[Start]) -> tuple[dict[int, JsonObject], dict[Order, str]]:
        jobs: dict[int, JsonObject] = {}
        refusals: dict[Order, str] = {}
        for start in starts:
            refusal = ""
            for gpus in await self._requests(check, start):
                try:
                    visit = Visit(check, start.slot, start.version.image, start.probe, gpus)
                    job = build_job(visit, settings=self.settings, report_ca=self.report_ca())
                    refusal = await self.cluster.jobs.refusal(job)
                except (SpecInvalid, KubernetesError) as error:
                    refusal = str(error)
                if not refusal:
                    jobs[start.slot.slot] = job
                    break
            if refusal:
                refusals[order_of(start)] = refusal
        return jobs, refusals

    async def _requests(self, check: Check, start: Start) -> tuple[int, ...]:
        """Numbers of GPUs to ask for, in turn. A quota may refuse a whole node where it takes a single GPU."""
        needed = check.spec.engine.gpus_per_probe
        if not start.whole_node:
            return (needed,)
        try:
            free = await self.cluster.jobs.free_units(start.node, check.spec.nodes.resource_name)
        except KubernetesError as error:
            log.warning("free GPUs of node %s are not known: %s", start.node.name, error)
            return (needed,)
        return (free, needed) if free > needed else (needed,)

    async def _record(self, check: Check, plan: Plan) -> None:
        """Before the Job goes: once it is gone nothing else knows how the visit ended."""
        for visit in plan.visits:
            await self.cluster.store.put_visit(visit)
            self.metrics.visits.labels(visit.namespace, visit.check, visit.reason.value).inc()
            log.info(
                "visit of %s by %s/%s ended: %s: %s",
                visit.node,
                visit.namespace,
                visit.check,
                visit.reason.value,
                visit.message,
            )
        if plan.visits:
            await self.cluster.store.prune(check.uid, keep=plan.keep_evidence)
            self._post(check, plan.ended)

    async def _delete_jobs(self, plan: Plan) -> None:
        for job in plan.delete:
            await self.cluster.jobs.delete(job)

    async def _write_baselines(self, check: Check, plan: Plan) -> None:
        for write in plan.baselines:
            await self.cluster.baselines.write(check, write.name, write.spec, write.status)

    async def _write_entries(self, check: Check, seen: Observation, plan: Plan) -> None:
        """NodeConsistency first, then the mark that follows from it. A node that refuses holds up no other one."""
        nodes = {node.name: node for node in seen.nodes}
        for name, entry in plan.node_checks.items():
            try:
                if entry is None:
                    await self.cluster.results.drop(nodes[name], namespace=check.namespace, check=check.name)
                else:
                    await self.cluster.results.put(nodes[name], entry)
            except Refused as refused:
                log.warning("what %s/%s says of node %s is refused: %s", check.namespace, check.name, name, refused)
        self._post(check, plan.marking)
        for name, message in (await self.settle_marks(nodes)).items():
            self._post(check, [EventNote("Warning", Reason.MARK_REFUSED, f"node {name}: {message}")])

    async def settle_marks(self, nodes: Mapping[str, Node]) -> dict[str, str]:
        """Every node that carries or shall carry a mark, whichever check it comes from.

        Returns what the API server said of nodes that refuse (node -> message); a webhook may protect one of them.
        """
        refusals: dict[str, str] = {}
        if not self.settings.dry_run:
            async with self._marking:
                for node in nodes.values():
                    try:
                        await self._settle_mark(node)
                    except Refused as refused:
                        log.warning("node %s refuses our mark: %s", node.name, refused.message)
                        refusals[node.name] = refused.message
        self.metrics.marked_nodes = frozenset(
            node.name
            for node in nodes.values()
            if any(entry.marked for entry in self.cluster.results.status_of(node).checks) and not self.settings.dry_run
        )
        return refusals

    async def _settle_mark(self, node: Node) -> None:
        wanted = wanted_mark(node, self.cluster.results.status_of(node))
        if wanted is None:
            return
        if wanted.action is MarkAction.MARK:
            await self.cluster.marks.mark(node.name, node.uid, reason=wanted.reason, message=wanted.message)
        elif wanted.action is MarkAction.RECOVER:
            await self.cluster.marks.recover(node.name, node.uid, reason=wanted.reason, message=wanted.message)
        else:
            await self.cluster.marks.remove(node.name, node.uid)

    async def _write_status(self, check: Check, plan: Plan) -> Check | None:
        """Once a pass, guarded, and before any Job of a raised attempt is created."""
        if plan.status == check.status:
            return check
        return await self.cluster.checks.write_status(check, plan.status)

    async def _create_jobs(self, check: Check, starts: Sequence[Start], jobs: Mapping[int, JsonObject]) -> None:
        for start in starts:
            try:
                await self.cluster.jobs.create(jobs[start.slot.slot])
            except Conflict:
                # The slot's name is still taken; the next pass sees by what.
                log.info("slot %d of %s is still taken", start.slot.slot, start.probe.check)
            except Refused as refused:
                # A quota on Jobs, or a webhook: what the trial of the pod could not see. The slot is free again.
                await self.cluster.store.put_visit(self._refused(check, start, refused.message))
                self._post(check, [EventNote("Warning", Reason.POD_REFUSED, refused.message)])

    def _refused(self, check: Check, start: Start, message: str) -> VisitRecord:
        slot = start.slot
        return VisitRecord(
            namespace=check.namespace,
            check=check.name,
            check_uid=check.uid,
            epoch=slot.epoch,
            version=slot.version,
            purpose=slot.purpose,
            slot=slot.slot,
            attempt=slot.attempt,
            node=slot.node,
            node_uid=slot.node_uid,
            reason=Reason.POD_REFUSED,
            message=f"the API server refuses the probe Job: {message}",
            started_at=self.now(),
            ended_at=self.now(),
            gpu=slot.gpu,
        )

    def _post(self, check: Check, notes: Sequence[EventNote]) -> None:
        for note in notes:
            self.cluster.events.post_check(check, type=note.type, reason=note.reason, message=note.message)

    def _tell(self, check: Check, seen: Observation, plan: Plan) -> None:
        """What is true only after the status is written."""
        self._post(check, plan.begun)
        entries = dict(seen.node_checks)
        for name, entry in plan.node_checks.items():
            if entry is None:
                entries.pop(name, None)
            else:
                entries[name] = entry
        self.metrics.views[check.namespace, check.name] = CheckView(
            spec=check.spec, status=plan.status, entries=entries, jobs=len(seen.jobs)
        )
        counted = self._counted.get((check.namespace, check.name), seen.now)
        for launch in seen.launches:
            if launch.received_at > counted:
                self.metrics.report_to_verdict.observe((self.now() - launch.received_at).total_seconds())
        self._counted[check.namespace, check.name] = max(
            (launch.received_at for launch in seen.launches), default=seen.now
        )

    async def _tell_invalid(self, check: InvalidCheck) -> float | None:
        conditions = invalid_conditions(check.conditions, check.generation, str(check.error), self.now())
        if conditions != check.conditions:
            await self.cluster.checks.write_conditions(check, conditions)
            self.cluster.events.post_check(check, type="Warning", reason=Reason.SPEC_INVALID, message=str(check.error))
        return 300.0


def without_untried(plan: Plan, jobs: Mapping[int, JsonObject]) -> Plan:
    """Starts that have no Job leave their slots free; their attempts stay raised, which costs nothing."""
    dropped = {start.slot.slot for start in plan.start} - jobs.keys()
    slots = tuple(
        Slot(slot=slot.slot, attempt=slot.attempt) if slot.slot in dropped else slot for slot in plan.status.slots
    )
    return replace(
        plan,
        start=tuple(start for start in plan.start if start.slot.slot not in dropped),
        status=plan.status.model_copy(update={"slots": slots}),
    )


def order_of(start: Start) -> Order:
    return Order(start.slot.node, start.slot.version, start.slot.purpose, start.slot.gpu)
