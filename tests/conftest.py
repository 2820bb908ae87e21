"""Fixtures and hooks for all tests."""

from tests.cluster.fixtures import cluster, control_plane, pytest_runtest_makereport

__all__ = ["cluster", "control_plane", "pytest_runtest_makereport"]
