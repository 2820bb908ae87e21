"""The engine of the user's image: started as a child, asked over loopback HTTP, and ended. Nothing else talks to it.

    with VLLMEngine.start(...) as engine:      its own process group; gone on every way out
        engine.wait_ready()
        engine.decode(...)  engine.score(...)  engine.server_info()
"""

from __future__ import annotations

import json
import socket
import ssl
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
from pydantic import BaseModel, ValidationError

from steadyfleet_contract.digest import Arrays
from steadyfleet_contract.report import Outcome
from steadyfleet_probe import ask, engine_log
from steadyfleet_probe.deadline import Deadline
from steadyfleet_probe.errors import LaunchFailed
from steadyfleet_probe.process import ChildProcess
from steadyfleet_probe.prompts import Ids

_POLL_SECONDS = 0.1
_HEALTH_TIMEOUT_SECONDS = 5
_ASK_TIMEOUT_SECONDS = 300
"""One answer. The first one may wait for a compilation; an engine that is silent for longer hangs."""
_INFO_TIMEOUT_SECONDS = 60
_GRACE_SECONDS = 5.0

_MESSAGE_CHARACTERS = 1500

_UNSPEAKABLE = "Out of range float values are not JSON compliant"
"""In the answer (HTTP 400 in vLLM 0.32, 500 in others) when a logprob is NaN or infinite."""

_ARGUMENT_STATUS = 2
"""Exit status of argparse."""


class _Model(BaseModel):
    max_model_len: int


class _Models(BaseModel):
    data: list[_Model]


