"""The images of the Dockerfile, really built: who runs in them, and what is in them."""

from __future__ import annotations

import json
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import pytest

from tests.chart.helm import REPOSITORY, Json
from tests.cluster import images
from tests.e2e.platform import BuiltImages, build_images

pytestmark = pytest.mark.timeout(900)
"""The first test builds both images."""

NOBODY = "65532:65532"
TOOLS = re.compile(r"^opt/uv|/(pip|setuptools|hatchling|uv)(-[0-9.]+\.dist-info)?/|\.cache/|\.whl$|^src/")


@dataclass(frozen=True)
class Image:
    config: Json
    own_files: dict[str, tarfile.TarInfo]
    """What its layers add to the base image."""


@pytest.fixture(scope="module")
def built() -> BuiltImages:
    return build_images()


@pytest.fixture(scope="module")
def operator(built: BuiltImages) -> Image:
    return read(built.operator)


@pytest.fixture(scope="module")
def probe(built: BuiltImages) -> Image:
    return read(built.probe)


@pytest.mark.cluster
def test_operator_runs_as_nobody_with_the_command_as_argument(operator: Image) -> None:
    assert operator.config["User"] == NOBODY
    assert operator.config["Entrypoint"] == ["/opt/steadyfleet/bin/python", "-m", "steadyfleet_operator"]


@pytest.mark.cluster
def test_operator_has_what_it_runs_and_no_tools(operator: Image) -> None:
    packages = {
        path.split("/site-packages/")[1].split("/")[0] for path in operator.own_files if "/site-packages/" in path
    }
    assert {"steadyfleet_operator", "steadyfleet_contract", "kopf", "kubernetes", "pydantic"} <= packages
    assert [path for path in operator.own_files if TOOLS.search(path)] == []
    assert {path.split("/")[0] for path in operator.own_files} <= {"opt", "etc"}, "nothing outside of its folder"


@pytest.mark.cluster
def test_probe_is_two_files_for_a_copy(probe: Image) -> None:
    assert probe.config["User"] == NOBODY
    files = {path for path, member in probe.own_files.items() if member.isfile() and path.startswith("probe/")}
    assert files == {"probe/run", "probe/probe.pyz"}
    assert [path for path in probe.own_files if TOOLS.search(path)] == []


def test_head_of_the_dockerfile_lists_its_targets_and_stages() -> None:
    text = (REPOSITORY / "Dockerfile").read_text()
    head = text.split("\nARG ")[0]
    stages = re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE)
    assert re.findall(r"^#   (\w+)   ", head, re.MULTILINE) == ["operator", "probe", "build"]
    assert sorted(stages) == ["build", "operator", "probe"]


def read(archive: Path) -> Image:
    """Of an OCI archive with one image."""
    with tarfile.open(archive) as outer:
        manifest = blob(outer, blob_json(outer, "index.json")["manifests"][0]["digest"])
        config = blob(outer, manifest["config"]["digest"])
        base_layers = len(base_manifest()["layers"])
        files: dict[str, tarfile.TarInfo] = {}
        for layer in manifest["layers"][base_layers:]:
            raw = cast(IO[bytes], outer.extractfile(f"blobs/sha256/{layer['digest'].removeprefix('sha256:')}"))
            with tarfile.open(fileobj=raw, mode="r|*") as inner:
                files |= {member.name.removeprefix("./"): member for member in inner}
    return Image(config=config["config"], own_files=files)


def base_manifest() -> Json:
    with tarfile.open(images.base()) as outer:
        return blob(outer, blob_json(outer, "index.json")["manifests"][0]["digest"])


def blob(archive: tarfile.TarFile, digest: str) -> Json:
    return blob_json(archive, f"blobs/sha256/{digest.removeprefix('sha256:')}")


def blob_json(archive: tarfile.TarFile, name: str) -> Json:
    return cast(Json, json.load(cast(IO[bytes], archive.extractfile(name))))
