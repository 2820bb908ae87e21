"""The alerts by promtool, and every query against the catalogue of metrics."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from steadyfleet_operator.metrics import CheckView, Metrics
from steadyfleet_operator.resource import CheckSpec, CheckStatus, NodeCheck
from tests.chart import monitoring
from tests.chart.checks import check
from tests.chart.monitoring import DASHBOARD, RULES, Query
from tests.cluster.commands import run

QUERIES = (*monitoring.alert_queries(), *monitoring.dashboard_queries())
GLOBAL_LABELS = {"le"}
"""Of Prometheus itself."""


@pytest.fixture(scope="module")
def catalogue() -> dict[str, set[str]]:
    """Series -> labels, of everything that the operator exports."""
    metrics = Metrics()
    metrics.visits.labels("serving", "nightly", "Completed").inc()
    metrics.launches.labels("serving", "nightly", "Pinned", "Completed").inc()
    metrics.reports.labels("Accepted").inc()
    gpu = {"uuid": "GPU-1", "version": "stable", "verdict": "Divergent"}
    entry = {"namespace": "serving", "name": "nightly", "uid": "1", "verdict": "Divergent", "gpus": [gpu]}
    metrics.views["serving", "nightly"] = CheckView(
        spec=CheckSpec.model_validate(check()["spec"]),
        status=CheckStatus(),
        entries={"gpu-1": NodeCheck.model_validate({**entry, "lastResultTime": "2030-01-01T00:00:00Z"})},
        jobs=1,
    )
    metrics.marked_nodes = frozenset({"gpu-1"})
    series: dict[str, set[str]] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            series.setdefault(sample.name, set()).update(sample.labels)
    return series


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.where)
def test_query_names_what_the_operator_exports(catalogue: dict[str, set[str]], query: Query) -> None:
    assert query.metrics
    assert query.metrics - catalogue.keys() == set()
    known = set().union(*(catalogue[name] for name in query.metrics))
    assert query.labels - known - GLOBAL_LABELS == set()


def test_the_catalogue_is_the_documented_one() -> None:
    _, section = (RULES.parents[3] / "docs" / "architecture.md").read_text().split("\n## Metrics\n")
    lines = section.split("\n## ")[0].splitlines()
    documented = {line.split("`")[1] for line in lines if line.startswith("| `")}
    exported = {f"{family.name}{'_total' * (family.type == 'counter')}" for family in Metrics().registry.collect()}
    assert documented == exported


def test_alerts_fire_when_they_should_and_say_what_to_do(promtool: Path, tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path)
    shutil.copy(Path(__file__).with_name("rules_test.yaml"), tmp_path)
    run(promtool, "test", "rules", "rules_test.yaml", cwd=tmp_path)


def test_rules_are_clean(promtool: Path) -> None:
    run(promtool, "check", "rules", "--lint=all", "--lint-fatal", RULES)


def test_every_alert_has_a_unit_test() -> None:
    tested = Path(__file__).with_name("rules_test.yaml").read_text()
    assert {query.where for query in monitoring.alert_queries() if f"alertname: {query.where}" not in tested} == set()


def test_every_alert_names_the_next_command_and_its_weight() -> None:
    text = RULES.read_text()
    alerts = len(monitoring.alert_queries())
    assert text.count("Next: ") == text.count("severity: ") == text.count("summary: ") == alerts


def test_dashboard_asks_the_chosen_data_source_and_fits_its_grid() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    assert [variable["name"] for variable in dashboard["templating"]["list"]] == ["datasource", "namespace", "check"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [cell for panel in panels for cell in cells(panel["gridPos"])]
    assert len(taken) == len(set(taken)), "panels lie on each other"
    assert max(column for column, _ in taken) < 24
    assert all(panel["description"] for panel in panels)


def cells(position: dict[str, int]) -> list[tuple[int, int]]:
    columns = range(position["x"], position["x"] + position["w"])
    return [(column, row) for column in columns for row in range(position["y"], position["y"] + position["h"])]
