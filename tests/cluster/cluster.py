"""The three-node cluster: `with Cluster() as cluster:` starts it, and leaves nothing behind."""

import contextlib
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from tests.cluster import binaries, control_plane, images, network, pki, prerequisites, processes, run_folder
from tests.cluster.cache import cache_root, locked
from tests.cluster.commands import tail_of_file, wait_for
from tests.cluster.control_plane import ADMIN_KUBECONFIG, API_PORT, Kubectl
from tests.cluster.errors import AlreadyRunning, ClusterError, CommandFailed, StartFailed, WaitTimedOut
from tests.cluster.gpus import HEALTHY, RESOURCE, UNHEALTHY, GpuFile, NodeGpus, gpu_uuid
from tests.cluster.network import HUB
from tests.cluster.node import API_READY, MOUNT_TARGETS, PROXY_KUBECONFIG, Node, import_everywhere
from tests.cluster.options import ClusterOptions, NodeOptions
from tests.cluster.pki import User
from tests.cluster.progress import say, step
from tests.cluster.run_folder import CLUSTER_FOLDER
from tests.cluster.services import DNS_USER_KUBECONFIG, Service, start_dns, start_gpus, start_prometheus
from tests.cluster.signals import undisturbed
from tests.cluster.teardown import make_mount_targets, tear_down

T = TypeVar("T")

_LOCK = Path("/run/lock/steadyfleet-cluster.lock")
_GPU_FILE = "gpus.json"
_NODES_FILE = "nodes.json"


