"""Digest of the weight files that an engine reads.

    weights digest = sha256 over "name\\0sha256-of-the-file\\n" for each *.safetensors file, sorted by name

Every byte is read each time: a stored hash keyed by size and time would not notice a disk that returns other bits.
The files are hashed while the engine starts, which reads the same page cache; `unchanged` tells afterwards whether a
file was replaced in between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

_BLOCK_BYTES = 4 * 1024 * 1024
_THREADS = 4
"""hashlib works outside the interpreter lock; one thread a shard keeps a big model to seconds."""

_SMALL_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json")

_Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class Weights:
    digest: str
    files: dict[str, str]
    """Name -> sha256 of each weight file, and of the small files beside them that an engine reads."""
    total_bytes: int
    stamps: dict[Path, _Stamp]

    def unchanged(self) -> bool:
        """False if a file was written or replaced since it was hashed."""
        return all(path.exists() and _stamp(path) == stamp for path, stamp in self.stamps.items())


def weight_files(folder: Path) -> list[Path]:
    """The files that vLLM would load, sorted by name. Raises OSError."""
    return sorted((path for path in folder.iterdir() if path.suffix == ".safetensors"), key=lambda path: path.name)


def read_weights(folder: Path) -> Weights:
    """Hashes every weight file of the folder. Raises OSError."""
    files = weight_files(folder)
    small = [folder / name for name in _SMALL_FILES if (folder / name).is_file()]
    stamps = {path: _stamp(path) for path in files}
    with ThreadPoolExecutor(_THREADS) as pool:
        hashes = dict(zip([*files, *small], pool.map(_sha256, [*files, *small]), strict=True))
    return Weights(
        digest=combined((path.name, hashes[path]) for path in files),
        files={path.name: value for path, value in hashes.items()},
        total_bytes=sum(stamp[1] for stamp in stamps.values()),
        stamps=stamps,
    )


def combined(files: Iterable[tuple[str, str]]) -> str:
    lines = "".join(f"{name}\0{value}\n" for name, value in sorted(files))
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _stamp(path: Path) -> _Stamp:
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
