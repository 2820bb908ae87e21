"""Command line and environment of the engine: what measuring needs, and for pinned launches the determinism recipe.

As served: the user's arguments and environment, plus what is needed to ask (loopback, a known name, top-20 logprobs).
Pinned adds two things, each only where the user's arguments do not say otherwise:

- every default that vLLM derives from the hardware or from the model's snapshot gets a fixed value
- nothing that changes the rounding of a reduction is chosen by timing: Inductor compiles deterministically and does not
  time combo kernels (both keys at once: vLLM turns combo kernels off when it finds only one of them), FlashInfer does
  not tune, Triton takes the first configuration. `plan` checks afterwards that it held.

Raise RECIPE in the contract with every change here that may change outputs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from steadyfleet_contract.report import Outcome
from steadyfleet_contract.spec import LaunchKind, ProbeSpec
from steadyfleet_probe.ask import MODEL_NAME
from steadyfleet_probe.errors import LaunchFailed

_OWN_PREFIX = "STEADYFLEET_"

_SEQUENCES = 16
_BATCHED_TOKENS = 2048

_RESERVED = (
    "--model",
    "--revision",
    "--served-model-name",
    "--host",
    "--port",
    "--uds",
    "--api-key",
    "--ssl-keyfile",
    "--ssl-certfile",
    "--root-path",
    "--max-logprobs",
    "--logprobs-mode",
    "--headless",
)
"""Arguments that the probe gives itself or that would make the engine unreachable for it."""

_NOT_PASSED_ON = ("VLLM_API_KEY",)
"""Would make the engine refuse the probe's own questions."""

_MEASURING = {
    "VLLM_SERVER_DEV_MODE": "1",  # serves /server_info; the engine listens on loopback only
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}

_PINNED = {
    "TORCHINDUCTOR_FORCE_FILTER_REDUCTION_CONFIGS": "1",
    "VLLM_TRITON_FORCE_FIRST_CONFIG": "1",
}

_INDUCTOR = {"deterministic": True, "combo_kernels": True, "benchmark_combo_kernel": False}


@dataclass(frozen=True)
class EngineBuild:
    """What the recipe has to know of the installed vLLM."""

    is_cpu: bool
    has_flashinfer_autotune: bool


def arguments(
    spec: ProbeSpec, *, model: str, port: int, kind: LaunchKind, build: EngineBuild
) -> list[str]:
    """Arguments of the API server. Raises LaunchFailed (ArgumentRejected) for an argument that is the probe's own."""
    user = list(spec.arguments)
    _check_reserved(user)
    own = [
        f"--model={model}",
        "--host=127.0.0.1",
        f"--port={port}",
        f"--served-model-name={MODEL_NAME}",
        "--max-logprobs=20",
        "--logprobs-mode=raw_logprobs",
    ]
    if spec.model.revision:
        own.append(f"--revision={spec.model.revision}")
    if spec.gpus_per_probe > 1 and not _names(user, "--tensor-parallel-size", "-tp"):
        own.append(f"--tensor-parallel-size={spec.gpus_per_probe}")
    if kind is LaunchKind.AS_SERVED:
        return own + user
    return own + list(_fixed_defaults(user)) + _with_deterministic_inductor(user, build)


def environment(
    spec: ProbeSpec, *, pod: Mapping[str, str], private: Mapping[str, str], kind: LaunchKind
) -> dict[str, str]:
    """Environment of the engine's process: the pod's without anything of ours, the check's, the folders of the launch.

    `private` wins over all: with a cache folder named by the image or the check the launch would not be a fresh one.
    """
    chosen = {name: value for name, value in pod.items() if not name.startswith(_OWN_PREFIX)}
    chosen |= {entry.name: entry.value for entry in spec.environment}
    for name in _NOT_PASSED_ON:
        chosen.pop(name, None)
    if kind is LaunchKind.PINNED:
        chosen = {**_PINNED, **chosen}
    return {**chosen, **_MEASURING, **private}


def stated_max_model_len(user: Sequence[str]) -> int | None:
    """What the user's arguments say, if it is a plain number (vLLM also takes 4k, auto and -1)."""
    value = _value(user, "--max-model-len")
    return int(value) if value is not None and value.isdecimal() else None


