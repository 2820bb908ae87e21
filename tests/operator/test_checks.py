"""Checks, baselines and node results on the real API server with the real CRDs: guarded, and owned."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from steadyfleet_operator.decide.observation import Check
from steadyfleet_operator.errors import Conflict, Refused, SpecInvalid
from steadyfleet_operator.kube.baselines import Baselines
from steadyfleet_operator.kube.checks import Checks, InvalidCheck, parse_check
from steadyfleet_operator.kube.client import KubeClient, PatchType
from steadyfleet_operator.kube.fields import is_deleting
from steadyfleet_operator.kube.resources import BASELINES, CHECKS, NODES
from steadyfleet_operator.kube.results import NodeResults, parse_result
from steadyfleet_operator.resource import (
    BaselineSpec,
    BaselineStatus,
    Cause,
    CheckStatus,
    Condition,
    DivergentGPU,
    FleetCounts,
    GPUEntry,
    NodeCheck,
    NodeStatus,
    Purpose,
    Slot,
    Sweep,
    Variant,
    VariantState,
    Verdict,
)
from tests.operator.conftest import MakeCheck, MakeNode, eventually

NOW = "2026-03-01T12:00:00Z"

READY = Condition(
    type="Ready", status="True", reason="AsExpected", message="", last_transition_time=NOW, observed_generation=1
)

STATUS = CheckStatus(
    observed_generation=1,
    conditions=(READY,),
    fleet=FleetCounts(selected=3, consistent=2, divergent=1),
    sweep=Sweep(started_at=NOW, visited=3),
    slots=(
        Slot(
            slot=0, attempt=4, node="gpu-1", node_uid="u", version="stable", purpose=Purpose.CONFIRM, gpu="GPU-a",
            epoch="0123456789abcdef", started_at=NOW,
        ),
        Slot(slot=1, attempt=2),
    ),
    divergent=(DivergentGPU(node="gpu-1", gpu="GPU-a", cause=Cause.WEIGHTS, since=NOW),),
)  # fmt: skip


def entry(
    check: str = "qwen", *, namespace: str = "serving", verdict: Verdict = Verdict.DIVERGENT, **more: Any
) -> NodeCheck:
    gpus = (GPUEntry(uuid="GPU-a", version="stable", verdict=verdict, reason="WrongWeights", evidence="a/b"),)
    given: dict[str, Any] = {"uid": "c-uid", "reason": "WrongWeights", "gpus": gpus, "consistent_gpus": 1} | more
    return NodeCheck(namespace=namespace, name=check, verdict=verdict, **given)


@pytest.fixture
def checks(client: KubeClient) -> Checks:
    return Checks(client)


async def test_a_status_survives_the_round_trip(checks: Checks, make_check: MakeCheck) -> None:
    check = await make_check()

    written = await checks.write_status(check, STATUS)

    assert written is not None
    assert written.status == STATUS
    assert await checks.get(check.namespace, check.name) == written


async def test_an_empty_status_is_taken_by_the_schema(checks: Checks, make_check: MakeCheck) -> None:
    written = await checks.write_status(await make_check(), CheckStatus())

    assert written is not None
    assert written.status == CheckStatus()


async def test_a_status_write_with_an_old_version_is_a_conflict(checks: Checks, make_check: MakeCheck) -> None:
    """So an attempt is never raised twice from one state."""
    check = await make_check()
    await checks.write_status(check, STATUS)

    with pytest.raises(Conflict):
        await checks.write_status(check, CheckStatus())

    stored = await checks.get(check.namespace, check.name)
    assert isinstance(stored, Check)
    assert stored.status == STATUS


async def test_a_status_write_leaves_the_spec_alone(checks: Checks, make_check: MakeCheck) -> None:
    check = await make_check()

    await checks.write_status(check, STATUS)

    stored = await checks.get(check.namespace, check.name)
    assert isinstance(stored, Check)
    assert (stored.spec, stored.generation) == (check.spec, check.generation)


async def test_the_status_of_a_deleted_check_is_not_written(
    checks: Checks, admin: KubeClient, make_check: MakeCheck
) -> None:
    check = await make_check()
    await admin.delete(CHECKS, check.name, uid=check.uid, namespace=check.namespace)

    assert await checks.write_status(check, STATUS) is None
    assert await checks.get(check.namespace, check.name) is None


async def test_a_check_that_is_being_deleted_counts_as_gone(
    checks: Checks, admin: KubeClient, make_check: MakeCheck
) -> None:
    check = await make_check()
    body = {"metadata": {"finalizers": ["example.com/slow"]}}
    await admin.patch(CHECKS, check.name, body, kind=PatchType.MERGE, namespace=check.namespace)
    await admin.delete(CHECKS, check.name, uid=check.uid, namespace=check.namespace)

    item = await admin.get(CHECKS, check.name, namespace=check.namespace)
    assert item is not None
    assert is_deleting(item)
    assert await checks.get(check.namespace, check.name) is None
    assert await checks.list_all(check.namespace) == ()

    body = {"metadata": {"finalizers": []}}
    await admin.patch(CHECKS, check.name, body, kind=PatchType.MERGE, namespace=check.namespace)


async def test_the_run_at_annotation_is_read(checks: Checks, admin: KubeClient, make_check: MakeCheck) -> None:
    check = await make_check()
    for written, expected in ((NOW, True), ("soon", False)):
        body = {"metadata": {"annotations": {"steadyfleet.dev/run-at": written}}}
        await admin.patch(CHECKS, check.name, body, kind=PatchType.MERGE, namespace=check.namespace)
        stored = await checks.get(check.namespace, check.name)
        assert isinstance(stored, Check)
        assert (stored.run_at is not None) is expected


def stored_check(**changes: Any) -> dict[str, Any]:
    """As a newer or an edited CRD would let it through."""
    spec = {"engine": {"model": {"synthetic": "Tiny"}}, "versions": [{"name": "stable", "image": "i"}]}
    metadata = {"namespace": "a", "name": "qwen", "uid": "u", "generation": 3, "resourceVersion": "9"}
    return {"metadata": metadata, "spec": spec, **changes}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"spec": {"versions": [{"name": "stable", "image": "i"}]}}, "spec.engine"),
        ({"spec": {"engine": {"model": {"synthetic": "Huge"}}, "versions": []}}, "spec.engine.model.synthetic"),
        ({"spec": {**stored_check()["spec"], "novelty": 1}}, "spec.novelty"),
        ({"status": {"slots": [{"slot": 0}]}}, "status.slots.0.attempt"),
    ],
    ids=["missing", "unknown value", "unknown field", "broken status"],
)
def test_a_stored_check_that_cannot_be_read_names_the_field(changes: dict[str, Any], field: str) -> None:
    check = parse_check(stored_check(**changes))

    assert isinstance(check, InvalidCheck)
    assert str(check.error).startswith(f"{field}: ")
    assert (check.name, check.generation) == ("qwen", 3)


async def test_an_invalid_check_is_told_and_the_rest_of_its_status_stays(
    checks: Checks, admin: KubeClient, make_check: MakeCheck
) -> None:
    """Slots hold the attempt counters: they must survive a spec that can't be read."""
    check = await make_check()
    valid = await checks.write_status(check, STATUS)
    assert valid is not None
    invalid = InvalidCheck(
        valid.namespace, valid.name, valid.uid, valid.generation, valid.resource_version, (), SpecInvalid("spec.x: no")
    )
    refusing = READY.model_copy(update={"status": "False", "reason": "SpecInvalid", "message": "spec.x: no"})

    assert await checks.write_conditions(invalid, [refusing])

    stored = await checks.get(check.namespace, check.name)
    assert isinstance(stored, Check)
    assert stored.status.conditions == (refusing,)
    assert stored.status.slots == STATUS.slots
    with pytest.raises(Conflict):
        await checks.write_conditions(invalid, [refusing])


