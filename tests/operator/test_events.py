"""Events on the real API server: counted instead of repeated, and never a reason to fail."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from steadyfleet_operator.decide.observation import Check
from steadyfleet_operator.kube import events as events_module
from steadyfleet_operator.kube.client import KubeClient
from steadyfleet_operator.kube.events import QUEUE_LIMIT, Events
from steadyfleet_operator.reasons import Reason
from tests.cluster.control_plane import ControlPlane
from tests.operator.builders import a_check
from tests.operator.conftest import MakeCheck
from tests.operator.faulty_server import faulty_server, hang, status


def found(control_plane: ControlPlane, namespace: str, name: str) -> list[dict[str, Any]]:
    fields = f"involvedObject.name={name}"
    shown = control_plane.kubectl("get", "events", "-n", namespace, "--field-selector", fields, "-o", "json").stdout
    items: list[dict[str, Any]] = json.loads(shown)["items"]
    return items


def tell(events: Events, check: Check, message: str = "launch 0: rc 1") -> None:
    events.post_check(check, type="Warning", reason=Reason.ENGINE_EXITED, message=message)


async def test_the_same_again_is_counted_and_something_else_is_told(
    client: KubeClient, make_check: MakeCheck, control_plane: ControlPlane
) -> None:
    check, events = await make_check(), Events(client)
    for message in ("a", "a", "b", "a"):
        tell(events, check, message)

    await events.drain()

    stored = found(control_plane, check.namespace, check.name)
    assert {item["message"]: item["count"] for item in stored} == {"a": 3, "b": 1}
    assert {item["involvedObject"]["uid"] for item in stored} == {check.uid}
    assert {(item["type"], item["reason"], item["source"]["component"]) for item in stored} == {
        ("Warning", "EngineExited", "steadyfleet")
    }


async def test_kubectl_describe_shows_it_on_the_check(
    client: KubeClient, make_check: MakeCheck, control_plane: ControlPlane
) -> None:
    check, events = await make_check(), Events(client)
    tell(events, check)

    await events.drain()

    described = control_plane.kubectl("describe", "consistencycheck", check.name, "-n", check.namespace).stdout
    assert "EngineExited" in described


async def test_an_event_that_the_server_forgot_is_made_anew(
    client: KubeClient, make_check: MakeCheck, control_plane: ControlPlane
) -> None:
    check, events = await make_check(), Events(client)
    tell(events, check)
    await events.drain()
    control_plane.kubectl("delete", "events", "--all", "-n", check.namespace)

    tell(events, check)
    await events.drain()

    assert [item["count"] for item in found(control_plane, check.namespace, check.name)] == [1]


async def test_a_message_that_is_too_long_is_cut(
    client: KubeClient, make_check: MakeCheck, control_plane: ControlPlane
) -> None:
    check, events = await make_check(), Events(client)
    tell(events, check, "x" * 5000)

    await events.drain()

    assert [len(item["message"]) for item in found(control_plane, check.namespace, check.name)] == [1024]


async def test_a_failure_is_logged_and_goes_no_further(caplog: pytest.LogCaptureFixture) -> None:
    async with faulty_server(status(403, message="no events for you")) as (_, client):
        events = Events(client)
        tell(events, a_check())
        await events.drain()

    assert "no events for you" in caplog.text


async def test_an_api_server_that_is_away_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(events_module, "DRAIN_SECONDS", 0.2)
    async with faulty_server(hang) as (_, client):
        events = Events(client)
        for message in ("a", "b", "c"):
            tell(events, a_check(), message)
        async with asyncio.timeout(5):
            await events.drain()

    assert "3 events or more are lost" in caplog.text


async def test_a_flood_is_bounded(client: KubeClient, caplog: pytest.LogCaptureFixture) -> None:
    events = Events(client)
    for number in range(QUEUE_LIMIT + 1):
        tell(events, a_check(), str(number))

    assert "event dropped" in caplog.text
