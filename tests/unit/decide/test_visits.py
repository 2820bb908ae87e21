"""The slots: how visits start, end, fail and are tried again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from steadyfleet_contract.report import Outcome, TerminationLaunch, TerminationMessage
from steadyfleet_contract.spec import CacheState, LaunchKind
from steadyfleet_operator.decide import decide
from steadyfleet_operator.decide.observation import Job, JobEnd, Observation, Pod, PodPhase, Terminated, Waiting
from steadyfleet_operator.decide.order import epochs
from steadyfleet_operator.decide.visits import slot_state
from steadyfleet_operator.reasons import Reason
from steadyfleet_operator.resource import CheckStatus, Purpose
from tests.unit.decide.fleet import Answer, World, bad_on, node, spec, three_nodes

FIRST = "c"
"""Which of a, b, c the first sweep of this spec begins with: the order is drawn for each epoch."""


def one_started(**changes: Any) -> tuple[World, Observation, Job, Pod]:
    """A world in which one visit has just been started and nothing ran yet."""
    world = World.of(node("a"), node("b"), node("c"), spec=spec(schedule={"intervalSeconds": 3600, "maxConcurrent": 1}))
    world.pending = {"a", "b", "c"}
    world.step(seconds=5)
    assert world.jobs[0].node == FIRST
    job = replace(world.jobs[0], **changes.pop("job", {}))
    seen = world.observe()
    pod = replace(seen.pods[0], waiting=None, **changes.pop("pod", {}))
    return world, replace(seen, jobs=(job,), pods=(pod,)), job, pod


def ended(seen: Observation) -> tuple[Reason, str] | None:
    records = slot_state(seen, epochs(seen.check)).ended
    return (records[0].reason, records[0].message) if records else None


def termination(*, posted: bool, message: str = "") -> TerminationMessage:
    launch = TerminationLaunch(
        launch=0, outcome=Outcome.COMPLETED, kind=LaunchKind.PINNED, cache=CacheState.COLD, posted=posted
    )
    return TerminationMessage(launches=(launch,), message=message)


def after(seconds: int, seen: Observation) -> Observation:
    return replace(seen, now=seen.now + timedelta(seconds=seconds))


def test_a_fresh_visit_goes_on() -> None:
    _, seen, _, _ = one_started()
    assert ended(seen) is None


@pytest.mark.parametrize(
    ("job", "pod", "reason", "words"),
    [
        pytest.param(
            {"end": JobEnd.FAILED, "end_reason": "PodFailurePolicy", "end_message": "DisruptionTarget"},
            {"phase": PodPhase.FAILED},
            Reason.PREEMPTED,
            "yielded",
            id="preempted-by-the-job-alone",
        ),
        pytest.param(
            {},
            {"phase": PodPhase.FAILED, "disrupted": "PreemptionByScheduler"},
            Reason.PREEMPTED,
            "PreemptionByScheduler",
            id="preempted-by-the-pod",
        ),
        pytest.param(
            {"end": JobEnd.FAILED, "end_reason": "BackoffLimitExceeded"},
            {
                "phase": PodPhase.FAILED,
                "terminated": Terminated("engine", 3, "Error", "no python"),
            },
            Reason.POD_FAILED,
            "no python",
            id="launcher-failed",
        ),
        pytest.param(
            {},
            {"phase": PodPhase.FAILED, "terminated": Terminated("engine", 128, "StartError", "exec: /bin/sh")},
            Reason.CONTAINER_START_FAILED,
            "/bin/sh",
            id="no-shell-in-the-image",
        ),
        pytest.param(
            {},
            {"phase": PodPhase.FAILED, "failed_reason": "UnexpectedAdmissionError", "failed_message": "no devices"},
            Reason.CONTAINER_START_FAILED,
            "UnexpectedAdmissionError",
            id="device-plugin-gone",
        ),
        pytest.param(
            {},
            {"phase": PodPhase.FAILED, "failed_reason": "DeadlineExceeded"},
            Reason.DEADLINE_EXCEEDED,
            "deadline",
            id="hanging",
        ),
        pytest.param(
            {"end": JobEnd.COMPLETE},
            {"phase": PodPhase.SUCCEEDED, "termination": termination(posted=False, message="connection refused")},
            Reason.REPORT_LOST,
            "connection refused",
            id="operator-not-reached",
        ),
        pytest.param(
            {"end": JobEnd.COMPLETE}, {"phase": PodPhase.SUCCEEDED}, Reason.POD_FAILED, "without a report", id="silent"
        ),
    ],
)
def test_a_visit_without_a_report_ends_with_the_reason_that_the_pod_shows(
    job: dict[str, Any], pod: dict[str, Any], reason: Reason, words: str
) -> None:
    _, seen, _, _ = one_started(job=job, pod=pod)
    end = ended(seen)
    assert end is not None
    assert end[0] is reason
    assert words in end[1]


@pytest.mark.parametrize(
    ("waiting", "seconds", "reason"),
    [
        pytest.param(Waiting("Unschedulable", "Insufficient nvidia.com/gpu"), 301, Reason.NO_FREE_GPU, id="no-gpu"),
        pytest.param(Waiting("ImagePullBackOff", "not found"), 301, Reason.IMAGE_PULL_FAILED, id="pull"),
        pytest.param(Waiting("Pulling", "engine: image x"), 301, Reason.IMAGE_PULL_FAILED, id="still-pulling"),
        pytest.param(Waiting("ErrImageNeverPull", "not there"), 1, Reason.IMAGE_PULL_FAILED, id="never-pull-at-once"),
        pytest.param(Waiting("InvalidImageName", "bad"), 1, Reason.IMAGE_PULL_FAILED, id="bad-name-at-once"),
        pytest.param(Waiting("CreateContainerError", "x"), 301, Reason.CONTAINER_START_FAILED, id="container"),
        pytest.param(Waiting("Unschedulable", "x"), 200, None, id="not-yet"),
        pytest.param(Waiting("ImagePullBackOff", "x"), 200, None, id="pull-not-yet"),
    ],
)
def test_a_pending_pod_is_given_up_at_its_deadline(waiting: Waiting, seconds: int, reason: Reason | None) -> None:
    _, seen, _, pod = one_started()
    seen = after(seconds, replace(seen, pods=(replace(pod, waiting=waiting),)))
    end = ended(seen)
    assert (end[0] if end else None) is reason
    if end:
        assert waiting.message in end[1]


def test_a_pod_that_waits_without_a_word_is_told_by_how_far_it_came() -> None:
    _, seen, _, pod = one_started()
    late = after(301, seen)
    assert ended(replace(late, pods=())) == (Reason.CONTAINER_START_FAILED, "skipped after 300 s: no pod was made")
    for node_name, words in (("", "was not scheduled"), ("c", "is on node c, but did not start")):
        end = ended(replace(late, pods=(replace(pod, node=node_name),)))
        assert end is not None
        assert words in end[1]


def test_a_running_pod_has_time_for_all_its_launches_and_no_more() -> None:
    _, seen, _, pod = one_started()
    running = replace(seen, pods=(replace(pod, phase=PodPhase.RUNNING, running_at=seen.now),))
    assert ended(after(2 * 1200, running)) is None
    end = ended(after(2 * 1200 + 241, running))
    assert end is not None
    assert end[0] is Reason.DEADLINE_EXCEEDED


def test_a_node_that_vanishes_or_is_replaced_ends_its_visit() -> None:
    _, seen, _, _ = one_started()
    gone = replace(seen, nodes=tuple(n for n in seen.nodes if n.name != FIRST))
    replaced = replace(seen, nodes=tuple(replace(n, uid="other") if n.name == FIRST else n for n in seen.nodes))
    assert ended(gone) == ended(replaced) == (Reason.NODE_GONE, "node c was deleted or replaced during the visit")


def test_a_node_that_opts_out_ends_its_visit() -> None:
    _, seen, _, _ = one_started()
    excluded = {"steadyfleet.dev/exclude": "true"}
    seen = replace(seen, nodes=tuple(replace(n, labels={**n.labels, **excluded}) for n in seen.nodes))
    end = ended(seen)
    assert end is not None
    assert end[0] is Reason.SUPERSEDED
    assert "excluded" in end[1]


def test_an_edit_or_a_suspension_ends_the_visit_and_does_not_count_as_the_nodes_turn() -> None:
    _, seen, _, _ = one_started()
    edited = replace(
        seen,
        check=replace(
            seen.check,
            spec=seen.check.spec.model_copy(
                update={"prompts": seen.check.spec.prompts.model_copy(update={"max_tokens": 9})}
            ),
        ),
    )
    suspended = replace(seen, check=replace(seen.check, spec=seen.check.spec.model_copy(update={"suspend": True})))
    for changed, reason in ((edited, Reason.SUPERSEDED), (suspended, Reason.SUSPENDED)):
        plan = decide(changed)
        assert [visit.reason for visit in plan.visits] == [reason]
        assert [job.name for job in plan.delete] == ["sfl-qwen-0"]
        assert FIRST not in plan.node_checks, "its entry stays as it was: no visit, no failure"


def test_a_slot_is_not_reused_while_its_job_exists() -> None:
    _, seen, job, _ = one_started(job={"end": JobEnd.COMPLETE}, pod={"phase": PodPhase.SUCCEEDED})
    plan = decide(seen)
    assert plan.delete == (job,)
    assert plan.start == ()
    again = replace(
        seen, visits=plan.visits, jobs=(replace(job, deleting=True),), check=replace(seen.check, status=plan.status)
    )
    assert decide(again).start == ()
    assert decide(again).delete == ()
    free = replace(again, jobs=(), pods=())
    assert [start.slot.attempt for start in decide(free).start] == [2]


def test_a_job_that_was_never_created_is_created_by_the_next_pass_with_the_same_attempt() -> None:
    _, seen, _, _ = one_started()
    plan = decide(replace(seen, jobs=(), pods=()))
    assert [(start.slot.slot, start.slot.attempt, start.node.name) for start in plan.start] == [(0, 1, FIRST)]
    assert plan.visits == ()


def test_a_job_that_vanished_long_ago_is_recorded_and_the_slot_freed() -> None:
    _, seen, _, _ = one_started()
    plan = decide(after(121, replace(seen, jobs=(), pods=())))
    assert [visit.reason for visit in plan.visits] == [Reason.REPORT_LOST]
    assert [start.slot.attempt for start in plan.start] == [2]


def test_attempts_never_go_back_even_if_the_status_is_lost() -> None:
    world = three_nodes()
    world.settle()
    highest = max(visit.attempt for visit in world.visits)
    world.status = CheckStatus()
    world.now += timedelta(hours=2)
    plan = decide(world.observe())
    assert all(
        start.slot.attempt > max(v.attempt for v in world.visits if v.slot == start.slot.slot) for start in plan.start
    )
    assert highest >= 1


def test_a_job_of_a_newer_attempt_than_the_status_knows_is_adopted() -> None:
    _, seen, job, _ = one_started()
    plan = decide(replace(seen, check=replace(seen.check, status=CheckStatus())))
    assert [slot.attempt for slot in plan.status.slots] == [job.attempt]
    assert plan.start == ()


def test_lowering_the_cap_ends_what_is_above_it() -> None:
    world = three_nodes()
    world.pending = {"a", "b", "c"}
    world.step()
    assert len(world.jobs) == 3
    world.spec = spec(schedule={"intervalSeconds": 3600, "maxConcurrent": 1})
    plan = decide(world.observe())
    assert [visit.slot for visit in plan.visits if visit.reason is Reason.SUPERSEDED] == [1, 2]


def test_failed_visits_are_tried_again_with_growing_waits() -> None:
    world = three_nodes(engine=bad_on("b", Answer(outcome=Outcome.ENGINE_EXITED, message="rc 1: no such flag")))
    starts = []
    for _ in range(60):
        plan = world.step(seconds=20)
        starts += [(world.now, start) for start in plan.start if start.node.name == "b"]
    waits = [(later[0] - earlier[0]).total_seconds() for earlier, later in pairwise(starts)]
    assert len(waits) >= 3
    assert all(later > earlier for earlier, later in pairwise(waits))
    assert world.entries["b"].failed_visits >= 3
    assert (world.condition("Ready"), world.reasons()["b"]) == (("False", "VisitsFail"), "EngineExited")
    message = next(c.message for c in world.status.conditions if c.type == "Ready")
    assert "no such flag" in message
    assert "b" in message
    assert any(note.reason is Reason.ENGINE_EXITED and "no such flag" in note.message for note in world.events)


def test_a_busy_node_is_skipped_and_the_check_stays_ready() -> None:
    world = three_nodes(pending={"b"})
    for _ in range(8):
        world.step()
    assert world.reasons()["b"] == "NoFreeGPU"
    assert world.condition("Ready")[0] == "True"


def test_a_node_that_offers_no_gpu_is_not_visited() -> None:
    world = World.of(node("a"), node("b"), node("c"), node("d", gpus=0), spec=spec())
    world.step()
    assert {start.node.name for start in world.started} == {"a", "b", "c"}
    assert world.reasons()["d"] == "NoFreeGPU"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"ready": False}, id="not-ready"),
        pytest.param({"unschedulable": True}, id="cordoned"),
        pytest.param({"labels": {"nvidia.com/gpu.sharing-strategy": "time-slicing"}}, id="time-sliced"),
        pytest.param({"labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SHARED"}}, id="shared-product"),
        pytest.param({"labels": {"nvidia.com/gpu.replicas": "4"}}, id="replicas"),
    ],
)
def test_nodes_that_must_be_left_alone_are_not_visited_but_told(change: dict[str, Any]) -> None:
    world = World.of(node("a"), node("b"), node("c"), node("d", **change), spec=spec())
    world.settle()
    assert "d" not in {start.node.name for start in world.started}
    assert world.verdicts()["d"] == "Unknown"


@pytest.mark.parametrize(
    "labels",
    [{"steadyfleet.dev/exclude": "true"}, {"type": "virtual-kubelet"}, {"eks.amazonaws.com/compute-type": "fargate"}],
)
def test_excluded_and_virtual_nodes_are_not_selected_and_lose_their_entry(labels: dict[str, str]) -> None:
    world = three_nodes(engine=bad_on("b", Answer(digest="sha256:" + "0" * 64)))
    world.settle()
    assert world.marked() == {"b"}
    world.nodes["b"] = replace(world.nodes["b"], labels=labels)
    world.step()
    assert "b" not in world.entries


def test_a_selector_without_a_match_is_told() -> None:
    world = World.of(node("a"), spec=spec(nodes={"selector": {"matchLabels": {"gpu": "none"}}}))
    world.step()
    assert world.condition("Ready") == ("False", "NoNodesSelected")
    assert world.started == []


def test_a_refused_pod_is_told_with_the_servers_words_and_not_created() -> None:
    world = three_nodes(refused_versions={"stable": 'violates PodSecurity "restricted"'})
    world.step()
    assert world.condition("Ready") == ("False", "PodRefused")
    assert world.started == []


def test_a_namespace_that_is_not_allowed_runs_nothing() -> None:
    world = three_nodes(may_run=False)
    world.step()
    assert world.condition("Ready") == ("False", "NamespaceNotAllowed")
    assert world.started == []


def test_a_sweep_by_hand_makes_every_node_due() -> None:
    world = three_nodes()
    world.settle()
    before = len(world.started)
    world.run_at = world.now
    world.settle()
    assert len(world.started) == before + 3
    world.settle()
    assert len(world.started) == before + 3


def test_the_longest_waiting_node_goes_first() -> None:
    world = three_nodes(spec=spec(schedule={"intervalSeconds": 3600, "maxConcurrent": 1}))
    world.settle()
    order = [start.node.name for start in world.started]
    world.sweep()
    assert [start.node.name for start in world.started][3:] == order
    assert sorted(order) == ["a", "b", "c"]


def test_confirmations_go_before_turns() -> None:
    """Thirty nodes are due; the one that differs is launched again before the rest have had their turn."""
    broken: set[str] = set()
    world = World.of(
        *[node(f"n{i}") for i in range(30)],
        spec=spec(schedule={"intervalSeconds": 3600, "maxConcurrent": 2}),
        engine=lambda on, _gpu, _count: Answer(digest="sha256:" + "0" * 64) if on in broken else Answer(),
    )
    world.settle(steps=200)
    broken.add(world.started[0].node.name)
    before = len(world.started)
    world.sweep()
    purposes = [start.slot.purpose for start in world.started[before:]]
    assert Purpose.CONFIRM in purposes[:8]
    assert [world.verdicts()[name] for name in broken] == ["Divergent"]
