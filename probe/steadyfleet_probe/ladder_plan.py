"""Kernel plans of two launches side by side, and determinism settings that did not reach the kernels, from reports.

Reads the section `plan` of a fingerprint, which `plan` wrote: `inductor/<source file>` -> name, heuristic, flags,
choice; `triton/<kernel>` and `flashinfer/<file>` -> choice. Kernels are matched by source file, since names collide.
Pointwise kernels are left out: each element is computed alone, so their choices change no bit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from steadyfleet_contract.report import Report
from steadyfleet_contract.spec import ContractModel

ABSENT = "absent"
"""The kernel is not part of this launch's plan."""

ONLY = "the only candidate"

_GROUPS = ("inductor/", "triton/", "flashinfer/")
_POINTWISE = "pointwise"
_NO_FLAGS, _NO_FLAGS_WORD = "no flags", "no-flags"

_SHOWN_LAST = ("num_warps", "num_stages", "num_ctas")
_NOT_SHOWN = ("triton_cache_hash", "found_by_coordesc")
"""Follow from the rest, or change nothing that runs."""


@dataclass(frozen=True)
class UsedKernel:
    name: str
    heuristic: str
    flags: frozenset[str]
    configuration: str


class KernelChange(ContractModel):
    """One kernel that can change the rounding, and what two launches run of it."""

    kernel: str
    source: str
    """Key of the fingerprint's plan."""
    before: str
    after: str


class LostSetting(ContractModel):
    """A determinism setting that was asked for and is not written into every kernel that reduces."""

    setting: str
    """As it was asked for."""
    flag: str
    """Of Inductor's kernels."""
    carried: int
    kernels: int
    """Used kernels that reduce."""


def used_kernels(report: Report) -> dict[str, UsedKernel]:
    """What can change the rounding, by its key in the fingerprint; empty if the launch left nothing to read."""
    found = {}
    for key, value in report.fingerprint.get("plan", {}).items():
        if key.startswith(_GROUPS):
            kernel = _inductor(value) if key.startswith("inductor/") else _other(key, value)
            if kernel.heuristic != _POINTWISE:
                found[key] = kernel
    return found


def plan_digest(report: Report) -> str | None:
    """None if no plan could be read: eager, a CPU build, or a backend that keeps no files."""
    plan = report.fingerprint.get("plan", {})
    return plan.get("digest") if any(key.startswith(_GROUPS) for key in plan) else None


def kernel_changes(before: Report, after: Report) -> tuple[KernelChange, ...]:
    first, second = used_kernels(before), used_kernels(after)
    return tuple(
        KernelChange(
            kernel=(first.get(key) or second[key]).name,
            source=key,
            before=first[key].configuration if key in first else ABSENT,
            after=second[key].configuration if key in second else ABSENT,
        )
        for key in sorted(first.keys() | second.keys(), key=lambda key: ((first.get(key) or second[key]).name, key))
        if first.get(key) != second.get(key)
    )


def lost_settings(report: Report) -> tuple[LostSetting, ...]:
    """Empty if nothing was asked for, everything arrived, or no compiled kernel can be read."""
    kernels = [kernel for key, kernel in used_kernels(report).items() if key.startswith("inductor/")]
    lost = []
    for setting, flag in _asked_for(report):
        carried = sum(flag in kernel.flags for kernel in kernels)
        if carried < len(kernels):
            lost.append(LostSetting(setting=setting, flag=flag, carried=carried, kernels=len(kernels)))
    return tuple(lost)


_VARIABLES = {
    "TORCHINDUCTOR_DETERMINISTIC": "deterministic",
    "TORCHINDUCTOR_BATCH_INVARIANT": "deterministic",
    "TORCHINDUCTOR_FORCE_FILTER_REDUCTION_CONFIGS": "force_filter_reduction_configs",
}
"""Variable, on at `1` -> the flag that Inductor writes into each kernel (torch 2.11 to 2.14, codegen/triton.py)."""

_IN_ARGUMENTS = re.compile(r"inductor_compile_config\b.*?\bdeterministic\W{1,6}true", re.IGNORECASE)
_RESOLVED = "compilation_config.inductor_compile_config.deterministic"


def _asked_for(report: Report) -> Iterator[tuple[str, str]]:
    environment, engine = report.fingerprint.get("environment", {}), report.fingerprint.get("engine", {})
    for variable, flag in _VARIABLES.items():
        if environment.get(variable) == "1":
            yield f"{variable}=1", flag
    if engine.get(_RESOLVED) == "true" or _IN_ARGUMENTS.search(engine.get("arguments", "")):
        yield "inductor_compile_config.deterministic=true", "deterministic"


def _inductor(value: str) -> UsedKernel:
    """`name heuristic flag+flag {json}`, see `plan.Kernel`."""
    name, _, rest = value.partition(" ")
    heuristic, _, rest = rest.partition(" ")
    flags, _, chosen = rest.replace(_NO_FLAGS, _NO_FLAGS_WORD, 1).partition(" ")
    on = frozenset(flag for flag in flags.split("+") if flag not in ("", _NO_FLAGS_WORD))
    return UsedKernel(name, heuristic, on, _configuration(chosen))


def _other(key: str, value: str) -> UsedKernel:
    return UsedKernel(key.rpartition("/")[2], key.partition("/")[0], frozenset(), _configuration(value))


def _configuration(chosen: str) -> str:
    """`XBLOCK=64 R0_BLOCK=64 num_warps=16 num_stages=1`; the text itself if it is no JSON object."""
    if chosen in ("only", ""):
        return ONLY
    try:
        content = json.loads(chosen)
    except ValueError:
        return chosen
    if not isinstance(content, dict):
        return chosen
    return " ".join(f"{name}={value}" for name, value in _in_order(content))


def _in_order(content: Mapping[str, object]) -> Iterable[tuple[str, object]]:
    kwargs = content.get("kwargs")  # Triton's own autotuner nests the block sizes
    flat = {**content, **kwargs} if isinstance(kwargs, dict) else content
    shown = {name: value for name, value in flat.items() if name not in _NOT_SHOWN and name != "kwargs"}
    return sorted(shown.items(), key=lambda item: (item[0] in _SHOWN_LAST, _rank(item[0]), item[0]))


def _rank(name: str) -> int:
    order = ("XBLOCK", "YBLOCK", "ZBLOCK", "R0_BLOCK", "R1_BLOCK", *_SHOWN_LAST)
    return order.index(name) if name in order else len(order)
