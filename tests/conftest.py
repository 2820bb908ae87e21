"""Fixtures and hooks for all tests."""

from tests.cluster.fixtures import (
    cluster,
    control_plane,
    no_cluster,
    pytest_collection_modifyitems,
    pytest_runtest_makereport,
)

__all__ = ["cluster", "control_plane", "no_cluster", "pytest_collection_modifyitems", "pytest_runtest_makereport"]