class Cluster(Kubectl):
    """A real cluster. One at a time on a machine; a second start is refused with AlreadyRunning."""

    hub = HUB
    """An address on the host that pods reach, for whatever a test serves to them."""

    def __init__(self, options: ClusterOptions | None = None) -> None:
        self.options = options or ClusterOptions()
        self.folder = CLUSTER_FOLDER
        self._claimed = False
        prerequisites.check_for_nodes()
        self._programs = binaries.build()
        self.nodes = tuple(
            Node(options=node, index=index, run_folder=self.folder, programs=self._programs)
            for index, node in enumerate(self.options.nodes, start=1)
        )
        super().__init__(programs=self._programs, kubeconfig=self.folder / ADMIN_KUBECONFIG)

    @classmethod
    def attach(cls) -> "Cluster":
        """The cluster that already runs on this machine; leaving the `with` block does not end it."""
        file = CLUSTER_FOLDER / _NODES_FILE
        if not (file.exists() and run_folder.is_in_use(CLUSTER_FOLDER)):
            raise StartFailed("No cluster runs; start one: python -m tests.cluster up --detach")
        nodes = json.loads(file.read_text())
        return cls(ClusterOptions(nodes=tuple(NodeOptions(**node) for node in nodes)))

    def start(self) -> None:
        """Start it and return when every node is Ready and its GPUs are allocatable.

        Raises AlreadyRunning while another one lives, StartFailed or WaitTimedOut otherwise, with nothing left behind.
        """
        pause = images.pause()
        try:
            with locked(_LOCK, what="test cluster"):
                self._claim()
            with step(f"start the cluster: {', '.join(node.name for node in self.nodes)}"):
                self._bring_up(pause)
        except BaseException as failure:
            if self._claimed and isinstance(failure, ClusterError):
                self._keep_logs_of_failed_start()
            self.stop()
            raise

    def stop(self) -> None:
        """Take it down if this object started it. Raises TearDownIncomplete, which names what is left."""
        if not self._claimed:
            return
        with undisturbed("take-down of the cluster"), step("take the cluster down"):
            tear_down(self.folder)
        self._claimed = False

    def detach(self) -> None:
        """Let it live on after this program; `python -m tests.cluster down` ends it."""
        run_folder.write_owner(self.folder, detached=True)
        processes.forget_children()
        self._claimed = False

    def __enter__(self) -> "Cluster":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- nodes

    def node(self, name: str) -> Node:
        """The node of that name; KeyError if there is none."""
        return {node.name: node for node in self.nodes}[name]

    def node_dir(self, name: str) -> Path:
        """The host's view of the node's private disk, which pods mount from /mnt/node by hostPath."""
        return self.node(name).files

    def stop_node(self, name: str) -> None:
        """Let the node crash: everything on it is gone at once, its disk stays."""
        self.node(name).crash()

    def start_node(self, name: str) -> None:
        """Start a crashed node again, and wait until it is Ready with its GPUs."""
        self.node(name).start(all_nodes=self.nodes)
        self._wait_until_ready((self.node(name),))

    def restart_kubelet(self, name: str) -> None:
        """End the node's kubelet; it comes back by itself, running pods stay."""
        self.node(name).restart_kubelet()

    def load_image(self, archive: Path, nodes: tuple[str, ...] | None = None) -> None:
        """Load an OCI archive into these nodes (all by default)."""
        chosen = self.nodes if nodes is None else tuple(self.node(name) for name in nodes)
        import_everywhere(chosen, archive)

    # --- GPUs

    def gpu_uuids(self, name: str) -> list[str]:
        """UUIDs of the node's GPUs, by index."""
        return [gpu_uuid(name, index) for index in range(self.node(name).options.gpus)]

    def set_gpu_health(self, name: str, uuid: str, *, healthy: bool) -> None:
        """Let a GPU fall ill or recover: the kubelet takes it out of the allocatable ones within seconds."""
        path = self.folder / _GPU_FILE
        file = GpuFile.read(path)
        if uuid not in file.nodes[name].health:
            raise KeyError(f"{name} has no GPU {uuid}")
        file.nodes[name].health[uuid] = HEALTHY if healthy else UNHEALTHY
        file.write(path)

    # --- the rest

    def start_prometheus(self, config: str) -> str:
        """Start Prometheus on the hub with this configuration (YAML) and return its URL. It ends with the cluster."""
        return start_prometheus(self._programs, self.folder, config=config)

    def wait_for(
        self, condition: Callable[[], T | None], *, what: str, timeout_seconds: float = 60, poll_seconds: float = 0.3
    ) -> T:
        """Wait until `condition` returns something true; a failing command counts as not yet. Raises WaitTimedOut."""
        return wait_for(
            condition, what=what, timeout_seconds=timeout_seconds, poll_seconds=poll_seconds, retry=(CommandFailed,)
        )

    def logs_to(self, folder: Path) -> None:
        """Copy the logs of all processes and pods to `folder`, and what the API knows about pods, nodes and events."""
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self.folder / "log", folder / "control-plane", dirs_exist_ok=True)
        for node in self.nodes:
            # The links in log/containers point into the node; what they name is below log/pods.
            shutil.copytree(
                node.folder / "log", folder / node.name,
                dirs_exist_ok=True, ignore=shutil.ignore_patterns("containers"),
            )  # fmt: skip
        for kind in ("nodes", "pods", "events", "jobs"):
            answer = self.kubectl("get", kind, "--all-namespaces", "-o", "yaml", check=False)
            (folder / f"{kind}.yaml").write_text(answer.stdout + answer.stderr)

    # --- start, in the order in which it happens

    def _claim(self) -> None:
        """Make the run folder ours, after clearing what a killed run left. Called under the machine-wide lock."""
        if self.folder.exists():
            if run_folder.is_in_use(self.folder):
                raise AlreadyRunning(f"A test cluster already runs on this machine: {describe_owner()}")
            with step("clear what a killed run left"):
                tear_down(self.folder)
        network.require_free_addresses()
        self.folder.mkdir(mode=0o755)
        self._claimed = True
        run_folder.write_owner(self.folder)

    def _bring_up(self, pause: Path) -> None:
        make_mount_targets(self.folder, MOUNT_TARGETS)
        network.create_bridge()
        certificates = pki.create(self.folder / "pki", server_ips=control_plane.server_ips_for_nodes())
        users = [
            *control_plane.core_users(),
            User("system:kube-proxy", PROXY_KUBECONFIG),
            # CoreDNS only reads Services; the group of the administrators spares a role for it.
            User("dns", DNS_USER_KUBECONFIG, ("system:masters",)),
            *(node.user for node in self.nodes),
        ]
        pki.add_users(certificates, users, server=f"https://{HUB}:{API_PORT}", folder=self.folder)
        (self.folder / _NODES_FILE).write_text(json.dumps([asdict(node.options) for node in self.nodes]))
        for node in self.nodes:
            node.prepare(certificates, images=(pause, *self.options.images))
        with ThreadPoolExecutor() as pool:
            # Nodes load their images while the API server starts.
            started = [pool.submit(node.start, all_nodes=self.nodes) for node in self.nodes]
            control_plane.start_for_nodes(
                self._programs, self.folder, certificates,
                options=self.options.control_plane,
                node_monitor_grace_seconds=self.options.node_monitor_grace_seconds,
            )  # fmt: skip
            for start in started:
                start.result()
        (self.folder / API_READY).touch()
        dns = start_dns(self._programs, self.folder, kubeconfig=self.folder / DNS_USER_KUBECONFIG)
        self._gpu_file().write(self.folder / _GPU_FILE)
        gpus = start_gpus(self.folder, gpu_file=self.folder / _GPU_FILE)
        self._wait_until_ready(self.nodes, services=(dns, gpus))
        # A namespace's service account appears a moment later; pods created before are refused.
        self.wait_for(
            lambda: self.kubectl("get", "serviceaccount", "default", check=False).returncode == 0,
            what="service account default",
        )

    def _keep_logs_of_failed_start(self) -> None:
        folder = cache_root() / "failed-start"
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):  # it failed before anything ran
            self.logs_to(folder)
            say(f"logs of the failed start: {folder}")

    def _gpu_file(self) -> GpuFile:
        return GpuFile(
            nodes={
                node.name: NodeGpus(
                    plugin_folder=str(node.device_plugins), health=dict.fromkeys(self.gpu_uuids(node.name), HEALTHY)
                )
                for node in self.nodes
                if node.options.gpus
            },
            mounts=[asdict(mount) | {"host_path": str(mount.host_path)} for mount in self.options.gpu_mounts],
        )

    def _wait_until_ready(self, nodes: tuple[Node, ...], *, services: tuple[Service, ...] = ()) -> None:
        def ready() -> bool:
            for service in services:
                service.require_alive()
            return all(self._is_ready(node) for node in nodes)

        try:
            self.wait_for(
                ready,
                what=f"nodes {', '.join(node.name for node in nodes)} Ready with their GPUs",
                timeout_seconds=self.options.ready_timeout_seconds,
            )
        except WaitTimedOut as late:
            logs = "\n".join(
                f"--- {log}\n{tail_of_file(log, lines=8)}"
                for node in nodes
                for log in (node.folder / "log" / "init.log", node.folder / "log" / "kubelet.log")
            )
            raise StartFailed(f"{late}\n{logs}") from late

    def _is_ready(self, node: Node) -> bool:
        status = self.get("node", node.name)["status"]
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", []))
        return ready and int(status.get("allocatable", {}).get(RESOURCE, "0")) == node.options.gpus


def describe_owner() -> str:
    """Who owns the running cluster, and how to end it."""
    owner = run_folder.read_owner(CLUSTER_FOLDER)
    if owner is None:
        return f"{CLUSTER_FOLDER} (being started or taken down)"
    if owner.detached:
        return f"{CLUSTER_FOLDER}, detached; end it: python -m tests.cluster down"
    return f"{CLUSTER_FOLDER}, started by pid {owner.pid} ({owner.command}); end that program first"


def take_down_detached() -> bool:
    """Take a detached or abandoned cluster down; False if there is none. Raises AlreadyRunning if its owner lives."""
    with locked(_LOCK, what="test cluster"):
        if not CLUSTER_FOLDER.exists():
            return False
        owner = run_folder.read_owner(CLUSTER_FOLDER)
        if owner and owner.lives and not owner.detached:
            raise AlreadyRunning(f"The cluster has an owner: {describe_owner()}")
        with undisturbed("take-down of the cluster"), step("take the cluster down"):
            tear_down(CLUSTER_FOLDER)
        say("nothing is left")
        return True
