"""What of a check is held in memory: whole visits, the newest of each GPU, and nothing of what was dropped."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from steadyfleet_contract.report import Outcome
from steadyfleet_contract.spec import CacheState, LaunchKind
from steadyfleet_operator.decide.observation import LaunchRecord
from steadyfleet_operator.intake.index import HOLD_LAUNCHES, HOLD_VISITS, CheckIndex, Sections
from steadyfleet_operator.resource import Purpose

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def record(number: int, *, pod: str, launch: int = 0, **changes: object) -> LaunchRecord:
    """`number` is the second in which it was received."""
    base = LaunchRecord(
        evidence=f"{pod}/launch-{launch}", namespace="serving", check="qwen", check_uid="c", epoch="e",
        version="stable", purpose=Purpose.SWEEP, slot=0, attempt=1, node="gpu-1", node_uid="n", pod_uid=pod,
        received_at=T0 + timedelta(seconds=number), launch=launch, kind=LaunchKind.PINNED, cache=CacheState.COLD,
        outcome=Outcome.COMPLETED, gpus=("GPU-a",),
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def visits(count: int, launches: int, **changes: object) -> list[LaunchRecord]:
    return [
        record(visit * launches + launch, pod=f"pod-{visit}", launch=launch, **changes)
        for visit in range(count)
        for launch in range(launches)
    ]


def index_of(records: list[LaunchRecord]) -> CheckIndex:
    index = CheckIndex()
    for one in records:
        index.add(one, "content")
    return index


def pods(index: CheckIndex) -> list[str]:
    return list(dict.fromkeys(one.pod_uid for one in index.held()))


@pytest.mark.parametrize(
    ("launches", "expected"), [(1, HOLD_LAUNCHES), (3, HOLD_LAUNCHES // 3 + 1), (16, HOLD_VISITS), (32, HOLD_VISITS)]
)
def test_no_visit_is_held_by_half(launches: int, expected: int) -> None:
    index = index_of(visits(HOLD_LAUNCHES + 9, launches))

    assert pods(index) == [f"pod-{number}" for number in range(HOLD_LAUNCHES + 9 - expected, HOLD_LAUNCHES + 9)]
    assert len(index.held()) == expected * launches


def test_launches_that_measured_nothing_push_no_result_out() -> None:
    good = record(0, pod="good")
    failing = [
        record(1 + number, pod=f"bad-{number}", outcome=Outcome.ENGINE_EXITED) for number in range(3 * HOLD_LAUNCHES)
    ]

    index = index_of([good, *failing])

    assert index.held() == (good, *failing[-HOLD_LAUNCHES:])


def test_a_gpu_that_was_given_instead_of_the_wanted_one_has_no_history_of_that() -> None:
    """A launch that was refused its GPU names those that it saw."""
    good = visits(HOLD_LAUNCHES, 1)
    not_given = [
        record(1000 + number, pod=f"not-{number}", outcome=Outcome.GPU_NOT_GIVEN) for number in range(HOLD_LAUNCHES)
    ]

    index = index_of([*good, *not_given])

    assert all(one in index.held() for one in good)
    assert list(index.beyond(HOLD_LAUNCHES)) == []


def test_each_version_and_each_gpu_has_its_own_history() -> None:
    one = visits(HOLD_LAUNCHES, 1)
    candidate = [replace(old, version="candidate", pod_uid=f"c{old.pod_uid}") for old in one]
    other = [replace(old, gpus=("GPU-b",), pod_uid=f"b{old.pod_uid}") for old in one]

    assert len(index_of([*one, *candidate, *other]).held()) == 3 * HOLD_LAUNCHES


def test_what_is_read_in_any_order_is_held_as_if_it_had_just_come() -> None:
    records = visits(60, 3)
    expected = index_of(records)

    loaded = CheckIndex()
    for visit in sorted({one.pod_uid for one in records}):
        for one in [one for one in records if one.pod_uid == visit]:
            loaded.load(one, "content")
    loaded.loaded()

    assert loaded.held() == expected.held()
    assert list(loaded.beyond(64)) == list(expected.beyond(64)) != []


def test_two_that_were_written_at_once_stand_in_the_order_of_their_moments() -> None:
    first, second = record(1, pod="a"), record(2, pod="b")

    assert index_of([second, first]).held() == (first, second)


def test_a_digest_is_forgotten_with_its_last_file_and_not_before() -> None:
    index = index_of([record(n, pod=f"pod-{n}", digest="d", full=n == 0) for n in range(3 * HOLD_LAUNCHES)])
    key = ("e", "stable", LaunchKind.PINNED, "d")
    assert key in index.full, "the memory holds it no more, the folder does"

    index.remove(frozenset({"pod-0/launch-0"}))

    assert key not in index.full


def test_sections_are_held_once_and_no_longer_than_their_records() -> None:
    sections = Sections()
    facts = [{"versions": {"vllm": "1"}, "host": {"boot": str(number)}} for number in range(50)]
    held = [sections.share(record(number, pod=f"p{number}", fingerprint=facts[number])) for number in range(50)]
    assert len(sections) == 51
    assert held[0].fingerprint["versions"] is held[49].fingerprint["versions"]

    del held[1:]

    assert len(sections) == 2
    assert held[0].fingerprint == facts[0]
