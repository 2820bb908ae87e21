"""python -m tests.e2e: the cluster of the end-to-end tests with Steadyfleet on it, left running.

Then: STEADYFLEET_USE_RUNNING_CLUSTER=1 python -m pytest tests/e2e. To end it: python -m tests.cluster down
"""

from __future__ import annotations

import sys

from tests.cluster.cluster import Cluster
from tests.cluster.progress import say
from tests.e2e.lab import Lab, options


def main() -> int:
    with Cluster(options()) as cluster:
        Lab(cluster).set_up()
        cluster.detach()
        say(f"export KUBECONFIG={cluster.kubeconfig}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
