"""The CRDs and the pydantic models say the same: fields, types, enums, what is required, defaults. Both directions."""

from __future__ import annotations

import types
import typing
from enum import Enum
from typing import Any, Literal, Union

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from steadyfleet_contract.spec import LaunchRequest, ProbeSpec, SimulationSpec
from steadyfleet_operator import resource
from steadyfleet_operator.decide import thresholds
from tests.contract import crds
from tests.contract.crds import Json

KINDS = crds.kinds()

PARTS: dict[str, tuple[str, str, type[BaseModel]]] = {
    "CheckSpec": ("ConsistencyCheck", "spec", resource.CheckSpec),
    "CheckStatus": ("ConsistencyCheck", "status", resource.CheckStatus),
    "NodeStatus": ("NodeConsistency", "status", resource.NodeStatus),
    "BaselineSpec": ("ConsistencyBaseline", "spec", resource.BaselineSpec),
    "BaselineStatus": ("ConsistencyBaseline", "status", resource.BaselineStatus),
}

SCALARS = {str: "string", int: "integer", bool: "boolean"}


def part(name: str) -> tuple[Json, type[BaseModel]]:
    kind, field, model = PARTS[name]
    return crds.root(KINDS[kind])["properties"][field], model


def differences(body: Json, model: type[BaseModel], path: str, *, defaults: bool) -> list[str]:
    """What the schema and the model do not agree on. `defaults`: those too (of a spec; a status has none)."""
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    properties: Json = body.get("properties", {})
    found = [f"{path}.{name}: only in the CRD" for name in properties.keys() - fields.keys()]
    found += [f"{path}.{name}: only in the model" for name in fields.keys() - properties.keys()]
    required = {name for name, field in fields.items() if field.is_required()}
    if set(body.get("required", [])) != required:
        found.append(f"{path}: the CRD requires {sorted(body.get('required', []))}, the model {sorted(required)}")
    for name in fields.keys() & properties.keys():
        where = f"{path}.{name}"
        found += type_differences(properties[name], fields[name].annotation, where, defaults=defaults)
        found += default_differences(properties[name], fields[name], where) if defaults else []
        found += [f"{where}: a default in a status"] if not defaults and "default" in properties[name] else []
    return found


