"""pytest fixtures, imported by tests/conftest.py: one real cluster for the whole run, and control planes alone.

They skip nothing: when a prerequisite is missing, the test fails with the one line that says what to install.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import ControlPlane
from tests.cluster.signals import termination_raises

USE_RUNNING_CLUSTER = "STEADYFLEET_USE_RUNNING_CLUSTER"
"""Set to 1, the tests use the cluster that `python -m tests.cluster up --detach` started, and leave it running."""

_LOGS = Path("build/cluster-logs")
"""Where the cluster's logs go when a test failed; relative to the repository's root."""

_failed = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The three-node cluster, shared by all tests of the run: leave it as you found it."""
    if os.environ.get(USE_RUNNING_CLUSTER) == "1":
        yield Cluster.attach()
        return
    with termination_raises(), Cluster() as running:
        yield running


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A real API server, controller manager and scheduler without nodes, shared by all tests of the run."""
    with termination_raises(), ControlPlane() as running:
        yield running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Copy the cluster's logs when a test that uses it failed."""
    report = yield
    fixtures = getattr(item, "funcargs", {})
    used = fixtures.get("cluster")
    if report.failed and report.when == "call" and isinstance(used, Cluster):
        used.logs_to(item.config.rootpath / _LOGS / re.sub(r"[^\w.-]+", "_", item.nodeid))
    return report
