"""The report server against a real API server: real pods, real bound tokens, real TokenReviews, TLS.

This test plays the probe, well-behaved and hostile.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from steadyfleet_contract import wire
from steadyfleet_contract.report import ErrorAnswer, Report, ReportReceipt
from steadyfleet_operator.decide.observation import Check, Job, LaunchRecord, Node, Pod
from steadyfleet_operator.intake import body, server
from steadyfleet_operator.intake.answers import ReportResult
from steadyfleet_operator.intake.server import ReportServer
from steadyfleet_operator.intake.store import EvidenceStore
from steadyfleet_operator.kube import names
from steadyfleet_operator.kube.checks import parse_check
from steadyfleet_operator.kube.client import KubeClient, PatchType
from steadyfleet_operator.kube.jobs import Jobs
from steadyfleet_operator.kube.pki import Authority
from steadyfleet_operator.kube.podparse import parse_job, parse_pod
from steadyfleet_operator.kube.podspec import build_job
from steadyfleet_operator.kube.probes import Probes
from steadyfleet_operator.kube.resources import CHECKS, JOBS, PODS
from tests.cluster.control_plane import ControlPlane
from tests.operator.builders import EPOCH, a_report, a_visit, check_manifest, settings
from tests.operator.conftest import MakeCheck, MakeNode, eventually
from tests.operator.faulty_server import faulty_server, status
from tests.operator.test_jobs import kubelet_removes, kubelet_says, the_pod, user_pod


@dataclass
class Intake:
    """A running report server, and what it told the rest of the operator."""

    url: str
    trust: ssl.SSLContext
    store: EvidenceStore
    folder: Path
    woken: list[tuple[str, str]]
    results: list[ReportResult]
    launches: list[LaunchRecord]

    async def post(
        self, token: str | None, content: Any, *, path: str = wire.REPORTS_PATH, **headers: str
    ) -> httpx.Response:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            given["Authorization"] = f"Bearer {token}"
        async with httpx.AsyncClient(verify=self.trust, timeout=30, trust_env=False) as client:
            return await client.post(self.url + path, content=content, headers=given)


@asynccontextmanager
async def intake_of(
    client: KubeClient, authority: Authority, folder: Path, *namespaces: str
) -> AsyncIterator[Intake]:
    store = EvidenceStore(folder)
    await store.open()
    woken: list[tuple[str, str]] = []
    results: list[ReportResult] = []
    launches: list[LaunchRecord] = []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = ReportServer(
        settings(report_port=port, check_namespaces=namespaces),
        probes=Probes(client),
        store=store,
        authority=authority,
        wake=lambda namespace, check: woken.append((namespace, check)),
        count_report=results.append,
        count_launch=launches.append,
    )
    task = asyncio.create_task(server.run())
    try:
        async with asyncio.timeout(10):
            await server.ready.wait()
        trust = ssl.create_default_context(cadata=authority.bundle())
        yield Intake(f"https://localhost:{port}", trust, store, folder, woken, results, launches)
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.fixture
async def authority(client: KubeClient) -> Authority:
    made = Authority(client, settings())
    await made.load()
    return made


@pytest.fixture
async def intake(
    client: KubeClient, authority: Authority, namespace: str, playground: str, tmp_path: Path
) -> AsyncIterator[Intake]:
    async with intake_of(client, authority, tmp_path / "evidence", namespace, playground) as running:
        yield running


@dataclass
class Probe:
    check: Check
    node: Node
    job: Job
    pod: Pod
    token: str


MintToken = Callable[..., str]
MakeProbe = Callable[..., Any]


@pytest.fixture
def mint(control_plane: ControlPlane) -> MintToken:
    def token(namespace: str, pod: Pod | None = None, *, audience: str = wire.AUDIENCE) -> str:
        bound: tuple[str, ...] = ()
        if pod is not None:
            bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod.name}", f"--bound-object-uid={pod.uid}")
        given = control_plane.kubectl("create", "token", "default", "-n", namespace, f"--audience={audience}", *bound)
        return given.stdout.strip()

    return token


@pytest.fixture
def make_probe(client: KubeClient, make_check: MakeCheck, make_node: MakeNode, mint: MintToken) -> MakeProbe:
    """A Job of ours with its pod bound to a node, and the token that its kubelet would mount."""
    jobs = Jobs(client)

    async def make(*, check: Check | None = None, slot: int = 0, node_uid: str = "", **probe: Any) -> Probe:
        check, node = check or await make_check(), await make_node()
        visit = a_visit(check, node.name, node_uid or node.uid, slot=slot, **probe)
        job = await jobs.create(build_job(visit, settings=settings(), report_ca="PEM"))
        pod = await the_pod(jobs, job)
        return Probe(check, node, job, pod, mint(check.namespace, pod))

    return make


@pytest.fixture
async def probe(make_probe: MakeProbe) -> Probe:
    made: Probe = await make_probe()
    return made


def text(report: Report) -> bytes:
    return report.model_dump_json(by_alias=True).encode()


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, ErrorAnswer.model_validate_json(answer.content).reason


async def test_a_report_is_durable_before_it_is_acknowledged_and_wakes_its_check(intake: Intake, probe: Probe) -> None:
    answer = await intake.post(probe.token, text(a_report()))

    assert answer.status_code == 200, answer.text
    assert ReportReceipt.model_validate_json(answer.content) == ReportReceipt(accepted=True)
    restarted = EvidenceStore(intake.folder)
    await restarted.open()
    (record,) = restarted.launches(probe.check.uid)
    assert (record.namespace, record.check, record.slot, record.attempt) == (probe.check.namespace, "qwen", 0, 1)
    assert (record.node, record.node_uid, record.pod_uid) == (probe.node.name, probe.node.uid, probe.pod.uid)
    assert (record.version, record.epoch, record.image) == ("stable", EPOCH, "registry.example/vllm:1")
    assert intake.woken == [(probe.check.namespace, "qwen")]
    assert intake.results == [ReportResult.ACCEPTED]
    assert intake.launches == [record]


async def test_a_compressed_report_is_the_same(intake: Intake, probe: Probe) -> None:
    answer = await intake.post(probe.token, gzip.compress(text(a_report())), Content_Encoding="gzip")

    assert answer.status_code == 200
    assert (await intake.post(probe.token, text(a_report()))).json() == {"accepted": True, "duplicate": True}


async def test_the_same_twice_is_acknowledged_twice_and_counted_once(intake: Intake, probe: Probe) -> None:
    for expected in (False, True):
        answer = await intake.post(probe.token, text(a_report()))
        assert answer.json() == {"accepted": True, "duplicate": expected}

    assert intake.results == [ReportResult.ACCEPTED, ReportResult.DUPLICATE]
    assert len(intake.launches) == 1
    assert len(intake.woken) == 2, "the first wake-up may have been lost with the process that got it"


async def test_something_else_for_the_same_launch_is_a_conflict(intake: Intake, probe: Probe) -> None:
    await intake.post(probe.token, text(a_report()))

    answer = await intake.post(probe.token, text(a_report(seed=8)))

    assert refusal(answer) == (409, "Conflicting")
    assert len(intake.store.launches(probe.check.uid)) == 1


async def test_each_pod_reports_for_itself_alone(intake: Intake, make_probe: MakeProbe) -> None:
    """The body names neither pod nor node: a probe can't speak for another."""
    first = await make_probe()
    second = await make_probe(check=first.check, slot=1)
    await intake.post(first.token, text(a_report()))
    await intake.post(second.token, text(a_report(seed=8)))

    by_node = {record.node: record.digest for record in intake.store.launches(first.check.uid)}

    assert by_node == {first.node.name: a_report().digest, second.node.name: a_report(seed=8).digest}


