"""The kernel plan: which configurations the launch ended up with, read from its own cache tree once it is ready.

    Inductor     `<kernel>.py` carries heuristic and determinism flags; a kernel with more than one candidate that was
                 timed has a `.best_config` beside it, paired by the Triton hash in it (several kernels share a folder)
    Triton       `<kernel>.autotune.json`: timings of every candidate; the least one wins
    FlashInfer   `autotune_configs*.json`: tactic for each operation and shape

Kernels that are still named `Placeholder.*` were compiled only to time a possible fusion and never run. Pointwise
kernels may be tuned freely: each element is computed alone. Everything else that was tuned can change the rounding.
Sources: torch 2.11 to 2.14 `_inductor/runtime/autotune_cache.py`, triton 3.6 `runtime/autotuner.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

_HEURISTIC = re.compile(r"@triton_heuristics\.(\w+)\(")
_NAME = re.compile(r"'kernel_name': '([^']+)'")
_FUNCTION = re.compile(r"^def (\w+)\(", re.MULTILINE)
_FLAG = re.compile(
    r"'(deterministic|force_filter_reduction_configs|are_deterministic_algorithms_enabled)': (True|False)"
)

_VOLATILE = ("time_taken_ms", "configs_hash")

_MAX_SOURCE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Kernel:
    source: str
    """Inductor's file name: a hash of the content, so it names the kernel for good. Kernel names collide."""
    name: str
    heuristic: str
    reduces: bool
    flags: tuple[str, ...]
    """The determinism flags that are on."""
    chosen: str
    """The timed winner as canonical JSON; empty if there was one candidate only."""

    @property
    def is_used(self) -> bool:
        return not self.name.startswith("Placeholder.")

    def __str__(self) -> str:
        return f"{self.name} {self.heuristic} {'+'.join(self.flags) or 'no flags'} {self.chosen or 'only'}"


@dataclass(frozen=True)
class Plan:
    kernels: tuple[Kernel, ...]
    triton: dict[str, str]
    """Kernels of `@triton.autotune` -> winner."""
    flashinfer: dict[str, str]
    """File -> digest of its tactics."""
    unpaired: int
    """`.best_config` files whose kernel could not be told."""

    def why_not_pinned(self) -> str:
        """Why outputs of this launch may depend on timings; empty if they can't."""
        tuned = [kernel.name for kernel in self.kernels if kernel.is_used and kernel.reduces and kernel.chosen]
        if tuned:
            return f"{len(tuned)} reductions were tuned, among them {tuned[0]}"
        unflagged = [kernel.name for kernel in self.kernels if kernel.is_used and kernel.reduces and not kernel.flags]
        if unflagged:
            return f"the determinism setting did not reach {len(unflagged)} reductions, among them {unflagged[0]}"
        if self.unpaired:
            return f"{self.unpaired} tuned kernels could not be told apart"
        if self.triton:
            return f"{len(self.triton)} Triton kernels were tuned, among them {next(iter(self.triton))}"
        if self.flashinfer:
            return "FlashInfer tactics were tuned"
        return ""

    def digest(self) -> str:
        """Of everything in use that can change the rounding."""
        used = [f"{kernel.source} {kernel.chosen}" for kernel in self.kernels if kernel.is_used and kernel.reduces]
        used += [f"{name} {chosen}" for group in (self.triton, self.flashinfer) for name, chosen in group.items()]
        text = "\n".join(sorted(used))
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def section(self) -> dict[str, str]:
        """For the fingerprint."""
        facts = {"digest": self.digest(), "kernels": str(sum(kernel.is_used for kernel in self.kernels))}
        if not self.kernels:
            facts["kernels"] = "none: the launch compiled no Triton kernel (eager, or a CPU build)"
        facts |= {f"inductor/{kernel.source}": str(kernel) for kernel in self.kernels if kernel.is_used}
        facts |= {f"triton/{name}": chosen for name, chosen in self.triton.items()}
        facts |= {f"flashinfer/{name}": value for name, value in self.flashinfer.items()}
        return facts


