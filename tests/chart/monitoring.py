"""The queries of the alerts and of the dashboard."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import yaml

from tests.chart.helm import CHART

RULES = CHART / "files" / "rules.yaml"
DASHBOARD = CHART / "files" / "dashboard.json"

METRIC = re.compile(r"\bsteadyfleet_[a-z_]+")
LABELS = re.compile(r"\{([^}]*)\}|\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")


@dataclass(frozen=True)
class Query:
    """`where`: the alert's name or the panel's title."""

    where: str
    expression: str

    @property
    def metrics(self) -> set[str]:
        return set(METRIC.findall(self.expression))

    @property
    def labels(self) -> set[str]:
        """Named in selectors and groupings."""
        parts = [selector or grouping for selector, grouping in LABELS.findall(self.expression)]
        names = (part.strip() for whole in parts for part in re.sub(r'"[^"]*"', "", whole).split(","))
        return {re.split(r"[=!~]", name)[0].strip() for name in names} - {""}


def alert_queries() -> tuple[Query, ...]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return tuple(Query(rule["alert"], rule["expr"]) for group in groups for rule in group["rules"])


def dashboard_queries() -> tuple[Query, ...]:
    """As Grafana would send them with every variable at All."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return tuple(
        Query(panel["title"], _filled_in(target["expr"])) for panel in panels for target in panel.get("targets", ())
    )


def _filled_in(expression: str) -> str:
    for variable, text in (("$__rate_interval", "5m"), ("$namespace", ".*"), ("$check", ".*")):
        expression = expression.replace(variable, text)
    return expression
