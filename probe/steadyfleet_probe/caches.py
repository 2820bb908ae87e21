"""Private folders of one launch below the pod's one writable folder, and the variables that lead the engine there.

Cold means that nothing of an earlier launch can be found: Inductor's and Triton's choices, FlashInfer's tactics and
compiled code. Launches of one kind share one path, since compiled code carries it: a warm launch finds the tree that
the launch before it left there, a cold one finds the path empty.

The same variables let the engine run as any user: a uid without a passwd entry (`getpass.getuser` asks LOGNAME and USER
before it asks the passwd file and fails), a HOME that is unset or `/`, a read-only root.
"""

from __future__ import annotations

import os
import pwd
import shutil
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
    if cache is CacheState.COLD or not root.exists():
        cache = CacheState.COLD
        remove(root)
    variables = {name: str(root / folder) for name, folder in _FOLDERS.items()}
    working = root / "empty"
    for folder in (*variables.values(), str(working)):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    name = _user_name(environment)
    variables |= {"USER": name, "LOGNAME": name}
    # Downloads are no cache of choices: one copy serves all launches of the pod.
    variables["HF_HOME"] = environment.get("HF_HOME") or str(work / "huggingface")
    return LaunchFolders(root=root, working=working, variables=variables, cache=cache)


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
