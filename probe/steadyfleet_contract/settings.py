"""The settings and surroundings in which two launches differ, by what they would explain."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

ABSENT = "absent"

_VERSION = re.compile(r"version\.name|versions\.vllm")
_IMAGE = re.compile(r"image\..*")
_ENVIRONMENT = re.compile(r"(versions|gpu|host)\..*|engine\.system\..*")

_TUNER = re.compile(
    r"environment\.TORCHINDUCTOR_(DISTORT_BENCHMARKING_RESULT|COMPILE_THREADS)|engine\.(aot|cache|compiled)|.*compile_cache.*"
)
"""Acts through the choice of kernels alone, and that is in the plan."""

_NO_EFFECT = re.compile(
    r"environment\.(.*_(CACHE|CACHE_DIR|CACHE_ROOT|CONFIG_ROOT|LOGGING_LEVEL)|VLLM_NO_USAGE_STATS|VLLM_SERVER_DEV_MODE"
    r"|TORCHINDUCTOR_ENABLED_METRIC_TABLES|TRITON_PRINT_AUTOTUNING|TRITON_CACHE_AUTOTUNING|PYTORCH_NVML_BASED_CUDA_CHECK)"
    r"|engine\.env\..*(_CACHE|_CACHE_PATH|_CACHE_ROOT|_CONFIG_ROOT)"
    r"|engine\.(.*\.)?(kv_cache_max_concurrency|kv_cache_size_tokens|num_gpu_blocks|cache_dir|local_cache_dir)"
    r"|engine\.(logged\.)?.*(traced_files|instance_id)"
)
"""Paths, logs and free memory: they differ between launches that compute alike."""


@dataclass(frozen=True)
class KeyDifference:
    key: str
    a: str
    b: str


@dataclass(frozen=True)
class Differing:
    by_kind: Mapping[str, tuple[KeyDifference, ...]]
    """version, image, environment, configuration; and `plan`: what acts through the kernel plan alone."""

    def of(self, kind: str) -> tuple[KeyDifference, ...]:
        return self.by_kind.get(kind, ())


def differing(a: Mapping[str, str], b: Mapping[str, str]) -> Differing:
    found: dict[str, list[KeyDifference]] = {}
    for key in sorted(a.keys() | b.keys(), key=_arguments_first):
        mine, theirs = a.get(key, ABSENT), b.get(key, ABSENT)
        if mine != theirs and not _NO_EFFECT.fullmatch(key):
            found.setdefault(_kind(key), []).append(KeyDifference(key, mine, theirs))
    return Differing({kind: tuple(keys) for kind, keys in found.items()})


def _kind(key: str) -> str:
    for kind, pattern in (
        ("plan", _TUNER),
        ("version", _VERSION),
        ("image", _IMAGE),
        ("environment", _ENVIRONMENT),
    ):
        if pattern.fullmatch(key):
            return kind
    return "configuration"


def _arguments_first(key: str) -> tuple[bool, str]:
    """What a person set, before what the engine made of it."""
    return not key.startswith(("engine.arguments", "model.", "environment.")), key
