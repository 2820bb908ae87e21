"""When passes run: one task a check, woken by events and by its own alarm; never two passes of one check at a time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from steadyfleet_operator.errors import Conflict, SteadyfleetError
from steadyfleet_operator.metrics import Metrics

log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0
LONGEST_PAUSE_SECONDS = 5.0

Key = tuple[str, str]
"""(namespace, name) of a check."""


class Passes:
    """`reconcile` returns in how many seconds to look again, or None when the check is gone."""

    def __init__(self, reconcile: Callable[[str, str], Awaitable[float | None]], metrics: Metrics) -> None:
        self._reconcile = reconcile
        self._metrics = metrics
        self._woken: dict[Key, asyncio.Event] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._running: dict[Key, float] = {}

    def wake(self, namespace: str, name: str) -> None:
        key = (namespace, name)
        self._woken.setdefault(key, asyncio.Event()).set()
        if key not in self._tasks:
            task = asyncio.create_task(self._run(key), name=f"check {namespace}/{name}")
            self._tasks[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))

    def ensure(self, namespace: str, name: str) -> None:
        """A task for a check whose event never came; nothing if it has one."""
        if (namespace, name) not in self._tasks:
            self.wake(namespace, name)

    def wake_all(self) -> None:
        for namespace, name in list(self._tasks):
            self.wake(namespace, name)

    def stuck_seconds(self) -> float:
        """How long the longest pass has been running. Passes that fail are told by a metric; they end."""
        now = time.monotonic()
        return max((now - started for started in self._running.values()), default=0.0)

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, key: Key) -> None:
        failures = 0
        while True:
            self._woken[key].clear()
            started = time.monotonic()
            again, failures = await self._one(key, failures)
            if again is None:
                return
            # A pass that takes long is not started again at once: half of the time belongs to the others.
            await asyncio.sleep(min(time.monotonic() - started, LONGEST_PAUSE_SECONDS))
            try:
                async with asyncio.timeout(again):
                    await self._woken[key].wait()
            except TimeoutError:
                pass  # the alarm rang before an event did

    async def _one(self, key: Key, failures: int) -> tuple[float | None, int]:
        self._running[key] = time.monotonic()
        try:
            again = await self._reconcile(*key)
        except Conflict as conflict:
            # Somebody wrote in between, most likely a new spec: look at once, and slower if it goes on.
            log.info("check %s/%s: %s; looking again", *key, conflict)
            return min(0.05 * 2**failures, LONGEST_RETRY_SECONDS), failures + 1
        except SteadyfleetError as error:
            self._metrics.pass_failures.inc()
            log.warning("check %s/%s: pass failed: %s", *key, error)
            return min(FIRST_RETRY_SECONDS * 2**failures, LONGEST_RETRY_SECONDS), failures + 1
        finally:
            self._metrics.pass_duration.observe(time.monotonic() - self._running.pop(key))
        self._metrics.last_pass.set_to_current_time()
        return again, 0

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        self._tasks.pop(key, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            woken = self._woken.pop(key, None)
            if woken is not None and woken.is_set():
                self.wake(*key)  # the check came back under its name while its last pass ended
        else:
            # A defect of ours: say it with its trace, and go on with the check after a while instead of losing it.
            self._metrics.pass_failures.inc()
            log.error("check %s/%s: defect in a pass", *key, exc_info=error)
            asyncio.get_running_loop().call_later(LONGEST_RETRY_SECONDS, self.wake, *key)
