"""The adapter to the API server: each answer becomes the error that the rest of the operator knows, exactly once."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client as official

from steadyfleet_operator.errors import Conflict, KubernetesError, Refused, SettingsInvalid, Unavailable
from steadyfleet_operator.kube import client as client_module
from steadyfleet_operator.kube import fields
from steadyfleet_operator.kube.client import KubeClient, Propagation
from steadyfleet_operator.kube.resources import CHECKS, JOBS, NODES, PODS, Resource
from tests.operator.conftest import MakeNode
from tests.operator.faulty_server import faulty_server, hang, status

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (400, Refused),
        (403, Refused),
        (409, Conflict),
        (422, Refused),
        (429, Unavailable),
        (500, Unavailable),
        (502, Unavailable),
        (503, Unavailable),
        (504, Unavailable),
        (401, KubernetesError),
    ],
)
async def test_a_refusal_carries_the_servers_own_message(code: int, expected: type[KubernetesError]) -> None:
    async with faulty_server(status(code, message="because")) as (_, client):
        with pytest.raises(KubernetesError) as caught:
            await client.create(PODS, POD, namespace="a")

    assert type(caught.value) is expected
    assert (caught.value.message, caught.value.status) == ("because", code)


async def test_the_api_servers_404_is_a_value() -> None:
    async with faulty_server(status(404)) as (_, client):
        assert await client.get(PODS, "p", namespace="a") is None
        assert await client.replace(PODS, "p", POD, namespace="a") is None
        assert await client.delete(PODS, "p", uid="u", namespace="a") is False


async def test_a_proxys_404_is_no_deleted_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "READ_ATTEMPTS", 1)
    async with faulty_server(status(404, body=b"<html>not here</html>")) as (_, client):
        with pytest.raises(Unavailable):
            await client.get(NODES, "n")


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]"], ids=["empty", "html", "list"])
async def test_a_200_that_is_no_object_is_no_answer(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "READ_ATTEMPTS", 1)
    async with faulty_server(status(200, body=body)) as (_, client):
        with pytest.raises(Unavailable):
            await client.get(NODES, "n")


async def test_a_read_is_tried_again_and_a_write_is_not() -> None:
    async with faulty_server(status(503)) as (server, client):
        with pytest.raises(Unavailable):
            await client.get(NODES, "n")
        reads = len(server.requests)
        with pytest.raises(Unavailable):
            await client.create(PODS, POD, namespace="a")

    assert reads == client_module.READ_ATTEMPTS
    assert len(server.requests) == reads + 1


async def test_a_hanging_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "REQUEST_SECONDS", 0.2)
    async with faulty_server(hang) as (_, client):
        with pytest.raises(Unavailable, match="in time"):
            await client.create(PODS, POD, namespace="a")


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening: nobody else can answer there
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        client = KubeClient(official.ApiClient(official.Configuration(host=address)))
        try:
            with pytest.raises(Unavailable, match="cannot reach"):
                await client.create(PODS, POD, namespace="a")
        finally:
            await client.close()


async def test_an_expired_continue_token_starts_the_list_again() -> None:
    expired = False

    async def answer(request: web.Request) -> web.Response:
        nonlocal expired
        if request.query.get("continue") == "old":
            expired = True
            return web.json_response({"kind": "Status", "message": "too old"}, status=410)
        more = "" if expired else "old"
        return web.json_response(
            {"metadata": {"resourceVersion": "7", "continue": more}, "items": [{"metadata": {"name": "a"}}]}
        )

    async with faulty_server(answer) as (_, client):
        listing = await client.list_all(NODES, fields.name_of)

    assert listing.items == ("a",)


async def test_a_list_of_an_unknown_resource_is_an_error() -> None:
    async with faulty_server(status(404)) as (_, client):
        with pytest.raises(KubernetesError, match="does not know"):
            await client.list_all(CHECKS, fields.name_of)


async def test_names_cannot_leave_their_place_in_the_path() -> None:
    async with faulty_server(status(404)) as (server, client):
        await client.get(PODS, "../../secrets/s?x=1", namespace="a/b")

    assert server.requests == ["GET /api/v1/namespaces/a%2Fb/pods/..%2F..%2Fsecrets%2Fs%3Fx=1"]


async def test_a_kubeconfig_that_is_not_there_is_a_setting_to_mend(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match=r"missing\.yaml"):
        await KubeClient.connect(kubeconfig=str(tmp_path / "missing.yaml"))


async def test_outside_of_a_cluster_in_cluster_is_a_setting_to_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SettingsInvalid, match="service account"):
        await KubeClient.connect(in_cluster=True)


# On the real API server.


async def test_a_list_in_pages_is_whole(
    client: KubeClient, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {(await make_node()).name for _ in range(5)}
    monkeypatch.setattr(client_module, "PAGE_LIMIT", 2)

    listing = await client.list_all(NODES, fields.name_of)

    assert made <= set(listing.items)
    assert len(set(listing.items)) == len(listing.items)
    assert listing.resource_version


async def test_a_name_that_is_taken_is_a_conflict(admin: KubeClient, make_node: MakeNode) -> None:
    node = await make_node()
    with pytest.raises(Conflict, match="already exists"):
        await admin.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name}})


async def test_what_rbac_does_not_grant_is_refused_with_the_servers_words(client: KubeClient) -> None:
    with pytest.raises(Refused, match="cannot create resource"):
        await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "ghost"}})


async def test_a_wrong_type_in_an_object_is_refused_with_the_servers_words(admin: KubeClient, namespace: str) -> None:
    broken: dict[str, Any] = {**POD, "spec": {"containers": "none"}}
    with pytest.raises(Refused, match="containers"):
        await admin.create(PODS, broken, namespace=namespace)


async def test_deleting_by_the_uid_of_another_leaves_the_object(admin: KubeClient, make_node: MakeNode) -> None:
    node = await make_node()

    assert not await admin.delete(NODES, node.name, uid="00000000-0000-0000-0000-000000000000")

    assert await admin.get(NODES, node.name) is not None
    assert await admin.delete(NODES, node.name, uid=node.uid, propagation=Propagation.FOREGROUND)


async def test_a_dry_run_creates_nothing(admin: KubeClient, namespace: str) -> None:
    pod = {**POD, "spec": {"containers": [{"name": "c", "image": "i"}]}}

    await admin.create(PODS, pod, namespace=namespace, dry_run=True)

    assert await admin.get(PODS, "p", namespace=namespace) is None


async def test_jobs_are_listed_in_the_namespaces_of_checks_alone(client: KubeClient, namespace: str) -> None:
    assert (await client.list_all(JOBS, fields.name_of, namespace=namespace)).items == ()
    with pytest.raises(Refused):
        await client.list_all(JOBS, fields.name_of)


async def test_a_resource_that_the_server_does_not_serve(admin: KubeClient) -> None:
    with pytest.raises(KubernetesError):
        await admin.list_all(Resource("nothing.example", "v1", "things"), fields.name_of)