async def test_without_a_token(intake: Intake, probe: Probe) -> None:
    assert refusal(await intake.post(None, text(a_report()))) == (401, "NoToken")
    assert refusal(await intake.post(None, b"", Authorization="Basic abc")) == (401, "NoToken")
    assert refusal(await intake.post(None, b"", Authorization="Bearer")) == (401, "NoToken")


async def test_with_a_token_that_is_none(intake: Intake) -> None:
    assert refusal(await intake.post("abc.def.ghi", text(a_report()))) == (401, "TokenRefused")


async def test_with_a_token_for_another_audience(intake: Intake, probe: Probe, mint: MintToken) -> None:
    for audience in ("https://kubernetes.default.svc", "other"):
        token = mint(probe.check.namespace, probe.pod, audience=audience)
        assert refusal(await intake.post(token, text(a_report()))) == (401, "TokenRefused")


async def test_with_a_token_that_is_bound_to_no_pod(intake: Intake, probe: Probe, mint: MintToken) -> None:
    answer = await intake.post(mint(probe.check.namespace), text(a_report()))

    assert refusal(answer) == (403, "TokenWithoutPod")


async def test_from_a_pod_that_is_no_probe(
    intake: Intake, admin: KubeClient, namespace: str, make_node: MakeNode, mint: MintToken, client: KubeClient
) -> None:
    node = await make_node()
    await admin.create(PODS, user_pod("other", node.name), namespace=namespace)
    pod = await Probes(client).pod(namespace, "other")
    assert pod is not None

    assert refusal(await intake.post(mint(namespace, pod), text(a_report()))) == (403, "NotAProbe")


