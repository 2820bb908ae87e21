"""Every bit of every weight file is in the digest, and nothing else is."""

import hashlib
import os
from pathlib import Path

import pytest

from steadyfleet_probe.weights import read_weights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model-00002.safetensors").write_bytes(b"two" * 3_000_000)
    (tmp_path / "model-00001.safetensors").write_bytes(b"one")
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_digest_is_the_documented_hash(folder: Path) -> None:
    lines = "".join(
        f"{name}\0{hashlib.sha256((folder / name).read_bytes()).hexdigest()}\n"
        for name in ("model-00001.safetensors", "model-00002.safetensors")
    )
    weights = read_weights(folder)
    assert weights.digest == f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"
    assert weights.total_bytes == 9_000_003
    assert set(weights.files) == {"model-00001.safetensors", "model-00002.safetensors", "config.json"}


def test_one_bit_in_the_last_byte_changes_the_digest_though_size_and_time_stay(folder: Path) -> None:
    before = read_weights(folder)
    file = folder / "model-00002.safetensors"
    stat = file.stat()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert read_weights(folder).digest != before.digest


def test_renamed_file_changes_the_digest(folder: Path) -> None:
    before = read_weights(folder).digest
    (folder / "model-00001.safetensors").rename(folder / "model-00003.safetensors")
    assert read_weights(folder).digest != before


def test_other_files_do_not_change_the_digest(folder: Path) -> None:
    before = read_weights(folder).digest
    (folder / "config.json").write_text('{"a": 1}')
    (folder / "README.md").write_text("read me")
    assert read_weights(folder).digest == before


def test_file_replaced_after_hashing_is_noticed(folder: Path) -> None:
    weights = read_weights(folder)
    assert weights.unchanged()
    (folder / "model-00001.safetensors").unlink()
    assert not weights.unchanged()
    (folder / "model-00001.safetensors").write_bytes(b"one")
    assert not weights.unchanged()


def test_links_of_the_download_cache_are_followed(folder: Path, tmp_path: Path) -> None:
    """Hugging Face snapshots are folders of links to blobs."""
    linked = tmp_path / "snapshot"
    linked.mkdir()
    for file in folder.glob("*.safetensors"):
        (linked / file.name).symlink_to(file)
    assert read_weights(linked).digest == read_weights(folder).digest
