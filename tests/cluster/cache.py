"""The project's cache: entries keyed by content, built once, complete or absent.

An entry is a folder `<root>/<name>/<key>`. It is built in a temporary folder beside it and renamed, under a file lock,
so two builders at once do the work once, and a killed build leaves nothing that looks like an entry.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.progress import say, step

_KEY_CHARACTERS = 16


def cache_root() -> Path:
    """`$STEADYFLEET_CACHE`, else `$XDG_CACHE_HOME/steadyfleet`, else `~/.cache/steadyfleet`."""
    if own := os.environ.get("STEADYFLEET_CACHE"):
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").absolute() / "steadyfleet"


def content_key(*parts: str | Path) -> str:
    """A short digest over texts and over the content of files; a folder counts with all files below it."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            _add(digest, b"text", part.encode())
            continue
        for file in sorted(part.rglob("*")) if part.is_dir() else [part]:
            if file.is_file() and "__pycache__" not in file.parts:
                relative = str(file.relative_to(part)) if part.is_dir() else file.name
                _add(digest, f"file {relative} {file.stat().st_mode & 0o111:o}".encode(), file.read_bytes())
    return digest.hexdigest()[:_KEY_CHARACTERS]


def entry(name: str, key: str, build: Callable[[Path], None], *, keep: int = 2) -> Path:
    """The cache folder `name`/`key`; `build(folder)` fills it if it is not there yet.

    Only the `keep` entries of this name that were made last stay; older ones are removed after a build.
    """
    shelf = cache_root() / name
    wanted = shelf / key
    if wanted.is_dir():
        return wanted
    shelf.mkdir(parents=True, exist_ok=True)
    with locked(shelf / ".lock", what=f"{name}"):
        if wanted.is_dir():
            return wanted
        for stale in shelf.glob(".building-*"):
            shutil.rmtree(stale)
        folder = shelf / f".building-{key}"
        folder.mkdir(mode=0o755)
        try:
            with step(f"make {name} ({key})"):
                build(folder)
            folder.rename(wanted)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        _remove_old(shelf, keep=keep)
    return wanted


@contextmanager
def locked(path: Path, *, what: str) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`; says so when it has to wait for another holder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{what}: waiting for another process that is at it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _add(digest: "hashlib._Hash", kind: bytes, data: bytes) -> None:
    digest.update(f"{len(kind)} {len(data)} ".encode())
    digest.update(kind)
    digest.update(data)


def _remove_old(shelf: Path, *, keep: int) -> None:
    entries = sorted(
        (folder for folder in shelf.iterdir() if folder.is_dir() and not folder.name.startswith(".")),
        key=lambda folder: folder.stat().st_mtime,
        reverse=True,
    )
    for old in entries[keep:]:
        shutil.rmtree(old)
