"""Pods of other people, and engines with faults that a real one can't be made to have."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.cluster import engine
from tests.cluster.cluster import Cluster
from tests.cluster.images import ENGINE_IMAGE, ENGINE_MOUNT
from tests.e2e.models import readable
from tests.e2e.platform import NAMESPACE, ROOT

Json = dict[str, Any]

FAKE_VLLM = "/mnt/node/fake-vllm"
"""In the pod and on the node: a virtual environment whose vllm is the fake server of the unit tests."""

_FAKE_PACKAGE = ROOT / "tests" / "unit" / "probe" / "fake_vllm" / "vllm"


def with_gpus(name: str, *, node: str, gpus: int = 1) -> Json:
    """A pod of normal priority that holds GPUs of a node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [
                {
                    "name": "serve",
                    "image": ENGINE_IMAGE,
                    "imagePullPolicy": "Never",
                    "command": ["sleep", "infinity"],
                    "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
                }
            ],
        },
    }


def is_running(cluster: Cluster, name: str) -> bool:
    return bool(cluster.get("pod", name, "-n", NAMESPACE)["status"].get("phase") == "Running")


def place_fake_vllm(cluster: Cluster, node: str) -> str:
    """Puts it on the node's disk; returns the Python that finds it, for `engine.python`."""
    root: Path = cluster.node_dir(node) / Path(FAKE_VLLM).relative_to("/mnt/node")
    version = next((engine.prepare().root / "lib").glob("python3.*")).name
    site = root / "lib" / version / "site-packages"
    shutil.rmtree(root, ignore_errors=True)
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "python3").symlink_to(f"{ENGINE_MOUNT}/bin/python3")
    (root / "pyvenv.cfg").write_text(f"home = {ENGINE_MOUNT}/bin\ninclude-system-site-packages = true\n")
    shutil.copytree(_FAKE_PACKAGE, site / "vllm")
    readable(root)
    return f"{FAKE_VLLM}/bin/python3"
