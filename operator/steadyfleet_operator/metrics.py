"""The metrics catalogue: every series that the operator exports is named here, and nowhere else.

Labels are bounded: namespace, check, node, verdict, reason. Never a pod, a UUID, a digest or an error text. What can be
read off the newest pass (nodes by verdict, ages) is collected from it, so that series vanish with their node or check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from steadyfleet_operator.resource import VERDICT_SEVERITY, CheckSpec, CheckStatus, GPUEntry, NodeCheck, Verdict

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class CheckView:
    """What the newest pass of one check left behind for the collector."""

    spec: CheckSpec
    status: CheckStatus
    entries: Mapping[str, NodeCheck]
    """By node."""
    jobs: int


@dataclass
class Metrics:
    """One instance a process. `views` is replaced check by check; `marked_nodes` by the pass that read the fleet."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    views: dict[tuple[str, str], CheckView] = field(default_factory=dict)
    marked_nodes: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        check, registry = ["namespace", "check"], self.registry
        self.visits = Counter(
            "steadyfleet_visits", "Visits recorded, by how they ended.", [*check, "outcome"], registry=registry
        )
        self.launches = Counter(
            "steadyfleet_launches", "Launches recorded.", [*check, "kind", "outcome"], registry=registry
        )
        self.reports = Counter(
            "steadyfleet_reports",
            "Reports by answer: Accepted, Duplicate, or why refused.",
            ["result"],
            registry=registry,
        )
        self.report_to_verdict = Histogram(
            "steadyfleet_report_to_verdict_seconds",
            "From a report's acceptance to the status write that counts it.",
            registry=registry,
            buckets=SECONDS_BUCKETS,
        )
        self.pass_duration = Histogram(
            "steadyfleet_pass_duration_seconds", "One pass of one check.", registry=registry, buckets=SECONDS_BUCKETS
        )
        self.pass_failures = Counter("steadyfleet_pass_failures", "Passes that ended in an error.", registry=registry)
        self.last_pass = Gauge(
            "steadyfleet_last_pass_timestamp_seconds", "End of the newest pass of any check.", registry=registry
        )
        self.leader = Gauge("steadyfleet_leader", "1 while this process holds the Lease.", registry=registry)
        registry.register(_Views(self))

    def forget(self, namespace: str, name: str) -> None:
        """A check is gone: so are its series."""
        self.views.pop((namespace, name), None)
        for counter in (self.visits, self.launches):
            for labels in [key for key in list(counter._metrics) if key[:2] == (namespace, name)]:
                counter.remove(*labels)


class _Views(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        check = ["namespace", "check"]
        gpus = GaugeMetricFamily(
            "steadyfleet_node_gpus", "GPUs of the node by verdict.", labels=[*check, "node", "verdict"]
        )
        node_result = GaugeMetricFamily(
            "steadyfleet_node_last_result_timestamp_seconds", "Newest result of the node.", labels=[*check, "node"]
        )
        nodes = GaugeMetricFamily(
            "steadyfleet_check_nodes", 'Nodes by verdict, and verdict="Stale".', labels=[*check, "verdict"]
        )
        interval = GaugeMetricFamily("steadyfleet_check_interval_seconds", "How old a result may get.", labels=check)
        result = GaugeMetricFamily(
            "steadyfleet_check_last_result_timestamp_seconds", "Newest result of the check.", labels=check
        )
        suspended = GaugeMetricFamily("steadyfleet_check_suspended", "1 while the check is suspended.", labels=check)
        jobs = GaugeMetricFamily("steadyfleet_check_probe_jobs", "Probe Jobs that exist now.", labels=check)
        marked = GaugeMetricFamily("steadyfleet_node_marked", "1 while the node carries our mark.", labels=["node"])

        for (namespace, name), view in sorted(self._metrics.views.items()):
            key = [namespace, name]
            newest = 0.0
            for node, entry in view.entries.items():
                for verdict, count in _gpus_by_verdict(entry).items():
                    gpus.add_metric([*key, node, verdict.value], count)
                if entry.last_result_time:
                    moment = datetime.fromisoformat(entry.last_result_time).timestamp()
                    node_result.add_metric([*key, node], moment)
                    newest = max(newest, moment)
            if newest:
                result.add_metric(key, newest)
            fleet = view.status.fleet
            for verdict_name, count in (
                (Verdict.CONSISTENT.value, fleet.consistent),
                (Verdict.DIVERGENT.value, fleet.divergent),
                (Verdict.NOT_COMPARABLE.value, fleet.not_comparable),
                (Verdict.UNKNOWN.value, fleet.unknown),
                ("Stale", fleet.stale),
            ):
                nodes.add_metric([*key, verdict_name], count)
            interval.add_metric(key, view.spec.schedule.interval_seconds)
            suspended.add_metric(key, int(view.spec.suspend))
            jobs.add_metric(key, view.jobs)
        for node in sorted(self._metrics.marked_nodes):
            marked.add_metric([node], 1)
        yield from (gpus, node_result, nodes, interval, result, suspended, jobs, marked)


def _gpus_by_verdict(entry: NodeCheck) -> dict[Verdict, int]:
    """A GPU with entries in several versions counts once, by the worst. A node without any counts as one Unknown."""
    worst: dict[str, GPUEntry] = {}
    for gpu in entry.gpus:
        if gpu.uuid not in worst or VERDICT_SEVERITY[gpu.verdict] > VERDICT_SEVERITY[worst[gpu.uuid].verdict]:
            worst[gpu.uuid] = gpu
    counts = {verdict: sum(gpu.verdict is verdict for gpu in worst.values()) for verdict in Verdict}
    counts[Verdict.CONSISTENT] = entry.consistent_gpus
    if not any(counts.values()):
        counts[entry.verdict] = 1
    return {verdict: count for verdict, count in counts.items() if count}
