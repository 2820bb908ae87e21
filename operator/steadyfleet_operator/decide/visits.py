"""How each occupied slot stands: still at work, to be created, or ended and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from steadyfleet_contract.report import Outcome
from steadyfleet_operator.decide.observation import (
    Job,
    JobEnd,
    LaunchRecord,
    Node,
    Observation,
    Pod,
    PodPhase,
    VisitRecord,
)
from steadyfleet_operator.decide.select import selected
from steadyfleet_operator.decide.thresholds import DEADLINE_MARGIN_SECONDS, LOST_JOB_SECONDS, MAX_MESSAGE
from steadyfleet_operator.decide.times import parse
from steadyfleet_operator.reasons import Reason
from steadyfleet_operator.resource import LABEL_EXCLUDE, Slot

PULL_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImageInspectError",
        "RegistryUnavailable",
        "Pulling",
    }
)
HOPELESS_REASONS = frozenset({"ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError"})
"""Waiting longer changes nothing: not waited for until the pending deadline."""


@dataclass(frozen=True, slots=True)
class SlotState:
    """`busy` slots keep their order; `recreate` ones need their Job created (again)."""

    busy: tuple[Slot, ...] = ()
    recreate: tuple[Slot, ...] = ()
    free: tuple[Slot, ...] = ()
    """With the counter of their last attempt."""
    ended: tuple[VisitRecord, ...] = ()
    delete: tuple[Job, ...] = ()


@dataclass
class _Draft:
    busy: list[Slot] = field(default_factory=list)
    recreate: list[Slot] = field(default_factory=list)
    free: list[Slot] = field(default_factory=list)
    ended: list[VisitRecord] = field(default_factory=list)
    delete: list[Job] = field(default_factory=list)


def slot_state(seen: Observation, epochs: Mapping[str, str]) -> SlotState:
    """Slots beyond the cap and Jobs that no slot knows of are ended too."""
    draft = _Draft()
    jobs = {job.slot: job for job in seen.jobs}
    pods = {pod.job_uid: pod for pod in sorted(seen.pods, key=lambda pod: pod.created)}
    nodes = {node.name: node for node in seen.nodes}
    recorded = {(visit.slot, visit.attempt) for visit in seen.visits}
    launches: dict[tuple[int, int], list[LaunchRecord]] = defaultdict(list)
    for launch in seen.launches:
        launches[launch.slot, launch.attempt].append(launch)
    stored = {slot.slot: slot for slot in seen.check.status.slots}
    for number in sorted(stored.keys() | jobs.keys() | set(range(seen.check.spec.schedule.max_concurrent))):
        slot = stored.get(number, Slot(slot=number, attempt=0))
        job = jobs.get(number)
        if job is not None and job.check_uid == seen.check.uid and job.attempt > slot.attempt:
            # Its guarded write was lost with the status (the check was restored from a backup, say): never reuse it.
            slot = _slot_of(job)
        pod = pods.get(job.uid) if job else None
        made = launches.get((slot.slot, slot.attempt), [])
        done = (slot.slot, slot.attempt) in recorded or not slot.node
        _one_slot(draft, seen, epochs, slot, job, pod, nodes, made, done=done)
    return SlotState(
        busy=tuple(draft.busy),
        recreate=tuple(draft.recreate),
        free=tuple(draft.free),
        ended=tuple(draft.ended),
        delete=tuple(draft.delete),
    )


def _one_slot(
    draft: _Draft,
    seen: Observation,
    epochs: Mapping[str, str],
    slot: Slot,
    job: Job | None,
    pod: Pod | None,
    nodes: Mapping[str, Node],
    launches: list[LaunchRecord],
    *,
    done: bool,
) -> None:
    if job is not None and (job.check_uid != seen.check.uid or job.attempt < slot.attempt):
        # A leftover of the attempt before, or of a deleted check of this name: the Job's name is in the way.
        draft.delete.extend([] if job.deleting else [job])
        draft.busy.append(slot)
    elif done:
        _release(draft, slot, job)
    elif end := _end(seen, epochs, slot, job, pod, nodes.get(slot.node), launches):
        reason, message = end
        draft.ended.append(_record(seen, slot, pod, reason, message, launches))
        _release(draft, slot, job)
    else:
        draft.busy.append(slot)
        if job is None:
            draft.recreate.append(slot)


def _release(draft: _Draft, slot: Slot, job: Job | None) -> None:
    """The slot is free once nothing has its Job's name any more."""
    if job is None:
        draft.free.append(Slot(slot=slot.slot, attempt=slot.attempt))
    else:
        draft.delete.extend([] if job.deleting else [job])
        draft.busy.append(slot)


