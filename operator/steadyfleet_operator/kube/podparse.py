"""From raw Jobs and Pods to what `decide` needs to know of them."""

from __future__ import annotations

from datetime import datetime

from pydantic import ValidationError

from steadyfleet_contract.report import TerminationMessage
from steadyfleet_operator.decide.observation import Job, JobEnd, Pod, PodPhase, Terminated, Waiting
from steadyfleet_operator.kube import fields, names
from steadyfleet_operator.kube.resources import JsonObject
from steadyfleet_operator.resource import Purpose

NO_NUMBER = -1
"""Slot or attempt of a Job whose labels somebody broke: it matches no slot's attempt, so it is never trusted."""

ROUTINE_WAITING = frozenset({"", "PodInitializing", "ContainerCreating"})
"""A container waits for these in every start; they say nothing."""


def parse_job(item: JsonObject) -> Job:
    metadata = item["metadata"]
    labels, notes = fields.labels_of(item), fields.annotations_of(item)
    end, ended = _end(item)
    return Job(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        check_uid=labels.get(names.LABEL_CHECK_UID, ""),
        slot=_number(labels.get(names.LABEL_SLOT)),
        attempt=_number(notes.get(names.ANNOTATION_ATTEMPT)),
        node=notes.get(names.ANNOTATION_NODE, ""),
        node_uid=notes.get(names.ANNOTATION_NODE_UID, ""),
        version=notes.get(names.ANNOTATION_VERSION, ""),
        epoch=notes.get(names.ANNOTATION_EPOCH, ""),
        purpose=_purpose(notes.get(names.ANNOTATION_PURPOSE)),
        gpu=notes.get(names.ANNOTATION_GPU, ""),
        created=fields.created(item),
        deleting=fields.is_deleting(item),
        end=end,
        end_reason=fields.text(ended, "reason"),
        end_message=fields.text(ended, "message"),
        ended_at=fields.moment(ended, "lastTransitionTime"),
    )


def parse_pod(item: JsonObject) -> Pod:
    metadata, spec, status = item["metadata"], fields.child(item, "spec"), fields.child(item, "status")
    labels, notes = fields.labels_of(item), fields.annotations_of(item)
    scheduled = fields.condition(item, "PodScheduled") or {}
    disruption = fields.condition(item, "DisruptionTarget") or {}
    disrupted = disruption.get("status") == "True"
    engine = _container(status, "containerStatuses", names.ENGINE_CONTAINER)
    terminated = _terminated(status)
    return Pod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        job=labels.get("batch.kubernetes.io/job-name", ""),
        job_uid=fields.owner_uid(item, "Job"),
        check_uid=labels.get(names.LABEL_CHECK_UID, ""),
        slot=_number(labels.get(names.LABEL_SLOT)),
        attempt=_number(notes.get(names.ANNOTATION_ATTEMPT)),
        phase=_phase(fields.text(status, "phase")),
        created=fields.created(item),
        node=fields.text(spec, "nodeName"),
        running_at=_running_at(engine),
        deleting=fields.is_deleting(item),
        waiting=_waiting(item, scheduled),
        terminated=terminated,
        termination=_termination(terminated),
        disrupted=fields.text(disruption, "reason") if disrupted else "",
        disrupted_message=fields.text(disruption, "message") if disrupted else "",
        failed_reason=fields.text(status, "reason"),
        failed_message=fields.text(status, "message"),
        image=engine_image(spec),
        image_id=fields.text(engine, "imageID"),
    )


def engine_image(pod_spec: JsonObject) -> str:
    for container in fields.children(pod_spec, "containers"):
        if container.get("name") == names.ENGINE_CONTAINER:
            return fields.text(container, "image")
    return ""


def _end(job: JsonObject) -> tuple[JobEnd, JsonObject]:
    """FailureTarget and SuccessCriteriaMet come earlier, while pods still end: they don't count."""
    for kind, end in (("Failed", JobEnd.FAILED), ("Complete", JobEnd.COMPLETE)):
        found = fields.condition(job, kind)
        if found is not None and found.get("status") == "True":
            return end, found
    return JobEnd.NONE, {}


def _number(written: str | None) -> int:
    return int(written) if written is not None and written.isascii() and written.isdigit() else NO_NUMBER


def _purpose(written: str | None) -> Purpose:
    return Purpose(written) if written in {purpose.value for purpose in Purpose} else Purpose.SWEEP


def _phase(written: str) -> PodPhase:
    return PodPhase(written) if written in {phase.value for phase in PodPhase} else PodPhase.UNKNOWN


def _container(status: JsonObject, part: str, name: str) -> JsonObject:
    for container in fields.children(status, part):
        if container.get("name") == name:
            return container
    return {}


def _running_at(engine: JsonObject) -> datetime | None:
    state = fields.child(engine, "state")
    started = fields.moment(fields.child(state, "running") or fields.child(state, "terminated"), "startedAt")
    # The kubelet writes 1970 for a container that could not be started at all.
    return started if started and started.year > 1970 else None


def _waiting(item: JsonObject, scheduled: JsonObject) -> Waiting | None:
    status = fields.child(item, "status")
    if fields.text(status, "phase") not in ("Pending", ""):
        return None
    if scheduled.get("status") == "False":
        return Waiting(reason=fields.text(scheduled, "reason"), message=fields.text(scheduled, "message"))
    for part in ("initContainerStatuses", "containerStatuses"):
        for container in fields.children(status, part):
            waiting = fields.child(fields.child(container, "state"), "waiting")
            if fields.text(waiting, "reason") not in ROUTINE_WAITING:
                name = fields.text(container, "name")
                return Waiting(
                    reason=fields.text(waiting, "reason"), message=f"{name}: {fields.text(waiting, 'message')}"
                )
    return _pulling(item)


def _pulling(item: JsonObject) -> Waiting | None:
    """Once the init containers are done, only the engine's image can keep its container from being made. The kubelet
    says so in an Event alone, and goes back to this state between two attempts that fail."""
    status = fields.child(item, "status")
    started = fields.children(status, "initContainerStatuses")
    done = [fields.child(fields.child(container, "state"), "terminated").get("exitCode") == 0 for container in started]
    engine = _container(status, "containerStatuses", names.ENGINE_CONTAINER)
    if not done or not all(done) or not fields.child(fields.child(engine, "state"), "waiting"):
        return None
    image = engine_image(fields.child(item, "spec"))
    return Waiting(reason="Pulling", message=f"{names.ENGINE_CONTAINER}: image {image} is still being pulled")


def _terminated(status: JsonObject) -> Terminated | None:
    """The engine's end, else that of an init container that failed."""
    engine = _container(status, "containerStatuses", names.ENGINE_CONTAINER)
    candidates = [engine, *fields.children(status, "initContainerStatuses")]
    for container in candidates:
        ended = fields.child(fields.child(container, "state"), "terminated")
        if not ended or (container is not engine and ended.get("exitCode") == 0):
            continue
        return Terminated(
            container=fields.text(container, "name"),
            exit_code=int(ended.get("exitCode", 0)),
            reason=fields.text(ended, "reason"),
            message=fields.text(ended, "message"),
        )
    return None


def _termination(terminated: Terminated | None) -> TerminationMessage | None:
    """None for what is not the probe's: the container runtime writes there too when it cannot start a container."""
    if terminated is None or terminated.container != names.ENGINE_CONTAINER or not terminated.message:
        return None
    try:
        return TerminationMessage.model_validate_json(terminated.message)
    except ValidationError:
        return None
