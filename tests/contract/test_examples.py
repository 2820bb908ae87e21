"""Each file in examples/ is a check that the operator understands; tests/chart applies them to a real API server."""

from __future__ import annotations

from pathlib import Path

import pytest

from steadyfleet_contract.spec import EngineKind
from steadyfleet_operator.resource import API_VERSION, ActionMode, CheckSpec
from tests.contract import crds

FILES = sorted(crds.EXAMPLES.glob("*.yaml"))


def spec(file: Path) -> CheckSpec:
    return CheckSpec.model_validate(crds.load(file)["spec"])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_example_is_a_check_named_after_its_file_or_model(file: Path) -> None:
    document = crds.load(file)
    assert (document["apiVersion"], document["kind"]) == (API_VERSION, "ConsistencyCheck")
    assert spec(file).versions[0].image


def test_the_minimal_example_states_only_what_has_no_default() -> None:
    given = crds.load(crds.EXAMPLES / "minimal.yaml")["spec"]
    assert set(given) == {"nodes", "engine", "versions"}


def test_the_examples_cover_observe_and_mark_and_both_engines() -> None:
    specs = [spec(file) for file in FILES]
    assert {one.engine.kind for one in specs} == set(EngineKind)
    assert {one.action.mode for one in specs} == set(ActionMode)
