"""The programs of the cluster, built from their Go modules (tools/<name>/go.mod names versions and programs)."""

import os
from concurrent.futures import ThreadPoolExecutor
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


def built_in_parallel(modules: tuple[str, ...] = ALL_MODULES) -> Binaries:
    """As `build`, checking the modules at once; for the warm case, where each is a look into the cache."""
    prerequisites.check_for_builds()
    with ThreadPoolExecutor() as pool:
        return Binaries(dict(zip(modules, pool.map(_module, modules), strict=True)))


def _module(module: str) -> Path:
    source = _TOOLS_FOLDER / module
    tags = _BUILD_TAGS.get(module, "")
    key = content_key(source / "go.mod", source / "go.sum", prerequisites.go_version(), tags)

    def compile_into(folder: Path) -> None:
        try:
            run(
                "go", "build", "-mod=readonly", "-trimpath", "-ldflags=-s -w", f"-tags={tags}", "-o", f"{folder}/", "tool",
                cwd=source,
                env={**os.environ, "GOFLAGS": "", "GOWORK": "off"},
                timeout_seconds=_BUILD_TIMEOUT_SECONDS,
            )  # fmt: skip
        except CommandFailed as failure:
            raise BuildFailed(f"cannot build {module} ({source}): {failure}") from failure

    return entry(f"bin/{module}", key, compile_into)
