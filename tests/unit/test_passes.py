"""When passes run: never two of one check at a time, none lost, none spinning."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from steadyfleet_operator.errors import Conflict, Unavailable
from steadyfleet_operator.metrics import Metrics
from steadyfleet_operator.passes import Passes


class Recorder:
    """Counts passes; each answers what `script` says, the last one again and again."""

    def __init__(self, *script: float | Exception | None) -> None:
        self.script = list(script)
        self.ran = asyncio.Queue[str]()
        self.running = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, namespace: str, name: str) -> float | None:
        assert self.running == 0, "two passes at a time"
        self.running += 1
        try:
            await self.gate.wait()
            self.ran.put_nowait(f"{namespace}/{name}")
            answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
            if isinstance(answer, Exception):
                raise answer
            return answer
        finally:
            self.running -= 1

    async def passes(self, count: int) -> None:
        async with asyncio.timeout(5):
            for _ in range(count):
                await self.ran.get()


async def with_passes(recorder: Recorder, story: Callable[[Passes], Awaitable[None]]) -> Metrics:
    metrics = Metrics()
    passes = Passes(recorder, metrics)
    try:
        await story(passes)
    finally:
        await passes.stop()
    return metrics


async def test_a_wake_up_during_a_pass_makes_another_pass() -> None:
    recorder = Recorder(60.0)
    recorder.gate.clear()

    async def story(passes: Passes) -> None:
        passes.wake("ns", "a")
        await asyncio.sleep(0)
        passes.wake("ns", "a")
        recorder.gate.set()
        await recorder.passes(2)

    await with_passes(recorder, story)


async def test_many_wake_ups_at_once_are_one_pass() -> None:
    recorder = Recorder(60.0)

    async def story(passes: Passes) -> None:
        for _ in range(100):
            passes.wake("ns", "a")
        await recorder.passes(1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert recorder.ran.empty()

    await with_passes(recorder, story)


async def test_the_alarm_wakes_a_check_that_no_event_wakes() -> None:
    recorder = Recorder(0.01)
    await with_passes(recorder, lambda passes: _wake_and_wait(passes, recorder, 3))


async def test_a_conflict_is_looked_at_again_at_once() -> None:
    recorder = Recorder(Conflict("stale", status=409), 60.0)
    metrics = await with_passes(recorder, lambda passes: _wake_and_wait(passes, recorder, 2))
    assert metrics.registry.get_sample_value("steadyfleet_pass_failures_total") == 0


async def test_an_error_is_counted_and_tried_again() -> None:
    recorder = Recorder(Unavailable("away"), 60.0)
    metrics = await with_passes(recorder, lambda passes: _wake_and_wait(passes, recorder, 2))
    assert metrics.registry.get_sample_value("steadyfleet_pass_failures_total") == 1


async def test_a_check_that_is_gone_ends_its_task_and_comes_back_when_woken() -> None:
    recorder = Recorder(None)

    async def story(passes: Passes) -> None:
        await _wake_and_wait(passes, recorder, 1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert passes.stuck_seconds() == 0
        await _wake_and_wait(passes, recorder, 1)

    await with_passes(recorder, story)


async def test_a_defect_is_told_and_does_not_end_the_other_checks(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(ValueError("a defect"), 60.0)

    async def story(passes: Passes) -> None:
        await _wake_and_wait(passes, recorder, 1)
        passes.wake("ns", "b")
        await recorder.passes(1)

    metrics = await with_passes(recorder, story)
    assert "defect in a pass" in caplog.text
    assert metrics.registry.get_sample_value("steadyfleet_pass_failures_total") == 1


async def _wake_and_wait(passes: Passes, recorder: Recorder, count: int) -> None:
    passes.wake("ns", "a")
    await recorder.passes(count)


async def test_a_check_whose_event_was_lost_gets_its_task_once() -> None:
    recorder = Recorder(60.0)

    async def story(passes: Passes) -> None:
        passes.ensure("ns", "a")
        await recorder.passes(1)
        passes.ensure("ns", "a")
        for _ in range(20):
            await asyncio.sleep(0)
        assert recorder.ran.empty()

    await with_passes(recorder, story)


async def test_failing_passes_are_not_taken_for_stuck_ones_but_hanging_ones_are() -> None:
    recorder = Recorder(Unavailable("away"), Unavailable("away"))

    async def story(passes: Passes) -> None:
        await _wake_and_wait(passes, recorder, 1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert passes.stuck_seconds() == 0
        recorder.gate.clear()
        passes.wake("ns", "b")
        for _ in range(20):
            await asyncio.sleep(0)
        assert passes.stuck_seconds() > 0

    await with_passes(recorder, story)
