"""The report authority in its Secret, and a server that renews its certificate while it runs."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from steadyfleet_operator.errors import SettingsInvalid
from steadyfleet_operator.intake.certificates import Lifetimes
from steadyfleet_operator.kube.client import KubeClient, PatchType
from steadyfleet_operator.kube.pki import Authority
from steadyfleet_operator.kube.resources import SECRETS
from tests.operator.builders import settings
from tests.operator.conftest import OWN_NAMESPACE, eventually
from tests.operator.faulty_server import faulty_server, status

SECRET = "steadyfleet-report-tls"
LIFETIMES = Lifetimes(authority=timedelta(days=100), serving=timedelta(days=20), announce=timedelta(days=5))


class Clock:
    """Can be set back: what it makes then is of an age, and still verified by the true time."""

    def __init__(self) -> None:
        self.behind = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) - self.behind


@pytest.fixture
async def no_secret(admin: KubeClient) -> AsyncIterator[None]:
    await _delete(admin)
    yield
    await _delete(admin)


async def _delete(admin: KubeClient) -> None:
    item = await admin.get(SECRETS, SECRET, namespace=OWN_NAMESPACE)
    if item is not None:
        await admin.delete(SECRETS, SECRET, uid=item["metadata"]["uid"], namespace=OWN_NAMESPACE)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authority(client: KubeClient, no_secret: None, clock: Clock) -> Authority:
    return Authority(client, settings(), lifetimes=LIFETIMES, now=clock)


@asynccontextmanager
async def serving(authority: Authority) -> AsyncIterator[int]:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=authority.server_context())
    async with server:
        yield server.sockets[0].getsockname()[1]


async def certificate_seen(port: int, bundle: str) -> bytes:
    """As a probe with this bundle sees the server; raises ssl.SSLError if it can't be verified."""
    context = ssl.create_default_context(cadata=bundle)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    assert await reader.read() == b"hello"
    seen: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return seen


async def test_a_probe_verifies_the_server_by_the_bundle_of_its_job(authority: Authority) -> None:
    await authority.load()

    async with serving(authority) as port:
        await certificate_seen(port, authority.bundle())


async def test_a_restart_keeps_the_authority(authority: Authority, client: KubeClient, clock: Clock) -> None:
    await authority.load()
    again = Authority(client, settings(), lifetimes=LIFETIMES, now=clock)

    await again.load()

    assert again.bundle() == authority.bundle()


async def test_a_renewal_reaches_the_running_server_and_the_probes_under_way(
    authority: Authority, clock: Clock
) -> None:
    clock.behind = timedelta(days=15)
    await authority.load()
    given = authority.bundle()
    async with serving(authority) as port:
        before = await certificate_seen(port, given)

        clock.behind = timedelta()
        await authority.load()

        assert await certificate_seen(port, given) != before
        assert authority.bundle() == given


async def test_the_next_authority_is_trusted_by_new_jobs_before_it_signs(authority: Authority, clock: Clock) -> None:
    clock.behind = timedelta(days=82)
    await authority.load()
    async with serving(authority) as port:
        clock.behind = timedelta(days=6)
        await authority.load()
        announced = authority.bundle()
        signed_by_the_old = await certificate_seen(port, announced)

        clock.behind = timedelta()
        await authority.load()

        assert announced.count("BEGIN CERTIFICATE") == 2
        assert await certificate_seen(port, announced) != signed_by_the_old


async def test_two_that_start_at_once_agree(client: KubeClient, no_secret: None, clock: Clock) -> None:
    several = [Authority(client, settings(), lifetimes=LIFETIMES, now=clock) for _ in range(4)]

    await asyncio.gather(*(authority.load() for authority in several))

    assert len({authority.bundle() for authority in several}) == 1


@pytest.mark.parametrize(
    "data",
    [
        {"ca.crt": None},
        {"tls.key": base64.b64encode(b"nonsense").decode()},
        {"next-ca.crt": base64.b64encode(b"x").decode()},
    ],
    ids=["missing", "no key", "half of a pair"],
)
async def test_a_secret_that_somebody_broke_is_written_anew(
    data: dict[str, Any], authority: Authority, admin: KubeClient, client: KubeClient, clock: Clock
) -> None:
    await authority.load()
    await admin.patch(SECRETS, SECRET, {"data": data}, kind=PatchType.MERGE, namespace=OWN_NAMESPACE)
    again = Authority(client, settings(), lifetimes=LIFETIMES, now=clock)

    await again.load()

    async with serving(again) as port:
        await certificate_seen(port, again.bundle())
    assert again.bundle() != authority.bundle()


async def test_it_renews_by_itself(client: KubeClient, no_secret: None) -> None:
    short = Lifetimes(authority=timedelta(minutes=5), serving=timedelta(seconds=6), announce=timedelta(seconds=6))
    authority = Authority(client, settings(), lifetimes=short)
    await authority.load()
    async with serving(authority) as port:
        first = await certificate_seen(port, authority.bundle())
        task = asyncio.create_task(authority.keep_fresh())

        async def renewed() -> bool:
            return await certificate_seen(port, authority.bundle()) != first

        try:
            await eventually("another certificate is served", renewed)
        finally:
            task.cancel()


async def test_an_api_server_that_is_away_delays_a_renewal_only(caplog: pytest.LogCaptureFixture) -> None:
    short = Lifetimes(authority=timedelta(minutes=5), serving=timedelta(seconds=6), announce=timedelta(seconds=6))
    async with faulty_server(status(403, message="not now")) as (_, client):
        task = asyncio.create_task(Authority(client, settings(), lifetimes=short).keep_fresh())

        async def said() -> bool:
            return caplog.text.count("not now") >= 2

        await eventually("it tries again", said)
        assert not task.done()
        task.cancel()


def test_a_report_url_without_a_host_is_a_setting_to_mend() -> None:
    with pytest.raises(SettingsInvalid, match="names no host"):
        Authority(None, settings(report_url="https:///x"))  # type: ignore[arg-type]
