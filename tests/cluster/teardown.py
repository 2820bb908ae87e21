"""Taking the three-node cluster down, whoever started it, however far it came; and proving that nothing is left."""

import shutil
from pathlib import Path

from tests.cluster import cgroups, network, processes
from tests.cluster.control_plane import stop_control_plane
from tests.cluster.errors import TearDownIncomplete
from tests.cluster.run_folder import CLUSTER_FOLDER

_MADE_FOLDERS = "made-folders"


def make_mount_targets(run_folder: Path, targets: tuple[Path, ...]) -> None:
    """Make those folders that the host lacks, after noting them for the take-down."""
    absent = [target for target in targets if not target.exists()]
    (run_folder / _MADE_FOLDERS).write_text("".join(f"{target}\n" for target in absent))
    for target in absent:
        target.mkdir(parents=True)


def tear_down(run_folder: Path = CLUSTER_FOLDER) -> None:
    """End and remove everything of the cluster. Raises TearDownIncomplete, which names what is left.

    Order: nodes first (SIGKILL to a node's first process ends all of it in one go), then the control plane from the
    outside in, then what only the kernel remembers, and the folder last: while it is there, the rest is ours.
    """
    nodes = {process.name for process in processes.find(run_folder) if process.name.startswith("node ")}
    for name in sorted(nodes):
        processes.stop(run_folder, name=name, sign=processes.KILL)
    stop_control_plane(run_folder)
    cgroups.remove_all()
    network.remove_all()
    _remove_made_folders(run_folder)
    if left := [*_mounts_below(run_folder), *cgroups.remaining(), *network.remaining()]:
        raise TearDownIncomplete(f"left after take-down: {', '.join(left)}")
    if run_folder.exists():
        shutil.rmtree(run_folder)


def _remove_made_folders(run_folder: Path) -> None:
    try:
        targets = (run_folder / _MADE_FOLDERS).read_text().splitlines()
    except FileNotFoundError:
        return
    for target in targets:
        # Somebody else may use the folder by now; then it stays.
        if Path(target).is_dir() and not any(Path(target).iterdir()):
            Path(target).rmdir()


def _mounts_below(folder: Path) -> list[str]:
    targets = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [f"mount {target}" for target in targets if target == str(folder) or target.startswith(f"{folder}/")]
