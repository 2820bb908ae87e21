"""The folder of one running cluster, who owns it, and whether that owner lives.

The three-node cluster has one fixed folder on a machine (its addresses allow only one); a light control plane has a
folder of its own in the temporary folder. A folder whose owner is dead was left by a killed run.
"""

import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.cluster import processes

CLUSTER_FOLDER = Path("/var/lib/steadyfleet-cluster")
"""Short, for unix socket paths end at 107 characters; on the disk, for containers' files are below it."""

_LIGHT_PREFIX = f"steadyfleet-control-plane-{os.getuid()}-"
_OWNER = "owner.json"


@dataclass(frozen=True)
class Owner:
    """The program that takes a cluster down. Detached: nobody, the cluster lives until `down`."""

    pid: int
    start_time: int
    boot_id: str
    command: str
    detached: bool = False

    @property
    def lives(self) -> bool:
        return self.boot_id == _boot_id() and processes.start_time(self.pid) == self.start_time


def write_owner(folder: Path, *, detached: bool = False) -> None:
    """Say that this program owns the folder."""
    pid = os.getpid()
    owner = Owner(
        pid=pid,
        start_time=processes.start_time(pid) or 0,
        boot_id=_boot_id(),
        command=" ".join(sys.argv)[:200],
        detached=detached,
    )
    unfinished = folder / f"{_OWNER}.new"
    unfinished.write_text(json.dumps(asdict(owner)))
    unfinished.rename(folder / _OWNER)


def read_owner(folder: Path) -> Owner | None:
    """The owner; None when the folder was left before it was written."""
    try:
        return Owner(**json.loads((folder / _OWNER).read_text()))
    except FileNotFoundError:
        return None


def is_in_use(folder: Path) -> bool:
    """Whether the cluster in this folder lives: its owner does, or it was detached and has processes."""
    owner = read_owner(folder)
    if owner is None:
        return False
    return owner.lives or (owner.detached and bool(processes.find(folder)))


def new_light_folder() -> Path:
    """A fresh folder for a light control plane, owned by this program."""
    folder = Path(tempfile.mkdtemp(prefix=_LIGHT_PREFIX))
    write_owner(folder)
    return folder


def abandoned_light_folders() -> list[Path]:
    """Folders of this user's light control planes whose owner is dead."""
    folders = Path(tempfile.gettempdir()).glob(f"{_LIGHT_PREFIX}*")
    return [folder for folder in folders if read_owner(folder) is not None and not is_in_use(folder)]


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
