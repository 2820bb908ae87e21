"""The real helm and promtool, and a real API server with the chart's objects on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chart.helm import CHART, MINIMAL_VALUES, NAMESPACE, Helm
from tests.cluster import binaries
from tests.cluster.control_plane import ControlPlane


@pytest.fixture(scope="session")
def helm() -> Helm:
    return Helm(binaries.build(("helm",)).path("helm"))


@pytest.fixture(scope="session")
def promtool() -> Path:
    return binaries.build(("prometheus",)).path("promtool")


@pytest.fixture(scope="session")
def server() -> Iterator[ControlPlane]:
    """A control plane on which the chart is installed; nothing runs, since it has no nodes."""
    with ControlPlane() as control_plane:
        control_plane.helm(
            "install", "steadyfleet", str(CHART), "--namespace", NAMESPACE, "--create-namespace",
            "--values", str(MINIMAL_VALUES),
        )  # fmt: skip
        yield control_plane
