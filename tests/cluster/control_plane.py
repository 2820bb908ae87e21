"""etcd, API server, controller manager and scheduler: for the three-node cluster, or alone (light mode).

Light mode needs no root and no fixed address, so several can run at once; its nodes are fake (fake_nodes.py).
"""

import json
import shutil
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.cluster import binaries, pki, processes, run_folder
from tests.cluster.binaries import Binaries
from tests.cluster.commands import run, wait_for
from tests.cluster.errors import StartFailed
from tests.cluster.network import HUB, KUBERNETES_SERVICE_IP, SERVICE_CIDR
from tests.cluster.options import ControlPlaneOptions
from tests.cluster.pki import Pki, User

API_PORT = 6443
ADMIN_KUBECONFIG = "admin.kubeconfig"
_LOOPBACK = "127.0.0.1"
_READY_TIMEOUT_SECONDS = 60.0
_PORT_ATTEMPTS = 3
"""A free port can be taken by another program between our look and the API server's start."""

_CORE_USERS = [
    User("admin", ADMIN_KUBECONFIG, ("system:masters",)),
    User("system:kube-controller-manager", "controller-manager.kubeconfig"),
    User("system:kube-scheduler", "scheduler.kubeconfig"),
]

_METADATA_AUDIT_POLICY = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"

_STOP_LAST = ("kube-apiserver", "etcd")
"""Clients first: an API server waits for their watches to end. etcd last: without it an API server may never end."""


