"""The fingerprint: everything about the surroundings of a launch that may explain other bits, in sections.

    versions      every installed package                 host      kernel, boot, CPU, Python
    engine        configuration as the engine resolved it  image     its operating system and environment
    environment   variables that reach the numerics        weights   hashes of the files
    gpu           identity, driver, errors, clocks         plan      see `plan`

No secrets: variables are taken by an allow-list of prefixes, and names that look like a credential are left out.
Values that differ between any two launches (ports, identifiers, times) are left out as well.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

_MAX_KEY_CHARACTERS = 256
_MAX_VALUE_CHARACTERS = 2048
_MAX_ENTRIES = 2048

_PREFIXES = (
    "VLLM_", "TORCH", "PYTORCH_", "TRITON_", "CUDA_", "CUBLAS", "CUDNN_", "NCCL_", "NVIDIA_", "FLASHINFER_", "OMP_",
    "MKL_", "KMP_", "OPENBLAS_", "LD_", "HF_", "TOKENIZERS_", "ROCM_", "HIP_", "HSA_", "DG_", "PYTHON", "NVTE_",
    "TRANSFORMERS_", "GLOO_", "MASTER_", "RAY_", "TF32", "PATH",
)  # fmt: skip

_SECRET = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|AUTH)$", re.IGNORECASE)

_VOLATILE = re.compile(
    r"(^|\.)(instance_id|.*_port|.*_port_list|traced_files|compilation_time|encoder_compilation_time|cache_dir"
    r"|local_cache_dir|static_forward_context|debug_dump_path)$"
)

_SYSTEM_FACTS = (
    "torch_version", "cuda_compiled_version", "cuda_runtime_version", "cudnn_version", "hip_runtime_version",
    "miopen_runtime_version", "nvidia_driver_version", "libc_version", "python_version", "gpu_topo",
)  # fmt: skip

Section = dict[str, str]


def versions() -> Section:
    found = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found[name.lower()] = distribution.version
    return bounded(found)


def host() -> Section:
    cpu = _cpu()
    return bounded(
        {
            "kernel": platform.release(),
            "architecture": platform.machine(),
            "bootID": _read("/proc/sys/kernel/random/boot_id"),
            "cpu": cpu.get("model name", ""),
            "cpuFlags": hashlib.sha256(cpu.get("flags", cpu.get("Features", "")).encode()).hexdigest()[:16],
            "cpus": str(len(os.sched_getaffinity(0))),
            "python": f"{sys.executable} {platform.python_version()}",
            "libc": " ".join(platform.libc_ver()),
            "nvidiaDriver": _read("/proc/driver/nvidia/version").partition("\n")[0],
        }
    )


def image(environment: Mapping[str, str]) -> Section:
    release = dict(
        line.replace('"', "").split("=", 1) for line in _read("/etc/os-release").splitlines() if "=" in line
    )
    facts = {"operatingSystem": release.get("PRETTY_NAME", "")}
    for name in ("CUDA_VERSION", "NV_CUDA_CUDART_VERSION", "NVIDIA_REQUIRE_CUDA", "NCCL_VERSION", "VLLM_BUILD_COMMIT"):
        if name in environment:
            facts[name] = environment[name]
    return bounded(facts)


def environment(engine: Mapping[str, str], *, private: Mapping[str, str]) -> Section:
    """Variables of the engine's process; the folders of the launch are the same in every launch and left out."""
    return bounded(
        {
            name: value
            for name, value in sorted(engine.items())
            if name.startswith(_PREFIXES) and not _SECRET.search(name) and name not in private
        }
    )


def engine(server_info: Mapping[str, object], *, more: Mapping[str, str]) -> Section:
    """The configuration as resolved, from `/server_info`, and `more` facts from the command line and the log.

    The log's own account of the configuration is the only one of an engine whose `/server_info` fails: it runs
    vLLM's collect_env, which fails in an image without pip.
    """
    facts = {name: value for name, value in more.items() if name != "config"}
    facts |= {f"logged.{name}": value for name, value in assignments(more.get("config", ""))}
    for name, value in _flattened(server_info.get("vllm_config")):
        if not _VOLATILE.search(name) and not _SECRET.search(name.rpartition(".")[2]):
            facts[name] = value
    for name, value in _flattened(server_info.get("vllm_env")):
        if not _SECRET.search(name):
            facts[f"env.{name}"] = value
    system = server_info.get("system_env")
    if isinstance(system, dict):
        facts |= {f"system.{name}": str(system[name]) for name in _SYSTEM_FACTS if system.get(name) is not None}
    return bounded(facts)


def assignments(text: str) -> Iterator[tuple[str, str]]:
    """`a=1, b=[2, 3], c=C(d='x, y')` as its three top-level assignments."""
    start, depth, quote = 0, 0, ""
    for index, character in enumerate(f"{text},"):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and not depth:
            name, equals, value = text[start:index].strip().partition("=")
            if equals:
                yield name, value
            start = index + 1


def bounded(facts: Mapping[str, str]) -> Section:
    """Within the limits of the report; a value that is cut carries the hash of the whole."""
    return {key[:_MAX_KEY_CHARACTERS]: _cut(value) for key, value in list(facts.items())[:_MAX_ENTRIES]}


def _cut(value: str) -> str:
    if len(value) <= _MAX_VALUE_CHARACTERS:
        return value
    digest = hashlib.sha256(value.encode()).hexdigest()
    mark = f"... sha256:{digest}"
    return value[: _MAX_VALUE_CHARACTERS - len(mark)] + mark


def _flattened(value: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flattened(inner, f"{prefix}.{key}" if prefix else str(key))
    elif value is not None:
        yield prefix, value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _cpu() -> dict[str, str]:
    """The first processor of /proc/cpuinfo."""
    facts = {}
    for line in _read("/proc/cpuinfo").partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        facts[name.strip()] = value.strip()
    return facts


def _read(path: str) -> str:
    """Empty if there is no such file here: none of these facts is worth a launch."""
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""
