"""How much longer a visit takes than the bare engine that is asked the same questions. Target: 1.05 times at most.

    python -m tests.bench.overhead

Bare: start the same server with the same arguments and fresh caches, send the same requests one after the other, stop
it. Visit: the probe's zip with one pinned launch whose digest nobody knows, its report delivered over TLS. Both run
with the real vLLM on CPU, in turns.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from steadyfleet_contract import wire
from steadyfleet_contract.report import Outcome
from steadyfleet_contract.spec import (
    CacheState,
    EnvironmentVariable,
    LaunchKind,
    LaunchRequest,
    ModelSource,
    ProbeSpec,
    Synthetic,
)
from steadyfleet_probe import ask, caches, engine, measure, package, prompts, recipe, settings, synthetic
from tests.cluster import engine as cluster_engine
from tests.unit.probe.report_server import serving

TARGET = 1.05
_READY_SECONDS = 300
_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
_ARGUMENTS = ("--enforce-eager", "--gpu-memory-utilization=0.2")


@dataclass(frozen=True)
class Overhead:
    bare_seconds: tuple[float, ...]
    visit_seconds: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Of the fastest turns: the rest of the machine only ever adds."""
        return min(self.visit_seconds) / min(self.bare_seconds)


def run(*, turns: int = 2) -> Overhead:
    """Raises RuntimeError if a launch does not complete."""
    python = cluster_engine.prepare().python
    bare, visits = [], []
    with tempfile.TemporaryDirectory(prefix="steadyfleet-overhead-") as folder:
        work = Path(folder)
        package.build(work / "probe")
        synthetic.generate(Synthetic.TINY, work / "tiny")
        for _ in range(turns):
            bare.append(bare_engine(python, work))
            visits.append(visit(python, work))
    return Overhead(tuple(bare), tuple(visits))


def bare_engine(python: Path, work: Path) -> float:
    """Seconds from the start of the server until it is gone."""
    spec = _spec(work)
    folders = caches.prepare(work / "bare", kind=LaunchKind.PINNED, cache=CacheState.COLD, environment={})
    environment = recipe.environment(spec, pod=_pod(), private=folders.variables, kind=LaunchKind.PINNED)
    port = engine.free_port()
    build = recipe.EngineBuild(is_cpu=True, has_flashinfer_autotune=True)
    arguments = recipe.arguments(spec, model=str(work / "tiny"), port=port, kind=LaunchKind.PINNED, build=build)
    started = time.monotonic()
    server = subprocess.Popen(
        [python, "-m", "vllm.entrypoints.openai.api_server", *arguments],
        env=environment, cwd=folders.working, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
            _wait_ready(client, server, until=started + _READY_SECONDS)
            for request in _questions(spec):
                client.post(ask.COMPLETIONS_PATH, json=request).raise_for_status()
        server.send_signal(signal.SIGINT)
        server.wait(timeout=10)
        return time.monotonic() - started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(timeout=10)


def visit(python: Path, work: Path) -> float:
    """Seconds from the start of the probe until it is gone, its report delivered."""
    (work / "token").write_text("a-token")
    shutil.rmtree(work / "visit", ignore_errors=True)
    (work / "visit").mkdir()
    with serving() as server:
        environment = _pod() | {
            wire.ENV_SPEC: _spec(work).model_dump_json(by_alias=True),
            wire.ENV_REPORT_URL: server.url,
            wire.ENV_REPORT_CA: server.ca,
            settings.ENV_WORK_DIR: str(work / "visit"),
            settings.ENV_TOKEN_FILE: str(work / "token"),
            settings.ENV_TERMINATION_MESSAGE_FILE: str(work / "termination-log"),
            "STEADYFLEET_PYTHON": str(python),
        }
        started = time.monotonic()
        done = subprocess.run(
            [work / "probe" / "run"], env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        seconds = time.monotonic() - started
        if done.returncode or server.reports[0].outcome is not Outcome.COMPLETED:
            raise RuntimeError(f"the visit did not complete: {done.stdout[-2000:]}")
    return seconds


def _questions(spec: ProbeSpec) -> Iterator[ask.Request]:
    """What `measure` asks of an engine whose digest is unknown."""
    chosen = prompts.prompt_set(spec.prompt_set, vocabulary=synthetic.SHAPES[Synthetic.TINY].vocabulary)
    for _ in range(1 + measure.ROUNDS):
        for number, prompt in enumerate(chosen.short):
            yield ask.decode_request(prompt, tokens=measure.SHORT_TOKENS, top=0, salt=str(number))
    for prompt, forced in zip(chosen.short, chosen.forced, strict=True):
        yield ask.score_request(prompt, forced, top=spec.top_logprobs, salt="score")
    for prompt in chosen.full:
        yield ask.decode_request(prompt, tokens=spec.max_tokens, top=spec.top_logprobs, salt="full")


def _spec(work: Path) -> ProbeSpec:
    return ProbeSpec(
        check="bench/overhead",
        epoch="0" * 16,
        version="bench",
        image="bench",
        model=ModelSource(path=str(work / "tiny")),
        arguments=_ARGUMENTS,
        environment=tuple(EnvironmentVariable(name=name, value=value) for name, value in _ENVIRONMENT.items()),
        launches=(LaunchRequest(index=0, kind=LaunchKind.PINNED),),
    )


def _pod() -> dict[str, str]:
    return {"PATH": os.environ["PATH"]}


def _wait_ready(client: httpx.Client, server: subprocess.Popen[bytes], *, until: float) -> None:
    while True:
        try:
            if client.get("/health").is_success:
                return
        except httpx.TransportError:
            pass
        if server.poll() is not None or time.monotonic() > until:
            raise RuntimeError("the bare engine did not get ready")
        time.sleep(0.1)


if __name__ == "__main__":
    found = run()
    print(f"bare engine {min(found.bare_seconds):6.1f} s   (turns: {', '.join(f'{s:.1f}' for s in found.bare_seconds)})")
    print(f"visit       {min(found.visit_seconds):6.1f} s   (turns: {', '.join(f'{s:.1f}' for s in found.visit_seconds)})")
    print(f"ratio       {found.ratio:8.3f}   target {TARGET}")