class Kubectl:
    """kubectl and helm as the cluster's administrator."""

    def __init__(self, *, programs: Binaries, kubeconfig: Path) -> None:
        self._programs = programs
        self.kubeconfig = kubeconfig

    def kubectl(
        self,
        *args: str,
        input: str | None = None,  # noqa: A002 - the name that subprocess uses
        check: bool = True,
        timeout_seconds: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl. Raises CommandFailed unless it exits with 0 (or `check` is off)."""
        return self._run("kubectl", *args, input=input, check=check, timeout_seconds=timeout_seconds)

    def helm(
        self, *args: str, input: str | None = None, check: bool = True, timeout_seconds: float = 180  # noqa: A002
    ) -> subprocess.CompletedProcess[str]:
        """Run helm. Raises CommandFailed unless it exits with 0 (or `check` is off)."""
        return self._run("helm", *args, input=input, check=check, timeout_seconds=timeout_seconds)

    def get(self, *args: str) -> Any:
        """`kubectl get ARGS -o json`, parsed."""
        return json.loads(self.kubectl("get", *args, "-o", "json").stdout)

    def apply(self, manifest: str) -> None:
        """`kubectl apply` of a YAML or JSON text."""
        self.kubectl("apply", "-f", "-", input=manifest)

    def _run(
        self, program: str, *args: str, input: str | None, check: bool, timeout_seconds: float  # noqa: A002
    ) -> subprocess.CompletedProcess[str]:
        return run(
            self._programs.path(program), f"--kubeconfig={self.kubeconfig}", *args,
            input=input, check=check, timeout_seconds=timeout_seconds,
        )  # fmt: skip


class ControlPlane(Kubectl):
    """A control plane of its own on a free loopback port (light mode): `with ControlPlane() as control_plane:`.

    Started in about four seconds. The controller manager never calls a node silent, and nodes are born without the
    not-ready taint, so that a fake node stays as its creator made it.
    """

    def __init__(self, options: ControlPlaneOptions | None = None) -> None:
        self.options = options or ControlPlaneOptions()
        self._programs = binaries.build(binaries.CONTROL_PLANE_MODULES)
        clear_abandoned()
        self.folder = run_folder.new_light_folder()
        self.server = ""
        super().__init__(programs=self._programs, kubeconfig=self.folder / ADMIN_KUBECONFIG)

    def start(self) -> None:
        """Start it and return when it is ready. Raises StartFailed, with nothing left behind."""
        try:
            certificates = pki.create(self.folder / "pki", server_ips=(_LOOPBACK,))
            for attempt in range(1, _PORT_ATTEMPTS + 1):
                try:
                    self._start_on(_free_port(), certificates)
                    return
                except StartFailed as failure:
                    if attempt == _PORT_ATTEMPTS or "address already in use" not in str(failure):
                        raise
                    processes.stop(self.folder)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the processes and remove the folder. Raises TearDownIncomplete if a process survives."""
        stop_control_plane(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)

    def logs_to(self, folder: Path) -> None:
        """Copy the logs of all processes to `folder`."""
        shutil.copytree(self.folder / "log", folder, dirs_exist_ok=True)

    def __enter__(self) -> "ControlPlane":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_on(self, port: int, certificates: Pki) -> None:
        self.server = f"https://{_LOOPBACK}:{port}"
        pki.add_users(certificates, _CORE_USERS, server=self.server, folder=self.folder)
        start_api_server(
            self._programs, self.folder, certificates,
            bind=_LOOPBACK, port=port, options=self.options,
            flags=(
                "--endpoint-reconciler-type=none",
                "--authorization-mode=RBAC",
                "--disable-admission-plugins=TaintNodesByCondition",
            ),
        )  # fmt: skip
        start_controllers(
            self._programs, self.folder, certificates,
            options=self.options, flags=("--node-monitor-grace-period=240h",),
        )  # fmt: skip


def start_for_nodes(
    programs: Binaries, folder: Path, certificates: Pki,
    *, options: ControlPlaneOptions, node_monitor_grace_seconds: int,
) -> None:  # fmt: skip
    """The control plane of the three-node cluster, on the hub. Returns when it is ready."""
    start_api_server(
        programs, folder, certificates,
        bind=HUB, port=API_PORT, options=options,
        flags=(
            f"--advertise-address={HUB}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--kubelet-client-certificate={certificates.certificate('kubelet-client')}",
            f"--kubelet-client-key={certificates.key('kubelet-client')}",
            "--kubelet-preferred-address-types=InternalIP",
            # Webhooks are called by the address of their pod: the host runs no kube-proxy.
            "--enable-aggregator-routing=true",
        ),
    )  # fmt: skip
    start_controllers(
        programs, folder, certificates,
        options=options,
        flags=(
            f"--node-monitor-grace-period={node_monitor_grace_seconds}s",
            f"--cluster-signing-cert-file={certificates.ca}",
            f"--cluster-signing-key-file={certificates.ca_key}",
        ),
    )  # fmt: skip


def core_users() -> list[User]:
    """The users that every control plane has."""
    return list(_CORE_USERS)


def server_ips_for_nodes() -> tuple[str, ...]:
    """What the API server's certificate of the three-node cluster is good for."""
    return (HUB, _LOOPBACK, KUBERNETES_SERVICE_IP)


def start_api_server(
    programs: Binaries, folder: Path, certificates: Pki,
    *, bind: str, port: int, options: ControlPlaneOptions, flags: tuple[str, ...],
) -> None:  # fmt: skip
    """etcd and the API server; returns when /readyz says ok.

    etcd listens on unix sockets in the folder only, so that no other API server can reach it by accident.
    """
    logs = folder / "log"
    logs.mkdir(exist_ok=True)
    etcd_log, api_log = logs / "etcd.log", logs / "kube-apiserver.log"
    etcd = processes.start(
        [
            programs.path("etcd"), "--data-dir=etcd", "--unsafe-no-fsync",
            "--listen-client-urls=unix://etcd.sock", "--advertise-client-urls=unix://etcd.sock",
            "--listen-peer-urls=unix://peer.sock", "--initial-advertise-peer-urls=unix://peer.sock",
            "--initial-cluster=default=unix://peer.sock",
        ],
        name="etcd", run_folder=folder, log=etcd_log,
    )  # fmt: skip
    audit: list[str] = []
    if options.audit_log:
        (folder / "audit-policy.yaml").write_text(_METADATA_AUDIT_POLICY)
        audit = [f"--audit-policy-file={folder / 'audit-policy.yaml'}", f"--audit-log-path={logs / 'audit.log'}"]
    api_server = processes.start(
        [
            programs.path("kube-apiserver"), f"--etcd-servers=unix://{folder}/etcd.sock",
            f"--bind-address={bind}", f"--secure-port={port}",
            f"--tls-cert-file={certificates.certificate('apiserver')}",
            f"--tls-private-key-file={certificates.key('apiserver')}",
            f"--client-ca-file={certificates.ca}",
            f"--service-account-key-file={certificates.service_account_key}",
            f"--service-account-signing-key-file={certificates.service_account_key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={SERVICE_CIDR}",
            f"--token-auth-file={certificates.tokens}",
            "--allow-privileged=true", "--shutdown-delay-duration=0s",
            *flags, *audit, *options.api_server_args,
        ],
        name="kube-apiserver", run_folder=folder, log=api_log,
    )  # fmt: skip
    trust = ssl.create_default_context(cafile=str(certificates.ca))
    token = certificates.tokens.read_text().split(",", 1)[0]

    def ready() -> bool:
        processes.require_alive(etcd, name="etcd", log=etcd_log)
        processes.require_alive(api_server, name="kube-apiserver", log=api_log)
        request = urllib.request.Request(f"https://{bind}:{port}/readyz", headers={"Authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(request, timeout=5, context=trust) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as not_yet:
            not_yet.close()
            return False

    wait_for(
        ready, what=f"API server ready (log: {api_log})",
        timeout_seconds=_READY_TIMEOUT_SECONDS, retry=(urllib.error.URLError, OSError),
    )  # fmt: skip


def start_controllers(
    programs: Binaries, folder: Path, certificates: Pki, *, options: ControlPlaneOptions, flags: tuple[str, ...]
) -> None:
    """Controller manager and scheduler. They need no waiting for: nothing talks to them."""
    logs = folder / "log"
    processes.start(
        [
            programs.path("kube-controller-manager"), f"--kubeconfig={folder / 'controller-manager.kubeconfig'}",
            f"--service-account-private-key-file={certificates.service_account_key}",
            f"--root-ca-file={certificates.ca}",
            "--use-service-account-credentials=true", "--leader-elect=false", f"--bind-address={_LOOPBACK}",
            "--secure-port=0", *flags, *options.controller_manager_args,
        ],
        name="kube-controller-manager", run_folder=folder, log=logs / "kube-controller-manager.log",
    )  # fmt: skip
    if options.scheduler:
        processes.start(
            [
                programs.path("kube-scheduler"), f"--kubeconfig={folder / 'scheduler.kubeconfig'}",
                "--leader-elect=false", f"--bind-address={_LOOPBACK}", "--secure-port=0",
            ],
            name="kube-scheduler", run_folder=folder, log=logs / "kube-scheduler.log",
        )  # fmt: skip


def stop_control_plane(folder: Path) -> None:
    """End all processes of the folder, in the order that lets each end by itself."""
    clients = {process.name for process in processes.find(folder)} - set(_STOP_LAST)
    for name in (*sorted(clients), *_STOP_LAST):
        processes.stop(folder, name=name)
    processes.stop(folder)


def clear_abandoned() -> None:
    """Remove what killed runs of the light mode left."""
    for folder in run_folder.abandoned_light_folders():
        stop_control_plane(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])
