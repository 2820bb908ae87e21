"""Building the project's Dockerfile without a container engine and without a registry: buildah, chroot isolation.

The Dockerfile stays as users build it. What this machine needs to reach its package index (pip's settings, the
certificates that it trusts) is mounted during the build, and is not in the image.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.cluster import images
from tests.cluster.cache import cache_root, content_key, entry, locked
from tests.cluster.commands import run
from tests.cluster.errors import BuildFailed, CommandFailed

REPOSITORY = Path(__file__).parents[2]
_BUILD_TIMEOUT_SECONDS = 1200
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_PIP_SETTINGS = ("index-url", "extra-index-url", "cert", "timeout", "default-timeout", "proxy", "trusted-host")
"""Those of pip's settings that say how to reach the index; others may name folders that the image lacks."""


def build_dockerfile(
    target: str, tag: str, build_args: Mapping[str, str] | None = None, *, dockerfile: Path = REPOSITORY / "Dockerfile"
) -> Path:
    """The OCI archive of one target of the Dockerfile, named `tag` (fully qualified, such as localhost/operator:test).

    Base images are given by build arguments; `images.BASE_IMAGE` is at hand. Built again only when the Dockerfile, a
    file that it copies, or an argument changes. Raises BuildFailed with the end of the build's output.
    """
    arguments = dict(build_args or {})
    base = images.base()

    def build(folder: Path) -> None:
        store = cache_root() / "buildah"
        with locked(store / ".lock", what="buildah"):
            try:
                _pull_once(store, base)
                _build(store, folder, dockerfile=dockerfile, target=target, tag=tag, arguments=arguments)
                _buildah(store, "push", tag, f"oci-archive:{folder / 'image.tar'}:{tag}")
            except CommandFailed as failure:
                raise BuildFailed(f"cannot build {target} of {dockerfile}: {failure}") from failure

    texts = [target, tag, base.parent.name, *(f"{key}={value}" for key, value in sorted(arguments.items()))]
    key = content_key(*texts, dockerfile, *copied_files(dockerfile))
    return entry(f"image/{target}", key, build) / "image.tar"


def copied_files(dockerfile: Path) -> list[Path]:
    """The files and folders of the build context that COPY and ADD lines name."""
    text = re.sub(r"\\\n", " ", dockerfile.read_text())
    sources: list[Path] = []
    for arguments in re.findall(r"^\s*(?:COPY|ADD)\s+(.+)$", text, re.MULTILINE):
        words = arguments.split()
        if any(word.startswith("--from=") for word in words):
            continue
        for pattern in [word for word in words if not word.startswith("--")][:-1]:
            sources.extend(sorted(dockerfile.parent.glob(pattern)))
    return sources


def _pull_once(store: Path, base: Path) -> None:
    """Bring the base image into buildah's store, under its name."""
    pulled = store / f"pulled-{base.parent.name}"
    if not pulled.exists():
        image_id = _buildah(store, "pull", "--quiet", f"oci-archive:{base}").stdout.strip()
        _buildah(store, "tag", image_id, images.BASE_IMAGE)
        pulled.touch()


def _build(
    store: Path, folder: Path, *, dockerfile: Path, target: str, tag: str, arguments: Mapping[str, str]
) -> None:
    settings = folder / "pip.conf"
    settings.write_text(_pip_configuration())
    mounts = [f"{settings}:/etc/pip.conf:ro"]
    if _CERTIFICATES.exists():
        mounts.append(f"{_CERTIFICATES}:{_CERTIFICATES}:ro")
    _buildah(
        store, "bud", "--isolation=chroot", "--layers", "--pull-never",
        *(f"--volume={mount}" for mount in mounts),
        *(f"--build-arg={key}={value}" for key, value in arguments.items()),
        f"--target={target}", f"--tag={tag}", f"--file={dockerfile}", str(dockerfile.parent),
    )  # fmt: skip
    settings.unlink()


def _buildah(store: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """buildah with a store of our own, in a mount namespace of its own: its mounts end with it."""
    return run(
        "unshare", "--mount",
        "buildah", f"--root={store / 'root'}", f"--runroot={store / 'run'}", "--storage-driver=overlay", *arguments,
        timeout_seconds=_BUILD_TIMEOUT_SECONDS,
    )  # fmt: skip


def _pip_configuration() -> str:
    """A pip.conf with this machine's way to the package index; empty when it uses pip's defaults."""
    for python in dict.fromkeys((sys.executable, shutil.which("python3") or "python3", "/usr/bin/python3")):
        listed = run(python, "-m", "pip", "config", "list", check=False) if Path(python).exists() else None
        if listed and listed.returncode == 0:
            found = re.findall(r"^(?:\S*\.)([\w-]+)='(.*)'$", listed.stdout, re.MULTILINE)
            lines = {f"{key.removeprefix('default-')} = {value}" for key, value in found if key in _PIP_SETTINGS}
            return "[global]\n" + "".join(f"{line}\n" for line in sorted(lines))
    return ""
