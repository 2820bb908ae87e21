"""What a cluster could leave on the machine, seen without the cluster's own book-keeping."""

from dataclasses import dataclass
from pathlib import Path

from tests.cluster.commands import run
from tests.cluster.prerequisites import program_path

_WATCHED_FOLDERS = ("/var/lib/kubelet", "/var/lib/cni", "/var/lib/steadyfleet-cluster", "/run/netns", "/run/containerd")
_CGROUP_MARK = "steadyfleet-node"
_PATH_MARK = "/var/lib/steadyfleet-cluster/"


@dataclass(frozen=True)
class MachineState:
    """Comparable before and after."""

    processes: frozenset[str]
    """Those in a node's cgroup, or with the cluster's folder in their command line."""
    mounts: frozenset[str]
    links: frozenset[str]
    routes: frozenset[str]
    firewall: frozenset[str]
    cgroups: frozenset[str]
    folders: frozenset[str]
    namespaces: frozenset[str]
    """Network namespaces that some process lives in."""


def observe() -> MachineState:
    """Look at the machine now."""
    pids = [folder for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return MachineState(
        processes=frozenset(found for folder in pids if (found := _cluster_process(folder))),
        mounts=frozenset(line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()),
        links=_lines("ip", "-o", "-br", "link"),
        routes=_lines("ip", "route", "show", "table", "all"),
        firewall=_chains(),
        cgroups=frozenset(str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{_CGROUP_MARK}*")),
        folders=frozenset(path for path in _WATCHED_FOLDERS if Path(path).exists()),
        namespaces=frozenset(found for folder in pids if (found := _network_namespace(folder))),
    )


def _cluster_process(folder: Path) -> str | None:
    try:
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        if _PATH_MARK in command or _CGROUP_MARK in (folder / "cgroup").read_text():
            return f"{folder.name} {command}"
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended while we looked
    return None


def _network_namespace(folder: Path) -> str | None:
    try:
        return str((folder / "ns" / "net").readlink())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def _chains() -> frozenset[str]:
    """The firewall's tables and chains; rules of other programs may count packets meanwhile."""
    listed = run(program_path("nft") or "nft", "--terse", "list", "ruleset", check=False).stdout
    return frozenset(line.strip() for line in listed.splitlines() if line.strip().startswith(("table", "chain")))


def _lines(*command: str) -> frozenset[str]:
    return frozenset(line.strip() for line in run(*command).stdout.splitlines())
