"""Marks on nodes: set, mended and taken away by the operator alone, and only while a check may."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from functools import partial

import pytest

from steadyfleet_operator.reasons import Reason
from steadyfleet_operator.resource import CONDITION_TYPE, LABEL_EXCLUDE, LABEL_MARK
from tests.e2e import platform
from tests.e2e.checks import Json, LiveCheck, simulated
from tests.e2e.lab import Lab
from tests.e2e.platform import NAMESPACE

pytestmark = pytest.mark.timeout(200)

OPERATOR_ACCOUNT = f"system:serviceaccount:{NAMESPACE}:steadyfleet-operator"


def marking(name: str, **changes: object) -> Json:
    """gpu-2 diverges, and the check may mark it."""
    faults = {"engine.simulation.divergentNodes": ["gpu-2"], "action.mode": "Mark"}
    return simulated(name, faults | {key.replace("__", "."): value for key, value in changes.items()})


def wait_marked(lab: Lab, check: LiveCheck) -> None:
    check.wait(lambda: lab.marks() == {"gpu-2"}, what="gpu-2 is marked", timeout_seconds=90)


def test_a_node_that_opts_out_is_neither_marked_nor_visited_until_it_opts_in_again(lab: Lab) -> None:
    with lab.check(marking("opt-out")) as check:
        wait_marked(lab, check)
        check.patch({"engine": {"simulation": {"launchMilliseconds": 6000}}})
        check.sweep_by_hand()
        check.wait(lambda: "gpu-2" in {slot["node"] for slot in check.slots()}, what="gpu-2 is being visited")
        lab.cluster.kubectl("label", "node", "gpu-2", f"{LABEL_EXCLUDE}=true")
        try:
            check.wait(lambda: lab.traces() == [f"gpu-2: label {LABEL_EXCLUDE}"], what="the mark is gone")
            check.wait(lambda: "gpu-2" not in check.entries(), what="nothing is said of the node")
            ended = lab.evidence.last_visit(check.uid, "gpu-2")
            assert ended is not None
            assert (ended.reason, "excluded" in ended.message) == (Reason.SUPERSEDED, True)
            check.patch({"engine": {"simulation": {"launchMilliseconds": 0}}})
            asked = datetime.now(timezone.utc).replace(microsecond=0)
            check.sweep_by_hand()
            for node in ("gpu-1", "gpu-3"):
                check.wait(
                    partial(_was_visited_since, lab, check, node, asked), what=f"{node} is visited in the new sweep"
                )
            assert lab.evidence.last_visit(check.uid, "gpu-2") == ended
            assert check.get()["status"]["fleet"]["selected"] == 2
        finally:
            lab.cluster.kubectl("label", "node", "gpu-2", f"{LABEL_EXCLUDE}-")
        wait_marked(lab, check)


def test_going_back_to_observe_takes_the_mark_away_and_keeps_the_verdict(lab: Lab) -> None:
    with lab.check(marking("observe")) as check:
        wait_marked(lab, check)
        check.patch({"action": {"mode": "Observe"}})
        check.wait(lambda: lab.traces() == [], what="condition and label are gone")
        assert check.verdicts()["gpu-2"] == "Divergent"
        assert check.condition("MarkingAllowed")["reason"] == "ObserveOnly"


def test_a_mark_that_somebody_else_takes_away_is_set_again(lab: Lab) -> None:
    with lab.check(marking("mended")) as check:
        wait_marked(lab, check)
        said = lab.condition("gpu-2")
        assert said is not None

        lab.cluster.kubectl("label", "node", "gpu-2", f"{LABEL_MARK}-")
        wait_marked(lab, check)
        assert lab.condition("gpu-2") == said, "the condition stood: it is not written again"

        denied = {"type": CONDITION_TYPE, "status": "False", "reason": "IKnowBetter", "message": "all is well"}
        body = json.dumps({"status": {"conditions": [denied]}})
        lab.cluster.kubectl("patch", "node", "gpu-2", "--subresource=status", "--type=strategic", "-p", body)
        wait_marked(lab, check)
        assert (lab.condition("gpu-2") or {})["message"] == said["message"]


def test_a_mark_stands_while_the_fault_does_and_is_flipped_once_the_gpu_recovers(lab: Lab) -> None:
    with lab.check(marking("recovers")) as check:
        wait_marked(lab, check)
        said = lab.condition("gpu-2")
        before = len(lab.evidence.visits(check.uid))
        check.sweep_by_hand()
        check.wait(lambda: len(lab.evidence.visits(check.uid)) >= before + 3, what="another sweep")
        assert lab.condition("gpu-2") == said, "the same finding is not a new one"

        check.patch({"engine": {"simulation": {"divergentNodes": []}}})
        check.sweep_by_hand()
        check.wait_verdicts(dict.fromkeys(("gpu-1", "gpu-2", "gpu-3"), "Consistent"))
        check.wait(lambda: lab.marks() == set(), what="the mark is flipped")
        condition = lab.condition("gpu-2")
        assert condition is not None
        assert (condition["status"], condition["reason"]) == ("False", "Recovered")
        assert LABEL_MARK not in lab.node("gpu-2")["metadata"]["labels"]


@pytest.mark.timeout(300)
def test_a_dry_run_finds_the_node_and_writes_nothing_to_any(lab: Lab) -> None:
    platform.upgrade(lab.cluster, {"dryRun": True})
    try:
        since = _now()
        with lab.check(marking("dry-run")) as check:
            check.wait_verdicts({"gpu-1": "Consistent", "gpu-2": "Divergent", "gpu-3": "Consistent"})
            allowed = check.condition("MarkingAllowed")
            assert allowed["status"] == "False"
            assert "dryRun" in allowed["message"]
            assert lab.traces() == []
            asked = lab.operator.requests(since=since)
            assert any(found["verb"] == "create" and found["objectRef"]["resource"] == "jobs" for found in asked)
            writes = [
                found["requestURI"]
                for found in asked
                if found["objectRef"]["resource"] == "nodes" and found["verb"] not in ("get", "list", "watch")
            ]
            assert writes == []

            platform.upgrade(lab.cluster, {"dryRun": False})
            wait_marked(lab, check)
    finally:
        platform.upgrade(lab.cluster, {"dryRun": False})


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("cordon", "gpu-1"), "may not change the spec of a Node"),
        (("taint", "node", "gpu-1", "example.com/x=y:NoSchedule"), "may not change the spec of a Node"),
        (("label", "node", "gpu-1", "example.com/x=y"), "may change no label of a Node"),
        (("label", "node", "gpu-1", f"{LABEL_EXCLUDE}=true"), "may change no label of a Node"),
    ],
    ids=["cordon", "taint", "foreign label", "opt-out"],
)
def test_the_operators_account_can_change_nothing_else_on_a_node(
    lab: Lab, command: tuple[str, ...], words: str
) -> None:
    before = lab.node("gpu-1")
    answer = lab.cluster.kubectl(*command, f"--as={OPERATOR_ACCOUNT}", check=False)
    assert words in answer.stderr  # `kubectl cordon` prints the refusal and exits with 0
    after = lab.node("gpu-1")
    assert (after["spec"], after["metadata"]["labels"]) == (before["spec"], before["metadata"]["labels"])


def _was_visited_since(lab: Lab, check: LiveCheck, node: str, moment: datetime) -> bool:
    visit = lab.evidence.last_visit(check.uid, node)
    return visit is not None and visit.started_at >= moment


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()
