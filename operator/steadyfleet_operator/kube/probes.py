"""Who sent a report: from a bearer token to the pod that it is bound to, and to what that pod was made for.

Nothing of this comes from the report's body. The token says which pod, the pod says which Job, and the Job, whose
template nobody can change, says what was asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from steadyfleet_contract import wire
from steadyfleet_contract.spec import ProbeSpec
from steadyfleet_operator.decide.observation import Job, Pod
from steadyfleet_operator.kube import fields, names
from steadyfleet_operator.kube.checks import KIND as CHECK_KIND
from steadyfleet_operator.kube.client import KubeClient
from steadyfleet_operator.kube.podparse import engine_image, parse_job, parse_pod
from steadyfleet_operator.kube.resources import CHECKS, JOBS, PODS, TOKEN_REVIEWS, JsonObject

_CLAIMS = "authentication.kubernetes.io"
_SERVICE_ACCOUNT = "system:serviceaccount:"

_OUTLIVED = "token has been invalidated"
"""What the API server says of a bound token whose pod is no more (seen on 1.37)."""


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """What the API server says of a token. `pod_uid` is empty for a token that is bound to no pod."""

    namespace: str
    pod_name: str
    pod_uid: str
    node_name: str
    node_uid: str


@dataclass(frozen=True, slots=True)
class TokenRefused:
    """The API server does not take the token; `message` is its own."""

    message: str
    outlived: bool = False
    """The pod (or the service account) that it was made for is gone: it was good once."""


@dataclass(frozen=True, slots=True)
class ProbePod:
    """A pod of ours, with its Job and what the Job asked of it."""

    pod: Pod
    job: Job
    check: str
    """Name of the check, by the Job's label."""
    image_asked: str
    """The engine's image as the Job has it; the pod's own can be edited by others."""
    probe: ProbeSpec


class Probes:
    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def review(self, token: str) -> TokenIdentity | TokenRefused:
        """TokenReview for our audience. Raises KubernetesError."""
        body = {
            "apiVersion": TOKEN_REVIEWS.api_version,
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [wire.AUDIENCE]},
        }
        return _parse_review(await self._client.create(TOKEN_REVIEWS, body))

    async def pod(self, namespace: str, name: str) -> Pod | None:
        item = await self._client.get(PODS, name, namespace=namespace)
        return None if item is None else parse_pod(item)

    async def check_uid(self, namespace: str, name: str) -> str:
        """Empty if there is no such check."""
        item = await self._client.get(CHECKS, name, namespace=namespace)
        return "" if item is None else fields.text(fields.child(item, "metadata"), "uid")

    async def probe_of(self, pod: Pod) -> ProbePod | None:
        """None if its Job is gone, is not the one that made it, or is none of ours."""
        if not pod.job or not pod.job_uid:
            return None
        item = await self._client.get(JOBS, pod.job, namespace=pod.namespace)
        if item is None:
            return None
        job = parse_job(item)
        labels = fields.labels_of(item)
        check = labels.get(names.LABEL_CHECK, "")
        owned = bool(job.check_uid) and fields.owner_uid(item, CHECK_KIND) == job.check_uid
        ours = labels.get(names.MANAGED_BY) == names.MANAGER and check and owned and job.slot >= 0
        asked = _asked(item)
        if not ours or job.uid != pod.job_uid or job.name != names.job_name(check, job.slot) or asked is None:
            return None
        template = fields.child(fields.child(fields.child(item, "spec"), "template"), "spec")
        return ProbePod(pod=pod, job=job, check=check, image_asked=engine_image(template), probe=asked)


def _parse_review(answer: JsonObject) -> TokenIdentity | TokenRefused:
    """An absent `authenticated` means false; the audience must be among those that the server found."""
    status = fields.child(answer, "status")
    user = fields.child(status, "user")
    name = fields.text(user, "username")
    if status.get("authenticated") is not True or wire.AUDIENCE not in (status.get("audiences") or ()):
        error = fields.text(status, "error")
        return TokenRefused(error or "the token is not valid for this audience", outlived=_OUTLIVED in error)
    if not name.startswith(_SERVICE_ACCOUNT):
        return TokenRefused(f"{name} is no service account")
    extra = fields.child(user, "extra")
    return TokenIdentity(
        namespace=name.removeprefix(_SERVICE_ACCOUNT).partition(":")[0],
        pod_name=_claim(extra, "pod-name"),
        pod_uid=_claim(extra, "pod-uid"),
        node_name=_claim(extra, "node-name"),
        node_uid=_claim(extra, "node-uid"),
    )


def _claim(extra: JsonObject, name: str) -> str:
    values = extra.get(f"{_CLAIMS}/{name}")
    return str(values[0]) if isinstance(values, list) and len(values) == 1 else ""


def _asked(job: JsonObject) -> ProbeSpec | None:
    template = fields.child(fields.child(fields.child(job, "spec"), "template"), "spec")
    for container in fields.children(template, "containers"):
        if container.get("name") != names.ENGINE_CONTAINER:
            continue
        for variable in fields.children(container, "env"):
            if variable.get("name") == wire.ENV_SPEC:
                try:
                    return ProbeSpec.model_validate_json(fields.text(variable, "value"))
                except ValidationError:
                    return None
    return None
