"""The light mode: an API server, controllers and a scheduler, with nodes that exist only in the API."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import processes
from tests.cluster.commands import wait_for
from tests.cluster.control_plane import ControlPlane, clear_abandoned
from tests.cluster.fake_nodes import create_fake_node
from tests.cluster.options import ControlPlaneOptions, NodeOptions

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

_REPOSITORY = Path(__file__).parents[2]


def test_a_fake_node_is_ready_and_takes_a_pod_that_asks_for_its_gpu(control_plane: ControlPlane) -> None:
    create_fake_node(control_plane, NodeOptions(name="fake-1", gpus=1, gpu_product="NVIDIA-B200"))
    try:
        node = control_plane.get("node", "fake-1")
        assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-B200"
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == "1"
        assert "taints" not in node["spec"]
        wait_for(
            lambda: control_plane.kubectl("get", "serviceaccount", "default", check=False).returncode == 0,
            what="service account",
        )
        control_plane.apply(json.dumps(_gpu_pod("wants-gpu")))
        bound = wait_for(
            lambda: control_plane.get("pod", "wants-gpu")["spec"].get("nodeName"), what="pod bound to a node"
        )
        assert bound == "fake-1"
    finally:
        control_plane.kubectl("delete", "pod", "wants-gpu", "--force", "--grace-period=0", check=False)
        control_plane.kubectl("delete", "node", "fake-1")


def test_two_control_planes_live_side_by_side_and_know_nothing_of_each_other(control_plane: ControlPlane) -> None:
    with ControlPlane(ControlPlaneOptions(audit_log=True)) as other:
        assert other.server != control_plane.server
        other.kubectl("create", "namespace", "only-here")
        requests = (other.folder / "log" / "audit.log").read_text().splitlines()
        assert any(json.loads(line)["objectRef"].get("name") == "only-here" for line in requests if "only-here" in line)
        assert control_plane.kubectl("get", "namespace", "only-here", check=False).returncode != 0
        folder = other.folder
    assert processes.find(folder) == []
    assert not folder.exists()


def test_what_a_killed_run_left_is_cleared_by_the_next(control_plane: ControlPlane) -> None:
    program = (
        "from tests.cluster.control_plane import ControlPlane; import time\n"
        "cp = ControlPlane(); print(cp.folder, flush=True); cp.start(); print('up', flush=True); time.sleep(600)"
    )
    harness = subprocess.Popen(
        [sys.executable, "-c", program], cwd=_REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert harness.stdout is not None
        folder = Path(harness.stdout.readline().strip())
        assert harness.stdout.readline().strip() == "up"
    finally:
        harness.kill()
        harness.communicate()
    assert {process.name for process in processes.find(folder)} >= {"etcd", "kube-apiserver"}
    clear_abandoned()
    assert processes.find(folder) == []
    assert not folder.exists()
    assert control_plane.kubectl("get", "--raw", "/readyz").stdout == "ok"


def test_sigterm_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    program = (
        "from tests.cluster.control_plane import ControlPlane; from tests.cluster.signals import termination_raises\n"
        "import time\n"
        "with termination_raises(), ControlPlane() as cp:\n    print(cp.folder, flush=True); time.sleep(600)"
    )
    harness = subprocess.Popen(
        [sys.executable, "-c", program], cwd=_REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert harness.stdout is not None
        folder = Path(harness.stdout.readline().strip())
        harness.send_signal(signal.SIGTERM)
        harness.wait(timeout=30)
    finally:
        harness.kill()
        harness.communicate()
    assert processes.find(folder) == []
    assert not folder.exists()


def _gpu_pod(name: str) -> dict[str, object]:
    container = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}
