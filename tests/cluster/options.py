"""What a caller may choose about a cluster: frozen values, passed down, read nowhere else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MAX_NODES = 3
"""The address plan (network.py) has room for three nodes."""


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """One node and the GPUs that it pretends to have."""

    name: str
    gpus: int = 2
    gpu_product: str = "NVIDIA-H100-80GB-HBM3"
    gpu_memory_mib: int = 81559
    instance_type: str = "gpu.h100"
    zone: str = "zone-a"
    labels: Mapping[str, str] = field(default_factory=dict)
    """More node labels; they win over those made from the fields above."""

    def all_labels(self) -> dict[str, str]:
        """The labels as kubelet and NVIDIA's GPU feature discovery would set them."""
        labels = {
            "node.kubernetes.io/instance-type": self.instance_type,
            "topology.kubernetes.io/zone": self.zone,
        }
        if self.gpus:
            labels |= {
                "nvidia.com/gpu.present": "true",
                "nvidia.com/gpu.product": self.gpu_product,
                "nvidia.com/gpu.count": str(self.gpus),
                "nvidia.com/gpu.memory": str(self.gpu_memory_mib),
            }
        return labels | dict(self.labels)


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A host folder that every container with a GPU finds at `container_path`, as a GPU driver's files are found."""

    host_path: Path
    container_path: str
    read_only: bool = True


@dataclass(frozen=True, kw_only=True)
class ControlPlaneOptions:
    """Additions to the flags of the API server and of the controller manager."""

    api_server_args: tuple[str, ...] = ()
    controller_manager_args: tuple[str, ...] = ()
    scheduler: bool = True
    audit_log: bool = False
    """Write each request's metadata as JSON lines to log/audit.log in the run folder."""


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """A whole cluster. One to three nodes."""

    nodes: tuple[NodeOptions, ...] = (
        NodeOptions(name="gpu-1", zone="zone-a"),
        NodeOptions(name="gpu-2", zone="zone-b"),
        NodeOptions(name="gpu-3", zone="zone-c"),
    )
    images: tuple[Path, ...] = ()
    """OCI archives that each node holds when it becomes Ready."""
    gpu_mounts: tuple[Mount, ...] = ()
    control_plane: ControlPlaneOptions = field(default_factory=ControlPlaneOptions)
    node_monitor_grace_seconds: int = 20
    """The controller manager calls a silent node Unknown after this long (Kubernetes: 50)."""
    ready_timeout_seconds: float = 120

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        if not 1 <= len(names) <= MAX_NODES or len(set(names)) != len(names):
            raise ValueError(f"nodes: give 1 to {MAX_NODES} nodes with distinct names, not {names}")
