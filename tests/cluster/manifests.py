"""Pods for the tests: small, and as restricted as Pod Security asks (non-root, read-only, no capability)."""

import json
from collections.abc import Sequence

NON_ROOT_USER = 65532


def pod(
    name: str, *, image: str, command: Sequence[str] = (), node: str | None = None, gpus: int = 0,
    labels: dict[str, str] | None = None, host_paths: dict[str, str] | None = None,
) -> str:  # fmt: skip
    """A pod that runs `command` once. `host_paths`: path on the node -> path in the container, read-only."""
    paths = host_paths or {}
    container: dict[str, object] = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": f"host-{number}", "mountPath": inside, "readOnly": True}
            for number, inside in enumerate(paths.values())
        ],
    }
    if command:
        container["command"] = list(command)
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    spec: dict[str, object] = {
        "containers": [container],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": NON_ROOT_USER,
            "runAsGroup": NON_ROOT_USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [
            {"name": f"host-{number}", "hostPath": {"path": path, "type": "Directory"}}
            for number, path in enumerate(paths)
        ],
    }
    if node:
        spec["affinity"] = {"nodeAffinity": _required_node(node)}
    metadata = {"name": name, "labels": labels or {}}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def service(name: str, *, selector: dict[str, str], port: int) -> str:
    """A Service for the pods with these labels."""
    spec = {"selector": selector, "ports": [{"port": port}]}
    return json.dumps({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})


def _required_node(name: str) -> dict[str, object]:
    """The scheduler still decides (GPUs count), but has this one node to choose from."""
    fields = [{"key": "metadata.name", "operator": "In", "values": [name]}]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": fields}]}}
