"""The cluster's commands. Run from the repository's root: python -m tests.cluster COMMAND."""

import argparse
import os
import signal
import subprocess
import sys

from tests.cluster import binaries, engine, images, prerequisites, processes, run_folder
from tests.cluster.cluster import Cluster, describe_owner, take_down_detached
from tests.cluster.control_plane import ADMIN_KUBECONFIG
from tests.cluster.errors import ClusterError
from tests.cluster.options import MAX_NODES, ClusterOptions, NodeOptions
from tests.cluster.progress import say
from tests.cluster.run_folder import CLUSTER_FOLDER
from tests.cluster.signals import Terminated, termination_raises


def main(arguments: list[str]) -> int:
    """Run one command; an error of ours is its one message on stderr and status 1."""
    if arguments[:1] == ["kubectl"]:
        return _kubectl(arguments[1:])
    options = _parser().parse_args(arguments)
    commands = {"prepare": _prepare, "up": _up, "down": _down, "status": _status, "env": _env}
    try:
        with termination_raises():
            return commands[options.command](options)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Terminated:
        return 128 + signal.SIGTERM
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare", help="build everything into the cache")
    prepare.add_argument("--no-engine", action="store_true", help="leave vLLM out (5.8 GB)")
    up = commands.add_parser("up", help="start the cluster; Ctrl-C ends it")
    up.add_argument("--gpus", default="2,2,2", help="GPUs of each node, such as 2,2,8 (default 2,2,2)")
    up.add_argument("--engine", action="store_true", help="give pods with a GPU vLLM at /opt/vllm, and load its image")
    up.add_argument("--detach", action="store_true", help="return when it is up; `down` ends it")
    commands.add_parser("down", help="take a detached cluster, or what a killed one left, down")
    commands.add_parser("status", help="say what runs")
    commands.add_parser("env", help="print the export line for KUBECONFIG and PATH")
    commands.add_parser("kubectl", help="run kubectl against the cluster", add_help=False)
    return parser


def _prepare(options: argparse.Namespace) -> int:
    prerequisites.check_for_nodes()
    binaries.build()
    images.pause()
    images.base()
    if not options.no_engine:
        engine.prepare()
        images.engine()
    return 0


def _up(options: argparse.Namespace) -> int:
    cluster = Cluster(_cluster_options(options))
    cluster.start()
    print(f"export KUBECONFIG={cluster.kubeconfig}", flush=True)
    if options.detach:
        cluster.detach()
        return 0
    say("up; Ctrl-C takes it down")
    try:
        while True:
            signal.pause()
    finally:
        cluster.stop()


def _cluster_options(options: argparse.Namespace) -> ClusterOptions:
    try:
        counts = [int(count) for count in options.gpus.split(",")]
        if not 1 <= len(counts) <= MAX_NODES or min(counts) < 0:
            raise ValueError
    except ValueError:
        raise ClusterError(f"--gpus: one to {MAX_NODES} counts separated by commas, not {options.gpus!r}") from None
    zones = ("zone-a", "zone-b", "zone-c")
    nodes = tuple(NodeOptions(name=f"gpu-{i}", gpus=n, zone=zones[i - 1]) for i, n in enumerate(counts, start=1))
    if not options.engine:
        return ClusterOptions(nodes=nodes)
    return ClusterOptions(nodes=nodes, images=(images.engine(),), gpu_mounts=(engine.prepare().mount,))


def _down(_options: argparse.Namespace) -> int:
    if not take_down_detached():
        say("no cluster runs")
    return 0


def _status(_options: argparse.Namespace) -> int:
    if not CLUSTER_FOLDER.exists():
        print("no cluster runs")
        return 0
    lines = [describe_owner() if run_folder.is_in_use(CLUSTER_FOLDER) else f"{CLUSTER_FOLDER}: left by a killed run"]
    found = sorted(processes.find(CLUSTER_FOLDER), key=lambda process: process.name)
    lines += [f"{process.pid:>10}  {process.name}" for process in found]
    print("\n".join(lines))
    return 0


def _env(_options: argparse.Namespace) -> int:
    print(f"export KUBECONFIG={CLUSTER_FOLDER / ADMIN_KUBECONFIG}")
    print(f"export PATH={binaries.build(binaries.CONTROL_PLANE_MODULES).path('kubectl').parent}:$PATH")
    return 0


def _kubectl(arguments: list[str]) -> int:
    program = binaries.build(binaries.CONTROL_PLANE_MODULES).path("kubectl")
    environment = {**os.environ, "KUBECONFIG": str(CLUSTER_FOLDER / ADMIN_KUBECONFIG)}
    return subprocess.call([str(program), *arguments], env=environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
