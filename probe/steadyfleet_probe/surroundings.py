"""The fingerprint: everything about the surroundings of a launch that may explain other bits, in sections.

    versions      every installed package                 host      kernel, boot, CPU, Python
    engine        configuration as the engine resolved it  image     its operating system and environment
    environment   variables that reach the numerics        weights   hashes of the files
    gpu           identity, driver, errors, clocks         plan      see `plan`

No secrets: variables are taken by an allow-list of prefixes; what is named like a credential is left out, or written as
*** where it is one among others; URLs lose what stands before their host. Values that differ between any two launches
(ports, identifiers, times) are left out as well.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
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

_SECRET = re.compile(
    r"(^|[_.-])(API_?KEYS?|ACCESS_?KEYS?|KEYS?|TOKENS?|SECRETS?|PASS|PASSWORDS?|PASSWD|PASSPHRASE|PWD|CREDENTIALS?"
    r"|CREDS?|AUTH|AUTHORIZATION|BEARER)([_-]ID)?$",
    re.IGNORECASE,
)

_COUNT = re.compile(r"tokens$", re.IGNORECASE)
"""`max_num_batched_tokens` is a number; only then is it none of the secrets above."""

_USERINFO = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://)[^/\s\"'@]*(?:@[^/\s\"'@]*)*@")

_FIELD = re.compile(
    r"(?P<before>(?P<name>[A-Za-z_][\w.-]*)['\"]?\s*[=:]\s*(?P<quote>['\"]))(?P<value>(?:\\.|(?!(?P=quote)).)*)(?P=quote)"
)
"""`"api_key": "x"` of JSON, `hf_token='x'` of Python."""

_HIDDEN = "***"

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
            if name.startswith(_PREFIXES) and not _is_secret(name, value) and name not in private
        }
    )


def engine(server_info: Mapping[str, object], *, more: Mapping[str, str]) -> Section:
    """The configuration as resolved, from `/server_info`, and `more` facts from the command line and the log.

    The log's own account of the configuration is the only one of an engine whose `/server_info` fails: it runs
    vLLM's collect_env, which fails in an image without pip.
    """
    facts = {name: value for name, value in more.items() if name != "config"}
    logged = assignments(more.get("config", ""))
    facts |= {f"logged.{name}": value for name, value in logged if not _is_secret(name, value)}
    for name, value in _flattened(server_info.get("vllm_config")):
        if not _VOLATILE.search(name) and not _is_secret(name, value):
            facts[name] = value
    for name, value in _flattened(server_info.get("vllm_env")):
        if not _is_secret(name, value):
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
    return {
        key[:_MAX_KEY_CHARACTERS]: _cut(redacted(value)) for key, value in list(facts.items())[:_MAX_ENTRIES]
    }


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """A command line to be shown: `--api-key=***`, `--api-key ***`, and an option's JSON as `redacted`."""
    shown: list[str] = []
    hide = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        is_option = name.startswith("-")
        if hide and not is_option:
            shown.append(_HIDDEN)
        elif is_option and equals:
            shown.append(f"{name}={_HIDDEN if _is_secret(name, value) else redacted(value)}")
        else:
            shown.append(redacted(argument))
        # A number of tokens is shown when it stands behind its option, too.
        hide = (hide and not is_option) or (is_option and not equals and _is_secret(name, "0"))
    return shown


def redacted(text: str) -> str:
    """Without the user and password of URLs, and without the quoted values of fields that are named like a secret."""

    def field(match: re.Match[str]) -> str:
        name, value = match["name"], match["value"]
        return match["before"] + (_HIDDEN if _is_secret(name, value) else value) + match["quote"]

    return _FIELD.sub(field, _USERINFO.sub(rf"\1{_HIDDEN}@", text))


def _is_secret(name: str, value: str) -> bool:
    is_number = value.strip("\"'").isdecimal()
    return bool(_SECRET.search(name)) and not (is_number and _COUNT.search(name))


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
