"""Generated models have the pinned bytes, or none at all."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from steadyfleet_contract.spec import Synthetic
from steadyfleet_probe import synthetic
from steadyfleet_probe.errors import PackageError
from steadyfleet_probe.weights import read_weights

TINY_DIGEST = "sha256:3198ee7c063da1c056822c41610c549172a6a3c87a3f854715f3d57706d144fe"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    synthetic.generate(Synthetic.TINY, folder)
    return folder


def tensor(folder: Path, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    data = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8 : 8 + length])[name]
    start, end = (8 + length + offset for offset in entry["data_offsets"])
    bits = np.frombuffer(data[start:end], dtype="<u2").astype(np.uint32) << 16
    return bits.view(np.float32).reshape(entry["shape"])


def test_tiny_has_the_pinned_weights_digest(tiny: Path) -> None:
    assert read_weights(tiny).digest == TINY_DIGEST


def test_header_is_aligned_and_covers_the_file(tiny: Path) -> None:
    data = (tiny / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    assert length % 8 == 0
    assert 8 + length + max(ends) == len(data)


def test_output_layer_makes_logits_of_a_trained_models_size(tiny: Path) -> None:
    deviation = tensor(tiny, "lm_head.weight").std() * 128**0.5
    assert 3.5 < deviation < 4.7


def test_norms_are_around_one_and_no_weight_is_special(tiny: Path) -> None:
    assert abs(tensor(tiny, "model.norm.weight").mean() - 1) < 0.02
    values = tensor(tiny, "model.embed_tokens.weight")
    assert np.isfinite(values).all()
    assert len(np.unique(values)) > 1000


def test_rounding_to_bfloat16_takes_ties_to_even() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F80FFFF, 0xBF808000], np.uint32)
    rounded = synthetic._bfloat16(bits.view(np.float32))
    assert [hex(value) for value in rounded] == ["0x3f80", "0x3f82", "0x3f81", "0x3f81", "0xbf80"]


def test_every_user_may_read_it(tiny: Path) -> None:
    assert {file.stat().st_mode & 0o777 for file in tiny.iterdir()} == {0o644}


def test_chunks_do_not_change_the_bytes(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "_CHUNK_WEIGHTS", 1000)
    synthetic.generate(Synthetic.TINY, tmp_path / "again")
    again = (tmp_path / "again" / "model.safetensors").read_bytes()
    assert hashlib.sha256(again).digest() == hashlib.sha256((tiny / "model.safetensors").read_bytes()).digest()


def test_other_bytes_than_pinned_leave_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "_SEED", 2)
    with pytest.raises(PackageError, match="the generated Tiny model has other bytes than pinned"):
        synthetic.generate(Synthetic.TINY, tmp_path / "tiny")
    assert list(tmp_path.iterdir()) == []


def test_folder_with_content_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    with pytest.raises(OSError, match="not empty"):
        synthetic.generate(Synthetic.TINY, tmp_path / "mine")
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["file"]
