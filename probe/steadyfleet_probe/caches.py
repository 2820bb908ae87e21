"""Private folders of one launch below the pod's one writable folder, and the variables that lead the engine there.

Cold means that nothing of an earlier launch can be found: Inductor's and Triton's choices, FlashInfer's tactics and
compiled code. Launches of one kind share one path, since compiled code carries it: a cold launch finds the path empty,
a warm one finds there what the last cold launch left, file for file, whatever warm launches came in between.

The same variables let the engine run as any user: a uid without a passwd entry (`getpass.getuser` asks LOGNAME and USER
before it asks the passwd file and fails), a HOME that is unset or `/`, a read-only root.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from steadyfleet_contract.spec import CacheState, LaunchKind

_FOLDERS = {
    "HOME": "home",
    "TMPDIR": "tmp",
    "XDG_CACHE_HOME": "home/.cache",
    "XDG_CONFIG_HOME": "home/.config",
    "XDG_DATA_HOME": "home/.local/share",
    "XDG_STATE_HOME": "home/.local/state",
    "VLLM_CACHE_ROOT": "vllm",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "CUDA_CACHE_PATH": "cuda",
    "DG_JIT_CACHE_DIR": "deep_gemm",
    "TILELANG_CACHE_DIR": "tilelang",
    "NUMBA_CACHE_DIR": "numba",
    "MPLCONFIGDIR": "matplotlib",
}

_NO_NAME = "user"


@dataclass(frozen=True)
class LaunchFolders:
    root: Path
    """The launch's own tree; `plan` reads it."""
    working: Path
    """Empty, the engine's current folder: `python -m` would import what lies there."""
    variables: Mapping[str, str]
    cache: CacheState
    """What the launch really finds."""


def prepare(
    work: Path, *, kind: LaunchKind, cache: CacheState, environment: Mapping[str, str]
) -> LaunchFolders:
    """Folders for one launch. A warm launch that finds nothing to be warm from is a cold one. Raises OSError."""
    root = work / "launches" / kind.value
    kept = work / "kept" / kind.value
    if cache is CacheState.WARM and root.exists():
        _put_back(root, kept)
    else:
        cache = CacheState.COLD
        remove(root)
        remove(kept)
    variables = {name: str(root / folder) for name, folder in _FOLDERS.items()}
    working = root / "empty"
    for folder in (*variables.values(), str(working)):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    name = _user_name(environment)
    variables |= {"USER": name, "LOGNAME": name}
    # Downloads are no cache of choices: one copy serves all launches of the pod.
    variables["HF_HOME"] = environment.get("HF_HOME") or str(work / "huggingface")
    return LaunchFolders(root=root, working=working, variables=variables, cache=cache)


def _put_back(root: Path, kept: Path) -> None:
    """Let `root` be as the last cold launch left it; the first warm launch after it keeps a copy before it writes."""
    if kept.exists():
        remove(root)
        _copy(kept, root)
        return
    unfinished = kept.with_suffix(".unfinished")
    remove(unfinished)
    _copy(root, unfinished)
    unfinished.rename(kept)


def _copy(source: Path, target: Path) -> None:
    """With times, modes and links as they are. Sockets and pipes of an ended process are no files: left out."""

    def special(folder: str, names: list[str]) -> list[str]:
        modes = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
        return [
            name for name, mode in modes.items() if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
        ]

    shutil.copytree(source, target, symlinks=True, ignore=special)


def remove(folder: Path) -> None:
    """Raises OSError."""
    if folder.exists():
        shutil.rmtree(folder)


def _user_name(environment: Mapping[str, str]) -> str:
    if name := environment.get("LOGNAME") or environment.get("USER"):
        return name
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return _NO_NAME
