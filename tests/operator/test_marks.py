"""Marks on real Nodes: ours alone, with the node's uid, and nothing of anybody else is ever touched."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from steadyfleet_operator.decide.observation import Node
from steadyfleet_operator.errors import LeaseLost
from steadyfleet_operator.kube import fields
from steadyfleet_operator.kube.client import KubeClient, PatchType
from steadyfleet_operator.kube.marks import Marks
from steadyfleet_operator.kube.resources import NODES
from steadyfleet_operator.reasons import Reason
from steadyfleet_operator.resource import CONDITION_TYPE, LABEL_MARK
from tests.cluster.control_plane import ControlPlane
from tests.operator.conftest import MakeNode

T0 = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def marks(client: KubeClient, clock: Clock) -> Marks:
    return Marks(client, now=clock)


async def read(client: KubeClient, node: Node) -> dict[str, Any]:
    item = await client.get(NODES, node.name)
    assert item is not None
    return item


def conditions(item: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {condition["type"]: condition for condition in item["status"]["conditions"]}


async def mark(marks: Marks, node: Node, message: str = "GPU-a differs") -> bool:
    return await marks.mark(node.name, node.uid, reason=Reason.GPU_DIVERGES, message=message)


async def test_a_marked_node_carries_the_condition_and_the_label(
    marks: Marks, admin: KubeClient, make_node: MakeNode
) -> None:
    node = await make_node()

    assert await mark(marks, node)

    item = await read(admin, node)
    assert conditions(item)[CONDITION_TYPE] == {
        "type": CONDITION_TYPE,
        "status": "True",
        "reason": "GPUDiverges",
        "message": "GPU-a differs",
        "lastHeartbeatTime": "2026-03-01T12:00:00Z",
        "lastTransitionTime": "2026-03-01T12:00:00Z",
    }
    assert item["metadata"]["labels"][LABEL_MARK] == "true"


async def test_marking_again_writes_nothing(marks: Marks, admin: KubeClient, make_node: MakeNode) -> None:
    node = await make_node()
    await mark(marks, node)
    before = (await read(admin, node))["metadata"]["resourceVersion"]

    assert not await mark(marks, node)

    assert (await read(admin, node))["metadata"]["resourceVersion"] == before


async def test_the_transition_time_moves_on_a_flip_alone(
    marks: Marks, clock: Clock, admin: KubeClient, make_node: MakeNode
) -> None:
    node = await make_node()
    await mark(marks, node)

    clock.now = T0 + timedelta(hours=1)
    await mark(marks, node, "GPU-b differs too")
    reworded = conditions(await read(admin, node))[CONDITION_TYPE]
    await marks.recover(node.name, node.uid, reason=Reason.RECOVERED, message="all GPUs agree")
    recovered = conditions(await read(admin, node))[CONDITION_TYPE]

    assert (reworded["message"], reworded["lastTransitionTime"]) == ("GPU-b differs too", "2026-03-01T12:00:00Z")
    assert (recovered["status"], recovered["lastTransitionTime"]) == ("False", "2026-03-01T13:00:00Z")


async def test_recovery_takes_the_label_away(marks: Marks, admin: KubeClient, make_node: MakeNode) -> None:
    node = await make_node()
    await mark(marks, node)

    assert await marks.recover(node.name, node.uid, reason=Reason.RECOVERED, message="ok")

    assert LABEL_MARK not in (await read(admin, node))["metadata"]["labels"]


async def test_a_label_that_somebody_changed_is_set_again(marks: Marks, admin: KubeClient, make_node: MakeNode) -> None:
    node = await make_node()
    await mark(marks, node)
    await admin.patch(NODES, node.name, {"metadata": {"labels": {LABEL_MARK: "no"}}}, kind=PatchType.MERGE)

    assert await mark(marks, node)

    assert (await read(admin, node))["metadata"]["labels"][LABEL_MARK] == "true"


async def test_removal_leaves_nothing_of_ours_and_is_idempotent(
    marks: Marks, admin: KubeClient, make_node: MakeNode
) -> None:
    node = await make_node()
    born = await read(admin, node)
    await mark(marks, node)

    assert await marks.remove(node.name, node.uid)
    assert not await marks.remove(node.name, node.uid)

    item = await read(admin, node)
    assert conditions(item) == conditions(born)
    assert item["metadata"]["labels"] == born["metadata"]["labels"]


FOREIGN_TAINTS = [{"key": "example.com/other", "effect": "NoSchedule"}]


@pytest.mark.parametrize("history", ["posted only", "managed fields reset", "second writer"])
async def test_what_others_wrote_stays_through_mark_and_removal(
    history: str, marks: Marks, admin: KubeClient, make_node: MakeNode, control_plane: ControlPlane
) -> None:
    """The three cases in which clearing by server-side apply takes others' conditions along, or leaves ours."""
    node = await make_node(labels={"example.com/team": "a"}, taints=FOREIGN_TAINTS)
    if history == "managed fields reset":
        await mark(marks, node)
        await admin.patch(NODES, node.name, {"metadata": {"managedFields": [{}]}}, kind=PatchType.MERGE)
    if history == "second writer":
        condition = {"type": CONDITION_TYPE, "status": "True", "reason": "Other", "message": "by another tool"}
        applied = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name}}
        applied |= {"status": {"conditions": [condition]}}
        how = ("--server-side", "--subresource=status", "--field-manager=other")
        control_plane.kubectl("apply", *how, "-f", "-", input=json.dumps(applied))
    born = await read(admin, node)

    await mark(marks, node)
    marked = await read(admin, node)
    await marks.remove(node.name, node.uid)
    cleared = await read(admin, node)

    foreign = {kind: condition for kind, condition in conditions(born).items() if kind != CONDITION_TYPE}
    assert {kind: found for kind, found in conditions(marked).items() if kind != CONDITION_TYPE} == foreign
    assert conditions(cleared) == foreign
    assert fields.labels_of(cleared)["example.com/team"] == "a"
    assert [taint["key"] for taint in cleared["spec"]["taints"]] == ["example.com/other"]


