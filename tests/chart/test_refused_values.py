"""Values that make no sense are refused, by a message that names the value and what to do."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.chart.helm import CHART, Helm, Json, environment, value

REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "misspelt": ((value("dryrun", True),), "additional properties 'dryrun' not allowed"),
    "misspelt below": ((value("crds.enable", False),), "at '/crds': additional properties 'enable' not allowed"),
    "wrong type": ((value("dryRun", "yes"),), "at '/dryRun': got string, want boolean"),
    "namespace that is none": ((value("checkNamespaces", ["Serving"]),), "at '/checkNamespaces/0'"),
    "namespace twice": ((value("checkNamespaces", ["a", "a"]),), "items at 0 and 1 are equal"),
    "mark where nothing is run": (
        (value("checkNamespaces", ["a"]), value("markNamespaces", ["b"])),
        'markNamespaces: "b" is not in checkNamespaces',
    ),
    "priority that the autoscaler serves": ((value("probe.priorityClass.value", -10),), "maximum: got -10, want -11"),
    "no priority class at all": (
        (value("probe.priorityClass.create", False),),
        "probe.priorityClass.name is required when probe.priorityClass.create is false",
    ),
    "digest that is none": ((value("operator.image.digest", "latest"),), "at '/operator/image/digest'"),
    "two volumes": ((value("evidence.volume", {"emptyDir": {}, "hostPath": {"path": "/x"}}),), "at '/evidence/volume'"),
    "lease that cannot be renewed": ((value("operator.leaseSeconds", 1),), "minimum: got 1, want 3"),
    "rules without Prometheus Operator": (
        (value("monitoring.prometheusRule.enabled", True),),
        "prometheusRule.enabled is true, but the cluster does not serve monitoring.coreos.com/v1/PrometheusRule",
    ),
    "monitor without Prometheus Operator": (
        (value("monitoring.serviceMonitor.enabled", True),),
        "serviceMonitor.enabled is true, but the cluster does not serve monitoring.coreos.com/v1/ServiceMonitor",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_values_are_refused(helm: Helm, case: str) -> None:
    values, words = REFUSED[case]
    assert words in helm.template(*values).error


def test_images_must_be_named(helm: Helm) -> None:
    """A default name could be registered by somebody else."""
    error = helm.template(minimal=False).error
    assert "operator.image.repository is required: build the Dockerfile's target `operator`, push the image" in error


def test_marking_defaults_to_nowhere_when_the_own_namespace_is_not_checked(helm: Helm) -> None:
    rendered = helm.template(value("checkNamespaces", ["serving"]))
    variables = environment(rendered.of("Deployment"))
    assert variables["STEADYFLEET_CHECK_NAMESPACES"] == "serving"
    assert variables["STEADYFLEET_MARK_NAMESPACES"] == ""


def test_lint_is_clean(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm.lint()


def test_schema_knows_every_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert differences(schema, values, schema["definitions"]) == ["only in the schema: global"]


def differences(schema: Json, values: Json, definitions: Json, path: str = "") -> list[str]:
    """An object with fixed fields must refuse others; a free map (no `properties`) may hold anything."""
    schema = definitions[schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema
    if "properties" not in schema:
        return []
    found = [] if schema["additionalProperties"] is False else [f"{path}: takes any field"]
    found += [f"only in the schema: {path}{name}" for name in schema["properties"].keys() - values.keys()]
    found += [f"only in values.yaml: {path}{name}" for name in values.keys() - schema["properties"].keys()]
    for name in schema["properties"].keys() & values.keys():
        if isinstance(values[name], dict):
            found += differences(schema["properties"][name], values[name], definitions, f"{path}{name}.")
    return found


def test_every_value_is_explained() -> None:
    """By a comment above it, or above the group of neighbours that it begins or continues."""
    lines = (CHART / "values.yaml").read_text().splitlines()
    unexplained, commented = [], False
    for line in lines:
        if not line.strip():
            commented = False
        elif line.lstrip().startswith("#"):
            commented = True
        elif not line.rstrip().endswith(":") and not commented:
            unexplained.append(line)
    assert unexplained == []
