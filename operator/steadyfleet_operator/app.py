"""The running operator: what is started in which order, and what ends it.

health server       at once: a process that waits for the Lease is alive, but not ready
Lease               waited for; its loss ends the process, whatever it is doing
evidence, fleet     read in before the first decision, or an empty fleet would look like one without nodes
report server       probes deliver to the leader alone
watches, passes     from here on everything is woken by events and alarms
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from datetime import datetime, timezone

from steadyfleet_operator import health
from steadyfleet_operator.errors import SteadyfleetError, Stop
from steadyfleet_operator.handlers import watch_checks
from steadyfleet_operator.intake.server import ReportServer
from steadyfleet_operator.intake.store import EvidenceStore
from steadyfleet_operator.janitor import TIDY_SECONDS, Janitor
from steadyfleet_operator.kube.baselines import Baselines
from steadyfleet_operator.kube.checks import Checks
from steadyfleet_operator.kube.client import KubeClient
from steadyfleet_operator.kube.events import Events
from steadyfleet_operator.kube.fleet import Fleet
from steadyfleet_operator.kube.jobs import Jobs
from steadyfleet_operator.kube.lease import Lease
from steadyfleet_operator.kube.marks import Marks
from steadyfleet_operator.kube.pki import Authority
from steadyfleet_operator.kube.probes import Probes
from steadyfleet_operator.kube.resources import JOBS, PODS
from steadyfleet_operator.kube.results import NodeResults
from steadyfleet_operator.kube.wake import wake_by
from steadyfleet_operator.metrics import Metrics
from steadyfleet_operator.passes import Passes
from steadyfleet_operator.reconcile import Cluster, Reconciler
from steadyfleet_operator.results import Results
from steadyfleet_operator.settings import Settings

log = logging.getLogger(__name__)

STUCK_SECONDS = 300.0
"""A pass takes seconds at most and each of its requests has a time-out: one that runs for so long hangs."""


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


async def run(settings: Settings, *, in_cluster: bool) -> None:
    """Until SIGTERM or SIGINT. Raises LeaseLost, or what made it fail."""
    metrics = Metrics()
    state = State()
    runner = await health.serve(
        health.application(metrics.registry, alive=state.why_not_alive, ready=state.why_not_ready),
        settings.metrics_port,
    )
    lease_client = await KubeClient.connect(in_cluster=in_cluster)
    holder = f"{settings.pod_name}_{os.getpid()}_{os.urandom(4).hex()}"
    lease = Lease(
        lease_client,
        namespace=settings.namespace,
        name=settings.lease_name,
        holder=holder,
        duration_seconds=settings.lease_seconds,
    )
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_asked_to_stop(), name="signals")
            group.create_task(_lead(settings, metrics, state, lease, in_cluster=in_cluster), name="leader")
    except* Stop:
        log.info("asked to stop")
    finally:
        metrics.leader.set(0)
        await lease.release()
        await lease_client.close()
        await runner.cleanup()


class State:
    """What the probes are answered from."""

    def __init__(self) -> None:
        self.passes: Passes | None = None
        self.lease: Lease | None = None
        self.starting = "waiting for the Lease"

    def why_not_alive(self) -> str:
        if self.passes and (stuck := self.passes.stuck_seconds()) > STUCK_SECONDS:
            return f"no pass has ended for {stuck:.0f} s"
        return ""

    def why_not_ready(self) -> str:
        if self.starting:
            return self.starting
        return "" if self.lease and self.lease.held else "the Lease is not held"


async def _lead(settings: Settings, metrics: Metrics, state: State, lease: Lease, *, in_cluster: bool) -> None:
    await lease.acquire()
    metrics.leader.set(1)
    state.lease = lease
    client = await KubeClient.connect(in_cluster=in_cluster, fence=lease.check)
    events = Events(client)
    try:
        async with asyncio.TaskGroup() as group:
            # First of all: from here on the Lease is renewed, however long the rest takes to start.
            group.create_task(lease.hold(), name="lease")
            group.create_task(events.run(), name="events")
            await _start(group, settings, metrics, state, client, events, in_cluster=in_cluster)
    finally:
        if lease.held:
            await events.drain()
        if state.passes:
            await state.passes.stop()
        await client.close()


async def _start(
    group: asyncio.TaskGroup,
    settings: Settings,
    metrics: Metrics,
    state: State,
    client: KubeClient,
    events: Events,
    *,
    in_cluster: bool,
) -> None:
    state.starting = "reading the evidence store"
    store = EvidenceStore(settings.evidence_dir)
    await store.open()
    results = Results(NodeResults(client))
    await _until_it_works("NodeConsistency objects", results.load)
    authority = Authority(client, settings)
    await _until_it_works("the report server's certificate", authority.load)

    tidy_now = asyncio.Event()
    fleet = Fleet(client, changed=lambda _: state.passes.wake_all() if state.passes else None)
    cluster = Cluster(
        checks=Checks(client),
        jobs=Jobs(client),
        baselines=Baselines(client),
        results=results,
        marks=Marks(client),
        events=events,
        fleet=fleet,
        store=store,
    )
    reconciler = Reconciler(cluster, settings, metrics, report_ca=authority.bundle, now=utc_now)

    async def one_pass(namespace: str, name: str) -> float | None:
        again = await reconciler.reconcile(namespace, name)
        if again is None:
            tidy_now.set()
        return again

    passes = Passes(one_pass, metrics)
    server = ReportServer(
        settings,
        probes=Probes(client),
        store=store,
        authority=authority,
        wake=passes.wake,
        count_report=lambda result: metrics.reports.labels(result.value).inc(),
        count_launch=lambda launch: metrics.launches.labels(
            launch.namespace, launch.check, launch.kind.value, launch.outcome.value
        ).inc(),
    )
    group.create_task(fleet.run(), name="fleet")
    state.starting = "reading the fleet"
    await fleet.ready.wait()
    group.create_task(authority.keep_fresh(), name="certificates")
    group.create_task(server.run(), name="report server")
    await server.ready.wait()
    state.passes = passes
    for namespace in settings.check_namespaces:
        for resource in (JOBS, PODS):
            group.create_task(wake_by(client, resource, namespace, passes.wake), name=f"{resource.plural} {namespace}")
    group.create_task(watch_checks(passes.wake, in_cluster=in_cluster), name="checks")
    group.create_task(_tidy(Janitor(reconciler, passes.ensure), tidy_now), name="janitor")
    state.starting = ""
    log.info("ready: checks of %s are run", ", ".join(settings.check_namespaces))


async def _tidy(janitor: Janitor, now: asyncio.Event) -> None:
    while True:
        now.clear()
        try:
            await janitor.tidy()
        except SteadyfleetError as error:
            log.warning("tidying up failed, trying again: %s", error)
        try:
            async with asyncio.timeout(TIDY_SECONDS):
                await now.wait()
        except TimeoutError:
            pass  # its turn came round


async def _until_it_works(what: str, load: Callable[[], object]) -> None:
    """At start the API server may be away, or its RBAC not there yet."""
    wait = 1.0
    while True:
        try:
            await load()  # type: ignore[misc]
            return
        except SteadyfleetError as error:
            log.warning("cannot read %s yet: %s", what, error)
            await asyncio.sleep(wait)
            wait = min(2 * wait, 30.0)


async def _asked_to_stop() -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    await asked.wait()
    raise Stop
