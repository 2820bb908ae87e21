"""Reads launch records (`"format": "launch-record-1"`): one launch of vLLM's offline `LLM`, without Kubernetes.

What the record says of itself in words (`what`, `group`, `weights_change`) is never believed; files, settings, kernels
and numbers are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from steadyfleet_contract.digest import F32, U32, tokens_hash
from steadyfleet_contract.errors import InputInvalid
from steadyfleet_contract.launches import Chooser, ChooserState, Kind, Launch, Outputs, Pass
from steadyfleet_contract.plans import ONLY, PlanState, UsedKernel, UsedPlan, config_text
from steadyfleet_contract.recordarrays import outputs, prompt_outputs

FORMAT = "launch-record-1"

_MAX_PROMPTS = 4096

_IGNORED_RESOLVED = {"env", "compiled_code", "compile_cache_key", "aot_key", "num_gpu_blocks"}
"""Cold or warm, names of cache folders, and free memory: they differ between launches that compute alike."""

_IGNORED_GPU = {"uuid", "power_limit_w", "max_sm_clock_mhz"}


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Knobs(_Model):
    engine_args: dict[str, Any] = {}
    env_set: dict[str, str] = {}
    autotune_random_stream: int | None = None
    autotune_forced: str | None = None
    cache_at_start: str = ""
    busy_neighbour: bool = False


class _WeightsAndShape(_Model):
    architecture: str = ""
    vocab_size: int = Field(default=0, ge=0, le=2**32)
    dtype: str = ""
    weights_sha256: str | None = None


class _Prompt(_Model):
    id: str
    token_ids: list[int]


class _Kernel(_Model):
    kernel_name: str
    used_by_model: bool
    source_file: str
    heuristic: str = ""
    is_reduction: bool
    chosen: dict[str, Any] | None = None


class _Candidate(_Model):
    config: dict[str, Any]
    reported: float | None = None


class _Round(_Model):
    source_file: str
    candidates: list[_Candidate] = []


class _KernelPlan(_Model):
    kernels: list[_Kernel] = []
    autotune_rounds: list[_Round] | None = None


class _Record(_Model):
    launch: str
    knobs: _Knobs = _Knobs()
    versions: dict[str, Any] = {}
    gpu: dict[str, Any] = {}
    model: _WeightsAndShape
    resolved: dict[str, Any] = {}
    prompts: list[_Prompt] = Field(min_length=1, max_length=_MAX_PROMPTS)
    repeat_identical: bool | None = None
    kernel_plan: _KernelPlan | None = None
    digests: dict[str, str] = {}


def from_record(document: Mapping[str, Any], *, file: str) -> Launch:
    """Raises InputInvalid, naming the field."""
    try:
        record = _Record.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InputInvalid(file, first["msg"], field=field, remedy=f"write it as {FORMAT} has it") from error
    passes = {found.name: found for found in _passes(record, document, file=file)}
    plan = _plan(record)
    return Launch(
        file=file,
        format=FORMAT,
        name=record.launch,
        prompt_set=_prompt_set(record, file=file),
        passes=passes,
        plan=plan,
        choosers=tuple(_choosers(record, plan)),
        weights=record.model.weights_sha256 or "",
        facts=dict(_facts(record)),
        circumstances=dict(_circumstances(record)),
        self_differing=None if record.repeat_identical is None else not record.repeat_identical,
        warm_from=_warm_from(record),
        gpu=str(record.gpu.get("uuid", "")),
        product=str(record.gpu.get("name", "")),
        prompt_names=tuple(prompt.id for prompt in record.prompts),
        notes=tuple(_digest_notes(record, passes)),
    )


def _passes(record: _Record, document: Mapping[str, Any], *, file: str) -> Iterator[Pass]:
    vocabulary = record.model.vocab_size
    count = len(record.prompts)
    decoded = outputs(document.get("decode"), file=file, field="decode", prompts=count, vocabulary=vocabulary)
    yield Pass("FullDecode", Kind.DECODE, decoded)
    forced = outputs(
        document.get("teacher_forced"),
        file=file,
        field="teacher_forced",
        prompts=count,
        vocabulary=vocabulary,
        with_tokens=False,
    )
    yield Pass("TeacherForced", Kind.FORCED, forced)
    prompt = prompt_outputs(
        document["teacher_forced"], [found.token_ids for found in record.prompts], file=file, field="teacher_forced"
    )
    if prompt is not None:
        yield Pass("Prompt", Kind.FORCED, prompt)
    if document.get("batched"):
        found = outputs(document["batched"], file=file, field="batched", prompts=count, vocabulary=vocabulary)
        yield Pass("Batched", Kind.DECODE, found)


def _prompt_set(record: _Record, *, file: str) -> str:
    whole = hashlib.sha256()
    for index, prompt in enumerate(record.prompts):
        try:
            whole.update(tokens_hash(np.asarray(prompt.token_ids, dtype=np.uint32)))
        except (OverflowError, ValueError) as error:
            field = f"prompts[{index}].token_ids"
            raise InputInvalid(file, str(error), field=field, remedy="token ids are whole numbers from 0") from error
    return f"record:{whole.hexdigest()}"


def _plan(record: _Record) -> UsedPlan:
    if _is_eager(record):
        return UsedPlan(PlanState.NONE, "eager: nothing was compiled")
    if record.kernel_plan is None or not record.kernel_plan.kernels:
        return UsedPlan(PlanState.UNREADABLE, "the record names no kernel of a compiled launch")
    winners: dict[str, list[str]] = {}
    for tuning in record.kernel_plan.autotune_rounds or ():
        timed = [found for found in tuning.candidates if found.reported is not None]
        if timed:
            best = min(timed, key=lambda found: found.reported or 0.0)
            winners.setdefault(tuning.source_file, []).append(config_text(best.config))
    return UsedPlan(
        PlanState.READ,
        kernels={
            kernel.source_file: UsedKernel(
                source=kernel.source_file,
                name=kernel.kernel_name,
                reduces=kernel.is_reduction or kernel.heuristic not in ("", "pointwise"),
                config=ONLY if kernel.chosen is None else config_text(kernel.chosen),
                rounds=tuple(winners.get(kernel.source_file, ())),
            )
            for kernel in record.kernel_plan.kernels
            if kernel.used_by_model
        },
    )


def _is_eager(record: _Record) -> bool:
    return record.knobs.engine_args.get("enforce_eager") is True or record.resolved.get("compilation_mode") == 0


def _choosers(record: _Record, plan: UsedPlan) -> Iterator[Chooser]:
    inductor = record.resolved.get("inductor_compile_config")
    tuned = sum(kernel.reduces and kernel.config != ONLY for kernel in plan.kernels.values())
    if plan.state is PlanState.READ:
        detail = f"{len(plan.kernels)} kernels in use, {tuned} of their reductions tuned"
        yield Chooser("Inductor kernels", ChooserState.RECORDED, detail)
    elif plan.state is PlanState.NONE:
        yield Chooser("Inductor kernels", ChooserState.ABSENT, plan.detail)
    else:
        yield Chooser("Inductor kernels", ChooserState.INVISIBLE, plan.detail)
    if isinstance(inductor, dict) and (inductor.get("max_autotune") or inductor.get("max_autotune_gemm")):
        yield Chooser("Inductor GEMM templates", ChooserState.INVISIBLE, "max_autotune is on and leaves no file")
    else:
        yield Chooser("Inductor GEMM templates", ChooserState.ABSENT, "max_autotune is off")
    environment = _environment(record)
    if environment.get("TRITON_CACHE_AUTOTUNING") == "1":
        yield Chooser("Triton autotuner", ChooserState.ABSENT, "it keeps its choices in files, and there was none")
    else:
        yield Chooser("Triton autotuner", ChooserState.INVISIBLE, "TRITON_CACHE_AUTOTUNING is not 1: it leaves no file")
    yield _flashinfer(record, environment)
    yield Chooser("cuBLASLt", ChooserState.ABSENT, "chooses by table, not by timing; library versions are compared")


def _flashinfer(record: _Record, environment: Mapping[str, str]) -> Chooser:
    backend = str(record.resolved.get("attention_backend", ""))
    dense = record.model.dtype in ("bfloat16", "float16", "float32") and "moe" not in record.model.architecture.lower()
    quantised = record.knobs.engine_args.get("quantization") is not None
    sampler_off = environment.get("VLLM_USE_FLASHINFER_SAMPLER") == "0"
    if backend and "FLASHINFER" not in backend.upper() and sampler_off and dense and not quantised:
        detail = f"attention is {backend}, its sampler is off, the model is dense and not quantised: none of it runs"
        return Chooser("FlashInfer tactics", ChooserState.ABSENT, detail)
    return Chooser("FlashInfer tactics", ChooserState.INVISIBLE, "it may run, and the record holds no tactics")


def _environment(record: _Record) -> dict[str, str]:
    resolved = record.resolved.get("env")
    found = {str(key): str(value) for key, value in resolved.items()} if isinstance(resolved, dict) else {}
    return found | record.knobs.env_set


def _facts(record: _Record) -> Iterator[tuple[str, str]]:
    for name, value in _flat(record.knobs.engine_args):
        yield f"engine.arguments.{name}", value
    for key, value in record.resolved.items():
        if key not in _IGNORED_RESOLVED:
            for name, inner in _flat({key: value}):
                yield f"engine.{name}", inner
    for name, value in _environment(record).items():
        yield f"environment.{name}", value
    for name, value in record.versions.items():
        yield f"versions.{name}", str(value)
    for name, value in record.gpu.items():
        if name not in _IGNORED_GPU:
            yield f"gpu.{name}", str(value)
    yield "model.architecture", record.model.architecture
    yield "model.vocab_size", str(record.model.vocab_size)
    yield "model.dtype", record.model.dtype


def _circumstances(record: _Record) -> Iterator[tuple[str, str]]:
    yield "cache at the start", record.knobs.cache_at_start or "not recorded"
    yield "busy neighbour", str(record.knobs.busy_neighbour)
    if record.knobs.autotune_forced:
        yield "tuner forced to", record.knobs.autotune_forced
    if record.knobs.autotune_random_stream is not None:
        yield "tuner's random stream", str(record.knobs.autotune_random_stream)


def _warm_from(record: _Record) -> str:
    told = record.knobs.cache_at_start
    if "left by " in told:
        return told.rpartition("left by ")[2].strip()
    return "" if told in ("", "empty") else "warm"


def _flat(value: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    elif value is not None:
        yield prefix, value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _digest_notes(record: _Record, passes: Mapping[str, Pass]) -> Iterator[str]:
    """A record whose numbers were changed after it was written is compared by its numbers, and said to be changed."""
    for field, name, with_tokens in (("decode", "FullDecode", True), ("teacher_forced", "TeacherForced", False)):
        told, found = record.digests.get(field), passes[name].outputs
        if told and found is not None and not found.non_finite and told != _record_digest(found, with_tokens):
            yield f"digests.{field} is not the hash of its numbers: the record was changed after it was written"


def _record_digest(found: Outputs, with_tokens: bool) -> str:
    whole = hashlib.sha256()
    for index in range(len(found.lengths)):
        mine = found.prompt == index
        if with_tokens:
            whole.update(_bytes(found.tokens[mine]))
        whole.update(_bytes(found.logprobs[mine]))
        rows: Sequence[tuple[U32, F32]] = list(zip(found.top_ids[mine], found.top_logprobs[mine], strict=True))
        for ids, logprobs in rows:
            whole.update(_bytes(ids))
            whole.update(_bytes(logprobs))
    return whole.hexdigest()


def _bytes(values: U32 | F32) -> bytes:
    return np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<")).tobytes()
