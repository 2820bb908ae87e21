"""The Secret that keeps the report server's authority and certificate over restarts of the operator."""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import urlsplit

from steadyfleet_operator.errors import Conflict, KubernetesError, SettingsInvalid
from steadyfleet_operator.intake.certificates import KeyPair, Lifetimes, Pki, advance, load_into, server_context
from steadyfleet_operator.kube import fields, names
from steadyfleet_operator.kube.client import KubeClient
from steadyfleet_operator.kube.resources import SECRETS, JsonObject
from steadyfleet_operator.settings import Settings

log = logging.getLogger(__name__)

GUARDED_TRIES = 5

LONGEST_WAIT_SECONDS = 3600.0
SHORTEST_WAIT_SECONDS = 1.0


class Authority:
    """`load` once before anything is served; `keep_fresh` renews in time, without a restart of the server."""

    def __init__(
        self,
        client: KubeClient,
        settings: Settings,
        *,
        lifetimes: Lifetimes = Lifetimes(),  # noqa: B008  frozen
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._namespace = settings.namespace
        self._secret = settings.tls_secret_name
        self._hosts = (_host(settings.report_url),)
        self._lifetimes = lifetimes
        self._now = now
        self._current: Pki | None = None
        self._context: ssl.SSLContext | None = None

    def bundle(self) -> str:
        """PEM of the authorities that a new Job shall trust."""
        if self._current is None:
            raise RuntimeError("the report authority is used before it was loaded")
        return self._current.bundle

    def server_context(self) -> ssl.SSLContext:
        """Always the same one; a renewal reaches it as well."""
        if self._context is None:
            raise RuntimeError("the report authority is used before it was loaded")
        return self._context

    async def load(self) -> None:
        """Reads the Secret, advances it if something is due, and stores that before it is used.

        Raises KubernetesError.
        """
        for attempt in range(1, GUARDED_TRIES + 1):
            try:
                self._use(await self._advance_stored())
                return
            except Conflict:
                if attempt == GUARDED_TRIES:
                    raise

    async def keep_fresh(self) -> None:
        """Until cancelled. An API server that is away delays a renewal; there are weeks of time for it."""
        shortest = min(self._lifetimes.announce, self._lifetimes.serving).total_seconds() / 20
        wait = max(SHORTEST_WAIT_SECONDS, min(LONGEST_WAIT_SECONDS, shortest))
        while True:
            await asyncio.sleep(wait)
            try:
                await self.load()
            except KubernetesError as error:
                log.warning("secret %s not renewed: %s", self._secret, error)

    def _use(self, pki: Pki) -> None:
        if self._context is None:
            self._context = server_context(pki.serving)
        elif self._current is None or pki.serving != self._current.serving:
            load_into(self._context, pki.serving)
        self._current = pki

    async def _advance_stored(self) -> Pki:
        item = await self._client.get(SECRETS, self._secret, namespace=self._namespace)
        stored = _parse(item) if item is not None else None
        pki = advance(stored, hosts=self._hosts, now=self._now(), lifetimes=self._lifetimes)
        if pki == stored:
            return pki
        body = self._body(pki)
        if item is None:
            await self._client.create(SECRETS, body, namespace=self._namespace)
        else:
            body["metadata"]["resourceVersion"] = item["metadata"]["resourceVersion"]
            if await self._client.replace(SECRETS, self._secret, body, namespace=self._namespace) is None:
                raise Conflict(f"secret {self._namespace}/{self._secret} was deleted while it was renewed", status=409)
        log.info("secret %s: report certificate valid until %s", self._secret, pki.serving.not_after)
        return pki

    def _body(self, pki: Pki) -> JsonObject:
        announced = pki.next_authority
        parts = {
            "ca.crt": pki.authority.certificate,
            "ca.key": pki.authority.key,
            "tls.crt": pki.serving.certificate,
            "tls.key": pki.serving.key,
            "next-ca.crt": announced.certificate if announced else b"",
            "next-ca.key": announced.key if announced else b"",
            "announced-at": pki.announced_at.isoformat().encode() if pki.announced_at else b"",
            "previous-ca.crt": pki.previous,
        }
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": {
                "name": self._secret,
                "namespace": self._namespace,
                "labels": {names.MANAGED_BY: names.MANAGER},
            },
            "data": {name: base64.b64encode(part).decode() for name, part in parts.items() if part},
        }


def _host(report_url: str) -> str:
    host = urlsplit(report_url).hostname
    if not host:
        raise SettingsInvalid(f"report_url {report_url}: names no host, e.g. https://steadyfleet-report.steadyfleet.svc")
    return host


def _parse(secret: JsonObject) -> Pki | None:
    """None if it is not what was written: then a new authority is made, and visits under way lose their report."""
    data = fields.child(secret, "data")
    try:
        parts = {name: base64.b64decode(value, validate=True) for name, value in data.items()}
        authority = KeyPair(parts["ca.crt"], parts["ca.key"])
        serving = KeyPair(parts["tls.crt"], parts["tls.key"])
        announced = KeyPair(parts["next-ca.crt"], parts["next-ca.key"]) if "next-ca.crt" in parts else None
        for pair in (authority, serving, *([announced] if announced else [])):
            pair.check()
        return Pki(
            authority=authority,
            serving=serving,
            next_authority=announced,
            announced_at=datetime.fromisoformat(parts["announced-at"].decode()) if announced else None,
            previous=parts.get("previous-ca.crt", b""),
        )
    except (KeyError, ValueError, TypeError) as error:
        log.error("secret %s does not hold the report authority and is written anew: %s", fields.name_of(secret), error)
        return None