async def test_from_a_pod_that_dresses_up_as_a_probe_without_a_job(
    intake: Intake, admin: KubeClient, probe: Probe, mint: MintToken, client: KubeClient
) -> None:
    """Same labels and owner as a real probe, but its Job's name leads nowhere."""
    real = await admin.get(PODS, probe.pod.name, namespace=probe.pod.namespace)
    assert real is not None
    forged = user_pod("forged", probe.node.name)
    forged["spec"]["containers"] = [{"name": "engine", "image": "registry.example/vllm:1"}]
    labels = {**real["metadata"]["labels"], "batch.kubernetes.io/job-name": "sfl-qwen-7"}
    forged["metadata"] |= {"labels": labels, "annotations": real["metadata"]["annotations"]}
    forged["metadata"]["ownerReferences"] = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "sfl-qwen-7", "uid": "00000000-0000-0000-0000-000000000000"}
    ]
    await admin.create(PODS, forged, namespace=probe.pod.namespace)
    pod = await Probes(client).pod(probe.pod.namespace, "forged")
    assert pod is not None

    answer = await intake.post(mint(probe.pod.namespace, pod), text(a_report()))

    assert refusal(answer) == (410, "JobGone")


async def test_from_a_job_of_another_namespace_that_names_this_check(
    intake: Intake, client: KubeClient, admin: KubeClient, probe: Probe, playground: str, mint: MintToken
) -> None:
    """Everything is copied that can be read, also the check's uid; only the owner is one's own."""
    own = parse_check(await admin.create(CHECKS, check_manifest("qwen", playground), namespace=playground))
    assert isinstance(own, Check)
    forged = build_job(a_visit(own, probe.node.name, probe.node.uid), settings=settings(), report_ca="PEM")
    for metadata in (forged["metadata"], forged["spec"]["template"]["metadata"]):
        metadata["labels"][names.LABEL_CHECK_UID] = probe.check.uid
    job = parse_job(await admin.create(JOBS, forged, namespace=playground))
    pod = await the_pod(Jobs(client), job)

    answer = await intake.post(mint(playground, pod), text(a_report()))

    assert answer.status_code in (403, 410)
    assert intake.store.launches(probe.check.uid) == ()


async def test_from_a_namespace_whose_checks_are_not_run(
    intake: Intake, control_plane: ControlPlane, admin: KubeClient, make_node: MakeNode, mint: MintToken
) -> None:
    node = await make_node()
    control_plane.kubectl("wait", "serviceaccount/default", "-n", "default", "--for=create", "--timeout=30s")
    pod = parse_pod(await admin.create(PODS, user_pod("elsewhere", node.name), namespace="default"))

    assert refusal(await intake.post(mint("default", pod), text(a_report()))) == (403, "NotAProbe")


async def test_from_a_probe_whose_image_somebody_swapped(intake: Intake, admin: KubeClient, probe: Probe) -> None:
    swap = {"spec": {"containers": [{"name": "engine", "image": "registry.example/evil:1"}]}}
    await admin.patch(PODS, probe.pod.name, swap, kind=PatchType.STRATEGIC, namespace=probe.pod.namespace)

    answer = await intake.post(probe.token, text(a_report()))

    assert refusal(answer) == (403, "ImageChanged")
    assert "registry.example/evil:1" in answer.text


async def test_from_a_node_that_was_replaced_under_its_name(intake: Intake, make_probe: MakeProbe) -> None:
    probe = await make_probe(node_uid="00000000-0000-0000-0000-000000000000")

    assert refusal(await intake.post(probe.token, text(a_report()))) == (403, "WrongNode")


async def test_too_late_the_job_is_being_deleted(intake: Intake, client: KubeClient, probe: Probe) -> None:
    await Jobs(client).delete(probe.job)

    assert refusal(await intake.post(probe.token, text(a_report()))) == (410, "JobGone")