async def test_a_deleted_node_is_not_created(marks: Marks, admin: KubeClient, make_node: MakeNode) -> None:
    node = await make_node()
    await admin.delete(NODES, node.name, uid=node.uid)

    assert not await mark(marks, node)

    assert await admin.get(NODES, node.name) is None


async def test_a_node_replaced_under_its_name_is_not_marked(
    marks: Marks, admin: KubeClient, make_node: MakeNode
) -> None:
    old = await make_node()
    await admin.delete(NODES, old.name, uid=old.uid)
    new = await make_node(old.name)

    assert not await mark(marks, old)

    item = await read(admin, new)
    assert CONDITION_TYPE not in conditions(item)
    assert LABEL_MARK not in fields.labels_of(item)


async def test_a_node_replaced_between_read_and_write_is_not_marked(
    client: KubeClient, admin: KubeClient, make_node: MakeNode
) -> None:
    """The uid in the patch itself must hold it back: reading first is not enough."""
    old = await make_node()

    async def replace_node() -> Node:
        await admin.delete(NODES, old.name, uid=old.uid)
        return await make_node(old.name)

    class Racing(Marks):
        async def _patch_status(self, live: Node, condition: dict[str, Any]) -> bool:
            await replace_node()
            return await super()._patch_status(live, condition)

    assert not await Racing(client).mark(old.name, old.uid, reason=Reason.GPU_DIVERGES, message="x")

    item = await read(admin, old)
    assert CONDITION_TYPE not in conditions(item)
    assert LABEL_MARK not in fields.labels_of(item)


async def test_clear_all_finds_every_mark_and_nothing_else(
    marks: Marks, admin: KubeClient, make_node: MakeNode
) -> None:
    marked, labelled, clean = await make_node(), await make_node(labels={LABEL_MARK: "true"}), await make_node()
    await mark(marks, marked)
    before = (await read(admin, clean))["metadata"]["resourceVersion"]

    assert await marks.clear_all() == 2
    assert await marks.clear_all() == 0

    for node in (marked, labelled):
        item = await read(admin, node)
        assert CONDITION_TYPE not in conditions(item)
        assert LABEL_MARK not in fields.labels_of(item)
    assert (await read(admin, clean))["metadata"]["resourceVersion"] == before


async def test_nothing_is_written_without_the_fence(
    operator_kubeconfig: str, admin: KubeClient, make_node: MakeNode
) -> None:
    node = await make_node()

    def lost() -> None:
        raise LeaseLost("not held")

    fenced = await KubeClient.connect(kubeconfig=operator_kubeconfig, fence=lost)
    try:
        with pytest.raises(LeaseLost):
            await mark(Marks(fenced), node)
    finally:
        await fenced.close()

    assert CONDITION_TYPE not in conditions(await read(admin, node))
