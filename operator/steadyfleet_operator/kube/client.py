"""One thin adapter over the official async client: raw JSON in and out, a time-out on every request, and foreign
errors turned into those of `errors.py` once, here.

Only idempotent reads are retried. A write is made once: whoever asked for it reads again and decides again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

import aiohttp
from kubernetes.aio import client as official
from kubernetes.aio import config as official_config
from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_random_exponential,
)

from steadyfleet_operator.errors import Conflict, KubernetesError, SettingsInvalid, Unavailable
from steadyfleet_operator.kube.answers import error_of, foreign_errors, is_status
from steadyfleet_operator.kube.resources import JsonObject, Resource

T = TypeVar("T")

REQUEST_SECONDS = 10.0
"""A healthy API server answers in milliseconds; this leaves room for one under load and for a page of 500 nodes."""

PAGE_LIMIT = 500
"""Objects a page: 500 nodes are about 8 MB of JSON, 60 ms of parsing during which the loop stands still."""

READ_ATTEMPTS = 4
READ_SECONDS = 15.0
"""No read is tried again after this long: callers have their own rhythm."""


class PatchType(str, Enum):
    """Server-side apply is left out on purpose: clearing by it wipes what others own on a Node."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


class Propagation(str, Enum):
    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    """The object keeps its name until all that it owns is gone."""


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    items: tuple[T, ...]
    resource_version: str
    """Where a watch that shall miss nothing starts."""