async def test_too_late_the_job_is_gone(intake: Intake, admin: KubeClient, probe: Probe) -> None:
    options = {"propagationPolicy": "Orphan"}
    await admin._request("DELETE", JOBS.path(name=probe.job.name, namespace=probe.job.namespace), body=options)

    async def gone() -> bool:
        return await admin.get(JOBS, probe.job.name, namespace=probe.job.namespace) is None

    await eventually("the Job is gone", gone)
    assert refusal(await intake.post(probe.token, text(a_report())))[0] in (403, 410)


async def test_too_late_the_pod_is_gone(
    intake: Intake, control_plane: ControlPlane, admin: KubeClient, probe: Probe
) -> None:
    await kubelet_says(admin, probe.pod, phase="Failed")
    await kubelet_removes(control_plane, probe.pod)

    async def gone() -> bool:
        return await admin.get(PODS, probe.pod.name, namespace=probe.pod.namespace) is None

    await eventually("the pod is gone", gone)
    assert refusal(await intake.post(probe.token, text(a_report()))) == (410, "PodGone")


async def test_a_field_that_is_wrong_is_named(intake: Intake, probe: Probe) -> None:
    raw = json.loads(text(a_report())) | {"epoch": "f" * 16}

    answer = await intake.post(probe.token, json.dumps(raw))

    told = ErrorAnswer.model_validate_json(answer.content)
    assert (answer.status_code, told.reason, told.field) == (422, "NotAsked", "epoch")
    assert "the Job asked for" in told.message


async def test_an_unknown_schema_is_told_as_such(intake: Intake, probe: Probe) -> None:
    raw = json.loads(text(a_report())) | {"schemaVersion": 2}

    assert refusal(await intake.post(probe.token, json.dumps(raw))) == (422, "SchemaUnknown")


LARGE = wire.MAX_REPORT_BYTES + 1


