"""Models made on the spot: seeded Qwen3-architecture weights with nothing to download.

Integer arithmetic alone, so the bytes are the same on every machine: each weight is the sum of four uniform 16-bit
integers (nearly a normal distribution), scaled by `factor / 2**shift` (exact in float32) and rounded to bfloat16 on its
bits. The pinned hashes in `_FILES` are checked after each generation; a model with other bytes is never used.

The scales make logits look like a trained model's (top logits of 8 to 16, ties at a few percent of the positions):
with the much smaller weights of vLLM's `--load-format dummy` every distribution is flat and no fault would show.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from steadyfleet_contract.spec import Synthetic
from steadyfleet_probe.errors import PackageError

_SEED = 1
_CHUNK_WEIGHTS = 4_000_000
"""Weights made at once: bounds memory to about 100 MB."""


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_value_heads: int
    head_dim: int
    vocabulary: int
    positions: int


@dataclass(frozen=True)
class Scale:
    """Standard deviation `37837 * factor / 2**shift`, around `one` (norms) or around zero."""

    factor: int
    shift: int
    around_one: bool = False


SHAPES = {
    Synthetic.TINY: Shape(
        layers=4,
        hidden=128,
        intermediate=384,
        heads=4,
        key_value_heads=2,
        head_dim=64,
        vocabulary=512,
        positions=2048,
    ),
    Synthetic.SMALL: Shape(
        layers=28,
        hidden=1024,
        intermediate=3072,
        heads=16,
        key_value_heads=8,
        head_dim=128,
        vocabulary=32768,
        positions=8192,
    ),
}

_HEAD = {
    Synthetic.TINY: Scale(factor=5, shift=19),
    Synthetic.SMALL: Scale(factor=1, shift=18),
}
"""Output layer: the final norm leaves unit variance, so the logits' deviation is this times sqrt(hidden): 4 to 4.6."""

_NORM = Scale(factor=1, shift=20, around_one=True)
_EMBEDDING = Scale(factor=1, shift=16)
_LINEAR = {128: Scale(1, 18), 256: Scale(1, 19), 384: Scale(1, 19), 1024: Scale(1, 20), 2048: Scale(1, 20)}
_LINEAR_WIDEST = Scale(1, 21)

_FILES: dict[Synthetic, dict[str, str]] = {
    Synthetic.TINY: {
        "config.json": "284a32287b16d745c7de34ffda3ca97ef0cc86896f69a08e62da2a9ec5c68545",
        "generation_config.json": "1a5bd5822a01749ac395f0a28fe70f99494e514c1bdb4d66e0cab93aa91b258d",
        "tokenizer.json": "17620e6b5bc7a93765445d260befe37b5e1d265408e2886690a5d420dd09ccdc",
        "tokenizer_config.json": "9acaa058ef77a11f21078686cd41eac67c176867719130451c6863c166992b76",
        "model.safetensors": "6b2b1e0b8be86c1f03440b727dff9e64b0401ceeba9f260849a4dc19868fda8a",
    },
    Synthetic.SMALL: {
        "config.json": "c05c31ba5c01f0c619b4761e04f2934ed700f414f4d02cf69792cb41d76fa71b",
        "generation_config.json": "1a5bd5822a01749ac395f0a28fe70f99494e514c1bdb4d66e0cab93aa91b258d",
        "tokenizer.json": "17620e6b5bc7a93765445d260befe37b5e1d265408e2886690a5d420dd09ccdc",
        "tokenizer_config.json": "3f652d850f1fc64e80f64a4582f215107832b55c37bb194d3ec67ff88a2e2648",
        "model.safetensors": "9921deb011d0a87388572151d3f425dd3599abeb8486990cc9dd4e1402863796",
    },
}
"""sha256 of each file. Changing one of them is a new model: raise the contract's RECIPE with it."""


def generate(model: Synthetic, folder: Path) -> None:
    """Write the model into `folder`, which must not exist or be empty; complete or not at all.

    Raises PackageError if the bytes are not the pinned ones, OSError if the folder can't be written.
    """
    building = folder.with_name(f".{folder.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        hashes = _write(model, building)
        if hashes != _FILES[model]:
            raise PackageError(
                f"the generated {model.value} model has other bytes than pinned: {hashes}; "
                f"numpy {np.__version__} computes differently here"
            )
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _write(model: Synthetic, folder: Path) -> dict[str, str]:
    shape = SHAPES[model]
    texts = {
        "config.json": _config(shape),
        "generation_config.json": {"bos_token_id": 256, "eos_token_id": 257},
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|bos|>",
            "eos_token": "<|eos|>",
            "model_max_length": shape.positions,
        },
    }
    hashes = {}
    for name, content in texts.items():
        data = json.dumps(content, indent=1, sort_keys=True).encode()
        (folder / name).write_bytes(data)
        hashes[name] = hashlib.sha256(data).hexdigest()
    hashes["model.safetensors"] = _write_safetensors(model, folder / "model.safetensors")
    for name in hashes:
        os.chmod(folder / name, 0o644)
    return hashes


