"""From a request's bearer token to the probe pod that sent it: which check, node and visit, and what was asked of it.

Trust ends where the API server's does: whoever may create tokens, edit pods or create Jobs in a namespace can forge
what comes from it, for the checks of that namespace and no other. That is why marks count from listed namespaces alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime

from steadyfleet_contract.spec import ProbeSpec
from steadyfleet_operator.errors import KubernetesError
from steadyfleet_operator.intake.answers import ReportResult, refused
from steadyfleet_operator.kube.probes import Probes, TokenIdentity, TokenRefused
from steadyfleet_operator.resource import Purpose

CACHE_SECONDS = 5.0
"""A launch sends a query and a report within seconds; a token that was revoked is taken no longer than this."""

CACHE_LIMIT = 4096

REVIEWS_AT_ONCE = 8
"""Strangers can ask as often as they like; the API server is asked by no more than these at a time."""

MAX_TOKEN_CHARACTERS = 8192
"""A bound service account token has about 1500."""


@dataclass(frozen=True, slots=True)
class Sender:
    """All of it is the operator's own knowledge, none of it the probe's word."""

    namespace: str
    check: str
    check_uid: str
    version: str
    purpose: Purpose
    slot: int
    attempt: int
    node: str
    node_uid: str
    pod_uid: str
    image: str
    image_id: str
    asked: ProbeSpec
    visit_started_at: datetime
    """Creation of the Job, by the API server's clock."""


class Authenticator:
    """`namespaces`: those whose checks are run. No probe is anywhere else, nor are there rights to look for one."""

    def __init__(
        self,
        probes: Probes,
        *,
        namespaces: Collection[str],
        cache_seconds: float = CACHE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._probes = probes
        self._namespaces = frozenset(namespaces)
        self._cache_seconds = cache_seconds
        self._clock = clock
        self._reviews: dict[bytes, tuple[float, TokenIdentity | TokenRefused]] = {}
        self._reviewing = asyncio.Semaphore(REVIEWS_AT_ONCE)
        self._checks: dict[tuple[str, str], tuple[float, str]] = {}

    async def sender(self, authorization: str) -> Sender:
        """`authorization` is the header's value. Raises ReportRefused."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise refused(ReportResult.NO_TOKEN, "the request carries no bearer token", field="Authorization")
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise refused(ReportResult.TOKEN_REFUSED, "the token is too long to be one", field="Authorization")
        try:
            identity = await self._review(token)
            if isinstance(identity, TokenRefused):
                if identity.outlived:
                    raise refused(ReportResult.POD_GONE, f"the visit is over, its pod gone: {identity.message}")
                raise refused(ReportResult.TOKEN_REFUSED, identity.message, field="Authorization")
            return await self._find(identity)
        except KubernetesError as error:
            raise refused(
                ReportResult.KUBERNETES_UNAVAILABLE, f"the sender cannot be looked up now: {error}"
            ) from error

    async def _review(self, token: str) -> TokenIdentity | TokenRefused:
        now = self._clock()
        key = hashlib.sha256(token.encode()).digest()
        expires, known = self._reviews.get(key, (0.0, None))
        if known is not None and now < expires:
            return known
        async with self._reviewing:
            found = await self._probes.review(token)
        if len(self._reviews) >= CACHE_LIMIT:
            self._reviews = {key: entry for key, entry in self._reviews.items() if now < entry[0]}
            if len(self._reviews) >= CACHE_LIMIT:
                self._reviews.clear()
        self._reviews[key] = (now + self._cache_seconds, found)
        return found

    async def _check_uid(self, namespace: str, name: str) -> str:
        """Empty if there is no such check."""
        now = self._clock()
        expires, uid = self._checks.get((namespace, name), (0.0, ""))
        if now >= expires:
            uid = await self._probes.check_uid(namespace, name)
            if len(self._checks) >= CACHE_LIMIT:
                self._checks.clear()
            self._checks[namespace, name] = (now + self._cache_seconds, uid)
        return uid

    async def _find(self, identity: TokenIdentity) -> Sender:
        if not identity.pod_uid:
            raise refused(ReportResult.TOKEN_WITHOUT_POD, "the token is bound to no pod", field="Authorization")
        if identity.namespace not in self._namespaces:
            raise refused(ReportResult.NOT_A_PROBE, f"no checks are run in namespace {identity.namespace}")
        pod = await self._probes.pod(identity.namespace, identity.pod_name)
        if pod is None or pod.uid != identity.pod_uid:
            raise refused(ReportResult.POD_GONE, f"pod {identity.namespace}/{identity.pod_name} is gone")
        if not pod.check_uid or not pod.job_uid:
            raise refused(ReportResult.NOT_A_PROBE, f"pod {pod.namespace}/{pod.name} is no probe of this operator")
        probe = await self._probes.probe_of(pod)
        if probe is None or probe.job.deleting:
            # A Job that is being deleted was recorded already, or its attempt is over.
            raise refused(ReportResult.JOB_GONE, f"the visit of pod {pod.namespace}/{pod.name} is over, its Job gone")
        if probe.job.check_uid != pod.check_uid:
            raise refused(ReportResult.NOT_A_PROBE, f"pod {pod.namespace}/{pod.name} and its Job name two checks")
        # By its labels alone a Job could speak for a check of any other namespace.
        if await self._check_uid(pod.namespace, probe.check) != probe.job.check_uid:
            raise refused(
                ReportResult.NOT_A_PROBE, f"check {pod.namespace}/{probe.check} is not the one that the Job names"
            )
        if not pod.image or pod.image != probe.image_asked:
            runs = pod.image or "no engine container"
            raise refused(ReportResult.IMAGE_CHANGED, f"the pod runs {runs}, the Job asked for {probe.image_asked}")
        if pod.node != probe.job.node or (identity.node_name and identity.node_name != pod.node):
            raise refused(
                ReportResult.WRONG_NODE,
                f"the pod is on {pod.node}, its token says {identity.node_name}, the Job asked for {probe.job.node}",
            )
        if identity.node_uid and identity.node_uid != probe.job.node_uid:
            raise refused(ReportResult.WRONG_NODE, f"node {pod.node} was replaced by another one of its name")
        return Sender(
            namespace=pod.namespace,
            check=probe.check,
            check_uid=probe.job.check_uid,
            version=probe.job.version,
            purpose=probe.job.purpose,
            slot=probe.job.slot,
            attempt=probe.job.attempt,
            node=pod.node,
            node_uid=probe.job.node_uid,
            pod_uid=pod.uid,
            image=pod.image,
            image_id=pod.image_id,
            asked=probe.probe,
            visit_started_at=probe.job.created,
        )