# Node results.


@pytest.fixture
def results(client: KubeClient) -> NodeResults:
    return NodeResults(client)


async def test_a_nodes_entry_is_stored_and_owned_by_the_node(
    results: NodeResults, admin: KubeClient, make_node: MakeNode
) -> None:
    node = await make_node()

    status = await results.put_entry(node, entry())

    assert status == NodeStatus(checks=(entry(),))
    stored = await results.get(node.name)
    assert stored is not None
    assert (stored.status, stored.node_uid) == (status, node.uid)


async def test_two_checks_share_a_node(results: NodeResults, make_node: MakeNode) -> None:
    node = await make_node()
    await results.put_entry(node, entry("b"))
    await results.put_entry(node, entry("a"))
    await results.put_entry(node, entry("b", verdict=Verdict.UNKNOWN))

    status = await results.drop_entry(node, namespace="serving", check="a")

    assert status == NodeStatus(checks=(entry("b", verdict=Verdict.UNKNOWN),))


async def test_many_checks_at_once_lose_no_entry(results: NodeResults, make_node: MakeNode) -> None:
    node = await make_node()
    names = [f"check-{number}" for number in range(4)]

    await asyncio.gather(*(results.put_entry(node, entry(name)) for name in names))

    stored = await results.get(node.name)
    assert stored is not None
    assert [found.name for found in stored.status.checks] == names


async def test_the_same_entry_again_writes_nothing(results: NodeResults, make_node: MakeNode) -> None:
    node = await make_node()
    await results.put_entry(node, entry())
    before = await results.get(node.name)

    await results.put_entry(node, entry())

    assert await results.get(node.name) == before


async def test_the_last_entry_takes_the_object_along(results: NodeResults, make_node: MakeNode) -> None:
    node = await make_node()
    await results.put_entry(node, entry())

    assert await results.drop_entry(node, namespace="serving", check="qwen") == NodeStatus()
    assert await results.drop_entry(node, namespace="serving", check="qwen") == NodeStatus()

    assert await results.get(node.name) is None


