"""From a visit to its Job: pure, no API. The pod is the user's own serving image as its author runs it, plus one init
container that puts the probe beside it, and it gets a GPU only if nobody else wants one.

    containers   init `steadyfleet-probe-copy` (probe image; its entrypoint copies to the folder given as argument)
                 main `engine` (the user's image; `/bin/sh /steadyfleet/run`)
    deadlines    Pending is the operator's own matter (a Job's activeDeadlineSeconds would count it). The kubelet ends
                 the pod when its run, the image pull included, takes longer than all launches may
    yielding     lowest PriorityClass, short grace period, FailJob on DisruptionTarget: tells preemption from failure
"""

from __future__ import annotations

from dataclasses import dataclass

from steadyfleet_contract import wire
from steadyfleet_contract.spec import ProbeSpec
from steadyfleet_operator.decide.observation import Check
from steadyfleet_operator.decide.thresholds import DEADLINE_MARGIN_SECONDS
from steadyfleet_operator.errors import SpecInvalid
from steadyfleet_operator.kube import names
from steadyfleet_operator.kube.checks import owner_reference
from steadyfleet_operator.kube.resources import JOBS, JsonObject
from steadyfleet_operator.resource import PodTemplate, Slot
from steadyfleet_operator.settings import Settings

GRACE_SECONDS = 5
"""A preempting pod waits for this long at most; an engine on SIGTERM ends within one second."""

TOKEN_SECONDS = 3600
"""The kubelet renews the file at 80 % of it; the API server takes nothing below 600."""

MAX_ENVIRONMENT_BYTES = 120_000
"""One environment string may have 128 KiB (MAX_ARG_STRLEN of Linux), its name included."""

VOLUME_PROBE = "steadyfleet-probe"
VOLUME_WORK = "steadyfleet-work"
VOLUME_SHM = "steadyfleet-shm"
VOLUME_TOKEN = "steadyfleet-token"  # noqa: S105  a name, not a secret

SHM_DIR = "/dev/shm"  # noqa: S108  where engines expect it

CONTAINER_SECURITY: JsonObject = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""Of the engine, unless the user says otherwise. No UID is forced: images of the field run as root or as 2000."""

POD_SECURITY: JsonObject = {"seccompProfile": {"type": "RuntimeDefault"}}

COPY_SECURITY: JsonObject = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}

COPY_RESOURCES: JsonObject = {
    "requests": {"cpu": "10m", "memory": "32Mi"},
    "limits": {"memory": "128Mi"},
}

NO_SIDECARS_LABELS = {"sidecar.istio.io/inject": "false"}
POD_ANNOTATIONS = {
    "sidecar.istio.io/inject": "false",
    "linkerd.io/inject": "disabled",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
}


@dataclass(frozen=True, slots=True)
class Visit:
    """All that one Job is made from. `slot` carries the raised attempt, the node, the version and the purpose."""

    check: Check
    slot: Slot
    image: str
    probe: ProbeSpec
    gpus: int
    """How many units of the check's resource the pod asks for; 0 for none."""


def build_job(visit: Visit, *, settings: Settings, report_ca: str) -> JsonObject:
    """`report_ca`: PEM bundle of the authorities that the probe shall trust.

    Raises SpecInvalid if the probe's order does not fit into an environment variable.
    """
    labels, annotations = _labels(visit), _annotations(visit)
    pod = visit.check.spec.engine.pod
    return {
        "apiVersion": JOBS.api_version,
        "kind": "Job",
        "metadata": {
            "name": names.job_name(visit.check.name, visit.slot.slot),
            "namespace": visit.check.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner_reference(visit.check)],
        },
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "podFailurePolicy": {
                "rules": [
                    {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
                ]
            },
            "template": {
                "metadata": {
                    "labels": {**pod.labels, **NO_SIDECARS_LABELS, **labels},
                    "annotations": {**pod.annotations, **POD_ANNOTATIONS, **annotations},
                },
                "spec": _pod_spec(visit, settings=settings, report_ca=report_ca),
            },
        },
    }


def pod_of(job: JsonObject) -> JsonObject:
    """The pod that the Job would make, for a trial that creates nothing."""
    template = job["spec"]["template"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": template["metadata"]
        | {"namespace": job["metadata"]["namespace"], "generateName": f"{job['metadata']['name']}-"},
        "spec": template["spec"],
    }


def run_seconds(visit: Visit) -> int:
    """From the moment that the kubelet takes the pod over: the image pull, the launches, and what is around them."""
    schedule = visit.check.spec.schedule
    launches = len(visit.probe.launches) * visit.probe.launch_deadline_seconds
    return schedule.pending_deadline_seconds + launches + DEADLINE_MARGIN_SECONDS


def _labels(visit: Visit) -> dict[str, str]:
    return {
        names.MANAGED_BY: names.MANAGER,
        names.LABEL_CHECK: visit.check.name,
        names.LABEL_CHECK_UID: visit.check.uid,
        names.LABEL_SLOT: str(visit.slot.slot),
    }


def _annotations(visit: Visit) -> dict[str, str]:
    slot = visit.slot
    return {
        names.ANNOTATION_ATTEMPT: str(slot.attempt),
        names.ANNOTATION_NODE: slot.node,
        names.ANNOTATION_NODE_UID: slot.node_uid,
        names.ANNOTATION_VERSION: slot.version,
        names.ANNOTATION_EPOCH: slot.epoch,
        names.ANNOTATION_PURPOSE: slot.purpose.value,
        names.ANNOTATION_GPU: slot.gpu,
    }