def _end(
    seen: Observation,
    epochs: Mapping[str, str],
    slot: Slot,
    job: Job | None,
    pod: Pod | None,
    node: Node | None,
    launches: list[LaunchRecord],
) -> tuple[Reason, str] | None:
    """Why the visit is over, or None while it goes on. The first reason that holds."""
    if node is None or node.uid != slot.node_uid:
        return Reason.NODE_GONE, f"node {slot.node} was deleted or replaced during the visit"
    if node.labels.get(LABEL_EXCLUDE) == "true":
        return Reason.SUPERSEDED, f"node {slot.node} was excluded during the visit ({LABEL_EXCLUDE})"
    if epochs.get(slot.version) != slot.epoch:
        return Reason.SUPERSEDED, "the check was edited during the visit; its results would not be comparable"
    if slot.slot >= seen.check.spec.schedule.max_concurrent:
        return Reason.SUPERSEDED, "schedule.maxConcurrent was lowered during the visit"
    if not selected([node], seen.check.spec.nodes):
        return Reason.SUPERSEDED, f"node {slot.node} was excluded or deselected during the visit"
    if seen.check.spec.suspend:
        return Reason.SUSPENDED, "the check was suspended during the visit"
    if job is None:
        started = parse(slot.started_at)
        if started and (seen.now - started).total_seconds() > LOST_JOB_SECONDS:
            return Reason.REPORT_LOST, "the probe Job vanished before its end was seen"
        return None
    if job.deleting:
        return _with_launches(launches) or (
            Reason.REPORT_LOST,
            "the probe Job was deleted by somebody else" + _so_far(launches),
        )
    if job.end is not JobEnd.NONE or (pod and pod.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)):
        return _finished(launches, job, pod)
    return _overdue(seen, job, pod)


def _finished(launches: list[LaunchRecord], job: Job, pod: Pod | None) -> tuple[Reason, str]:
    if whole := _with_launches(launches):
        return whole
    reason, message = _without_launches(job, pod)
    return reason, message + _so_far(launches)


def _without_launches(job: Job, pod: Pod | None) -> tuple[Reason, str]:
    if pod and pod.disrupted:
        return Reason.PREEMPTED, f"the probe yielded: {pod.disrupted}: {pod.disrupted_message}"
    if job.end_reason == "PodFailurePolicy":
        return Reason.PREEMPTED, f"the probe yielded: {job.end_message}"
    if pod is None:
        return Reason.POD_FAILED, f"the probe Job ended without a pod: {job.end_reason}: {job.end_message}"
    if pod.failed_reason == "DeadlineExceeded" or job.end_reason == "DeadlineExceeded":
        return Reason.DEADLINE_EXCEEDED, "the probe did not finish within its deadline"
    if pod.termination is not None and any(not launch.posted for launch in pod.termination.launches):
        return Reason.REPORT_LOST, "the probe finished, but its report never arrived: " + pod.termination.message
    if pod.failed_reason:
        return Reason.CONTAINER_START_FAILED, f"{pod.failed_reason}: {pod.failed_message}"
    if pod.terminated:
        ended = pod.terminated
        words = pod.termination.message if pod.termination else ended.message
        reason = Reason.CONTAINER_START_FAILED if ended.reason == "StartError" else Reason.POD_FAILED
        return reason, f"container {ended.container} ended with exit code {ended.exit_code} ({ended.reason}): {words}"
    return Reason.POD_FAILED, f"the probe pod ended without a report: {job.end_reason}: {job.end_message}"


