"""Images without a registry, each as an OCI archive in the cache.

pause     holds a pod's namespaces
base      the distribution of this machine, minimal, with Python: what the Dockerfile's images are built from
engine    base with the libraries that vLLM on CPU needs; vLLM itself comes by a mount (engine.py)
Dockerfile's targets: `build_dockerfile`
"""

import re
import shutil
from pathlib import Path

from tests.cluster import oci
from tests.cluster.cache import content_key, entry
from tests.cluster.commands import run
from tests.cluster.errors import BuildFailed, CommandFailed, PrerequisiteMissing
from tests.cluster.node import PAUSE_IMAGE
from tests.cluster.oci import ImageConfig, Layer

BASE_PACKAGES = ("ca-certificates", "python3", "python3-pip", "python3-venv")
ENGINE_PACKAGES = ("libnuma1",)
BASE_IMAGE = "localhost/steadyfleet-base:1"
ENGINE_IMAGE = "localhost/steadyfleet-engine:1"
ENGINE_MOUNT = "/opt/vllm"
"""Where a pod finds vLLM: the place of a Python prefix, whose bin folder is first on the engine image's PATH."""

_DEBOOTSTRAP_TIMEOUT_SECONDS = 900
_UNUSED_IN_IMAGE = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale")
_RECIPE = 2
"""Raise it when this file makes other images from the same packages: it is part of the cache's keys."""


def pause() -> Path:
    """The archive of the pause image."""
    source = Path(__file__).with_name("pause.c")

    def build(folder: Path) -> None:
        root = folder / "root"
        root.mkdir()
        run("gcc", "-static", "-Os", "-s", "-o", root / "pause", source)
        layer = oci.make_layer(root, folder / "layer.tar.gz")
        _write(folder, name=PAUSE_IMAGE, layers=[layer], config=ImageConfig(entrypoint=["/pause"]))

    return entry("image/pause", content_key(source, _version()), build) / "image.tar"


def base() -> Path:
    """The archive of the base image (about 60 MB)."""
    return _base_entry() / "image.tar"


def engine() -> Path:
    """The archive of the image that vLLM runs in."""
    below = _base_entry()

    def build(folder: Path) -> None:
        root = folder / "root"
        root.mkdir()
        run("apt-get", "download", *ENGINE_PACKAGES, cwd=folder)
        for package in folder.glob("*.deb"):
            run("dpkg-deb", "--extract", package, root)
            package.unlink()
        layers = [_read_layer(below), oci.make_layer(root, folder / "layer.tar.gz")]
        path = {"PATH": f"{ENGINE_MOUNT}/bin:{oci.DEFAULT_PATH}"}
        _write(folder, name=ENGINE_IMAGE, layers=layers, config=ImageConfig(command=["/bin/sh"], environment=path))

    return entry("image/engine", content_key(below.name, *ENGINE_PACKAGES, _version()), build) / "image.tar"


def _base_entry() -> Path:
    suite, mirror = distribution()

    def build(folder: Path) -> None:
        root = folder / "root"
        # In a mount namespace of its own: what debootstrap mounts cannot stay behind.
        run(
            "unshare", "--mount", "debootstrap", "--variant=minbase", f"--include={','.join(BASE_PACKAGES)}",
            suite, root, mirror, timeout_seconds=_DEBOOTSTRAP_TIMEOUT_SECONDS,
        )  # fmt: skip
        for unused in _UNUSED_IN_IMAGE:
            shutil.rmtree(root / unused, ignore_errors=True)
            (root / unused).mkdir(parents=True)
        layer = oci.make_layer(root, folder / "layer.tar.gz")
        (folder / "diff-id").write_text(layer.diff_id)
        (folder / "digest").write_text(layer.digest)
        _write(folder, name=BASE_IMAGE, layers=[layer], config=ImageConfig(command=["/bin/sh"]), keep_layer=True)

    try:
        return entry("image/base", content_key(suite, *BASE_PACKAGES, *_UNUSED_IN_IMAGE, _version()), build)
    except CommandFailed as failure:
        raise BuildFailed(f"cannot make the base image ({suite} from {mirror}): {failure}") from failure


def distribution() -> tuple[str, str]:
    """(release, mirror) of this machine's own distribution. Raises PrerequisiteMissing if it is not Debian-like."""
    release = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)
    if release is None:
        raise PrerequisiteMissing("Images are made from the machine's own release: use Debian 12+ or Ubuntu 24.04+.")
    return release[1], mirror_of(release[1])


def mirror_of(suite: str, *, folder: Path = Path("/etc/apt")) -> str:
    """The first package source of the machine that serves this release (either format of sources.list(5))."""
    for file in sorted([*folder.glob("sources.list"), *folder.glob("sources.list.d/*")]):
        text = file.read_text()
        if file.suffix == ".sources":
            for stanza in re.split(r"\n\s*\n", text):
                fields = dict(re.findall(r"^(URIs|Suites):\s*(.+)$", stanza, re.MULTILINE))
                if suite in fields.get("Suites", "").split():
                    return str(fields["URIs"].split()[0])
        elif line := re.search(rf"^deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+{suite}\s", text, re.MULTILINE):
            return str(line[1])
    raise PrerequisiteMissing(f"No package source for {suite} in /etc/apt; add one to /etc/apt/sources.list.")


def _version() -> str:
    return f"{_RECIPE} {oci.architecture()}"


def _read_layer(folder: Path) -> Layer:
    return Layer(
        file=folder / "layer.tar.gz",
        digest=(folder / "digest").read_text(),
        diff_id=(folder / "diff-id").read_text(),
    )


def _write(folder: Path, *, name: str, layers: list[Layer], config: ImageConfig, keep_layer: bool = False) -> None:
    """Write image.tar and remove what it was made from."""
    oci.write_archive(folder / "image.tar", name=name, layers=layers, config=config)
    shutil.rmtree(folder / "root")
    if not keep_layer:
        (folder / "layer.tar.gz").unlink()