def _pod_spec(visit: Visit, *, settings: Settings, report_ca: str) -> JsonObject:
    pod = visit.check.spec.engine.pod
    spec: JsonObject = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": run_seconds(visit),
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        # A Service named `vllm` would set VLLM_PORT to a URL, which vLLM refuses.
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "affinity": _only_on(visit.slot.node),
        "tolerations": [*_tolerations(visit.check.spec.nodes.resource_name), *map(dict, pod.tolerations)],
        "securityContext": {**POD_SECURITY, **(pod.security_context or {})},
        "volumes": [*_volumes(pod), *map(dict, pod.volumes)],
        "initContainers": [_copy_container(settings)],
        "containers": [_engine_container(visit, settings=settings, report_ca=report_ca)],
    }
    optional: JsonObject = {
        "priorityClassName": settings.priority_class,
        "serviceAccountName": pod.service_account_name,
        "runtimeClassName": pod.runtime_class_name,
        "imagePullSecrets": [dict(secret) for secret in pod.image_pull_secrets],
    }
    return spec | {name: value for name, value in optional.items() if value}


def _only_on(node: str) -> JsonObject:
    """By the name field, which no label can forge and for which no autoscaler starts a node."""
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _tolerations(resource_name: str) -> list[JsonObject]:
    keys = dict.fromkeys(("nvidia.com/gpu", resource_name, names.TAINT_KEY))
    return [{"key": key, "operator": "Exists"} for key in keys]


def _volumes(pod: PodTemplate) -> list[JsonObject]:
    token = {"audience": wire.AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": _TOKEN_FILE}
    volumes: list[JsonObject] = [
        {"name": VOLUME_PROBE, "emptyDir": {}},
        {"name": VOLUME_WORK, "emptyDir": {}},
        {"name": VOLUME_TOKEN, "projected": {"sources": [{"serviceAccountToken": token}]}},
    ]
    if not _has_own_shm(pod):
        volumes.append({"name": VOLUME_SHM, "emptyDir": {"medium": "Memory"}})
    return volumes


def _has_own_shm(pod: PodTemplate) -> bool:
    return any(mount.get("mountPath") == SHM_DIR for mount in pod.volume_mounts)


def _copy_container(settings: Settings) -> JsonObject:
    return {
        "name": names.COPY_CONTAINER,
        "image": settings.probe_image,
        "imagePullPolicy": settings.probe_image_pull_policy,
        "args": [wire.PROBE_DIR],
        "securityContext": COPY_SECURITY,
        "resources": COPY_RESOURCES,
        "volumeMounts": [{"name": VOLUME_PROBE, "mountPath": wire.PROBE_DIR}],
    }


def _engine_container(visit: Visit, *, settings: Settings, report_ca: str) -> JsonObject:
    pod = visit.check.spec.engine.pod
    mounts: list[JsonObject] = [
        {"name": VOLUME_PROBE, "mountPath": wire.PROBE_DIR, "readOnly": True},
        {"name": VOLUME_WORK, "mountPath": wire.WORK_DIR},
        {"name": VOLUME_TOKEN, "mountPath": _TOKEN_DIR, "readOnly": True},
    ]
    if not _has_own_shm(pod):
        mounts.append({"name": VOLUME_SHM, "mountPath": SHM_DIR})
    container: JsonObject = {
        "name": names.ENGINE_CONTAINER,
        "image": visit.image,
        "command": ["/bin/sh", f"{wire.PROBE_DIR}/run"],
        # The user's environment goes into the probe's order alone: it is for the engine's process, not for the probe.
        "env": _environment(visit, settings=settings, report_ca=report_ca),
        "resources": _resources(visit),
        "securityContext": {**CONTAINER_SECURITY, **(pod.container_security_context or {})},
        "volumeMounts": [*mounts, *map(dict, pod.volume_mounts)],
    }
    if pod.image_pull_policy:
        container["imagePullPolicy"] = pod.image_pull_policy
    return container


def _environment(visit: Visit, *, settings: Settings, report_ca: str) -> list[JsonObject]:
    # Kubernetes expands $(NAME) and $$ in values; within JSON the sign can be written so that neither is there.
    order = visit.probe.model_dump_json(by_alias=True).replace("$", "\\u0024")
    if len(order.encode()) > MAX_ENVIRONMENT_BYTES:
        raise SpecInvalid(
            f"spec.engine: arguments and environment come to {len(order.encode())} bytes, {MAX_ENVIRONMENT_BYTES} fit;"
            " move long values into a file on a volume"
        )
    python = visit.check.spec.engine.python.replace("$", "$$")
    return [
        {"name": wire.ENV_SPEC, "value": order},
        *([{"name": wire.ENV_PYTHON, "value": python}] if python else []),
        {"name": wire.ENV_REPORT_URL, "value": settings.report_url},
        {"name": wire.ENV_REPORT_CA, "value": report_ca},
        {"name": wire.ENV_NODE_NAME, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": wire.ENV_POD_UID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
    ]


def _resources(visit: Visit) -> JsonObject:
    """The user's, with the GPUs set by us: an extended resource has its request equal to its limit."""
    given = visit.check.spec.engine.pod.resources or {}
    resource = visit.check.spec.nodes.resource_name
    requests, limits = dict(_amounts(given, "requests")), dict(_amounts(given, "limits"))
    requests.pop(resource, None)
    limits.pop(resource, None)
    if visit.gpus:
        limits[resource] = str(visit.gpus)
    return {**given, "requests": requests, "limits": limits}


def _amounts(resources: dict[str, object], part: str) -> dict[str, object]:
    amounts = resources.get(part)
    if amounts is not None and not isinstance(amounts, dict):
        raise SpecInvalid(f"spec.engine.pod.resources.{part}: must be an object of resource names and amounts")
    return amounts or {}


_TOKEN_DIR, _, _TOKEN_FILE = wire.TOKEN_FILE.rpartition("/")