def _with_launches(launches: list[LaunchRecord]) -> tuple[Reason, str] | None:
    """What the launches themselves say, if all that were asked for came in: the first that failed names the reason."""
    reported = {launch.launch for launch in launches}
    if not launches or len(reported) < launches[0].asked:
        return None
    for launch in launches:
        if launch.outcome is not Outcome.COMPLETED:
            return Reason(launch.outcome.value), f"launch {launch.launch}: {launch.message}"
    return Reason.AS_EXPECTED, f"{len(reported)} launches reported"


def _so_far(launches: list[LaunchRecord]) -> str:
    return f" ({len(launches)} of {launches[0].asked} launches reported)" if launches else ""


def _overdue(seen: Observation, job: Job, pod: Pod | None) -> tuple[Reason, str] | None:
    schedule = seen.check.spec.schedule
    launches = seen.check.spec.launches.pinned + seen.check.spec.launches.as_served
    if pod is not None and pod.running_at is not None:
        allowed = launches * schedule.launch_deadline_seconds + 2 * DEADLINE_MARGIN_SECONDS
        if seen.now - pod.running_at > timedelta(seconds=allowed):
            return Reason.DEADLINE_EXCEEDED, f"the probe pod runs for more than {allowed} s"
        return None
    waiting = pod.waiting if pod else None
    if waiting is not None and waiting.reason in HOPELESS_REASONS:
        return _why_pending(waiting.reason, waiting.message)
    if seen.now - job.created > timedelta(seconds=schedule.pending_deadline_seconds):
        reason, message = (
            _why_pending(waiting.reason, waiting.message)
            if waiting
            else (Reason.CONTAINER_START_FAILED, _why_not_started(pod))
        )
        return reason, f"skipped after {schedule.pending_deadline_seconds} s: {message}"
    return None


def _why_not_started(pod: Pod | None) -> str:
    if pod is None:
        return "no pod was made"
    if not pod.node:
        return "the pod was not scheduled"
    return f"the pod is on node {pod.node}, but did not start; a volume may not be there, or the probe's image"


def _why_pending(reason: str, message: str) -> tuple[Reason, str]:
    words = f"{reason}: {message}"
    if reason in PULL_REASONS:
        return Reason.IMAGE_PULL_FAILED, words
    if reason == "Unschedulable":
        return Reason.NO_FREE_GPU, words
    return Reason.CONTAINER_START_FAILED, words


def _record(
    seen: Observation, slot: Slot, pod: Pod | None, reason: Reason, message: str, launches: list[LaunchRecord]
) -> VisitRecord:
    return VisitRecord(
        namespace=seen.check.namespace,
        check=seen.check.name,
        check_uid=seen.check.uid,
        epoch=slot.epoch,
        version=slot.version,
        purpose=slot.purpose,
        slot=slot.slot,
        attempt=slot.attempt,
        node=slot.node,
        node_uid=slot.node_uid,
        reason=reason,
        message=message[:MAX_MESSAGE],
        started_at=parse(slot.started_at) or seen.now,
        ended_at=seen.now,
        pod_uid=pod.uid if pod else "",
        gpu=slot.gpu,
        launches=len(launches),
    )


def _slot_of(job: Job) -> Slot:
    return Slot(
        slot=job.slot,
        attempt=job.attempt,
        node=job.node,
        node_uid=job.node_uid,
        version=job.version,
        purpose=job.purpose,
        gpu=job.gpu,
        epoch=job.epoch,
        started_at=job.created.isoformat(),
    )
