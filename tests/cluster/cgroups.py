"""One cgroup for each node, below which its kubelet makes those of the pods.

In cgroup v1 that is one folder in each hierarchy, in cgroup v2 one folder in the single one.
"""

import os
import time
from pathlib import Path

from tests.cluster.errors import PrerequisiteMissing, TearDownIncomplete

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "steadyfleet-node-"
_NEEDED_V2 = ("cpu", "cpuset", "memory", "pids")
_BUSY_RETRIES = 100
_BUSY_PAUSE_SECONDS = 0.05


def name_for(node: str) -> str:
    """The node's cgroup, relative to the root of a hierarchy."""
    return f"{_PREFIX}{node}"


def create(node: str) -> None:
    """Make the node's cgroup in each hierarchy. Raises PrerequisiteMissing where the machine does not allow that."""
    if _is_v2():
        _create_v2(node)
        return
    for hierarchy in _v1_hierarchies():
        folder = hierarchy / name_for(node)
        folder.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            # The v1 rule: a cpuset that names no processor and no memory node takes no process.
            if (hierarchy / setting).exists():
                (folder / setting).write_text((hierarchy / setting).read_text())


def remove_all() -> None:
    """Remove the cgroups of all nodes, bottom-up. Raises TearDownIncomplete if one stays busy."""
    for top in _existing():
        for folder, _, _ in os.walk(top, topdown=False):
            _remove(Path(folder))


def remaining() -> list[str]:
    """Cgroups of nodes that are still there, in words."""
    return [f"cgroup {folder}" for folder in _existing()]


def _is_v2() -> bool:
    return (_ROOT / "cgroup.controllers").exists()


def _v1_hierarchies() -> list[Path]:
    """The mounted v1 hierarchies; not the controller-less v2 one of a hybrid machine, nor links such as cpu,cpuacct."""
    return [
        folder
        for folder in _ROOT.iterdir()
        if folder.is_dir() and not folder.is_symlink() and (folder / "cgroup.procs").exists()
        and not (folder / "cgroup.controllers").exists()
    ]  # fmt: skip


def _create_v2(node: str) -> None:
    available = (_ROOT / "cgroup.controllers").read_text().split()
    if missing := [controller for controller in _NEEDED_V2 if controller not in available]:
        raise PrerequisiteMissing(
            f"cgroup v2 without the controllers {', '.join(missing)} at {_ROOT}; "
            "run on the machine itself or in a container with its cgroup namespace delegated"
        )
    enabled = " ".join(f"+{controller}" for controller in available if controller in (*_NEEDED_V2, "io", "hugetlb"))
    try:
        (_ROOT / "cgroup.subtree_control").write_text(enabled)
        folder = _ROOT / name_for(node)
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.subtree_control").write_text(enabled)
    except OSError as refused:
        raise PrerequisiteMissing(
            f"cgroup v2 refuses to delegate controllers at {_ROOT} ({refused}); "
            "run on the machine itself, not in a container that shares its root cgroup with other processes"
        ) from refused


def _existing() -> list[Path]:
    parents = [_ROOT] if _is_v2() else _v1_hierarchies()
    return [folder for parent in parents for folder in parent.glob(f"{_PREFIX}*")]


def _remove(folder: Path) -> None:
    """rmdir, with patience: the kernel frees a cgroup a moment after its last process."""
    for _ in range(_BUSY_RETRIES):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(_BUSY_PAUSE_SECONDS)
        else:
            return
    raise TearDownIncomplete(f"cgroup {folder} stays busy")