async def _pieces() -> AsyncIterator[bytes]:
    for _ in range(LARGE // 65536 + 1):
        yield b" " * 65536


@pytest.mark.parametrize(
    ("content", "headers", "expected"),
    [
        (b" " * LARGE, {}, (413, "TooLarge")),
        (gzip.compress(b" " * LARGE), {"Content_Encoding": "gzip"}, (413, "TooLarge")),
        (gzip.compress(b" " * (1 << 30), compresslevel=9), {"Content_Encoding": "gzip"}, (413, "TooLarge")),
        (gzip.compress(text(a_report()))[:-10], {"Content_Encoding": "gzip"}, (400, "Unreadable")),
        (text(a_report()), {"Content_Encoding": "gzip"}, (400, "Unreadable")),
        (gzip.compress(b"{}") * 2, {"Content_Encoding": "gzip"}, (400, "Unreadable")),
        (text(a_report()), {"Content_Encoding": "br"}, (400, "Unreadable")),
        (b"", {}, (400, "Unreadable")),
    ],
    ids=["plain", "just too large", "gzip bomb", "cut off", "not gzip", "two in one", "unknown encoding", "empty"],
)
async def test_a_body_beyond_the_limits(
    content: bytes, headers: dict[str, str], expected: tuple[int, str], intake: Intake, probe: Probe
) -> None:
    assert refusal(await intake.post(probe.token, content, **headers)) == expected
    assert intake.store.launches(probe.check.uid) == ()


async def test_a_body_without_a_length_is_limited_as_well(intake: Intake, probe: Probe) -> None:
    try:
        answer = await intake.post(probe.token, _pieces())
    except httpx.WriteError:
        return  # the connection was closed in the sender's face
    assert refusal(answer) == (413, "TooLarge")


async def test_a_body_that_does_not_come_is_not_waited_for(
    intake: Intake, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "BODY_SECONDS", 0.3)

    async def stuck() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(3)
        yield b"}"

    try:
        answer = await intake.post(probe.token, stuck())
    except httpx.WriteError:
        return
    assert refusal(answer) == (408, "TooSlow")


async def test_a_slow_sender_holds_up_no_other(
    client: KubeClient, authority: Authority, make_probe: MakeProbe, namespace: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(server, "BODIES_AT_ONCE", 1)
    slow = await make_probe()
    other = await make_probe(check=slow.check, slot=1)
    sent, go_on = asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield text(a_report())[:100]
        sent.set()
        await go_on.wait()
        yield text(a_report())[100:]

    async with intake_of(client, authority, tmp_path, namespace) as intake:
        first = asyncio.create_task(intake.post(slow.token, slowly()))
        await sent.wait()
        assert (await intake.post(other.token, text(a_report()))).status_code == 200
        go_on.set()
        assert (await first).status_code == 200


async def test_a_sender_that_hangs_up_in_the_middle_is_no_fault_of_ours(
    intake: Intake, probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = "localhost", httpx.URL(intake.url).port
    _, writer = await asyncio.open_connection(host, port, ssl=intake.trust)
    head = f"POST {wire.REPORTS_PATH} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {probe.token}\r\n"
    writer.write(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
    await writer.drain()
    writer.transport.abort()

    async def noticed() -> bool:
        return bool(intake.results)

    await eventually("the request is given up", noticed)
    assert intake.results == [ReportResult.UNREADABLE]
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(("method", "path"), [("GET", wire.REPORTS_PATH), ("POST", "/"), ("POST", "/v2/reports")])
async def test_other_paths_and_methods_answer_in_the_contracts_words(method: str, path: str, intake: Intake) -> None:
    async with httpx.AsyncClient(verify=intake.trust, trust_env=False) as client:
        answer = await client.request(method, intake.url + path)

    assert refusal(answer) == (404, "UnknownPath")


async def test_while_the_api_server_is_away_nothing_is_taken_and_the_probe_shall_come_again(
    authority: Authority, probe: Probe, tmp_path: Path
) -> None:
    async with faulty_server(status(503)) as (faulty, client), intake_of(client, authority, tmp_path) as intake:
        answer = await intake.post(probe.token, text(a_report()))
        requests = len(faulty.requests)

    assert refusal(answer) == (503, "KubernetesUnavailable")
    assert int(answer.headers["Retry-After"]) > 0
    assert requests == 1
    assert intake.store.launches(probe.check.uid) == ()


async def test_while_the_disk_fails_nothing_is_acknowledged(intake: Intake, probe: Probe) -> None:
    away = intake.folder.with_name("away")
    intake.folder.rename(away)
    intake.folder.write_text("a file is in the way of the folder")

    answer = await intake.post(probe.token, text(a_report()))

    assert refusal(answer) == (503, "EvidenceUnavailable")
    assert "Retry-After" in answer.headers
    assert intake.woken == []

    intake.folder.unlink()
    away.rename(intake.folder)
    assert (await intake.post(probe.token, text(a_report()))).json() == {"accepted": True, "duplicate": False}


async def test_a_digest_is_known_once_a_full_decode_with_it_was_reported(intake: Intake, make_probe: MakeProbe) -> None:
    first = await make_probe()
    second = await make_probe(check=first.check, slot=1)
    query = json.dumps({"launch": 0, "kind": "Pinned", "cache": "Cold", "digest": a_report().digest})

    async def known(probe: Probe) -> bool:
        answer = await intake.post(probe.token, query, path=wire.DIGESTS_PATH)
        assert answer.status_code == 200, answer.text
        return bool(answer.json()["known"])

    assert not await known(first)
    await intake.post(first.token, text(a_report()))
    assert await known(second)


async def test_a_digest_query_needs_a_token_and_a_sound_body(intake: Intake, probe: Probe) -> None:
    assert refusal(await intake.post(None, b"{}", path=wire.DIGESTS_PATH)) == (401, "NoToken")
    assert refusal(await intake.post(probe.token, b"{}", path=wire.DIGESTS_PATH)) == (422, "FieldInvalid")
    large = json.dumps({"launch": 0, "kind": "Pinned", "cache": "Cold", "digest": a_report().digest}) + " " * 4096
    assert refusal(await intake.post(probe.token, large, path=wire.DIGESTS_PATH)) == (413, "TooLarge")


async def test_a_token_is_reviewed_once_for_a_burst(
    intake: Intake, probe: Probe, control_plane: ControlPlane
) -> None:
    log = control_plane.folder / "log" / "audit.log"

    def reviews() -> int:
        lines = (json.loads(line) for line in log.read_text().splitlines())
        return sum(
            line["objectRef"]["resource"] == "tokenreviews" and line["stage"] == "ResponseComplete"
            for line in lines
            if "objectRef" in line
        )

    before = reviews()
    for launch in (0, 1):
        assert (await intake.post(probe.token, text(a_report(launch=launch)))).status_code == 200

    assert reviews() == before + 1


async def test_every_answer_is_counted(intake: Intake, probe: Probe) -> None:
    await intake.post(None, b"")
    await intake.post(probe.token, b"{")
    await intake.post(probe.token, text(a_report()))

    assert intake.results == [ReportResult.NO_TOKEN, ReportResult.UNREADABLE, ReportResult.ACCEPTED]