async def test_a_node_that_was_replaced_starts_anew(
    results: NodeResults, admin: KubeClient, make_node: MakeNode
) -> None:
    """What was said of the machine before must not be said of the new one."""
    old = await make_node()
    await results.put_entry(old, entry("before"))
    await admin.delete(NODES, old.name, uid=old.uid)
    new = await make_node(old.name)

    status = await results.put_entry(new, entry("after"))

    assert [found.name for found in status.checks] == ["after"]
    stored = await results.get(old.name)
    assert stored is not None
    assert stored.node_uid == new.uid


async def test_a_pass_that_still_sees_the_node_before_touches_nothing_of_the_new_one(
    results: NodeResults, admin: KubeClient, make_node: MakeNode
) -> None:
    old = await make_node()
    await admin.delete(NODES, old.name, uid=old.uid)
    new = await make_node(old.name)
    await results.put_entry(new, entry("after"))
    stored = await results.get(new.name)

    for name in ("before", "after"):
        with pytest.raises(Refused, match="deleted or replaced"):
            await results.put_entry(old, entry(name))
    with pytest.raises(Refused):
        await results.drop_entry(old, namespace="serving", check="after")

    assert await results.get(new.name) == stored


async def test_a_node_that_is_gone_gets_no_object(
    results: NodeResults, admin: KubeClient, make_node: MakeNode
) -> None:
    node = await make_node()
    await admin.delete(NODES, node.name, uid=node.uid)

    with pytest.raises(Refused, match="deleted or replaced"):
        await results.put_entry(node, entry())

    assert await results.get(node.name) is None


async def test_a_deleted_node_takes_its_results_along(
    results: NodeResults, admin: KubeClient, make_node: MakeNode
) -> None:
    node = await make_node()
    await results.put_entry(node, entry())

    await admin.delete(NODES, node.name, uid=node.uid)

    async def gone() -> bool:
        return await results.get(node.name) is None

    await eventually("the garbage collector takes the NodeConsistency", gone)


def test_a_result_that_cannot_be_read_counts_as_empty(caplog: pytest.LogCaptureFixture) -> None:
    item = {"metadata": {"name": "gpu-1", "uid": "u", "resourceVersion": "1"}, "status": {"checks": [{"name": "x"}]}}

    assert parse_result(item).status == NodeStatus()
    assert "gpu-1" in caplog.text


# Baselines.

SPEC = BaselineSpec(
    check="qwen", epoch="0123456789abcdef", version="stable", product="H100", prompt_set_digest="sha256:" + "1" * 64
)
BASELINE = BaselineStatus(
    accepted="sha256:" + "2" * 64,
    accepted_by="Majority",
    variants=(
        Variant(
            digest="sha256:" + "2" * 64, state=VariantState.ACCEPTED, launches=6, nodes=3, first_seen_time=NOW,
            last_seen_time=NOW,
        ),
    ),
)  # fmt: skip


@pytest.fixture
def baselines(client: KubeClient) -> Baselines:
    return Baselines(client)


async def test_a_baseline_is_created_once_and_then_written(baselines: Baselines, make_check: MakeCheck) -> None:
    check = await make_check()

    first = await baselines.write(check, "qwen-1", SPEC, BASELINE)
    again = await baselines.write(check, "qwen-1", SPEC, BASELINE)
    changed = await baselines.write(check, "qwen-1", SPEC, BASELINE.model_copy(update={"accepted_by": "Spec"}))

    assert (first.spec, first.status) == (SPEC, BASELINE)
    assert again.resource_version == first.resource_version
    assert (changed.uid, changed.status.accepted_by) == (first.uid, "Spec")
    assert await baselines.list_of(check) == (changed,)


async def test_a_baseline_of_another_check_of_the_name_is_left_alone(
    baselines: Baselines, admin: KubeClient, make_check: MakeCheck
) -> None:
    check, other = await make_check(), await make_check("other")
    await baselines.write(other, "shared", SPEC, BASELINE)

    with pytest.raises(Conflict, match="another check"):
        await baselines.write(check, "shared", SPEC, BaselineStatus())

    assert await baselines.list_of(check) == ()
    assert [found.status for found in await baselines.list_of(other)] == [BASELINE]


async def test_a_deleted_check_takes_its_baselines_along(
    baselines: Baselines, admin: KubeClient, make_check: MakeCheck
) -> None:
    check = await make_check()
    await baselines.write(check, "qwen-1", SPEC, BASELINE)

    await admin.delete(CHECKS, check.name, uid=check.uid, namespace=check.namespace)

    async def gone() -> bool:
        return await admin.get(BASELINES, "qwen-1", namespace=check.namespace) is None

    await eventually("the garbage collector takes the baseline", gone)