def _write_safetensors(model: Synthetic, path: Path) -> str:
    tensors = list(_tensors(model))
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, dimensions, _ in tensors:
        size = 2 * int(np.prod(dimensions))
        entries[name] = {"dtype": "BF16", "shape": list(dimensions), "data_offsets": [offset, offset + size]}
        offset += size
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for part in (len(header).to_bytes(8, "little"), header):
            file.write(part)
            digest.update(part)
        for name, dimensions, scale in tensors:
            for chunk in _weights(name, int(np.prod(dimensions)), scale):
                data = chunk.tobytes()
                file.write(data)
                digest.update(data)
    return digest.hexdigest()


def _tensors(model: Synthetic) -> Iterator[tuple[str, tuple[int, ...], Scale]]:
    shape = SHAPES[model]
    query, key = shape.heads * shape.head_dim, shape.key_value_heads * shape.head_dim
    yield "model.embed_tokens.weight", (shape.vocabulary, shape.hidden), _EMBEDDING
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (shape.hidden,), _NORM
        for name, rows, columns in (
            ("self_attn.q_proj", query, shape.hidden),
            ("self_attn.k_proj", key, shape.hidden),
            ("self_attn.v_proj", key, shape.hidden),
            ("self_attn.o_proj", shape.hidden, query),
            ("mlp.gate_proj", shape.intermediate, shape.hidden),
            ("mlp.up_proj", shape.intermediate, shape.hidden),
            ("mlp.down_proj", shape.hidden, shape.intermediate),
        ):
            yield f"{prefix}.{name}.weight", (rows, columns), _LINEAR.get(columns, _LINEAR_WIDEST)
        yield f"{prefix}.self_attn.q_norm.weight", (shape.head_dim,), _NORM
        yield f"{prefix}.self_attn.k_norm.weight", (shape.head_dim,), _NORM
        yield f"{prefix}.post_attention_layernorm.weight", (shape.hidden,), _NORM
    yield "model.norm.weight", (shape.hidden,), _NORM
    yield "lm_head.weight", (shape.vocabulary, shape.hidden), _HEAD[model]


def _weights(name: str, count: int, scale: Scale) -> Iterator[npt.NDArray[np.uint16]]:
    """bfloat16 bit patterns, in chunks."""
    key = int.from_bytes(hashlib.sha256(f"{_SEED}/{name}".encode()).digest()[:16], "little")
    generator = np.random.Philox(key=key)
    for start in range(0, count, _CHUNK_WEIGHTS):
        raw = generator.random_raw(min(_CHUNK_WEIGHTS, count - start)).astype("<u8", copy=False).view("<u2")
        quarters = raw.reshape(-1, 4)
        total = quarters[:, 0].astype(np.int32)
        for quarter in (1, 2, 3):
            total += quarters[:, quarter]
        total -= 2 * 0xFFFF
        total *= scale.factor
        if scale.around_one:
            total += 1 << scale.shift
        # An integer below 2**24 and a power of two: neither step rounds.
        values = total.astype(np.float32)
        values *= np.float32(2.0**-scale.shift)
        yield _bfloat16(values)


def _bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round to nearest, ties to even, on the bits (no value here is infinite or NaN)."""
    bits = values.view(np.uint32)
    bits += 0x7FFF + ((bits >> 16) & 1)
    bits >>= 16
    return bits.astype("<u2")


def _config(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.positions,
        "max_window_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.key_value_heads,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": shape.vocabulary,
    }


def _tokenizer() -> dict[str, object]:
    """One token a byte, by the byte-to-character table of GPT-2, and two special tokens."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    special = {"<|bos|>": 256, "<|eos|>": 257}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": None,
        "added_tokens": [
            {
                "id": number,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for text, number in special.items()
        ],
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {characters[byte]: byte for byte in range(256)} | special,
            "merges": [],
        },
    }