class KubeClient:
    """`fence` is called before each write and may raise: the Lease's check, so that nothing is written without it."""

    def __init__(self, api: official.ApiClient, *, fence: Callable[[], None] | None = None) -> None:
        self._api = api
        self._fence = fence
        self._renewal: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls, *, kubeconfig: str = "", in_cluster: bool = False, fence: Callable[[], None] | None = None
    ) -> KubeClient:
        """In the cluster the service account's token is read anew every minute. `kubeconfig` empty: the usual place.

        Raises SettingsInvalid if there is nothing to connect with.
        """
        configuration = official.Configuration()
        renewal: asyncio.Task[None] | None = None
        try:
            if in_cluster:
                official_config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                loader = await official_config.load_kube_config(  # type: ignore[no-untyped-call]
                    config_file=kubeconfig or None, client_configuration=configuration, persist_config=False
                )
                # Ends at once unless the kubeconfig's user has a credential plugin.
                renew = official_config.refresh_token(loader, configuration)  # type: ignore[no-untyped-call]
                renewal = asyncio.create_task(renew)
        except (official_config.ConfigException, OSError) as error:
            where = "the pod's service account" if in_cluster else kubeconfig or "the default kubeconfig"
            raise SettingsInvalid(f"cannot connect to Kubernetes by {where}: {error}") from error
        client = cls(official.ApiClient(configuration), fence=fence)
        client._renewal = renewal
        return client

    async def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewal
        await self._api.close()  # type: ignore[no-untyped-call]

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> JsonObject | None:
        """None if there is no such object."""
        return await self._read(resource.path(name=name, namespace=namespace))

    async def list_all(
        self,
        resource: Resource,
        parse: Callable[[JsonObject], T],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
    ) -> Listing[T]:
        """All objects, in pages; each is parsed while its page is at hand: the raw list never lies in memory."""
        path = resource.path(namespace=namespace)
        found: list[T] = []
        token = ""
        while True:
            query = {"limit": str(PAGE_LIMIT), "labelSelector": labels, "fieldSelector": fields, "continue": token}
            try:
                body = await self._read(path, query)
            except KubernetesError as error:
                if error.status != 410 or not token:
                    raise
                # The continue token has expired: what was read so far belongs to a state that is no more.
                found, token = [], ""
                continue
            if body is None:
                raise KubernetesError(f"{path}: the API server does not know this resource", status=404)
            found.extend(parse(item) for item in body.get("items") or ())
            metadata = body.get("metadata", {})
            token = metadata.get("continue") or ""
            if not token:
                return Listing(tuple(found), str(metadata.get("resourceVersion", "")))

    async def create(
        self, resource: Resource, body: JsonObject, *, namespace: str = "", dry_run: bool = False
    ) -> JsonObject:
        """Raises Conflict if the name is taken, also by an object that is still being deleted; Refused; Unavailable."""
        if not dry_run:
            self._check_fence()
        path = resource.path(namespace=namespace)
        answer = await self._request("POST", path, body=body, query={"dryRun": "All" if dry_run else ""})
        if answer is None:
            raise KubernetesError(f"{path}: the namespace or the resource does not exist", status=404)
        return answer

    async def replace(
        self, resource: Resource, name: str, body: JsonObject, *, namespace: str = "", subresource: str = ""
    ) -> JsonObject | None:
        """PUT; guarded if the body carries `metadata.resourceVersion`. None if the object is gone."""
        self._check_fence()
        return await self._request(
            "PUT", resource.path(name=name, namespace=namespace, subresource=subresource), body=body
        )

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: JsonObject,
        *,
        kind: PatchType,
        namespace: str = "",
        subresource: str = "",
    ) -> JsonObject | None:
        """None if the object is gone. A `metadata.uid` in the body that is not the object's: Conflict or Refused."""
        self._check_fence()
        path = resource.path(name=name, namespace=namespace, subresource=subresource)
        return await self._request("PATCH", path, body=body, content_type=kind.value)

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        uid: str,
        namespace: str = "",
        propagation: Propagation = Propagation.BACKGROUND,
    ) -> bool:
        """True if it was there with this uid; False if it is gone or another object has its name by now."""
        self._check_fence()
        options = {"preconditions": {"uid": uid}, "propagationPolicy": propagation.value}
        path = resource.path(name=name, namespace=namespace)
        try:
            return await self._request("DELETE", path, body=options) is not None
        except Conflict:
            return False

    async def stream(
        self, path: str, query: Mapping[str, str], *, total_seconds: float, silence_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """The raw body of a long answer, piece by piece. Errors are those of the other methods; none is retried."""
        limits = aiohttp.ClientTimeout(
            total=total_seconds, sock_connect=REQUEST_SECONDS, sock_read=silence_seconds
        )
        with foreign_errors(path):
            response = await self._send("GET", path, query=query, limits=limits)
            try:
                if response.status != 200:
                    raise error_of(response.status, await response.read(), path)
                async for piece in response.content.iter_any():
                    yield piece
            finally:
                # Not release(): that would read the rest of a stream that has no end.
                response.close()

    def _check_fence(self) -> None:
        if self._fence is not None:
            self._fence()

    async def _read(self, path: str, query: Mapping[str, str] | None = None) -> JsonObject | None:
        """GET with retries; None for 404."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(Unavailable),
            stop=stop_after_attempt(READ_ATTEMPTS) | stop_after_delay(READ_SECONDS),
            wait=wait_random_exponential(multiplier=0.5, max=5),
            reraise=True,
        )
        return await retrying(self._request, "GET", path, query=query)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: JsonObject | None = None,
        content_type: str = "application/json",
    ) -> JsonObject | None:
        """None for the API server's own 404."""
        limits = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        with foreign_errors(path):
            response = await self._send(
                method, path, query=query, body=body, content_type=content_type, limits=limits
            )
            data = await response.read()
            if response.status == 404 and is_status(data):
                return None
            if not 200 <= response.status < 300:
                raise error_of(response.status, data, path)
            answer = json.loads(data)
        if not isinstance(answer, dict):
            raise Unavailable(f"{path}: the API server answered with {type(answer).__name__}, not with an object")
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        *,
        limits: aiohttp.ClientTimeout,
        query: Mapping[str, str] | None = None,
        body: JsonObject | None = None,
        content_type: str = "application/json",
    ) -> aiohttp.ClientResponse:
        method, url, headers, sent, _ = await self._api.param_serialize(
            method,
            path,
            query_params=[(name, value) for name, value in (query or {}).items() if value],
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        answer = await self._api.call_api(
            method, url, header_params=headers, body=sent, _request_timeout=limits, _preload_content=False
        )
        response: aiohttp.ClientResponse = answer.response
        return response
