"""Packs the probe into one zip that runs on the Python of the user's image, with nothing installed there.

Inside: probe, contract, and the pure-Python packages that they need and that not every vLLM image has. pydantic and
numpy come with the image. The vendored packages come first on the path, so the image's own copies don't matter to the
probe; the engine is another process and never sees the zip.

The same sources give the same bytes: fixed order, times and modes.
"""

from __future__ import annotations

import importlib.metadata
import stat
import zipfile
from pathlib import Path

import steadyfleet_contract
import steadyfleet_probe
from steadyfleet_probe.errors import PackageError

ARCHIVE = "probe.pyz"
LAUNCHER = "run"

_VENDORED = ("httpx", "httpcore", "h11", "idna")
"""What the synchronous httpx client imports. Its other needs stay out: anyio serves the asynchronous client, certifi a
client without an SSL context of its own."""

_LEFT_OUT = {"__pycache__", "_main.py", "py.typed"}
"""Among them httpx's command line, which needs packages of its own."""

_TIME = (1980, 1, 1, 0, 0, 0)

_MAIN = "archive_main.py"


def build(folder: Path) -> None:
    """Write `probe.pyz` and `run` into the folder. Raises PackageError, OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    build_archive(folder / ARCHIVE)
    launcher = folder / LAUNCHER
    launcher.write_bytes((_folder_of(steadyfleet_probe) / LAUNCHER).read_bytes())
    launcher.chmod(0o755)


def build_archive(path: Path) -> None:
    """Raises PackageError if a package is missing or not pure Python, OSError."""
    members = {"__main__.py": (_folder_of(steadyfleet_probe) / _MAIN).read_bytes()}
    for module in (steadyfleet_contract, steadyfleet_probe):
        members |= _tree(_folder_of(module), module.__name__)
    for name in _VENDORED:
        members |= _vendored(name)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(members):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, members[name])
    path.chmod(0o644)


def _tree(folder: Path, prefix: str) -> dict[str, bytes]:
    found = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not _LEFT_OUT & set(parts):
            if path.suffix in {".so", ".pyd", ".dll", ".dylib"}:
                raise PackageError(f"{path} is compiled: the zip must run on any image")
            found["/".join((prefix, *parts))] = path.read_bytes()
    return found


def _vendored(name: str) -> dict[str, bytes]:
    """Modules and licences of one installed distribution."""
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise PackageError(f"{name} is not installed here, and the probe's zip carries it") from error
    members = _tree(Path(str(distribution.locate_file(name))), name)
    if f"{name}/__init__.py" not in members:
        raise PackageError(f"{name} has no package folder at {distribution.locate_file(name)}")
    for file in distribution.files or ():
        if file.name.upper().startswith(("LICENSE", "LICENCE", "COPYING")):
            members[f"licenses/{name}/{file.name}"] = Path(str(file.locate())).read_bytes()
    return members


def _folder_of(module: object) -> Path:
    return Path(str(module.__file__)).parent  # type: ignore[attr-defined]
