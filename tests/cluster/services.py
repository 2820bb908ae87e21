"""What runs on the hub beside the control plane: DNS for the pods, the fake GPUs, and Prometheus if wanted."""

import sys
import urllib.error
import urllib.request
from pathlib import Path

from tests.cluster import processes
from tests.cluster.binaries import Binaries
from tests.cluster.commands import wait_for
from tests.cluster.network import HUB

DNS_USER_KUBECONFIG = "dns.kubeconfig"
PROMETHEUS_PORT = 9090
_READY_TIMEOUT_SECONDS = 30.0
_REPOSITORY = Path(__file__).parents[2]


def start_dns(programs: Binaries, folder: Path, *, kubeconfig: Path) -> None:
    """CoreDNS on the hub, for the cluster's own names only."""
    corefile = folder / "Corefile"
    corefile.write_text(
        f".:53 {{\n  bind {HUB}\n  errors\n  kubernetes cluster.local {{\n"
        f"    kubeconfig {kubeconfig}\n    pods insecure\n  }}\n}}\n"
    )
    processes.start(
        [programs.path("coredns"), "-conf", corefile],
        name="coredns", run_folder=folder, log=folder / "log" / "coredns.log",
    )  # fmt: skip


def start_gpus(folder: Path, *, gpu_file: Path) -> None:
    """The process that serves the fake GPUs of all nodes, as `gpu_file` says."""
    processes.start(
        [sys.executable, "-m", "tests.cluster.gpus", gpu_file],
        name="gpus", run_folder=folder, log=folder / "log" / "gpus.log", env={"PYTHONPATH": str(_REPOSITORY)},
    )  # fmt: skip


def start_prometheus(programs: Binaries, folder: Path, *, config: str) -> str:
    """Prometheus on the hub with this configuration (YAML); returns its URL when it is ready."""
    home = folder / "prometheus"
    home.mkdir(exist_ok=True)
    (home / "prometheus.yml").write_text(config)
    log = folder / "log" / "prometheus.log"
    url = f"http://{HUB}:{PROMETHEUS_PORT}"
    child = processes.start(
        [
            programs.path("prometheus"), f"--config.file={home / 'prometheus.yml'}",
            f"--storage.tsdb.path={home / 'data'}", f"--web.listen-address={HUB}:{PROMETHEUS_PORT}",
            "--web.enable-lifecycle",
        ],
        name="prometheus", run_folder=folder, log=log,
    )  # fmt: skip

    def ready() -> bool:
        processes.require_alive(child, name="prometheus", log=log)
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)

    wait_for(
        ready, what=f"Prometheus ready (log: {log})",
        timeout_seconds=_READY_TIMEOUT_SECONDS, retry=(urllib.error.URLError, OSError),
    )  # fmt: skip
    return url
