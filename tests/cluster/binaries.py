"""The programs of the cluster, built from their Go modules (tools/<name>/go.mod names versions and programs)."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import prerequisites
from tests.cluster.cache import content_key, entry
from tests.cluster.commands import run
from tests.cluster.errors import BuildFailed, CommandFailed

_TOOLS_FOLDER = Path(__file__).parent / "tools"
_BUILD_TIMEOUT_SECONDS = 3600
"""The largest module takes five minutes on two cores; a slow machine gets plenty."""

_BUILD_TAGS = {"prometheus": "remove_all_sd,enable_kubernetes_sd"}
"""Prometheus without the clients of a dozen clouds: half the size and build time."""

CONTROL_PLANE_MODULES = ("kubernetes", "helm")

_KUBERNETES_VERSION = re.compile(r"^\tk8s\.io/kubernetes (v(\d+)\.(\d+)\S+)", re.MULTILINE)
ALL_MODULES = ("kubernetes", "containerd", "helm", "coredns", "prometheus")


@dataclass(frozen=True)
class Binaries:
    """Where the built programs are: one folder a Go module."""

    folders: dict[str, Path]

    def path(self, program: str) -> Path:
        """The program's path. etcd's is called `server`, after the last element of its module path."""
        wanted = {"etcd": "server"}.get(program, program)
        for folder in self.folders.values():
            if (folder / wanted).exists():
                return folder / wanted
        raise BuildFailed(f"no program {program!r} among the built modules {sorted(self.folders)}")


def build(modules: tuple[str, ...] = ALL_MODULES) -> Binaries:
    """The programs of these modules, from the cache or built now (one module after the other: Go uses all cores).

    Raises PrerequisiteMissing without Go, BuildFailed with the compiler's words.
    """
    prerequisites.check_for_builds()
    return Binaries({module: _module(module) for module in modules})


def _module(module: str) -> Path:
    source = _TOOLS_FOLDER / module
    tags = _BUILD_TAGS.get(module, "")
    flags = _linker_flags(source)
    key = content_key(source / "go.mod", source / "go.sum", prerequisites.go_version(), tags, flags)

    def compile_into(folder: Path) -> None:
        try:
            run(
                "go", "build", "-mod=readonly", "-trimpath", f"-ldflags={flags}", f"-tags={tags}",
                "-o", f"{folder}/", "tool",
                cwd=source,
                env={**os.environ, "GOFLAGS": "", "GOWORK": "off"},
                timeout_seconds=_BUILD_TIMEOUT_SECONDS,
            )  # fmt: skip
        except CommandFailed as failure:
            raise BuildFailed(f"cannot build {module} ({source}): {failure}") from failure

    return entry(f"bin/{module}", key, compile_into)


def _linker_flags(source: Path) -> str:
    """No symbol tables; and for Kubernetes its version, which its release build sets the same way."""
    flags = "-s -w"
    if version := _KUBERNETES_VERSION.search((source / "go.mod").read_text()):
        for name, value in (("gitVersion", version[1]), ("gitMajor", version[2]), ("gitMinor", version[3])):
            flags += f" -X k8s.io/component-base/version.{name}={value}"
    return flags
