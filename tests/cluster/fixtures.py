"""pytest fixtures, imported by tests/conftest.py: one real cluster for the whole run, and control planes alone.

They skip nothing: when a prerequisite is missing, the test fails with the one line that says what to install.
"""

import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.cluster import engine, images
from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import ControlPlane
from tests.cluster.options import ClusterOptions
from tests.cluster.run_folder import CLUSTER_FOLDER, is_in_use
from tests.cluster.signals import termination_raises

USE_RUNNING_CLUSTER = "STEADYFLEET_USE_RUNNING_CLUSTER"
"""Set to 1, the tests use the cluster that `python -m tests.cluster up --engine --detach` started, and leave it up."""

_LOGS = Path("build/cluster-logs")
"""Where the cluster's logs go when a test failed; relative to the repository's root."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The three-node cluster, two GPUs a node, shared by all tests of the run: leave it as you found it.

    Its nodes hold the engine image, and containers with a GPU find vLLM at `images.ENGINE_MOUNT`.
    """
    if os.environ.get(USE_RUNNING_CLUSTER) == "1":
        yield Cluster.attach()
        return
    options = ClusterOptions(images=(images.engine(),), gpu_mounts=(engine.prepare().mount,))
    with termination_raises(), Cluster(options) as running:
        yield running


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A real API server, controller manager and scheduler without nodes, shared by all tests of the run."""
    with termination_raises(), ControlPlane() as running:
        yield running


@pytest.fixture
def no_cluster() -> None:
    """The machine has no three-node cluster: for tests that start their own. Such tests run first."""
    assert not (CLUSTER_FOLDER.exists() and is_in_use(CLUSTER_FOLDER)), "a cluster runs; end it for this test"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests that need a machine without a cluster before the first that starts the shared one."""
    items.sort(key=lambda item: "no_cluster" not in getattr(item, "fixturenames", ()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Copy the logs of the cluster, or of the control plane, when a test that uses it failed."""
    report = yield
    fixtures = getattr(item, "funcargs", {})
    for used in (fixtures.get("cluster"), fixtures.get("control_plane")):
        if report.failed and report.when == "call" and isinstance(used, Cluster | ControlPlane):
            used.logs_to(item.config.rootpath / _LOGS / re.sub(r"[^\w.-]+", "_", item.nodeid))
    return report
