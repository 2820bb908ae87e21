"""One real node: containerd, kubelet and kube-proxy in namespaces of their own, below one folder."""

import json
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import cgroups, network, processes
from tests.cluster.binaries import Binaries
from tests.cluster.commands import run, wait_for
from tests.cluster.errors import StartFailed
from tests.cluster.network import HUB, NODE_PREFIX_LENGTH, NodeAddresses
from tests.cluster.oci import DEFAULT_PATH
from tests.cluster.options import NodeOptions
from tests.cluster.pki import Pki, User
from tests.cluster.prerequisites import program_path

API_READY = "api-ready"
"""The file in the run folder that lets the nodes start their kubelets."""

PAUSE_IMAGE = "localhost/steadyfleet-pause:1"
PROXY_KUBECONFIG = "kube-proxy.kubeconfig"
MOUNT_TARGETS = (Path("/var/lib/kubelet"), Path("/var/lib/cni"), Path("/mnt"))
"""Folders that must exist on the host, for a node mounts its own over them."""

_CNI_PROGRAMS = "/usr/lib/cni"
_INIT_TIMEOUT_SECONDS = 10.0
_IMPORT_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class Node:
    """A node of the cluster in `run_folder`; `index` (from 1) gives its addresses."""

    options: NodeOptions
    index: int
    run_folder: Path
    programs: Binaries

    @property
    def name(self) -> str:
        return self.options.name

    @property
    def addresses(self) -> NodeAddresses:
        return NodeAddresses(self.index)

    @property
    def folder(self) -> Path:
        return self.run_folder / f"n{self.index}"

    @property
    def files(self) -> Path:
        """The node's private disk: /mnt/node on the node, this folder on the host."""
        return self.folder / "files"

    @property
    def device_plugins(self) -> Path:
        return self.folder / "kubelet" / "device-plugins"

    @property
    def user(self) -> User:
        """Who the kubelet is for the API server."""
        return User(f"system:node:{self.name}", f"{self.name}.kubeconfig", ("system:nodes",))

    @property
    def _process_name(self) -> str:
        return f"node {self.name}"

    def prepare(self, certificates: Pki, *, images: tuple[Path, ...]) -> None:
        """Write the node's settings and give it the images that it starts with."""
        for part in ("kubelet", "log", "cni", "cni-config", "files", "images", "pki"):
            (self.folder / part).mkdir(parents=True)
        self.files.chmod(0o755)
        for number, image in enumerate(images):
            (self.folder / "images" / f"{number}.tar").symlink_to(image)
        (self.folder / "containerd.toml").write_text(self._containerd_config())
        (self.folder / "cni-config" / "10-pods.conflist").write_text(json.dumps(self._cni_config()))
        # YAML is a superset of JSON.
        (self.folder / "kubelet.yaml").write_text(json.dumps(self._kubelet_config(certificates), indent=1))
        (self.folder / "proxy.yaml").write_text(json.dumps(self._proxy_config(), indent=1))

    def start(self, *, all_nodes: tuple["Node", ...]) -> None:
        """Start it, on a fresh folder or on that of its life before. Raises StartFailed if it ends at once."""
        cgroups.create(self.name)
        log = self.folder / "log" / "init.log"
        others = [f"{node.addresses.pod_cidr}={node.addresses.ip}" for node in all_nodes if node != self]
        unshare = processes.start(
            [
                program_path("unshare") or "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child",
                "bash", Path(__file__).with_name("node-init.sh"),
            ],
            name=self._process_name, run_folder=self.run_folder, log=log,
            env={
                "NODE_FOLDER": str(self.folder),
                "NODE_IP": self.addresses.ip,
                "NODE_PREFIX": str(NODE_PREFIX_LENGTH),
                "HUB": HUB,
                "OTHER_NODES": " ".join(others),
                "API_READY": str(self.run_folder / API_READY),
                "CONTAINERD": str(self.programs.path("containerd")),
                "CTR": str(self.programs.path("ctr")),
                "KUBELET": str(self.programs.path("kubelet")),
                "KUBE_PROXY": str(self.programs.path("kube-proxy")),
                "KUBELET_FLAGS": " ".join(self._kubelet_flags()),
                # containerd finds its shim on PATH.
                "PATH": f"{self.programs.path('containerd').parent}:{DEFAULT_PATH}",
            },
        )  # fmt: skip
        network.connect_node(self.addresses, node_init_pid=_only_child(unshare, log))

    def crash(self) -> None:
        """End everything on the node at once, as a power cut does."""
        processes.stop(self.run_folder, name=self._process_name, sign=signal.SIGKILL)
        network.disconnect_node(self.addresses)

    def restart_kubelet(self) -> None:
        """End the kubelet alone; it is started again, and running pods stay."""
        processes.stop_program(self.run_folder, name=self._process_name, program=self.programs.path("kubelet"))

    def import_image(self, archive: Path) -> None:
        """Load an OCI archive into the running node. Raises CommandFailed with containerd's words."""
        run(
            self.programs.path("ctr"), "-a", self.folder / "containerd.sock", "-n", "k8s.io",
            "image", "import", "--local", archive, timeout_seconds=_IMPORT_TIMEOUT_SECONDS,
        )  # fmt: skip

    def _kubelet_flags(self) -> tuple[str, ...]:
        labels = ",".join(f"{key}={value}" for key, value in self.options.all_labels().items())
        return (
            f"--config={self.folder}/kubelet.yaml",
            f"--kubeconfig={self.run_folder}/{self.user.kubeconfig}",
            f"--cert-dir={self.folder}/pki",
            f"--hostname-override={self.name}",
            f"--node-ip={self.addresses.ip}",
            f"--node-labels={labels}",
        )

    def _containerd_config(self) -> str:
        return f"""\
version = 3
root = "{self.folder}/containerd"
state = "/run/containerd/state"
[grpc]
  address = "{self.folder}/containerd.sock"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{PAUSE_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{_CNI_PROGRAMS}"]
    conf_dir = "{self.folder}/cni-config"
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        SystemdCgroup = false
"""

    def _cni_config(self) -> dict[str, object]:
        pods = {
            "type": "ptp",
            "ipMasq": False,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": self.addresses.pod_cidr}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        return {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [pods, {"type": "portmap", "capabilities": {"portMappings": True}}],
        }

    def _kubelet_config(self, certificates: Pki) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{cgroups.name_for(self.name)}",
            "cgroupsPerQOS": True,
            "enforceNodeAllocatable": [],
            "maxOpenFiles": 20000,
            "oomScoreAdj": 0,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(certificates.ca)},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{self.folder}/containerd.sock",
            "address": self.addresses.ip,
            "port": 10250,
            "readOnlyPort": 0,
            "healthzPort": 0,
            "failSwapOn": False,
            # Each node sees the whole machine; half of it is what a node may promise to pods.
            "systemReserved": {"memory": f"{_machine_memory_mib() // 2}Mi", "cpu": "500m"},
            "evictionHard": {"imagefs.available": "0%", "nodefs.available": "0%", "memory.available": "1Mi"},
            "imageGCHighThresholdPercent": 100,
            "localStorageCapacityIsolation": False,
            "clusterDNS": [HUB],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            "protectKernelDefaults": False,
            # Its chains would outlive it in a shared network namespace; here nobody needs them.
            "makeIPTablesUtilChains": False,
            "nodeStatusUpdateFrequency": "4s",
            "nodeStatusReportFrequency": "30s",
        }

    def _proxy_config(self) -> dict[str, object]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "hostnameOverride": self.name,
            "bindAddress": self.addresses.ip,
            "healthzBindAddress": "",
            "metricsBindAddress": "",
            "oomScoreAdj": 0,
            "conntrack": {"maxPerCore": 0, "min": 0},
            "clientConnection": {"kubeconfig": str(self.run_folder / PROXY_KUBECONFIG)},
        }


def import_everywhere(nodes: tuple[Node, ...], archive: Path) -> None:
    """Load an OCI archive into these nodes at once."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda node: node.import_image(archive), nodes))


def _only_child(unshare: subprocess.Popen[bytes], log: Path) -> int:
    """The pid of the node's first process."""

    def child() -> int | None:
        processes.require_alive(unshare, name="node", log=log)
        for task in Path(f"/proc/{unshare.pid}/task").iterdir():
            if pids := (task / "children").read_text().split():
                return int(pids[0])
        return None

    return wait_for(
        child, what=f"first process of a node (log: {log})",
        timeout_seconds=_INIT_TIMEOUT_SECONDS, poll_seconds=0.01, retry=(FileNotFoundError,),
    )  # fmt: skip


def _machine_memory_mib() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) // 1024
    raise StartFailed("no MemTotal in /proc/meminfo")
