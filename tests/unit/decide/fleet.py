"""Builders, and a small world that carries out plans: a fleet whose GPUs answer with the digests that a test gives.

It stands for the API server, the kubelet and the engine in tests of the decisions alone; the real ones are tested in
tests/operator and tests/e2e.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from steadyfleet_contract.report import Outcome
from steadyfleet_contract.spec import CacheState, LaunchKind
from steadyfleet_operator.decide import decide
from steadyfleet_operator.decide.observation import (
    Baseline,
    Check,
    Job,
    JobEnd,
    LaunchRecord,
    Node,
    Observation,
    Order,
    Pod,
    PodPhase,
    VisitRecord,
    Waiting,
)
from steadyfleet_operator.decide.plan import EventNote, Plan, Start
from steadyfleet_operator.resource import CheckSpec, CheckStatus, NodeCheck, Purpose

START = datetime(2030, 1, 1, tzinfo=timezone.utc)
GPU_RESOURCE = "nvidia.com/gpu"


def digest_of(name: str) -> str:
    return "sha256:" + hashlib.sha256(name.encode()).hexdigest()


GOOD, BAD, OTHER = digest_of("good"), digest_of("bad"), digest_of("other")
WEIGHTS, WRONG_WEIGHTS = digest_of("weights"), digest_of("wrong weights")


def spec(**changes: Any) -> CheckSpec:
    """A check of one version, in Mark mode; `changes` replace top-level fields (as they are written in YAML)."""
    base: dict[str, object] = {
        "engine": {"model": {"path": "/models/x"}},
        "versions": [{"name": "stable", "image": "registry.example/vllm:1"}],
        "launches": {"pinned": 2, "asServed": 0},
        "schedule": {"intervalSeconds": 3600, "maxConcurrent": 4, "pendingDeadlineSeconds": 60},
        "action": {"mode": "Mark"},
    }
    return CheckSpec.model_validate(base | changes)


def node(name: str, *, gpus: int = 1, **changes: Any) -> Node:
    return replace(
        Node(name=name, uid=f"uid-{name}", allocatable={GPU_RESOURCE: gpus}, capacity={GPU_RESOURCE: gpus}), **changes
    )


@dataclass(frozen=True)
class Answer:
    """What one launch reports."""

    digest: str = GOOD
    weights: str = WEIGHTS
    outcome: Outcome = Outcome.COMPLETED
    message: str = ""
    kind: LaunchKind = LaunchKind.PINNED
    differing_rounds: int = 0
    fingerprint: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    product: str = "H200"


Engine = Callable[[str, str, int], Answer]
"""(node, gpu, how many launches the world has made before) -> what this launch answers."""


@dataclass
class World:
    """Time passes only by `step`. Jobs run for one step; `pending` nodes never start theirs."""

    spec: CheckSpec
    nodes: dict[str, Node]
    engine: Engine = lambda _node, _gpu, _count: Answer()
    now: datetime = START
    may_mark: bool = True
    may_run: bool = True
    pending: set[str] = field(default_factory=set)
    failing: dict[str, Waiting] = field(default_factory=dict)
    refused_versions: dict[str, str] = field(default_factory=dict)
    status: CheckStatus = field(default_factory=CheckStatus)
    jobs: dict[int, Job] = field(default_factory=dict)
    starts: dict[int, Start] = field(default_factory=dict)
    launches: list[LaunchRecord] = field(default_factory=list)
    visits: list[VisitRecord] = field(default_factory=list)
    entries: dict[str, NodeCheck] = field(default_factory=dict)
    baselines: dict[str, Baseline] = field(default_factory=dict)
    events: list[EventNote] = field(default_factory=list)
    started: list[Start] = field(default_factory=list)
    run_at: datetime | None = None
    generation: int = 1
    next_gpu: dict[str, int] = field(default_factory=dict)
    given: dict[str, list[str]] = field(default_factory=dict)
    """Node -> the UUIDs that a visit there can be given, if not all of its own."""

    @classmethod
    def of(cls, *nodes: Node, spec: CheckSpec, **changes: Any) -> World:
        return cls(spec=spec, nodes={n.name: n for n in nodes}, **changes)

    def observe(self) -> Observation:
        check = Check("serving", "qwen", "check-uid", self.generation, "1", self.spec, self.status, self.run_at)
        return Observation(
            now=self.now,
            check=check,
            nodes=tuple(self.nodes.values()),
            jobs=tuple(self.jobs.values()),
            pods=tuple(self._pod(job) for job in self.jobs.values()),
            launches=tuple(self.launches),
            visits=tuple(self.visits),
            baselines=tuple(self.baselines.values()),
            node_checks=dict(self.entries),
            may_run=self.may_run,
            may_mark=self.may_mark,
            refusals={
                Order(node, version, purpose): message
                for version, message in self.refused_versions.items()
                for node in self.nodes
                for purpose in Purpose
            },
        )

    def step(self, seconds: int = 30) -> Plan:
        """One pass, carried out; then every Job that can run makes all its launches and completes."""
        plan = decide(self.observe())
        self.visits += plan.visits
        for job in plan.delete:
            self.jobs.pop(job.slot, None)
        for write in plan.baselines:
            self.baselines[write.name] = Baseline("serving", write.name, "u", "1", write.spec, write.status)
        for name, entry in plan.node_checks.items():
            if entry is None:
                self.entries.pop(name)
            else:
                self.entries[name] = entry
        self.status = plan.status
        for start in plan.start:
            assert start.slot.slot not in self.jobs, "two Jobs in one slot"
            self.jobs[start.slot.slot] = self._job(start)
            self.starts[start.slot.slot] = start
            self.started.append(start)
        self.events += (*plan.ended, *plan.marking, *plan.begun)
        assert len(self.jobs) <= self.spec.schedule.max_concurrent, "the concurrency cap was exceeded"
        self.now += timedelta(seconds=seconds)
        for slot, job in list(self.jobs.items()):
            self._run(slot, job)
        return plan

    def settle(self, *, steps: int = 40) -> Plan:
        """Steps until nothing is at work and nothing is due."""
        for _ in range(steps):
            plan = self.step()
            if not self.jobs and not plan.start and not plan.visits:
                return plan
        raise AssertionError(f"still at work after {steps} steps: {plan.start}")

    def sweep(self) -> Plan:
        """The next interval's sweep."""
        self.now += timedelta(seconds=self.spec.schedule.interval_seconds)
        return self.settle()

    def verdicts(self) -> dict[str, str]:
        return {name: entry.verdict.value for name, entry in sorted(self.entries.items())}

    def reasons(self) -> dict[str, str]:
        return {name: entry.reason for name, entry in sorted(self.entries.items())}

    def marked(self) -> set[str]:
        return {name for name, entry in self.entries.items() if entry.marked}

    def condition(self, kind: str) -> tuple[str, str]:
        found = next(condition for condition in self.status.conditions if condition.type == kind)
        return found.status, found.reason

    def gpus_of(self, name: str) -> list[str]:
        own = [f"GPU-{name}-{index}" for index in range(self.nodes[name].allocatable[GPU_RESOURCE])]
        return self.given.get(name, own)

    def _job(self, start: Start) -> Job:
        slot = start.slot
        return Job(
            namespace="serving",
            name=f"sfl-qwen-{slot.slot}",
            uid=f"job-{slot.slot}-{slot.attempt}",
            check_uid="check-uid",
            slot=slot.slot,
            attempt=slot.attempt,
            node=slot.node,
            node_uid=slot.node_uid,
            version=slot.version,
            epoch=slot.epoch,
            purpose=slot.purpose,
            gpu=slot.gpu,
            created=self.now,
        )

    def _pod(self, job: Job) -> Pod:
        waiting = self.failing.get(job.node) or Waiting("Unschedulable", "0/1 nodes: Insufficient nvidia.com/gpu")
        pending = job.end is JobEnd.NONE
        return Pod(
            namespace="serving",
            name=job.name + "-x",
            uid="pod-" + job.uid,
            job=job.name,
            job_uid=job.uid,
            slot=job.slot,
            attempt=job.attempt,
            phase=PodPhase.PENDING if pending else PodPhase.SUCCEEDED,
            created=job.created,
            node=job.node,
            waiting=waiting if pending else None,
        )

    def _run(self, slot: int, job: Job) -> None:
        if job.node in self.pending or job.node in self.failing or job.end is not JobEnd.NONE:
            return
        start = self.starts[slot]
        gpu = start.slot.gpu or self._any_gpu(job.node)
        given = self.gpus_of(job.node)
        for request in start.probe.launches:
            answer = self.engine(job.node, gpu, len(self.launches))
            if gpu not in given:
                answer = Answer(outcome=Outcome.GPU_NOT_GIVEN, message=f"{gpu} is not there", product=answer.product)
            self.launches.append(
                LaunchRecord(
                    evidence=f"e{len(self.launches)}",
                    namespace="serving",
                    check="qwen",
                    check_uid="check-uid",
                    epoch=job.epoch,
                    version=job.version,
                    purpose=job.purpose,
                    slot=slot,
                    attempt=job.attempt,
                    node=job.node,
                    node_uid=job.node_uid,
                    pod_uid="pod-" + job.uid,
                    received_at=self.now + timedelta(seconds=request.index),
                    launch=request.index,
                    kind=answer.kind if request.kind is LaunchKind.PINNED else request.kind,
                    cache=CacheState.COLD,
                    outcome=answer.outcome,
                    message=answer.message,
                    gpus=(gpu,) if gpu in given else tuple(given),
                    product=answer.product,
                    digest=answer.digest if answer.outcome is Outcome.COMPLETED else "",
                    prompt_set_digest=digest_of("prompts"),
                    weights_digest=answer.weights,
                    repeat_rounds=5,
                    differing_rounds=answer.differing_rounds,
                    fingerprint=answer.fingerprint,
                    wanted_gpu=start.slot.gpu,
                    visit_started_at=job.created,
                    asked=len(start.probe.launches),
                )
            )
        self.jobs[slot] = replace(job, end=JobEnd.COMPLETE, ended_at=self.now)

    def _any_gpu(self, name: str) -> str:
        """The device plugin picks: here round robin."""
        gpus = self.gpus_of(name)
        index = self.next_gpu.get(name, 0)
        self.next_gpu[name] = index + 1
        return gpus[index % len(gpus)]


def three_nodes(**changes: Any) -> World:
    return World.of(node("a"), node("b"), node("c"), spec=changes.pop("spec", spec()), **changes)


def bad_on(name: str, answer: Answer) -> Engine:
    """Every launch on the node answers so; all others are good."""
    return lambda on, _gpu, _count: answer if on == name else Answer()
