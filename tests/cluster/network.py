"""Addresses of the cluster, and the links and routes that carry them.

    bridge sfbr0 on the host   198.51.100.1/26     the hub: API server, DNS, whatever a test serves to pods
    node i = 1..3              198.51.100.(10+i)   one veth pair each; the far end is the node's eth0
    pods of node i             198.51.100.(64*i)/26
    Services                   203.0.113.0/24

Both ranges are reserved for documentation (RFC 5737), so they meet no real network. Nothing is masqueraded: pods reach
the cluster and the hub, and nothing beyond.
"""

import ipaddress
import json
from dataclasses import dataclass
from typing import cast

from tests.cluster.commands import run
from tests.cluster.errors import AlreadyRunning, PrerequisiteMissing
from tests.cluster.options import MAX_NODES

BRIDGE = "sfbr0"
HUB = "198.51.100.1"
NODE_PREFIX_LENGTH = 26
CLUSTER_CIDR = "198.51.100.0/24"
SERVICE_CIDR = "203.0.113.0/24"
KUBERNETES_SERVICE_IP = "203.0.113.1"
_OUTER_PREFIX = "sfv"
_INNER_PREFIX = "sfe"


@dataclass(frozen=True)
class NodeAddresses:
    """What the node with this index (1, 2, 3) owns."""

    index: int

    @property
    def ip(self) -> str:
        return f"198.51.100.{10 + self.index}"

    @property
    def pod_cidr(self) -> str:
        return f"198.51.100.{64 * self.index}/26"


def require_free_addresses() -> None:
    """Raise PrerequisiteMissing if a route of this machine overlaps the plan, AlreadyRunning if the bridge is there."""
    if BRIDGE in links():
        raise AlreadyRunning(
            f"A link {BRIDGE} exists that belongs to no cluster of ours; if nothing needs it: ip link del {BRIDGE}"
        )
    plan = [ipaddress.ip_network(CLUSTER_CIDR), ipaddress.ip_network(SERVICE_CIDR)]
    for destination in _route_destinations():
        if any(ipaddress.ip_network(destination, strict=False).overlaps(part) for part in plan):
            raise PrerequisiteMissing(
                f"This machine has a route to {destination}, and the cluster uses {CLUSTER_CIDR} and {SERVICE_CIDR}; "
                "remove that route while the cluster runs."
            )


def create_bridge() -> None:
    """The hub, with its address."""
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "addr", "add", f"{HUB}/{NODE_PREFIX_LENGTH}", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")


def connect_node(addresses: NodeAddresses, *, node_init_pid: int) -> None:
    """A veth pair from the bridge into the network namespace of the node's first process; the route to its pods.

    `replace`, not `add`: the host's route outlives the veth pair of a node that crashed.
    """
    outer, inner = f"{_OUTER_PREFIX}{addresses.index}", f"{_INNER_PREFIX}{addresses.index}"
    run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
    run("ip", "link", "set", outer, "master", BRIDGE, "up")
    run("ip", "link", "set", inner, "netns", str(node_init_pid), "name", "eth0")
    run("ip", "route", "replace", addresses.pod_cidr, "via", addresses.ip)


def disconnect_node(addresses: NodeAddresses) -> None:
    """Remove the veth pair of a node whose namespace may take a moment to go; nothing if there is none."""
    run("ip", "link", "del", f"{_OUTER_PREFIX}{addresses.index}", check=False)


def remove_all() -> None:
    """Remove the bridge and the veth pairs, and with them their routes."""
    for name in sorted(_own_links() & links()):
        # The other end of a pair goes with the first, and a pair with its node's namespace.
        run("ip", "link", "del", name, check=False)


def remaining() -> list[str]:
    """Links of the plan that are still there, in words."""
    return [f"link {name}" for name in sorted(_own_links() & links())]


def links() -> set[str]:
    """Names of the links in this network namespace."""
    return {str(link["ifname"]) for link in _ip_json("link")}


def _own_links() -> set[str]:
    indexes = range(1, MAX_NODES + 1)
    return {BRIDGE} | {f"{prefix}{index}" for prefix in (_OUTER_PREFIX, _INNER_PREFIX) for index in indexes}


def _route_destinations() -> list[str]:
    routes = [str(route["dst"]) for route in _ip_json("-4", "route", "show", "table", "all")]
    return [route for route in routes if route != "default" and route[0].isdigit()]


def _ip_json(*arguments: str) -> list[dict[str, object]]:
    return cast("list[dict[str, object]]", json.loads(run("ip", "-json", *arguments).stdout or "[]"))
