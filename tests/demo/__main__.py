"""The demo: a real cluster with real vLLM, in which one node reads a weight file with one flipped bit.

python -m tests.demo [--keep]

up        cluster of three nodes, Steadyfleet by Helm, Prometheus
sweep     two fresh launches a node; node gpu-2 differs, is launched again beside a control, and is marked
repair    the weight file is mended; a sweep by hand finds the node consistent and clears its mark
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.progress import say, step
from tests.demo.story import BROKEN, Story, options


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="leave the cluster running afterwards")
    parser.add_argument("--logs", type=Path, default=Path("demo-logs"), help="where the logs go if the demo fails")
    arguments = parser.parse_args()
    started = time.monotonic()
    try:
        with Cluster(options()) as cluster:
            story = Story(cluster)
            try:
                story.install()
                story.sweep()
                story.show()
                story.repair()
                story.show()
            except BaseException:
                with step(f"copy the logs to {arguments.logs}"):
                    cluster.logs_to(arguments.logs)
                raise
            say(f"done in {time.monotonic() - started:.0f} s: {BROKEN} was found, marked, repaired and cleared")
            if arguments.keep:
                cluster.detach()
                say(f"The cluster stays: export KUBECONFIG={cluster.kubeconfig} ; end it: make cluster-down")
    except ClusterError as error:
        say(f"The demo failed: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
