"""However a cluster ends, the machine is as before: no process, mount, link, route, cgroup, namespace or folder."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster import network, processes
from tests.cluster.cluster import Cluster
from tests.cluster.commands import run, wait_for
from tests.cluster.machine_state import MachineState, observe
from tests.cluster.manifests import pod
from tests.cluster.node import PAUSE_IMAGE
from tests.cluster.run_folder import CLUSTER_FOLDER

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180), pytest.mark.usefixtures("no_cluster")]

_REPOSITORY = Path(__file__).parents[2]
_COMMAND = (sys.executable, "-m", "tests.cluster")


@contextmanager
def _harness() -> Iterator[subprocess.Popen[bytes]]:
    """`python -m tests.cluster up` in a process of its own."""
    child = subprocess.Popen([*_COMMAND, "up"], cwd=_REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def _bridge_is_there() -> bool:
    return network.BRIDGE in network.links()


def _a_kubelet_runs() -> bool:
    return any("kubelet" in process.split()[1] for process in observe().processes)


def _cluster_is_up() -> bool:
    """The last step of a start: the GPUs are allocatable."""
    if not (CLUSTER_FOLDER / "nodes.json").exists():
        return False
    cluster = Cluster.attach()
    gpus = r"jsonpath={.items[*].status.allocatable.nvidia\.com/gpu}"
    return cluster.kubectl("get", "nodes", "-o", gpus, check=False).stdout.split() == ["2", "2", "2"]


def test_what_a_start_left_that_was_killed_early_is_cleared_by_down() -> None:
    before = observe()
    _kill_a_start(_bridge_is_there)
    assert observe() != before, "the killed harness left nothing, so this test shows nothing"
    run(*_COMMAND, "down", cwd=_REPOSITORY)
    _assert_as_before(before)


def test_what_a_start_left_that_was_killed_late_is_cleared_by_the_next_start_and_goes_with_it() -> None:
    before = observe()
    _kill_a_start(_a_kubelet_runs)
    assert observe().processes, "the killed harness left nothing, so this test shows nothing"
    with Cluster() as cluster:
        cluster.kubectl("create", "-f", "-", input=pod("runs", image=PAUSE_IMAGE))
        cluster.wait_for(
            lambda: cluster.get("pod", "runs")["status"].get("phase") == "Running", what="a pod runs on the new cluster"
        )
    _assert_as_before(before)


def test_ctrl_c_takes_a_running_cluster_down() -> None:
    before = observe()
    with _harness() as harness:
        wait_for(_cluster_is_up, what="cluster up")
        harness.send_signal(signal.SIGINT)
        assert harness.wait(timeout=60) == 128 + signal.SIGINT
    _assert_as_before(before)


def test_sigterm_in_the_middle_of_a_start_takes_it_down() -> None:
    before = observe()
    with _harness() as harness:
        wait_for(_a_kubelet_runs, what="a kubelet runs", poll_seconds=0.02)
        harness.send_signal(signal.SIGTERM)
        assert harness.wait(timeout=60) == 128 + signal.SIGTERM
    _assert_as_before(before)


def test_down_ends_a_detached_cluster_whose_harness_is_gone_and_leaves_no_secret_in_a_command_line() -> None:
    before = observe()
    run(*_COMMAND, "up", "--detach", cwd=_REPOSITORY)
    token = (CLUSTER_FOLDER / "pki" / "tokens.csv").read_text().split(",", 1)[0]
    commands = [Path(f"/proc/{process.pid}/cmdline").read_bytes() for process in processes.find(CLUSTER_FOLDER)]
    assert len(commands) > 10
    assert not [command for command in commands if token.encode() in command]
    run(*_COMMAND, "down", cwd=_REPOSITORY)
    _assert_as_before(before)
    assert "no cluster runs" in run(*_COMMAND, "down", cwd=_REPOSITORY).stderr


def _kill_a_start(moment: Callable[[], bool]) -> None:
    with _harness() as harness:
        wait_for(moment, what="the moment to kill", poll_seconds=0.02)
        harness.send_signal(signal.SIGKILL)
        harness.wait()


def _assert_as_before(before: MachineState) -> None:
    """Compares field by field, so that a failure names what is left."""
    after = observe()
    for kind, left in vars(after).items():
        assert left == getattr(before, kind), f"{kind} left: {left - getattr(before, kind)}"
