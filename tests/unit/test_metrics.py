"""The catalogue: what is exported, and that series vanish with what they speak of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from steadyfleet_operator.metrics import CheckView, Metrics
from steadyfleet_operator.resource import CheckStatus, FleetCounts, GPUEntry, NodeCheck, Verdict
from tests.unit.decide.fleet import spec

DOCS = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"


def entry(*gpus: tuple[str, str, Verdict], consistent: int = 0, verdict: Verdict = Verdict.UNKNOWN) -> NodeCheck:
    return NodeCheck(
        namespace="ns",
        name="x",
        uid="u",
        verdict=verdict,
        consistent_gpus=consistent,
        gpus=tuple(GPUEntry(uuid=uuid, version=version, verdict=found) for uuid, version, found in gpus),
        last_result_time="2030-01-01T00:00:00Z",
    )


def with_entries(**entries: NodeCheck) -> Metrics:
    metrics = Metrics()
    status = CheckStatus(fleet=FleetCounts(selected=len(entries), stale=1))
    metrics.views["ns", "x"] = CheckView(spec=spec(), status=status, entries=entries, jobs=2)
    return metrics


def gpus(metrics: Metrics, node: str) -> dict[str, float]:
    values = {
        verdict.value: metrics.registry.get_sample_value(
            "steadyfleet_node_gpus", {"namespace": "ns", "check": "x", "node": node, "verdict": verdict.value}
        )
        for verdict in Verdict
    }
    return {name: value for name, value in values.items() if value is not None}


@pytest.mark.parametrize(
    ("found", "counts"),
    [
        pytest.param(entry(consistent=8), {"Consistent": 8}, id="all-consistent"),
        pytest.param(
            entry(("g1", "a", Verdict.DIVERGENT), consistent=7), {"Divergent": 1, "Consistent": 7}, id="one-of-eight"
        ),
        pytest.param(
            entry(("g1", "a", Verdict.DIVERGENT), ("g1", "b", Verdict.UNKNOWN)), {"Divergent": 1}, id="worst-version"
        ),
        pytest.param(entry(), {"Unknown": 1}, id="no-gpu-seen-yet"),
    ],
)
def test_gpus_are_counted_by_verdict(found: NodeCheck, counts: dict[str, float]) -> None:
    assert gpus(with_entries(a=found), "a") == counts


def test_series_vanish_with_their_check() -> None:
    metrics = with_entries(a=entry(consistent=1))
    metrics.visits.labels("ns", "x", "AsExpected").inc()
    metrics.visits.labels("ns", "other", "AsExpected").inc()
    metrics.forget("ns", "x")
    text = generate_latest(metrics.registry).decode()
    assert 'check="x"' not in text
    assert 'check="other"' in text


def test_every_metric_is_documented_and_every_documented_one_exists() -> None:
    metrics = with_entries(a=entry(consistent=1))
    exported = {
        f"{family.name}_total" if family.type == "counter" else family.name for family in metrics.registry.collect()
    }
    documented = set(re.findall(r"^\| `(steadyfleet_\w+)` \|", _metrics_section(), re.MULTILINE))
    assert exported == documented


def test_no_label_is_unbounded() -> None:
    allowed = {"namespace", "check", "node", "verdict", "outcome", "kind", "result", "le"}
    metrics = with_entries(a=entry(consistent=1))
    metrics.marked_nodes = frozenset({"a"})
    for counter in (metrics.visits, metrics.launches, metrics.reports):
        assert set(counter._labelnames) <= allowed
    for family in metrics.registry.collect():
        for sample in family.samples:
            assert set(sample.labels) <= allowed, sample


def _metrics_section() -> str:
    return DOCS.read_text().split("\n## Metrics\n")[1]
