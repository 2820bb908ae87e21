"""One real cluster with Steadyfleet for all tests of this folder. Each test makes its own check and leaves nothing."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.fixtures import USE_RUNNING_CLUSTER
from tests.cluster.services import PROMETHEUS_PORT
from tests.cluster.signals import termination_raises
from tests.e2e.lab import Lab, options

LOG_LINES = 80


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Nodes gpu-1 and gpu-2 with one GPU, gpu-3 with eight. With STEADYFLEET_USE_RUNNING_CLUSTER=1: the one that
    `python -m tests.e2e` left running."""
    if os.environ.get(USE_RUNNING_CLUSTER) == "1":
        yield Cluster.attach()
        return
    with termination_raises(), Cluster(options()) as running:
        yield running


@pytest.fixture(scope="session")
def installed(cluster: Cluster) -> Lab:
    lab = Lab(cluster)
    if os.environ.get(USE_RUNNING_CLUSTER) == "1":
        lab.prometheus = f"http://{cluster.hub}:{PROMETHEUS_PORT}"
    else:
        lab.set_up()
    return lab


@pytest.fixture
def lab(installed: Lab) -> Lab:
    """With an operator that is ready, and nodes that carry nothing of ours."""
    installed.operator.wait_ready()
    installed.wait_empty(installed.traces, what="what an earlier test left on nodes", timeout_seconds=60)
    return installed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "lab" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The operator's last words go into the report of a failed test; the cluster's logs go to build/cluster-logs."""
    report = yield
    lab = getattr(item, "funcargs", {}).get("lab")
    if report.failed and isinstance(lab, Lab):
        report.sections.append(("operator log", lab.operator.log_tail(LOG_LINES)))
    return report
