"""Fake GPUs: a device plugin for each node's kubelet, all served by one process (`python -m tests.cluster.gpus FILE`).

The file FILE (JSON, a `GpuFile`) says which devices each node has and how they are; the process follows its changes.
A container that asks for GPUs gets their UUIDs in NVIDIA_VISIBLE_DEVICES, and the cluster's `gpu_mounts`.
"""

import json
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]

from tests.cluster.device_plugin_api import message

RESOURCE = "nvidia.com/gpu"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
_SOCKET = "steadyfleet-gpus.sock"
_POLL_SECONDS = 0.2
_GRPC_THREADS = 4
_REGISTER_TIMEOUT_SECONDS = 10
_UUID_NAMESPACE = uuid.NAMESPACE_DNS


@dataclass(frozen=True)
class NodeGpus:
    """Devices of one node: the kubelet's plugin folder, and UUID -> health."""

    plugin_folder: str
    health: dict[str, str]


@dataclass(frozen=True)
class GpuFile:
    """The content of the file that steers the process."""

    nodes: dict[str, NodeGpus]
    mounts: list[dict[str, Any]]
    """Fields of the API's Mount message."""

    @classmethod
    def read(cls, path: Path) -> "GpuFile":
        raw = json.loads(path.read_text())
        return cls(nodes={name: NodeGpus(**gpus) for name, gpus in raw["nodes"].items()}, mounts=raw["mounts"])

    def write(self, path: Path) -> None:
        """Replace the file in one step, so that the process never reads half of it."""
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps(asdict(self), indent=1))
        unfinished.rename(path)


def gpu_uuid(node: str, index: int) -> str:
    """The stable UUID of a node's GPU (index from 0)."""
    return f"GPU-{uuid.uuid5(_UUID_NAMESPACE, f'{node}-{index}')}"


class _Plugin:
    """The device plugin of one node."""

    def __init__(self, node: str, file: Path) -> None:
        self._node, self._file = node, file
        self._changed = threading.Condition()
        self._server: grpc.Server | None = None
        self._folder = Path(self._gpus().plugin_folder)

    def run(self) -> None:
        """Serve and register, again after each restart of the kubelet: it has a new socket and an empty folder then."""
        kubelet, seen, settings = self._folder / "kubelet.sock", None, self._file.stat().st_mtime_ns
        while True:
            threading.Event().wait(_POLL_SECONDS)
            if (changed := self._file.stat().st_mtime_ns) != settings:
                settings = changed
                with self._changed:
                    self._changed.notify_all()
            try:
                status = kubelet.stat()
            except FileNotFoundError:
                continue
            if (now := (status.st_ino, status.st_ctime_ns)) == seen:
                continue
            try:
                self._serve()
                self._register(kubelet)
            except grpc.RpcError as not_yet:
                print(f"{self._node}: cannot register yet: {not_yet}", flush=True)
                continue
            seen = now
            print(f"{self._node}: registered {sorted(self._gpus().health)}", flush=True)

    def _gpus(self) -> NodeGpus:
        return GpuFile.read(self._file).nodes[self._node]

    def _serve(self) -> None:
        if self._server:
            self._server.stop(0)
        socket = self._folder / _SOCKET
        socket.unlink(missing_ok=True)
        self._server = grpc.server(ThreadPoolExecutor(_GRPC_THREADS))
        methods = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(
                lambda _request, _context: message("DevicePluginOptions")(), *_coders("Empty")
            ),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch, *_coders("Empty")),
            "Allocate": grpc.unary_unary_rpc_method_handler(self._allocate, *_coders("AllocateRequest")),
        }
        handler = grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods)
        self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(f"unix:{socket}")
        self._server.start()

    def _register(self, kubelet: Path) -> None:
        with grpc.insecure_channel(f"unix:{kubelet}") as channel:
            register = channel.unary_unary(
                "/v1beta1.Registration/Register",
                request_serializer=lambda request: request.SerializeToString(),
                response_deserializer=message("Empty").FromString,
            )
            request = message("RegisterRequest")(version="v1beta1", endpoint=_SOCKET, resource_name=RESOURCE)
            register(request, timeout=_REGISTER_TIMEOUT_SECONDS)

    def _list_and_watch(self, _request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        sent: dict[str, str] | None = None
        while context.is_active():
            health = self._gpus().health
            if health != sent:
                device = message("Device")
                yield message("ListAndWatchResponse")(devices=[device(ID=i, health=h) for i, h in health.items()])
                sent = health
            with self._changed:
                self._changed.wait(timeout=1)

    def _allocate(self, request: Any, _context: grpc.ServicerContext) -> Any:
        mounts = [message("Mount")(**mount) for mount in GpuFile.read(self._file).mounts]
        return message("AllocateResponse")(
            container_responses=[
                message("ContainerAllocateResponse")(
                    envs={"NVIDIA_VISIBLE_DEVICES": ",".join(container.devices_ids)}, mounts=mounts
                )
                for container in request.container_requests
            ]
        )


def _coders(request: str) -> tuple[Any, Any]:
    return message(request).FromString, lambda answer: answer.SerializeToString()


def main(file: Path) -> None:
    """Serve the devices of all nodes in the file until the process is ended."""
    for node in GpuFile.read(file).nodes:
        threading.Thread(target=_Plugin(node, file).run, daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
