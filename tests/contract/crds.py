"""The three CustomResourceDefinitions as they lie in crds/, and a walk over their schemas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "crds"
EXAMPLES = REPOSITORY / "examples"

Json = dict[str, Any]


@dataclass(frozen=True)
class Schema:
    """One schema inside of a CRD, and where: `spec.engine.model.path`, `[]` for items, `{}` for values of a map."""

    path: str
    name: str
    """Name of the property; empty for items and values."""
    body: Json


def kinds() -> dict[str, Json]:
    """Kind -> definition."""
    definitions = [load(file) for file in sorted(FOLDER.glob("*.yaml"))]
    return {definition["spec"]["names"]["kind"]: definition for definition in definitions}


def version(definition: Json) -> Json:
    """The only version."""
    (only,) = definition["spec"]["versions"]
    return cast(Json, only)


def root(definition: Json) -> Json:
    return cast(Json, version(definition)["schema"]["openAPIV3Schema"])


def walk(body: Json, path: str = "", name: str = "") -> Iterator[Schema]:
    """Every schema, depth first, the root first."""
    yield Schema(path, name, body)
    for key, inner in body.get("properties", {}).items():
        yield from walk(inner, f"{path}.{key}".lstrip("."), key)
    if "items" in body:
        yield from walk(body["items"], f"{path}[]")
    if "additionalProperties" in body:
        yield from walk(body["additionalProperties"], f"{path}{{}}")


def load(file: Path) -> Json:
    (document,) = yaml.safe_load_all(file.read_text())
    return cast(Json, document)
