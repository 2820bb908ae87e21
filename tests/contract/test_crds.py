"""Lint of the CRDs, after the Kubernetes API conventions and what Kube-API-Linter asks."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.contract import crds
from tests.contract.crds import Json, Schema

KINDS = crds.kinds()

TIME_NAME = re.compile(r"(Time|At|^since)$")
DURATION_NAME = re.compile(r"(?i)interval|deadline|timeout|delay|duration|period|millisec")
CONDITION_FIELDS = {"type", "status", "reason", "message", "lastTransitionTime", "observedGeneration"}


def is_described_in_sentences(schema: Schema) -> bool:
    return re.fullmatch(r"\S.*[.]", schema.body.get("description", "")) is not None


def is_named_in_camel_case(schema: Schema) -> bool:
    return re.fullmatch(r"([a-z][A-Za-z0-9]*)?", schema.name) is not None


def is_of_bounded_size(schema: Schema) -> bool:
    body = schema.body
    match body.get("type"):
        case "string":
            return "maxLength" in body or "enum" in body
        case "array":
            return "maxItems" in body
        case "object" if "additionalProperties" in body:
            return "maxProperties" in body
        case "object":
            return "properties" in body or body.get("x-kubernetes-preserve-unknown-fields") is True
        case "integer" | "boolean":
            return True
        case _:
            return body.get("x-kubernetes-int-or-string") is True and "maxLength" in body


def is_no_float(schema: Schema) -> bool:
    wanted = ("int32", "int64") if schema.body.get("type") == "integer" else (None, "date-time")
    return schema.body.get("type") != "number" and schema.body.get("format") in wanted


def says_how_a_list_is_merged(schema: Schema) -> bool:
    if schema.body.get("type") != "array":
        return True
    keys = schema.body.get("x-kubernetes-list-map-keys", [])
    is_map = schema.body.get("x-kubernetes-list-type") == "map"
    known = schema.body.get("x-kubernetes-list-type") in ("atomic", "set", "map")
    return known and is_map == bool(keys) and set(keys) <= set(schema.body["items"].get("required", []))


def names_the_unit_of_a_duration(schema: Schema) -> bool:
    is_duration = schema.body.get("type") == "integer" and DURATION_NAME.search(schema.name)
    return not is_duration or schema.name.endswith(("Seconds", "Milliseconds"))


def writes_a_time_in_rfc_3339(schema: Schema) -> bool:
    in_words = schema.body.get("format") == "date-time" or "RFC 3339" in schema.body.get("description", "")
    return not TIME_NAME.search(schema.name) or (schema.body.get("type") == "string" and in_words)


def has_conditions_by_type(schema: Schema) -> bool:
    if schema.name != "conditions":
        return True
    items = schema.body["items"]
    return (
        schema.body.get("x-kubernetes-list-map-keys") == ["type"]
        and set(items["properties"]) == CONDITION_FIELDS
        and set(items["required"]) == CONDITION_FIELDS - {"observedGeneration"}
    )


def explains_its_rules(schema: Schema) -> bool:
    rules = schema.body.get("x-kubernetes-validations", [])
    return all(len(rule.get("message", "")) > 20 and not rule["message"].endswith(".") for rule in rules)


RULES: tuple[Callable[[Schema], bool], ...] = (
    is_described_in_sentences,
    is_named_in_camel_case,
    is_of_bounded_size,
    is_no_float,
    says_how_a_list_is_merged,
    names_the_unit_of_a_duration,
    writes_a_time_in_rfc_3339,
    has_conditions_by_type,
    explains_its_rules,
)

BAD_FIELDS: dict[Callable[[Schema], bool], tuple[str, Json]] = {
    is_described_in_sentences: ("size", {"type": "integer"}),
    is_named_in_camel_case: ("max_size", {}),
    is_of_bounded_size: ("title", {"type": "string"}),
    is_no_float: ("ratio", {"type": "number"}),
    says_how_a_list_is_merged: ("names", {"type": "array", "maxItems": 3, "items": {"type": "string"}}),
    names_the_unit_of_a_duration: ("pollInterval", {"type": "integer"}),
    writes_a_time_in_rfc_3339: ("startedAt", {"type": "integer"}),
    has_conditions_by_type: ("conditions", {"type": "array", "items": {"properties": {}, "required": []}}),
    explains_its_rules: ("name", {"x-kubernetes-validations": [{"rule": "self != ''"}]}),
}

every_kind = pytest.mark.parametrize("definition", KINDS.values(), ids=KINDS)


@every_kind
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_field(rule: Callable[[Schema], bool], definition: Json) -> None:
    fields = [schema for schema in crds.walk(crds.root(definition)) if schema.path != "metadata"]
    assert len(fields) > 20
    assert [schema.path for schema in fields if not rule(schema)] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_bad_field_would_be_found(rule: Callable[[Schema], bool]) -> None:
    name, body = BAD_FIELDS[rule]
    assert not rule(Schema(path=name, name=name, body=body))


def test_the_three_kinds_are_all_there_is() -> None:
    names = {kind: definition["spec"]["names"]["shortNames"] for kind, definition in KINDS.items()}
    assert names == {"ConsistencyCheck": ["ccheck"], "NodeConsistency": ["nodecon"], "ConsistencyBaseline": ["cbase"]}


def test_only_what_is_about_a_node_is_cluster_scoped() -> None:
    cluster_scoped = [kind for kind, definition in KINDS.items() if definition["spec"]["scope"] != "Namespaced"]
    assert cluster_scoped == ["NodeConsistency"]


def test_there_is_one_definition_of_each_in_the_repository() -> None:
    """Helm reads nothing outside of a chart, so the files lie there, and crds/ links to them."""
    in_chart = crds.REPOSITORY / "charts/steadyfleet/files/crds"
    linked = {file.name: file.resolve() for file in crds.FOLDER.iterdir()}
    assert linked == {file.name: file.resolve() for file in in_chart.iterdir()}


@every_kind
def test_file_is_named_after_the_plural(definition: Json) -> None:
    plural = definition["spec"]["names"]["plural"]
    assert definition["metadata"]["name"] == f"{plural}.{definition['spec']['group']}"
    assert crds.load(crds.FOLDER / f"{plural}.yaml") == definition


@every_kind
def test_status_is_a_subresource(definition: Json) -> None:
    assert crds.version(definition)["subresources"] == {"status": {}}


@every_kind
def test_printer_columns_are_described_and_end_in_age_before_the_wide_ones(definition: Json) -> None:
    columns = crds.version(definition)["additionalPrinterColumns"]
    narrow = [column["name"] for column in columns if not column.get("priority")]
    assert narrow[-1] == "Age"
    assert [column["name"] for column in columns if "description" not in column] == ["Age"]
    assert columns == sorted(columns, key=lambda column: int(column.get("priority", 0)))


def test_engine_and_version_take_the_same_arguments_and_environment() -> None:
    schemas = {schema.path: schema.body for schema in crds.walk(crds.root(KINDS["ConsistencyCheck"]))}
    engine, of_version = schemas["spec.engine"]["properties"], schemas["spec.versions[]"]["properties"]
    for field in ("arguments", "environment"):
        assert {**engine[field], "description": ""} == {**of_version[field], "description": ""}
