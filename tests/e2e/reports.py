"""Reports sent to the operator by hand: over TLS, with tokens as the API server gives them to pods."""

from __future__ import annotations

import base64
import gzip
import ssl
from dataclasses import dataclass
from typing import Any

import httpx

from steadyfleet_contract import wire
from steadyfleet_contract.report import Outcome, Report
from steadyfleet_contract.spec import ProbeSpec
from tests.e2e.lab import Lab
from tests.e2e.platform import NAMESPACE

Json = dict[str, Any]

REPORT_PORT = 8443
SERVER_NAME = f"steadyfleet-report.{NAMESPACE}.svc"


@dataclass(frozen=True)
class Answer:
    status: int
    reason: str
    field: str
    message: str
    duplicate: bool


def post(lab: Lab, body: bytes, *, token: str = "", compressed: bool = False) -> Answer:
    """As a probe does it, but once. An empty token: no Authorization at all."""
    secret = lab.cluster.get("secret", "steadyfleet-report-tls", "-n", NAMESPACE)
    trust = ssl.create_default_context(cadata=base64.b64decode(secret["data"]["ca.crt"]).decode())
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    if compressed:
        headers["Content-Encoding"] = "gzip"
    address = lab.operator.pod()["status"]["podIP"]
    with httpx.Client(verify=trust, trust_env=False, timeout=30) as client:
        answer = client.post(
            f"https://{address}:{REPORT_PORT}{wire.REPORTS_PATH}",
            content=gzip.compress(body) if compressed else body,
            headers=headers,
            extensions={"sni_hostname": SERVER_NAME},
        )
    said = answer.json()
    return Answer(
        status=answer.status_code,
        reason=said.get("reason", ""),
        field=said.get("field", ""),
        message=said.get("message", ""),
        duplicate=said.get("duplicate", False),
    )


def token_of(lab: Lab, pod: Json | None = None, *, account: str = "default", audience: str = wire.AUDIENCE) -> str:
    """A token as the kubelet would project it into the pod; without a pod, one that is bound to none."""
    bound = []
    if pod is not None:
        account = pod["spec"]["serviceAccountName"]
        bound = [
            "--bound-object-kind=Pod", f"--bound-object-name={pod['metadata']['name']}",
            f"--bound-object-uid={pod['metadata']['uid']}",
        ]  # fmt: skip
    audiences = [f"--audience={audience}"] if audience else []
    return lab.cluster.kubectl("create", "token", account, "-n", NAMESPACE, *audiences, *bound).stdout.strip()


def asked_of(pod: Json) -> ProbeSpec:
    """What the operator asked of a probe pod."""
    (engine,) = (container for container in pod["spec"]["containers"] if container["name"] == "engine")
    (order,) = (variable["value"] for variable in engine["env"] if variable["name"] == wire.ENV_SPEC)
    return ProbeSpec.model_validate_json(order)


def failed_report(asked: ProbeSpec, **changes: Any) -> bytes:
    """A report that fits the order: the first launch failed."""
    request = asked.launches[0]
    fields: Json = {
        "recipe": asked.recipe,
        "epoch": asked.epoch,
        "launch": request.index,
        "kind": request.kind,
        "cache": request.cache,
        "outcome": Outcome.ENGINE_ERROR,
        "message": "sent by a test",
        "started_at": "2026-01-01T00:00:00Z",
    }
    return Report(**(fields | changes)).model_dump_json(by_alias=True).encode()
