"""The report of one launch, schema version 1, and the small messages around it.

Arrays of tokens and logprobs travel as base64 of packed little-endian u32/f32, so that every bit survives, a
non-finite logprob included.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from steadyfleet_contract.spec import CacheState, ContractModel, LaunchKind

Sha256 = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
ShortText = Annotated[str, StringConstraints(max_length=256)]
Message = Annotated[str, StringConstraints(max_length=2048)]
PackedArray = Annotated[str, StringConstraints(max_length=4_000_000)]


class Outcome(str, Enum):
    """How a launch ended. Everything but Completed is Unknown to the judgement, never healthy and never guilty."""

    COMPLETED = "Completed"
    ENGINE_EXITED = "EngineExited"
    ENGINE_NOT_READY = "EngineNotReady"
    ENGINE_ERROR = "EngineError"
    MODEL_NOT_FOUND = "ModelNotFound"
    ARGUMENT_REJECTED = "ArgumentRejected"
    PROMPTS_TOO_LONG = "PromptsTooLong"
    GPU_IN_USE = "GPUInUse"
    ENGINE_NOT_FOUND = "EngineNotFound"
    GPU_NOT_GIVEN = "GPUNotGiven"
    PROBE_ERROR = "ProbeError"


class PassName(str, Enum):
    SHORT_DECODE = "ShortDecode"
    FULL_DECODE = "FullDecode"
    TEACHER_FORCED = "TeacherForced"


class GPU(ContractModel):
    """One GPU that the pod was given. `uuid` is what every verdict is keyed by."""

    uuid: Annotated[str, StringConstraints(min_length=1, max_length=96, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/-]*$")]
    product: ShortText = ""
    memory_bytes: Annotated[int, Field(ge=0)] = 0


class PromptResult(ContractModel):
    """Digest of one prompt in one pass; the arrays only in passes whose digest the operator did not know.

    Shapes, for T tokens and top-k: `tokens` u32[T], `logprobs` f32[T], `top_ids` u32[T,k], `top_logprobs` f32[T,k]
    (rows sorted by falling logprob, then by rising id).
    """

    digest: Sha256
    tokens: PackedArray = ""
    logprobs: PackedArray = ""
    top_ids: PackedArray = ""
    top_logprobs: PackedArray = ""
    non_finite: Annotated[int, Field(ge=0)] = 0
    """How many logprobs of this prompt are NaN or infinite, over all positions."""


class PassResult(ContractModel):
    name: PassName
    digest: Sha256
    """Merkle: sha256 over the prompt digests in order."""
    prompts: Annotated[tuple[PromptResult, ...], Field(max_length=256)]
    seconds: Annotated[float, Field(ge=0)]


class Repeats(ContractModel):
    """The short decode asked again in the same process, in other orders."""

    rounds: Annotated[int, Field(ge=0, le=64)]
    differing_rounds: Annotated[int, Field(ge=0, le=64)]
    differing_prompts: Annotated[tuple[int, ...], Field(max_length=256)] = ()


class Timing(ContractModel):
    """Wall-clock seconds of one step, in the order in which the steps ran."""

    step: ShortText
    seconds: Annotated[float, Field(ge=0)]


Section = Annotated[dict[ShortText, Message], Field(max_length=2048)]


class Report(ContractModel):
    """What a probe says of one launch. The body names neither node nor pod: the token does."""

    schema_version: Literal[1] = 1
    recipe: Annotated[int, Field(ge=1)]
    epoch: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
    launch: Annotated[int, Field(ge=0, le=63)]
    kind: LaunchKind
    """What the launch turned out to be: a pinned launch in which a kernel was tuned after all reports AsServed."""
    cache: CacheState
    outcome: Outcome
    message: Message = ""
    """For people: what failed, with the engine's own last words."""
    started_at: ShortText
    """RFC 3339, by the probe's clock; for people only."""
    gpus: Annotated[tuple[GPU, ...], Field(max_length=64)] = ()
    digest: Sha256 | None = None
    """Launch digest: sha256 over the digests of short decode and teacher-forced pass, in that order."""
    prompt_set_digest: Sha256 | None = None
    passes: Annotated[tuple[PassResult, ...], Field(max_length=8)] = ()
    repeats: Repeats | None = None
    weights_digest: Sha256 | None = None
    fingerprint: Annotated[dict[ShortText, Section], Field(max_length=32)] = Field(default_factory=dict)
    """Section (versions, engine, environment, gpu, host, weights, image, plan) -> key -> value."""
    timings: Annotated[tuple[Timing, ...], Field(max_length=64)] = ()


class ReportReceipt(ContractModel):
    """Sent only after the report is durable. A repeated POST of the same launch gets `duplicate: true`."""

    accepted: bool
    duplicate: bool = False


class DigestQuery(ContractModel):
    """Asked while the engine is still up, to decide whether the full decode pass is worth its time."""

    launch: Annotated[int, Field(ge=0, le=63)]
    kind: LaunchKind
    cache: CacheState
    digest: Sha256


class DigestAnswer(ContractModel):
    known: bool


class ErrorAnswer(ContractModel):
    """Body of every 4xx/5xx of the report server."""

    reason: ShortText
    field: ShortText = ""
    message: Message


class TerminationMessage(ContractModel):
    """Left in the termination log after each launch, for when the operator could not be reached."""

    schema_version: Literal[1] = 1
    launches: Annotated[tuple[TerminationLaunch, ...], Field(max_length=16)] = ()
    message: ShortText = ""


class TerminationLaunch(ContractModel):
    launch: Annotated[int, Field(ge=0, le=63)]
    outcome: Outcome
    kind: LaunchKind
    cache: CacheState
    gpu: ShortText = ""
    digest: Sha256 | None = None
    weights_digest: Sha256 | None = None
    posted: bool = False


TerminationMessage.model_rebuild()
