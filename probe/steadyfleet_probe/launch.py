"""The story of one launch: from cold folders to a report, in the order in which it happens.

The deadline of the launch bounds all of it. Whatever goes wrong ends in a report that says so; only the end of the
probe itself (SIGTERM) passes through, and the engine is gone by then as well.

Hashing the weights and looking around run beside the engine's start and its answers. Neither touches the GPU or sends
anything through the model, so they can't change an answer.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from steadyfleet_contract.report import Report
from steadyfleet_contract.spec import LaunchKind, LaunchRequest
from steadyfleet_probe import caches, gpu, model, recipe, surroundings
from steadyfleet_probe.deadline import Deadline
from steadyfleet_probe.draft import Draft
from steadyfleet_probe.engine import VLLMEngine, free_port
from steadyfleet_probe.installed import find_build, find_command
from steadyfleet_probe.measure import Engine, measure
from steadyfleet_probe.plan import read_plan
from steadyfleet_probe.prompts import PromptSet, check_fits, prompt_set
from steadyfleet_probe.settings import Settings
from steadyfleet_probe.weights import Weights, read_weights

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


def _to_nobody(step: str) -> None:
    """A pod's log has the engine's own lines."""


@dataclass(frozen=True)
class Extras:
    """What a caller outside of a pod adds to a launch."""

    on_step: Callable[[str], None] = _to_nobody
    """Told when a step begins: prepare, engineStart, passes, the names of `passes`, engineStop."""
    passes: Mapping[str, Callable[[Engine, PromptSet], None]] = field(default_factory=dict)
    """Step -> asked after the passes of a visit, while the engine is up; it may raise LaunchFailed."""


_NOTHING = Extras()


@dataclass(frozen=True)
class _Prepared:
    """What is known before the engine starts."""

    command: list[str]
    environment: dict[str, str]
    folders: caches.LaunchFolders
    port: int
    model_folder: Path | None
    gpus: gpu.GPUs
    own: Mapping[str, str]
    """Variables that the probe sets, not the user: each launch has its own, and they explain nothing."""


def run_launch(
    settings: Settings,
    request: LaunchRequest,
    *,
    digest_is_known: Callable[[str], bool],
    extras: Extras = _NOTHING,
) -> Report:
    """Never raises for anything that goes wrong with the launch."""
    draft = Draft.begin(settings.spec, request)
    deadline = Deadline.after(settings.spec.launch_deadline_seconds)
    try:
        with draft.timed("total"):
            _launch(settings, draft, deadline, digest_is_known, extras)
    except Exception as error:  # noqa: BLE001  the border: a launch without a report is a launch that was lost
        draft.fail_with(error)
    return draft.report()


def _launch(
    settings: Settings, draft: Draft, deadline: Deadline, digest_is_known: Callable[[str], bool], extras: Extras
) -> None:
    extras.on_step("prepare")
    with draft.timed("prepare"):
        prepared = _prepare(settings, draft)
    beside = _Beside(prepared)
    try:
        _run_engine(settings, draft, prepared, beside, deadline, digest_is_known, extras)
    except Exception:
        # Also after a failure: wrong weights may well explain it.
        _take(draft, beside, deadline)
        raise
    else:
        _take(draft, beside, deadline)
    finally:
        beside.abandon()


def _run_engine(
    settings: Settings,
    draft: Draft,
    prepared: _Prepared,
    beside: _Beside,
    deadline: Deadline,
    digest_is_known: Callable[[str], bool],
    extras: Extras,
) -> None:
    spec = settings.spec
    extras.on_step("engineStart")
    with VLLMEngine.start(
        prepared.command,
        port=prepared.port,
        environment=prepared.environment,
        folder=prepared.folders.working,
        deadline=deadline,
    ) as engine:
        with draft.timed("engineStart"):
            engine.wait_ready()
        folder = prepared.model_folder or model.downloaded_folder(spec.model, prepared.environment)
        beside.hash_weights(folder)
        prompts = _prompts(settings, draft, folder)
        check_fits(prompts, max_tokens=spec.max_tokens, max_model_len=engine.max_model_len())
        server_info = beside.submit(engine.server_info)
        extras.on_step("passes")
        draft.measured = measure(
            engine,
            prompts,
            max_tokens=spec.max_tokens,
            top_logprobs=spec.top_logprobs,
            digest_is_known=digest_is_known,
        )
        draft.timings |= draft.measured.seconds
        for step, ask in extras.passes.items():
            extras.on_step(step)
            with draft.timed(step):
                ask(engine, prompts)
        with draft.timed("fingerprint"):
            arguments = surroundings.without_secrets(_without_port(prepared))
            more = {**engine.log_facts(), "arguments": json.dumps(arguments)}
            draft.fingerprint["engine"] = surroundings.engine(server_info.result(), more=more)
            _read_plan(draft, prepared)
        extras.on_step("engineStop")
        stopping = time.monotonic()
    draft.timings["engineStop"] = time.monotonic() - stopping


class _Beside:
    """What runs beside the engine."""

    def __init__(self, prepared: _Prepared) -> None:
        self._pool = ThreadPoolExecutor(max_workers=3, thread_name_prefix="beside")
        self.looked = self._pool.submit(_look_around, prepared)
        self.weights: Future[Weights] | None = None
        if prepared.model_folder is not None:
            self.hash_weights(prepared.model_folder)

    def hash_weights(self, folder: Path) -> None:
        if self.weights is None:
            self.weights = self._pool.submit(read_weights, folder)

    def submit(self, work: Callable[[], _T]) -> Future[_T]:
        return self._pool.submit(work)

    def abandon(self) -> None:
        """Waits for nothing: the probe may have been told to end."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _prepare(settings: Settings, draft: Draft) -> _Prepared:
    """All that can be refused without using the GPU is refused here."""
    spec = settings.spec
    command, build = find_command(), find_build()
    gpus = gpu.check_free(settings.environment, count=spec.gpus_per_probe, wanted=spec.wanted_gpu)
    draft.gpus = gpus.found
    named, folder = model.before_start(spec.model, settings.work_dir)
    port = free_port()
    arguments = recipe.arguments(spec, model=named, port=port, kind=draft.kind, build=build)
    stated = recipe.stated_max_model_len(spec.arguments)
    if folder is not None and stated is not None:
        check_fits(_prompts(settings, draft, folder), max_tokens=spec.max_tokens, max_model_len=stated)
    users = recipe.environment(spec, pod=settings.environment, private={}, kind=draft.kind)
    folders = caches.prepare(settings.work_dir, kind=draft.kind, cache=draft.request.cache, environment=users)
    draft.cache = folders.cache
    environment = recipe.environment(
        spec, pod=settings.environment, private=folders.variables, kind=draft.request.kind
    )
    chosen = {"CUDA_VISIBLE_DEVICES": gpus.visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if gpus.visible else {}
    own = {**folders.variables, **chosen}
    return _Prepared([*command, *arguments], environment | chosen, folders, port, folder, gpus, own)


def _prompts(settings: Settings, draft: Draft, folder: Path) -> PromptSet:
    prompts = prompt_set(settings.spec.prompt_set, vocabulary=model.vocabulary(folder))
    draft.prompt_set_digest = prompts.digest
    return prompts


def _look_around(prepared: _Prepared) -> dict[str, surroundings.Section]:
    return {
        "versions": surroundings.versions(),
        "environment": surroundings.environment(prepared.environment, private=prepared.own),
        "gpu": surroundings.bounded(gpu.describe(prepared.gpus)),
        "host": surroundings.host(),
        "image": surroundings.image(prepared.environment),
    }


def _read_plan(draft: Draft, prepared: _Prepared) -> None:
    """A pinned launch whose outputs may depend on timings is an as-served one, whatever was asked for."""
    try:
        plan = read_plan(prepared.folders.root)
        section, why = plan.section(), plan.why_not_pinned()
    except Exception as error:  # noqa: BLE001  the answers are there; only what they depended on is not known
        _log.exception("the kernel plan can't be read")
        why = f"the kernel plan can't be read: {type(error).__name__}: {error}"
        section = {"unavailable": why}
    if draft.request.kind is LaunchKind.PINNED:
        section["pin"] = f"does not hold: {why}" if why else "holds"
        if why:
            draft.kind = LaunchKind.AS_SERVED
            draft.message = f"reported as AsServed: {why}"
    draft.fingerprint["plan"] = section


def _take(draft: Draft, beside: _Beside, deadline: Deadline) -> None:
    """Collect what ran beside the engine. What is not there in time is left out and said so; it decides nothing."""
    timeout = max(5.0, deadline.remaining_seconds)
    try:
        draft.fingerprint |= beside.looked.result(timeout=timeout)
    except Exception as error:  # noqa: BLE001  facts explain; they decide nothing
        _log.exception("the surroundings can't be told")
        draft.fingerprint["host"] = {"unavailable": _why(error)}
    if beside.weights is None:
        return
    try:
        with draft.timed("weightsWait"):
            weights = beside.weights.result(timeout=timeout)
    except Exception as error:  # noqa: BLE001  as above
        _log.exception("the weights can't be hashed")
        draft.fingerprint["weights"] = {"unavailable": _why(error)}
        return
    section = {**weights.files, "bytes": str(weights.total_bytes)}
    if not weights.unchanged():
        section["changed"] = "a weight file was written while the engine started"
    draft.weights_digest = weights.digest
    draft.fingerprint["weights"] = section


def _why(error: Exception) -> str:
    return "not before the launch deadline" if isinstance(error, FutureTimeout) else f"{type(error).__name__}: {error}"


def _without_port(prepared: _Prepared) -> list[str]:
    return [argument for argument in prepared.command if argument != f"--port={prepared.port}"]