def read_plan(root: Path) -> Plan:
    """Never raises for what lies in the tree: an unreadable file counts as a kernel that can't be told."""
    sources, configs, tuned, tactics, names = _files(root)
    kernels = {path: found for path in sources if (found := _kernel(path)) is not None}
    unpaired = 0
    for path in configs:
        owner = _owner(path, kernels, names)
        chosen = _json(path)
        if owner is None or chosen is None:
            unpaired += not _only_pointwise(path, kernels)
            continue
        kept = {key: value for key, value in chosen.items() if key not in _VOLATILE}
        found = kernels[owner]
        kernels[owner] = Kernel(
            found.source, found.name, found.heuristic, found.reduces, found.flags, json.dumps(kept, sort_keys=True)
        )
    return Plan(
        kernels=tuple(sorted(kernels.values(), key=lambda kernel: kernel.source)),
        triton={f"{path.parent.name}/{path.name}": _winner(path) for path in tuned},
        flashinfer={
            str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in tactics
            if _has_tactics(path)
        },
        unpaired=unpaired,
    )


def _files(root: Path) -> tuple[list[Path], list[Path], list[Path], list[Path], dict[str, str]]:
    sources, configs, tuned, tactics = [], [], [], []
    names: dict[str, str] = {}
    # Not rglob: it fails on a folder that vanishes, and the engine may still rename what it writes.
    for path in sorted(Path(folder, name) for folder, _, inside in os.walk(root) for name in inside):
        if path.suffix == ".py":
            sources.append(path)
        elif path.suffix == ".best_config":
            configs.append(path)
        elif path.name.endswith(".autotune.json"):
            tuned.append(path)
        elif path.suffix == ".json" and path.name.startswith("autotune_configs"):
            tactics.append(path)
        elif path.suffix == ".json" and not path.name.startswith("__grp__"):
            # Triton's cache: <hash>/<kernel function>.json
            names[path.parent.name] = path.stem
    return sources, configs, tuned, tactics, names


def _kernel(path: Path) -> Kernel | None:
    try:
        if path.stat().st_size > _MAX_SOURCE_BYTES:
            return None
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return None
    heuristic = _HEURISTIC.search(text)
    # A compiled graph is no kernel: it holds the sources of all its kernels as texts, and its name also changes with
    # settings that change no code.
    if heuristic is None or "AsyncCompile" in text:
        return None
    name = _NAME.search(text) or _FUNCTION.search(text, heuristic.end())
    return Kernel(
        source=path.name,
        name=name.group(1) if name else "?",
        heuristic=heuristic.group(1),
        # A reduction has a block over the reduced dimension, also inside a combo kernel (`foreach`).
        reduces=heuristic.group(1) != "pointwise" and (heuristic.group(1) != "foreach" or "R0_BLOCK" in text),
        flags=tuple(flag for flag, value in _FLAG.findall(text) if value == "True"),
        chosen="",
    )


def _owner(config: Path, kernels: dict[Path, Kernel], names: dict[str, str]) -> Path | None:
    beside = [path for path in kernels if path.parent == config.parent]
    if len(beside) == 1:
        return beside[0]
    content = _json(config) or {}
    function = names.get(str(content.get("triton_cache_hash", "")))
    called = [path for path in beside if function and f"def {function}(" in path.read_text(errors="replace")]
    return called[0] if len(called) == 1 else None


def _only_pointwise(config: Path, kernels: dict[Path, Kernel]) -> bool:
    """Whether no kernel in the folder could be harmed by a choice that can't be paired."""
    beside = [kernel for path, kernel in kernels.items() if path.parent == config.parent]
    return bool(beside) and not any(kernel.reduces and kernel.is_used for kernel in beside)


def _winner(path: Path) -> str:
    content = _json(path) or {}
    timings = content.get("configs_timings")
    if not isinstance(timings, list) or not timings:
        return "unreadable"
    try:
        best = min(timings, key=lambda entry: _least(entry[1]))
        return json.dumps(best[0], sort_keys=True)
    except (LookupError, TypeError, ValueError):
        return "unreadable"


def _least(timing: object) -> float:
    """One time, or a list of median and quantiles."""
    if isinstance(timing, list):
        return float(timing[0])
    return float(timing) if isinstance(timing, int | float) else float("inf")


def _has_tactics(path: Path) -> bool:
    return any(not key.startswith("_") for key in _json(path) or {})


def _json(path: Path) -> dict[str, object] | None:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
