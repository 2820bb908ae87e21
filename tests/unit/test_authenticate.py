"""Who a report is from, against a scripted API server: forgeries that a real one would clear away in the meantime, and
how often it is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web

from steadyfleet_operator.errors import ReportRefused
from steadyfleet_operator.intake.authenticate import MAX_TOKEN_CHARACTERS, REVIEWS_AT_ONCE, Authenticator
from steadyfleet_operator.kube.podspec import build_job
from steadyfleet_operator.kube.probes import Probes
from tests.operator.builders import a_check, a_visit, check_manifest, settings
from tests.operator.faulty_server import Answer, faulty_server

CHECK = a_check()
OTHER = a_check(namespace="playground", uid="22222222-2222-2222-2222-222222222222")
JOB_UID = "j-uid"


def job_of(namespace: str, *, owner: str, label: str) -> dict[str, Any]:
    job = build_job(a_visit(a_check(namespace=namespace), "gpu-1", "n-uid"), settings=settings(), report_ca="PEM")
    job["metadata"] |= {"uid": JOB_UID, "creationTimestamp": "2026-03-01T12:00:00Z"}
    job["metadata"]["labels"]["steadyfleet.dev/check-uid"] = label
    job["metadata"]["ownerReferences"][0]["uid"] = owner
    return job


def pod_of(job: Mapping[str, Any]) -> dict[str, Any]:
    template = job["spec"]["template"]
    return {
        "metadata": {
            "name": "p",
            "namespace": job["metadata"]["namespace"],
            "uid": "p-uid",
            "creationTimestamp": "2026-03-01T12:00:01Z",
            "labels": {**job["metadata"]["labels"], "batch.kubernetes.io/job-name": job["metadata"]["name"]},
            "ownerReferences": [{"kind": "Job", "uid": JOB_UID}],
        },
        "spec": {**template["spec"], "nodeName": "gpu-1"},
        "status": {"phase": "Running"},
    }


def reviewed(namespace: str) -> dict[str, Any]:
    claims = {"pod-name": "p", "pod-uid": "p-uid", "node-name": "gpu-1", "node-uid": "n-uid"}
    user = {
        "username": f"system:serviceaccount:{namespace}:default",
        "extra": {f"authentication.kubernetes.io/{name}": [value] for name, value in claims.items()},
    }
    return {"status": {"authenticated": True, "audiences": ["steadyfleet-report"], "user": user}}


def cluster(job: dict[str, Any], *, checks: bool = True) -> Answer:
    """Knows the two checks (or none), one Job and its pod."""
    namespace = job["metadata"]["namespace"]
    found = {
        f"/api/v1/namespaces/{namespace}/pods/p": pod_of(job),
        f"/apis/batch/v1/namespaces/{namespace}/jobs/{job['metadata']['name']}": job,
    }
    for check in (CHECK, OTHER) if checks else ():
        manifest = check_manifest(check.name, check.namespace)
        manifest["metadata"] |= {"uid": check.uid}
        path = f"/apis/steadyfleet.dev/v1alpha1/namespaces/{check.namespace}/consistencychecks/{check.name}"
        found[path] = manifest

    async def answer(request: web.Request) -> web.Response:
        if request.method == "POST":
            return web.json_response(reviewed(namespace))
        if (item := found.get(request.path)) is not None:
            return web.json_response(item)
        return web.json_response({"kind": "Status", "status": "Failure", "code": 404}, status=404)

    return answer


def authenticator(probes: Probes) -> Authenticator:
    return Authenticator(probes, namespaces=("serving", "playground"))


async def test_a_probe_of_ours_is_known() -> None:
    job = job_of("serving", owner=CHECK.uid, label=CHECK.uid)
    async with faulty_server(cluster(job)) as (server, client):
        asking = authenticator(Probes(client))
        sender = await asking.sender("Bearer x")
        first = len(server.requests)
        await asking.sender("Bearer x")

    assert (sender.namespace, sender.check, sender.check_uid, sender.node) == ("serving", "qwen", CHECK.uid, "gpu-1")
    assert len(server.requests) - first == 2, "pod and Job; review and check are remembered for a moment"


@pytest.mark.parametrize("owner", [CHECK.uid, OTHER.uid], ids=["owner copied", "owner of its own"])
async def test_a_job_in_another_namespace_cannot_speak_for_a_check(owner: str) -> None:
    job = job_of("playground", owner=owner, label=CHECK.uid)
    async with faulty_server(cluster(job)) as (_, client):
        with pytest.raises(ReportRefused) as caught:
            await authenticator(Probes(client)).sender("Bearer x")

    assert caught.value.status in (403, 410)


async def test_a_job_whose_check_is_gone_has_nobody_to_speak_for() -> None:
    job = job_of("serving", owner=CHECK.uid, label=CHECK.uid)
    async with faulty_server(cluster(job, checks=False)) as (_, client):
        with pytest.raises(ReportRefused, match="not the one that the Job names"):
            await authenticator(Probes(client)).sender("Bearer x")


async def test_a_pod_of_a_namespace_that_is_not_ours_is_told_so_without_looking() -> None:
    job = job_of("serving", owner=CHECK.uid, label=CHECK.uid)
    async with faulty_server(cluster(job)) as (server, client):
        with pytest.raises(ReportRefused) as caught:
            await Authenticator(Probes(client), namespaces=("other",)).sender("Bearer x")

    assert (caught.value.status, caught.value.reason) == (403, "NotAProbe")
    assert [request.split()[0] for request in server.requests] == ["POST"]


async def test_a_token_that_is_too_long_is_not_even_asked_about() -> None:
    async with faulty_server(cluster(job_of("serving", owner=CHECK.uid, label=CHECK.uid))) as (server, client):
        with pytest.raises(ReportRefused) as caught:
            await authenticator(Probes(client)).sender("Bearer " + "x" * (MAX_TOKEN_CHARACTERS + 1))

    assert caught.value.status == 401
    assert server.requests == []


async def test_strangers_cannot_make_the_operator_flood_the_api_server() -> None:
    under_way: set[int] = set()
    most: list[int] = []

    async def answer(request: web.Request) -> web.Response:
        under_way.add(id(request))
        most.append(len(under_way))
        await asyncio.sleep(0.02)
        under_way.remove(id(request))
        return web.Response(body=json.dumps({"status": {"authenticated": False}}))

    async with faulty_server(answer) as (_, client):
        asking = authenticator(Probes(client))
        refused = await asyncio.gather(
            *(asking.sender(f"Bearer {number}") for number in range(5 * REVIEWS_AT_ONCE)), return_exceptions=True
        )

    assert {type(error) for error in refused} == {ReportRefused}
    assert max(most) == REVIEWS_AT_ONCE