class VLLMEngine:
    """One fresh engine process and the questions to it."""

    def __init__(self, process: ChildProcess, port: int, facts: Mapping[str, str], deadline: Deadline) -> None:
        self._process = process
        self._deadline = deadline
        self._facts = facts
        self._client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}",
            trust_env=False,
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        )

    @classmethod
    @contextmanager
    def start(
        cls,
        command: Sequence[str],
        *,
        port: int,
        environment: Mapping[str, str],
        folder: Path,
        deadline: Deadline,
    ) -> Iterator[VLLMEngine]:
        """Raises LaunchFailed (EngineNotFound) if the command can't be started."""
        facts: dict[str, str] = {}

        def note(line: str) -> None:
            engine_log.note_facts(line, facts)

        try:
            process = ChildProcess(command, environment=environment, folder=folder, on_line=note)
        except OSError as error:
            raise LaunchFailed(Outcome.ENGINE_NOT_FOUND, f"{command[0]} can't be started: {error}") from error
        grace = 0.0
        try:
            engine = cls(process, port, facts, deadline)
            with engine._client:
                yield engine
            grace = _GRACE_SECONDS
        finally:
            # No grace after a failure or when the pod is told to go: somebody waits for the GPU.
            process.stop(grace_seconds=grace)

    def wait_ready(self) -> None:
        """Until /health answers. Raises LaunchFailed: EngineExited, ArgumentRejected or EngineNotReady."""
        while not self._is_healthy():
            status = self._process.exit_status
            if status is not None:
                raise self._ended_at_start(status)
            if self._deadline.is_over:
                last = self._last_error() or "it wrote nothing"
                raise LaunchFailed(
                    Outcome.ENGINE_NOT_READY, f"the engine was not ready before the launch deadline; last: {last}"
                )
            time.sleep(_POLL_SECONDS)

    def decode(self, prompt: Ids, *, tokens: int, top: int) -> Arrays:
        """Raises LaunchFailed (EngineError)."""
        request = ask.decode_request(prompt, tokens=tokens, top=top, salt=uuid.uuid4().hex)
        body = self._ask(request)
        if body is not None:
            return ask.read_decode(body, prompt, tokens=tokens, top=top)
        return ask.read_streamed_decode(self._ask_streamed(request), prompt, tokens=tokens, top=top)

    def score(self, prompt: Ids, forced: Ids, *, top: int) -> Arrays:
        """Raises LaunchFailed (EngineError)."""
        request = ask.score_request(prompt, forced, top=top, salt=uuid.uuid4().hex)
        body = self._ask(request)
        if body is not None:
            return ask.read_score(body, prompt, forced, top=top)
        return ask.read_streamed_score(self._ask_streamed(request), prompt, forced, top=top)

    def max_model_len(self) -> int:
        """Raises LaunchFailed (EngineError)."""
        try:
            return _Models.model_validate(self._get("/v1/models")).data[0].max_model_len
        except (ValidationError, IndexError) as error:
            raise LaunchFailed(Outcome.ENGINE_ERROR, f"/v1/models names no max_model_len: {error}") from error

    def server_info(self) -> dict[str, object]:
        """Configuration as resolved; empty if this engine does not tell (it explains, it decides nothing)."""
        try:
            return dict(self._get("/server_info", config_format="json"))
        except (LaunchFailed, ValueError, httpx.HTTPError) as error:
            return {"vllm_config": {"unavailable": f"{type(error).__name__}: {error}"[:200]}}

    def log_facts(self) -> dict[str, str]:
        return dict(self._facts)

    def _is_healthy(self) -> bool:
        timeout = max(0.1, self._deadline.sooner(_HEALTH_TIMEOUT_SECONDS).remaining_seconds)
        try:
            return self._client.get("/health", timeout=timeout).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def _ask(self, request: ask.Request) -> bytes | None:
        """The answer, or None if it holds a number that only the streamed form can tell."""
        try:
            answer = self._client.post(ask.COMPLETIONS_PATH, json=request, timeout=self._ask_timeout())
        except httpx.TransportError as error:
            raise self._broke(error) from error
        if answer.status_code == httpx.codes.OK:
            return answer.content
        if _UNSPEAKABLE in answer.text and answer.is_error:
            return None
        raise self._refused(answer)

    def _ask_streamed(self, request: ask.Request) -> Iterator[str]:
        timeout = self._ask_timeout()
        try:
            with self._client.stream(
                "POST", ask.COMPLETIONS_PATH, json=ask.streamed(request), timeout=timeout
            ) as answer:
                if answer.status_code != httpx.codes.OK:
                    answer.read()
                    raise self._refused(answer)
                yield from answer.iter_lines()
        except httpx.TransportError as error:
            raise self._broke(error) from error

    def _get(self, path: str, **query: str) -> dict[str, object]:
        timeout = self._deadline.sooner(_INFO_TIMEOUT_SECONDS).remaining_seconds
        try:
            answer = self._client.get(path, params=query, timeout=timeout)
        except httpx.TransportError as error:
            raise self._broke(error) from error
        if answer.status_code != httpx.codes.OK:
            raise self._refused(answer)
        content = json.loads(answer.content)
        if not isinstance(content, dict):
            raise LaunchFailed(Outcome.ENGINE_ERROR, f"GET {path} is not a JSON object")
        return content

    def _ask_timeout(self) -> float:
        remaining = self._deadline.sooner(_ASK_TIMEOUT_SECONDS).remaining_seconds
        if not remaining:
            raise LaunchFailed(Outcome.ENGINE_ERROR, "the launch deadline passed while the engine was being asked")
        return remaining

    def _refused(self, answer: httpx.Response) -> LaunchFailed:
        words = f"the engine answered HTTP {answer.status_code}: {answer.text[:600]}"
        last = self._last_error()
        return LaunchFailed(Outcome.ENGINE_ERROR, _shortened(f"{words}; its log: {last}" if last else words))

    def _broke(self, error: httpx.TransportError) -> LaunchFailed:
        status = self._process.exit_status if isinstance(error, httpx.TimeoutException) else self._settled_exit_status()
        state = "it is still running" if status is None else f"it {_ended(status)}"
        return LaunchFailed(
            Outcome.ENGINE_ERROR,
            _shortened(f"the engine did not answer ({type(error).__name__}); {state}; its log: {self._last_error()}"),
        )

    def _ended_at_start(self, status: int) -> LaunchFailed:
        lines = self._process.last_lines()
        if status == _ARGUMENT_STATUS and (words := engine_log.refused_argument(lines)):
            return LaunchFailed(Outcome.ARGUMENT_REJECTED, f"the engine refused its arguments: {words}")
        last = engine_log.most_telling(lines)
        if engine_log.tells_of_a_missing_model(last):
            return LaunchFailed(Outcome.MODEL_NOT_FOUND, _shortened(f"model.repository: {last}"))
        return LaunchFailed(
            Outcome.ENGINE_EXITED, _shortened(f"the engine {_ended(status)} before it was ready: {last}")
        )

    def _settled_exit_status(self) -> int | None:
        """A dying server closes its connections a moment before it is gone."""
        until = Deadline.after(2)
        while self._process.exit_status is None and not until.is_over:
            time.sleep(_POLL_SECONDS)
        return self._process.exit_status

    def _last_error(self) -> str:
        return engine_log.most_telling(self._process.last_lines())


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _ended(status: int) -> str:
    return f"was ended by signal {-status}" if status < 0 else f"exited with status {status}"


def _shortened(text: str) -> str:
    return text if len(text) <= _MESSAGE_CHARACTERS else f"{text[:_MESSAGE_CHARACTERS]}..."
