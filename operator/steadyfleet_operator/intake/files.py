"""Files that survive a crash: either whole under their name, or not there. All of it blocks; call it in a thread."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SUFFIX = ".json.gz"
TEMPORARY = ".tmp"
BROKEN = ".broken"


def write_durably(path: Path, data: bytes) -> None:
    """Temporary file in the same folder, fsync, rename, fsync of the folder. Raises OSError, leaving nothing behind."""
    _make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.rename(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


def walk(root: Path) -> Iterator[Path]:
    """Every file below, in a stable order."""
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(files):
            yield Path(folder, name)


def set_aside(path: Path) -> None:
    """Out of the way, but there to be looked at. If it can't be renamed it is found broken again next time."""
    with suppress(OSError):
        path.rename(path.with_name(path.name + BROKEN))


def remove(path: Path, *, root: Path) -> None:
    """Removes a file and the folders that are empty then, up to `root`. A file that is gone is fine."""
    with suppress(FileNotFoundError):
        path.unlink()
    for folder in path.parents:
        if folder == root:
            return
        try:
            folder.rmdir()
        except OSError:
            return  # not empty, which is the usual end


def _make_folder(folder: Path) -> None:
    """A new folder's name is an entry in its parent, which has to be on disk as well."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o750)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
