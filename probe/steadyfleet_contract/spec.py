"""What the operator asks of one probe pod (`ProbeSpec`, handed over in the environment).

The resolved fields that can change outputs are also what the epoch is computed from, see `epoch`.
"""

from __future__ import annotations

import hashlib
import json
from enum import Enum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

RECIPE = 1
"""Raised whenever the probe's outputs may change for the same spec: it starts a new epoch everywhere."""


class ContractModel(BaseModel):
    """camelCase on the wire, snake_case in Python; unknown fields are refused, instances are frozen."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class EngineKind(str, Enum):
    VLLM = "VLLM"
    SIMULATED = "Simulated"


class LaunchKind(str, Enum):
    """Pinned: determinism recipe on, judged. AsServed: the user's settings exactly, recorded."""

    PINNED = "Pinned"
    AS_SERVED = "AsServed"


class CacheState(str, Enum):
    COLD = "Cold"
    WARM = "Warm"


class Synthetic(str, Enum):
    TINY = "Tiny"
    SMALL = "Small"


class ModelSource(ContractModel):
    """Exactly one of `path`, `repository` and `synthetic` is set (checked by the CRD, and here by the probe)."""

    path: str = ""
    repository: str = ""
    revision: str = ""
    synthetic: Synthetic | None = None
    digest: str = ""
    """Expected weights digest (`sha256:...`), empty if the user did not state one."""


class EnvironmentVariable(ContractModel):
    name: str
    value: str = ""


class LaunchRequest(ContractModel):
    """One fresh engine process. `index` counts from 0 in the pod; (pod uid, index) names the result."""

    index: Annotated[int, Field(ge=0, le=63)]
    kind: LaunchKind
    cache: CacheState = CacheState.COLD


class ProbeSpec(ContractModel):
    """Everything a probe pod has to know."""

    recipe: int = RECIPE
    check: str
    """`namespace/name`, for the log."""
    epoch: str
    version: str
    image: str
    """The serving image as the version names it: part of the epoch; what runs is told by the pod's status."""
    engine: EngineKind = EngineKind.VLLM
    model: ModelSource
    arguments: tuple[str, ...] = ()
    environment: tuple[EnvironmentVariable, ...] = ()
    """For the engine's process alone."""
    python: str = ""
    """Python that has vLLM; empty: the shebang of `vllm` on PATH, else python3."""
    gpus_per_probe: Annotated[int, Field(ge=1, le=64)] = 1
    wanted_gpu: str = ""
    """UUID that the launches must use. A visit that has to meet one GPU asks for all free ones of its node, since the
    device plugin picks: the probe then uses this one alone, or reports GPUNotGiven."""
    prompt_set: str = "standard-v1"
    max_tokens: Annotated[int, Field(ge=1, le=4096)] = 64
    """Tokens of the full decode pass."""
    top_logprobs: Annotated[int, Field(ge=1, le=20)] = 20
    launches: Annotated[tuple[LaunchRequest, ...], Field(min_length=1, max_length=64)]
    launch_deadline_seconds: Annotated[int, Field(ge=1)] = 1200
    simulation: SimulationSpec | None = None


class SimulationSpec(ContractModel):
    """Faults of the simulated engine. A GPU listed in `divergent_gpus` always answers with other bits."""

    variants: Annotated[int, Field(ge=1, le=64)] = 1
    variant_per_mille: Annotated[int, Field(ge=0, le=1000)] = 0
    """Chance that a launch ends on another variant than 0, in thousandths."""
    divergent_gpus: tuple[str, ...] = ()
    divergent_nodes: tuple[str, ...] = ()
    divergent_per_mille: Annotated[int, Field(ge=0, le=1000)] = 1000
    crash_nodes: tuple[str, ...] = ()
    hang_nodes: tuple[str, ...] = ()
    launch_milliseconds: Annotated[int, Field(ge=0, le=600_000)] = 0
    wrong_weights_nodes: tuple[str, ...] = ()
    seed: int = 0


ProbeSpec.model_rebuild()


def epoch(spec: ProbeSpec) -> str:
    """Hex name (16 digits) of everything that may change outputs: launches of different epochs are never compared.

    Names, launches and deadlines do not count, nor does the simulation: a real fault is not in any spec either.
    """
    counted = spec.model_dump(
        mode="json",
        by_alias=True,
        exclude={"check", "epoch", "version", "launches", "launch_deadline_seconds", "simulation", "wanted_gpu"},
    )
    canonical = json.dumps(counted, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
