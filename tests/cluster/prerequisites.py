"""What the machine must have, and how it gets it: checked before anything is started.

On Debian and Ubuntu, as root, missing packages are installed from the machine's own package sources (no service is
started). Everything else that is missing is told in one line that says what to do.
"""

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.cluster.commands import run
from tests.cluster.errors import CommandFailed, PrerequisiteMissing
from tests.cluster.progress import step

OLDEST_GO = (1, 21)
"""From 1.21 on Go fetches the newer release that a go.mod names by itself."""

_NO_SERVICE_STARTS = "#!/bin/sh\nexit 101\n"
"""Answer of a policy-rc.d file: 101 forbids package scripts to start a service."""


@dataclass(frozen=True)
class Tool:
    """A program (searched on PATH and in the usual folders) or a file, and the package that brings it."""

    name: str
    package: str
    why: str

    @property
    def present(self) -> bool:
        if self.name.startswith("/"):
            return Path(self.name).exists()
        return program_path(self.name) is not None


TOOLS = (
    Tool("ip", "iproute2", "links and routes of the nodes"),
    Tool("unshare", "util-linux", "namespaces of the nodes"),
    Tool("mount", "mount", "mounts of the nodes"),
    Tool("runc", "runc", "runs the containers"),
    Tool("/usr/lib/cni/ptp", "containernetworking-plugins", "network of the pods"),
    Tool("nft", "nftables", "Services (kube-proxy)"),
    Tool("iptables", "iptables", "host ports of pods"),
    Tool("conntrack", "conntrack", "Services (kube-proxy)"),
    Tool("ethtool", "ethtool", "kubelet"),
    Tool("socat", "socat", "kubectl port-forward"),
    Tool("sysctl", "procps", "forwarding on the nodes"),
    Tool("debootstrap", "debootstrap", "base image"),
    Tool("buildah", "buildah", "images from the Dockerfile"),
    Tool("gcc", "gcc", "Go's cgo and the pause program"),
    Tool("/usr/include/stdlib.h", "libc6-dev", "Go's cgo and the pause program"),
)
"""Everything that comes from the distribution. One line a tool."""


def check_for_builds() -> None:
    """What building the binaries needs: Linux, a known processor, Go. Raises PrerequisiteMissing."""
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        here = f"{platform.system()} {platform.machine()}"
        raise PrerequisiteMissing(f"The test cluster needs Linux on x86-64 or arm64, this is {here}: use another one.")
    go_version()


def check_for_nodes() -> None:
    """What real nodes need beside that: root, the distribution's tools, cgroups. Raises PrerequisiteMissing."""
    if os.geteuid() != 0:
        raise PrerequisiteMissing(
            "The test cluster's nodes need root (namespaces, cgroups, mounts): run the same command with sudo."
        )
    check_for_builds()
    _install([tool for tool in TOOLS if not tool.present])
    if not Path("/sys/fs/cgroup").is_dir():
        raise PrerequisiteMissing("No cgroups under /sys/fs/cgroup: mount them (package cgroupfs-mount, or systemd).")
    if _bridged_traffic_is_dropped():
        raise PrerequisiteMissing(
            "This machine's firewall drops bridged traffic, which would cut the nodes off from each other; "
            "let it pass: sysctl -w net.bridge.bridge-nf-call-iptables=0"
        )


@cache
def go_version() -> str:
    """The version of the Go toolchain, such as "go1.26.8". Raises PrerequisiteMissing when Go is absent or too old."""
    wanted = ".".join(str(part) for part in OLDEST_GO)
    remedy = f"install Go {wanted} or newer (https://go.dev/dl) and put its bin folder on PATH"
    if shutil.which("go") is None:
        raise PrerequisiteMissing(f"Go is missing: {remedy}.")
    version = run("go", "env", "GOVERSION").stdout.strip()
    if _release(version) < OLDEST_GO:
        raise PrerequisiteMissing(f"Go is too old ({version}): {remedy}.")
    return version


def program_path(name: str) -> str | None:
    """Where a program is, also if the caller's PATH lacks the system folders."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin")


def _bridged_traffic_is_dropped() -> bool:
    """Whether frames between two ports of a bridge pass through iptables, and there meet the policy DROP."""
    passes_iptables = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    if not passes_iptables.exists() or passes_iptables.read_text().strip() != "1":
        return False
    rules = run(program_path("iptables") or "iptables", "-S", "FORWARD", check=False).stdout
    return "-P FORWARD DROP" in rules


def _release(version: str) -> tuple[int, int]:
    """(1, 26) of "go1.26.8"; (0, 0) when it is no release."""
    try:
        major, minor = version.removeprefix("go").split(".")[:2]
        return int(major), int("".join(digit for digit in minor if digit.isdigit()))
    except ValueError:
        return (0, 0)


def _install(missing: list[Tool]) -> None:
    if not missing:
        return
    packages = sorted({tool.package for tool in missing})
    listed = ", ".join(f"{tool.name} ({tool.why})" for tool in missing)
    by_hand = f"install the packages {' '.join(packages)}"
    if shutil.which("apt-get") is None:
        raise PrerequisiteMissing(f"Missing: {listed}. Please {by_hand} (Debian's names).")
    with step(f"install from the distribution: {' '.join(packages)}"):
        try:
            _apt_install(packages)
        except CommandFailed as failure:
            raise PrerequisiteMissing(f"Missing: {listed}. Please {by_hand}; apt-get failed: {failure}") from failure
    if absent := [tool.name for tool in missing if not tool.present]:
        raise PrerequisiteMissing(f"Missing although its package is installed: {', '.join(absent)}.")


def _apt_install(packages: list[str]) -> None:
    """apt-get install, after one apt-get update if the package lists are absent or stale."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ("apt-get", "install", "-y", "-q", "--no-install-recommends", *packages)
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists() and not policy.is_symlink()
    if ours:
        policy.write_text(_NO_SERVICE_STARTS)
        policy.chmod(0o755)
    try:
        first: subprocess.CompletedProcess[str] = run(*install, env=environment, timeout_seconds=600, check=False)
        if first.returncode != 0:
            run("apt-get", "update", "-q", env=environment, timeout_seconds=300)
            run(*install, env=environment, timeout_seconds=600)
    finally:
        if ours:
            policy.unlink()