def type_differences(body: Json, annotation: Any, path: str, *, defaults: bool) -> list[str]:
    annotation = without_none(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return enum_differences(body, {str(value) for value in arguments}, path)
    if origin is tuple:
        element, ellipsis = arguments
        assert ellipsis is Ellipsis
        wrong = [] if body["type"] == "array" else [f"{path}: not an array in the CRD"]
        return wrong + type_differences(body["items"], element, f"{path}[]", defaults=defaults)
    if origin is dict:
        return map_differences(body, arguments[1], path)
    if issubclass(annotation, Enum):
        return enum_differences(body, {member.value for member in annotation}, path)
    if issubclass(annotation, BaseModel):
        wrong = [] if body["type"] == "object" else [f"{path}: not an object in the CRD"]
        return wrong + differences(body, annotation, path, defaults=defaults)
    given, wanted = body["type"], SCALARS[annotation]
    return [] if given == wanted else [f"{path}: {given} in the CRD, {wanted} in the model"]


def map_differences(body: Json, value: Any, path: str) -> list[str]:
    """dict[str, str] is a map of strings; dict[str, object] a Kubernetes object, typed in the CRD or handed on."""
    if body["type"] != "object":
        return [f"{path}: not an object in the CRD"]
    if value is str and body.get("additionalProperties", {}).get("type") != "string":
        return [f"{path}: not a map of strings in the CRD"]
    if value is object and not (body.get("x-kubernetes-preserve-unknown-fields") or "properties" in body):
        return [f"{path}: not an object in the CRD"]
    return []


def enum_differences(body: Json, wanted: set[str], path: str) -> list[str]:
    given = set(body.get("enum", []))
    return [] if given == wanted else [f"{path}: enum {sorted(given)} in the CRD, {sorted(wanted)} in the model"]


def default_differences(body: Json, field: FieldInfo, path: str) -> list[str]:
    """Empty defaults of the model ("", (), {}, None, 0) need none in the CRD; every other one must be there."""
    default = plain(field.default)
    if field.default is PydanticUndefined:
        default = None
    if isinstance(field.default, BaseModel):
        default = {}
    elif not default and "default" not in body:
        return []
    given = body.get("default")
    return [] if given == default else [f"{path}: default {given} in the CRD, {default} in the model"]


def plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else value


def without_none(annotation: Any) -> Any:
    if typing.get_origin(annotation) in (Union, types.UnionType):
        (only,) = (argument for argument in typing.get_args(annotation) if argument is not type(None))
        return only
    return annotation


def at(kind: str, path: str) -> Json:
    (found,) = (schema.body for schema in crds.walk(crds.root(KINDS[kind])) if schema.path == path)
    return found


@pytest.mark.parametrize("name", PARTS)
def test_crd_and_model_agree(name: str) -> None:
    body, model = part(name)
    assert differences(body, model, name, defaults=name.endswith("Spec")) == []


def test_a_disagreement_would_be_found() -> None:
    body, model = part("CheckSpec")
    changed = {**body, "properties": {**body["properties"], "extra": {"type": "string"}}, "required": ["engine"]}
    assert differences(changed, model, "spec", defaults=True) == [
        "spec.extra: only in the CRD",
        "spec: the CRD requires ['engine'], the model ['engine', 'versions']",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_without_a_model_is_not_in_the_crd(kind: str) -> None:
    modelled = {field for of_kind, field, _ in PARTS.values() if of_kind == kind}
    assert set(crds.root(KINDS[kind])["properties"]) == {"apiVersion", "kind", "metadata"} | modelled


@pytest.mark.parametrize(
    ("kind", "path", "limit"),
    [
        ("NodeConsistency", "status.checks[].gpus", thresholds.MAX_LISTED_GPUS),
        ("ConsistencyCheck", "status.divergent", thresholds.MAX_LISTED_DIVERGENT),
        ("ConsistencyBaseline", "status.variants", thresholds.MAX_VARIANTS),
    ],
)
def test_list_holds_what_the_operator_writes(kind: str, path: str, limit: int) -> None:
    assert at(kind, path)["maxItems"] == limit


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("NodeConsistency", "status.checks[].message"),
        ("NodeConsistency", "status.checks[].gpus[].message"),
        ("ConsistencyCheck", "status.conditions[].message"),
        ("ConsistencyBaseline", "status.conditions[].message"),
    ],
)
def test_message_holds_what_the_operator_writes(kind: str, path: str) -> None:
    assert at(kind, path)["maxLength"] >= thresholds.MAX_MESSAGE


def test_every_slot_of_the_largest_cap_fits() -> None:
    cap = at("ConsistencyCheck", "spec.schedule.maxConcurrent")["maximum"]
    assert at("ConsistencyCheck", "status.slots")["maxItems"] == cap
    assert at("ConsistencyCheck", "status.slots[].slot")["maximum"] == cap - 1


@pytest.mark.parametrize(
    ("path", "model", "field"),
    [
        ("spec.engine.gpusPerProbe", ProbeSpec, "gpusPerProbe"),
        ("spec.prompts.maxTokens", ProbeSpec, "maxTokens"),
        ("spec.prompts.topLogprobs", ProbeSpec, "topLogprobs"),
        ("spec.engine.simulation.variants", SimulationSpec, "variants"),
        ("spec.engine.simulation.variantPerMille", SimulationSpec, "variantPerMille"),
        ("spec.engine.simulation.divergentPerMille", SimulationSpec, "divergentPerMille"),
        ("spec.engine.simulation.launchMilliseconds", SimulationSpec, "launchMilliseconds"),
    ],
)
def test_range_is_that_of_the_probe(path: str, model: type[BaseModel], field: str) -> None:
    body = at("ConsistencyCheck", path)
    of_probe = model.model_json_schema(by_alias=True)["properties"][field]
    assert (body["minimum"], body["maximum"]) == (of_probe["minimum"], of_probe["maximum"])


def test_all_launches_of_a_visit_have_an_index() -> None:
    launches = at("ConsistencyCheck", "spec.launches")["properties"]
    most = launches["pinned"]["maximum"] + launches["asServed"]["maximum"]
    assert most - 1 <= LaunchRequest.model_json_schema()["properties"]["index"]["maximum"]
