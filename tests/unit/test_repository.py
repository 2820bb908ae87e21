"""What must hold of the repository itself."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_operator_folder_cannot_shadow_the_standard_library() -> None:
    """`operator/__init__.py`, or a loose module beside the package, would be imported as `operator` from the root."""
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not list((ROOT / "operator").glob("*.py"))
    assert not list((ROOT / "probe").glob("*.py"))


def test_crds_are_links_into_the_chart() -> None:
    """One definition: Helm reads only files inside of the chart."""
    crds = sorted((ROOT / "crds").glob("*.yaml"))
    assert len(crds) == 3
    for crd in crds:
        assert crd.resolve().is_relative_to(ROOT / "charts" / "steadyfleet" / "files" / "crds")


def test_ci_runs_the_command_that_the_readme_names() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert "make test" in (ROOT / "README.md").read_text()
