"""What runs on the hub beside the control plane: DNS for the pods, the fake GPUs, and Prometheus if wanted."""

import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import processes
from tests.cluster.binaries import Binaries
from tests.cluster.commands import wait_for
from tests.cluster.network import HUB

DNS_USER_KUBECONFIG = "dns.kubeconfig"
PROMETHEUS_PORT = 9090
_READY_TIMEOUT_SECONDS = 30.0
_REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Service:
    """A started program of the hub."""

    name: str
    child: subprocess.Popen[bytes]
    log: Path

    def require_alive(self) -> None:
        """Raise StartFailed, with the end of its log, if it has ended."""
        processes.require_alive(self.child, name=self.name, log=self.log)


def start_dns(programs: Binaries, folder: Path, *, kubeconfig: Path) -> Service:
    """CoreDNS on the hub, for the cluster's own names only."""
    corefile = folder / "Corefile"
    corefile.write_text(
        f".:53 {{\n  bind {HUB}\n  errors\n  kubernetes cluster.local {{\n"
        f"    kubeconfig {kubeconfig}\n    pods insecure\n  }}\n}}\n"
    )
    return _start("coredns", [programs.path("coredns"), "-conf", corefile], folder)


def start_gpus(folder: Path, *, gpu_file: Path) -> Service:
    """The process that serves the fake GPUs of all nodes, as `gpu_file` says."""
    argv: list[str | Path] = [sys.executable, "-m", "tests.cluster.gpus", gpu_file]
    return _start("gpus", argv, folder, env={"PYTHONPATH": str(_REPOSITORY)})


def start_prometheus(programs: Binaries, folder: Path, *, config: str) -> str:
    """Prometheus on the hub with this configuration (YAML); returns its URL when it is ready."""
    home = folder / "prometheus"
    home.mkdir(exist_ok=True)
    (home / "prometheus.yml").write_text(config)
    url = f"http://{HUB}:{PROMETHEUS_PORT}"
    service = _start(
        "prometheus",
        [
            programs.path("prometheus"), f"--config.file={home / 'prometheus.yml'}",
            f"--storage.tsdb.path={home / 'data'}", f"--web.listen-address={HUB}:{PROMETHEUS_PORT}",
            "--web.enable-lifecycle",
        ],
        folder,
    )  # fmt: skip

    def ready() -> bool:
        service.require_alive()
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)

    wait_for(
        ready, what=f"Prometheus ready (log: {service.log})",
        timeout_seconds=_READY_TIMEOUT_SECONDS, retry=(urllib.error.URLError, OSError),
    )  # fmt: skip
    return url


def _start(name: str, argv: list[str | Path], folder: Path, *, env: dict[str, str] | None = None) -> Service:
    log = folder / "log" / f"{name}.log"
    return Service(name, processes.start(argv, name=name, run_folder=folder, log=log, env=env), log)
