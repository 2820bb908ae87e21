"""Nodes that exist only in the API: for tests against a control plane without machines (light mode).

Such a node stays as it was created: nobody sends heartbeats, and the light control plane asks for none. The scheduler
binds pods to it, and nobody runs them; a test plays the kubelet by patching their status.
"""

import datetime
import json
import uuid
from collections.abc import Mapping

from tests.cluster.control_plane import Kubectl
from tests.cluster.gpus import RESOURCE
from tests.cluster.options import NodeOptions

_CPUS, _MEMORY, _PODS = "64", "1024Gi", "110"
_CONDITIONS = (("Ready", "True"), ("MemoryPressure", "False"), ("DiskPressure", "False"), ("PIDPressure", "False"))


def create_fake_node(api: Kubectl, options: NodeOptions, *, labels: Mapping[str, str] | None = None) -> None:
    """Create a node that is Ready and has its GPUs free. Raises CommandFailed if the API server refuses it."""
    # kubectl drops nothing here: a Node may be created with its status.
    api.kubectl("create", "-f", "-", input=json.dumps(fake_node(options, labels=labels)))


def fake_node(options: NodeOptions, *, labels: Mapping[str, str] | None = None) -> dict[str, object]:
    """The object that `create_fake_node` creates, for tests that create thousands by their own client."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    capacity = {"cpu": _CPUS, "memory": _MEMORY, "pods": _PODS, "ephemeral-storage": "1000Gi"}
    if options.gpus:
        capacity[RESOURCE] = str(options.gpus)
    own = {"kubernetes.io/hostname": options.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": options.name, "labels": own | options.all_labels() | dict(labels or {})},
        "spec": {"providerID": f"fake://{options.name}"},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [{"type": "Hostname", "address": options.name}],
            "conditions": [
                {
                    "type": kind,
                    "status": status,
                    "reason": "FakeNode",
                    "message": "made by a test",
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": now,
                }
                for kind, status in _CONDITIONS
            ],
            # All fields: the Python client refuses a node that lacks one.
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": str(uuid.uuid4()),
                "containerRuntimeVersion": "fake://1",
                "kernelVersion": "",
                "kubeProxyVersion": "",
                "kubeletVersion": "v1.37.2",
                "machineID": "",
                "operatingSystem": "linux",
                "osImage": "",
                "systemUUID": "",
            },
        },
    }
