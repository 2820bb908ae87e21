"""Specs, settings and answers for tests of the probe, short enough to read in a test."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from steadyfleet_contract.spec import EnvironmentVariable, LaunchKind, LaunchRequest, ModelSource, ProbeSpec, epoch
from steadyfleet_probe.settings import Settings

FAKE_VLLM = Path(__file__).parent / "fake_vllm"
"""Put it first on the path and `vllm` is the fake server."""

GPU_UUID = "GPU-00000000-0000-4000-8000-000000000001"


def probe_spec(*, environment: Mapping[str, str] | None = None, **changes: Any) -> ProbeSpec:
    variables = tuple(EnvironmentVariable(name=name, value=value) for name, value in (environment or {}).items())
    fields: dict[str, Any] = {
        "check": "serving/qwen3-8b",
        "epoch": "0" * 16,
        "version": "stable",
        "image": "registry.example/vllm:1",
        "model": ModelSource(synthetic="Tiny"),
        "max_tokens": 4,
        "top_logprobs": 3,
        "launches": launches("Pinned"),
        "launch_deadline_seconds": 20,
        "environment": variables,
    } | changes
    spec = ProbeSpec(**fields)
    return spec.model_copy(update={"epoch": epoch(spec)})


def launches(*kinds: str) -> tuple[LaunchRequest, ...]:
    return tuple(LaunchRequest(index=index, kind=LaunchKind(kind)) for index, kind in enumerate(kinds))


def probe_settings(
    work: Path, spec: ProbeSpec | None = None, *, environment: Mapping[str, str] | None = None, **changes: Any
) -> Settings:
    token = work / "token"
    token.write_text("a-token\n")
    fields: dict[str, Any] = {
        "spec": spec or probe_spec(),
        "report_url": "https://127.0.0.1:1",
        "report_ca": "",
        "node_name": "node-a",
        "pod_uid": "11111111-2222-3333-4444-555555555555",
        "work_dir": work,
        "token_file": token,
        "termination_message_file": work / "termination-log",
        "environment": {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(FAKE_VLLM),
            "NVIDIA_VISIBLE_DEVICES": GPU_UUID,
            **(environment or {}),
        },
    } | changes
    return Settings(**fields)


def witness(path: Path) -> dict[str, Any]:
    """What the fake engine saw."""
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def wait_for(condition: Callable[[], bool], *, seconds: float = 10, what: str = "the condition") -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"{what} did not come true within {seconds} s"
        time.sleep(0.02)


def alive(pids: Iterable[int]) -> list[int]:
    """Those that still run; a zombie does not."""
    return [pid for pid in pids if _runs(pid)]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIG_DFL)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
