"""A real API server with our CRDs, and a client that may do exactly what `kube/permissions.py` lists.

Every test of `kube` and `intake` runs as that service account, so a verb that is missing there fails a test.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from steadyfleet_operator.decide.observation import Check, Node
from steadyfleet_operator.kube.checks import parse_check
from steadyfleet_operator.kube.client import KubeClient
from steadyfleet_operator.kube.fleet import parse_node
from steadyfleet_operator.kube.permissions import PERMISSIONS, Permission, Scope
from steadyfleet_operator.kube.resources import CHECKS, NODES
from steadyfleet_operator.resource import CheckSpec
from tests.cluster.control_plane import ControlPlane
from tests.cluster.options import ControlPlaneOptions
from tests.operator.builders import check_manifest, node_manifest

ROOT = Path(__file__).parents[2]
OWN_NAMESPACE = "steadyfleet"
ACCOUNT = "steadyfleet-operator"
USER = f"system:serviceaccount:{OWN_NAMESPACE}:{ACCOUNT}"

_numbers = itertools.count()


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    with ControlPlane(ControlPlaneOptions(audit_log=True)) as running:
        for crd in sorted((ROOT / "crds").glob("*.yaml")):
            running.kubectl("apply", "-f", str(crd))
        running.kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=30s")
        running.kubectl("create", "namespace", OWN_NAMESPACE)
        running.kubectl("create", "serviceaccount", ACCOUNT, "-n", OWN_NAMESPACE)
        _grant(running, Scope.CLUSTER, namespace="")
        _grant(running, Scope.OWN_NAMESPACE, namespace=OWN_NAMESPACE)
        yield running


@pytest.fixture(scope="session")
def operator_kubeconfig(control_plane: ControlPlane) -> str:
    token = control_plane.kubectl("create", "token", ACCOUNT, "-n", OWN_NAMESPACE, "--duration=12h").stdout.strip()
    shown = control_plane.kubectl("config", "view", "--raw", "-o", "json").stdout
    config = json.loads(shown)
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    path = control_plane.folder / "operator.kubeconfig"
    path.write_text(json.dumps(config))
    return str(path)


@pytest.fixture
async def client(operator_kubeconfig: str) -> AsyncIterator[KubeClient]:
    """As the operator."""
    connected = await KubeClient.connect(kubeconfig=operator_kubeconfig)
    yield connected
    await connected.close()


@pytest.fixture
async def admin(control_plane: ControlPlane) -> AsyncIterator[KubeClient]:
    """As the cluster's administrator: for what others do."""
    connected = await KubeClient.connect(kubeconfig=str(control_plane.kubeconfig))
    yield connected
    await connected.close()


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    """A new namespace whose checks may be run."""
    return _make_namespace(control_plane)


@pytest.fixture
def playground(control_plane: ControlPlane) -> str:
    """Another one, of other people."""
    return _make_namespace(control_plane)


MakeNode = Callable[..., Awaitable[Node]]
MakeCheck = Callable[..., Awaitable[Check]]


@pytest.fixture
async def make_node(admin: KubeClient) -> AsyncIterator[MakeNode]:
    """Creates Nodes of names of their own, and deletes them after the test."""
    made: list[Node] = []

    async def make(name: str = "", **changes: Any) -> Node:
        name = name or f"gpu-{next(_numbers)}"
        node = parse_node(await admin.create(NODES, node_manifest(name, **changes)))
        made.append(node)
        return node

    yield make
    for node in made:
        await admin.delete(NODES, node.name, uid=node.uid)


@pytest.fixture
def make_check(admin: KubeClient, namespace: str) -> MakeCheck:
    async def make(name: str = "qwen", spec: CheckSpec | None = None) -> Check:
        check = parse_check(await admin.create(CHECKS, check_manifest(name, namespace, spec), namespace=namespace))
        assert isinstance(check, Check)
        return check

    return make


async def eventually(what: str, condition: Callable[[], Awaitable[bool]], *, seconds: float = 20) -> None:
    """Waits until the condition holds; fails with `what` at the deadline."""
    try:
        async with asyncio.timeout(seconds):
            while not await condition():  # noqa: ASYNC110  what is waited for lives in another process
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"not within {seconds:g} s: {what}")


def _make_namespace(control_plane: ControlPlane) -> str:
    name = f"serving-{next(_numbers)}"
    control_plane.kubectl("create", "namespace", name)
    _grant(control_plane, Scope.CHECK_NAMESPACES, namespace=name)
    control_plane.kubectl("wait", "serviceaccount/default", "-n", name, "--for=create", "--timeout=30s")
    return name


def _grant(control_plane: ControlPlane, scope: Scope, *, namespace: str) -> None:
    kind = "Role" if namespace else "ClusterRole"
    name = f"steadyfleet-{scope.value.lower()}"
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    items = [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": kind,
            "metadata": metadata,
            "rules": [_rule(permission) for permission in PERMISSIONS if permission.scope is scope],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": f"{kind}Binding",
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": OWN_NAMESPACE}],
        },
    ]
    control_plane.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def _rule(permission: Permission) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "apiGroups": [permission.group],
        "resources": [permission.resource],
        "verbs": sorted(permission.verbs),
    }
    return rule | ({"resourceNames": sorted(permission.names)} if permission.names else {})