def _fixed_defaults(user: Sequence[str]) -> Iterator[str]:
    if not _names(user, "--seed"):
        yield "--seed=0"
    if not _names(user, "--generation-config"):
        # By default the model's own generation_config.json would set sampling defaults of the server.
        yield "--generation-config=vllm"
    if not _names(user, "--enable-prefix-caching", "--no-enable-prefix-caching"):
        yield "--no-enable-prefix-caching"
    # vLLM refuses more sequences than batched tokens, so the one follows what the user says of the other.
    sequences, batched = _value(user, "--max-num-seqs"), _value(user, "--max-num-batched-tokens")
    if not _names(user, "--max-num-seqs"):
        yield f"--max-num-seqs={min(_SEQUENCES, _plain(batched, default=_SEQUENCES))}"
    if not _names(user, "--max-num-batched-tokens"):
        yield f"--max-num-batched-tokens={max(_BATCHED_TOKENS, _plain(sequences, default=_BATCHED_TOKENS))}"


def _with_deterministic_inductor(user: list[str], build: EngineBuild) -> list[str]:
    extra = []
    flashinfer = ("--enable-flashinfer-autotune", "--no-enable-flashinfer-autotune")
    if build.has_flashinfer_autotune and not _names(user, *flashinfer, "--kernel-config"):
        extra.append("--no-enable-flashinfer-autotune")
    # On a CPU Inductor writes C++: nothing is timed there, and it knows no combo kernels.
    if build.is_cpu or _names(user, "--enforce-eager"):
        return user + extra
    for index, argument in enumerate(user):
        name, separator, text = argument.partition("=")
        if _dashed(name) not in ("--compilation-config", "-cc"):
            continue
        if not separator:
            text = user[index + 1] if index + 1 < len(user) else ""
        end = index + (1 if separator else 2)
        merged = f"--compilation-config={_merged(text)}"
        return [*user[:index], merged, *user[end:], *extra]
    # vLLM collects dotted arguments under one spelling into one JSON value, so ours takes the spelling of the user's.
    spelling = "-cc" if any(argument.startswith("-cc.") for argument in user) else "--compilation-config"
    dotted = [
        f"{spelling}.inductor_compile_config.{key}={json.dumps(value)}"
        for key, value in _INDUCTOR.items()
        if not _names(user, f"{spelling}.inductor_compile_config.{key}")
    ]
    return user + dotted + extra


def _merged(text: str) -> str:
    """The user's compilation config with our Inductor settings below theirs."""
    try:
        config = json.loads(text)
        if isinstance(config, int):  # `--compilation-config 3` is a level
            config = {"mode": config}
        inductor = {**_INDUCTOR, **config.get("inductor_compile_config", {})}
    except (ValueError, AttributeError, TypeError) as error:
        raise LaunchFailed(
            Outcome.ARGUMENT_REJECTED, f"--compilation-config: {text[:200]!r} is not a JSON object: {error}"
        ) from error
    return json.dumps({**config, "inductor_compile_config": inductor})


def _check_reserved(user: Sequence[str]) -> None:
    for argument in user:
        name = _dashed(argument.partition("=")[0])
        if name in _RESERVED:
            raise LaunchFailed(
                Outcome.ARGUMENT_REJECTED, f"arguments: {name} is set by the probe; remove it from the check"
            )


def _names(arguments: Sequence[str], *options: str) -> bool:
    return any(_dashed(argument.partition("=")[0]) in options for argument in arguments)


def _value(arguments: Sequence[str], option: str) -> str | None:
    for index, argument in enumerate(arguments):
        name, separator, value = argument.partition("=")
        if _dashed(name) == option:
            return value if separator else next(iter(arguments[index + 1 : index + 2]), None)
    return None


def _plain(text: str | None, *, default: int) -> int:
    return int(text) if text is not None and text.isdecimal() else default


def _dashed(name: str) -> str:
    """vLLM takes underscores for dashes in option names, up to the first dot."""
    head, dot, rest = name.partition(".")
    return (head.replace("_", "-") if head.startswith("--") else head) + dot + rest
