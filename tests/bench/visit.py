"""What Steadyfleet costs, measured on the real cluster with real vLLM on CPU.

    python -m tests.bench.visit [--rounds N]

visit      a probe's container from start to end, for pinned launches whose digest the operator knows, against a pod of
           the same shape in which a bare script starts the same engine and asks it the same requests, in turns
memory     resident memory of the operator's process, at rest
condition  from the acceptance of the convicting report to the node condition, as a watcher of the node sees it
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import threading
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from steadyfleet_operator.resource import CONDITION_TYPE
from steadyfleet_probe import ask
from steadyfleet_probe.measure import SHORT_TOKENS, orders
from steadyfleet_probe.prompts import prompt_set
from tests.cluster import binaries, images
from tests.cluster.cluster import Cluster
from tests.cluster.progress import step
from tests.e2e import models
from tests.e2e.checks import LiveCheck, real, simulated
from tests.e2e.lab import Lab, options
from tests.e2e.platform import NAMESPACE
from tests.e2e.recorder import Recorder

Json = dict[str, Any]

NODE = "gpu-1"
BARE = "bare"
VISIT_TIMEOUT_SECONDS = 600.0

LAUNCHES = 3
"""In a row: the API tells the times of a container in whole seconds, which is 1 % of three launches."""

BARE_SCRIPT = """
import json, os, signal, subprocess, time, urllib.error, urllib.request
work = json.load(open("/bench/work.json"))
base = f"http://127.0.0.1:{work['port']}"
for launch in range(work["launches"]):
    environment = {name: value.replace("LAUNCH", str(launch)) for name, value in work["environment"].items()}
    for value in environment.values():
        if value.startswith("/steadyfleet-work/"):
            os.makedirs(value, exist_ok=True)
    engine = subprocess.Popen(work["command"], env={**os.environ, **environment}, start_new_session=True)
    try:
        while True:
            try:
                with urllib.request.urlopen(base + "/health", timeout=5):
                    break
            except (urllib.error.URLError, ConnectionError):
                assert engine.poll() is None, "the engine ended"
                time.sleep(0.1)
        for request in work["requests"]:
            body = json.dumps(request).encode()
            sent = urllib.request.Request(base + work["path"], body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(sent, timeout=300) as answer:
                answer.read()
        engine.send_signal(signal.SIGINT)
        engine.wait(30)
    finally:
        if engine.poll() is None:
            os.killpg(engine.pid, signal.SIGKILL)
"""


@dataclass(frozen=True)
class Figure:
    what: str
    value: str
    how: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="visits and bare runs, in turns")
    arguments = parser.parse_args()
    with Cluster(options()) as cluster:
        lab = Lab(cluster)
        lab.set_up()
        figures = [
            *visit_against_bare(lab, rounds=arguments.rounds),
            memory_at_rest(lab),
            report_to_condition(lab, rounds=max(5, arguments.rounds)),
        ]
    print("\n| what | measured | how |\n|---|---|---|")
    for figure in figures:
        print(f"| {figure.what} | {figure.value} | {figure.how} |")


def visit_against_bare(lab: Lab, *, rounds: int) -> list[Figure]:
    """The first visit is not counted: its digest is new, and its full decode is not what a healthy fleet pays."""
    models.place_tiny(lab.cluster)
    manifest = real("bench", {
        "engine.model": {"path": models.IN_POD},
        "launches.pinned": LAUNCHES,
        "engine.pod.volumes": [{"name": "models", "hostPath": {"path": "/mnt/node/models"}}],
        "engine.pod.volumeMounts": [{"name": "models", "mountPath": "/mnt/node/models", "readOnly": True}],
    }, nodes=[NODE])  # fmt: skip
    visits: list[float] = []
    bare: list[float] = []
    with lab.check(manifest) as check:
        with step("first visit, not counted"):
            visit_seconds(lab, check)
        work = bare_work(lab, check)
        for number in range(1, rounds + 1):
            with step(f"bare engine {number} of {rounds}"):
                bare.append(bare_seconds(lab, work))
            with step(f"visit {number} of {rounds}"):
                check.sweep_by_hand()
                visits.append(visit_seconds(lab, check))
    ratio = statistics.median(visits) / statistics.median(bare)
    return [
        Figure(
            f"a visit of {LAUNCHES} launches",
            f"{statistics.median(visits):.1f} s",
            f"median of {rounds}, {spread(visits)}",
        ),
        Figure("the bare engine, same requests", f"{statistics.median(bare):.1f} s", f"in turns, {spread(bare)}"),
        Figure("visit over bare engine", f"{ratio:.3f}x", "ratio of the medians; target 1.05x"),
    ]


def visit_seconds(lab: Lab, check: LiveCheck) -> float:
    """Of the engine container of the next probe pod that ends."""
    with Recorder(lab.cluster, check.name) as recorder:
        check.wait_running(timeout_seconds=VISIT_TIMEOUT_SECONDS)
        lab.cluster.wait_for(
            lambda: not check.pods() and not check.slots(), what="the visit ends", timeout_seconds=VISIT_TIMEOUT_SECONDS
        )
    pod = next(reversed(recorder.last_pods().values()))
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    return seconds_between(ended["startedAt"], ended["finishedAt"])


def bare_work(lab: Lab, check: LiveCheck) -> Json:
    """The very command of the probe's engine, from its report, and the requests of a launch whose digest is known."""
    launch = lab.evidence.launches(check.uid)[-1]
    command = json.loads(launch.fingerprint["engine"]["arguments"])
    port = 18000
    prompts = prompt_set("standard-v1", vocabulary=512)
    salted = [ask.decode_request(p, tokens=SHORT_TOKENS, top=0, salt=f"s{i}") for i, p in enumerate(prompts.short)]
    scored = zip(prompts.short, prompts.forced, strict=True)
    requests = [*salted, *(ask.score_request(p, f, top=20, salt="f") for p, f in scored)]
    requests += [salted[index] for order in orders(len(salted)) for index in order]
    work = "/steadyfleet-work"
    folders = {name: f"{work}/LAUNCH/{name.lower()}" for name in (
        "HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
    )}  # fmt: skip
    environment = {entry["name"]: entry["value"] for entry in check.get()["spec"]["engine"]["environment"]}
    return {
        "launches": LAUNCHES,
        "command": [*command, f"--port={port}"],
        "port": port,
        "path": ask.COMPLETIONS_PATH,
        "requests": requests,
        "environment": environment | folders | {
            "USER": "probe", "LOGNAME": "probe", "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1", "TORCHINDUCTOR_FORCE_FILTER_REDUCTION_CONFIGS": "1",
            "VLLM_TRITON_FORCE_FIRST_CONFIG": "1",
        },
    }  # fmt: skip


def bare_seconds(lab: Lab, work: Json) -> float:
    cluster = lab.cluster
    cluster.apply(json.dumps({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": BARE, "namespace": NAMESPACE},
        "data": {"work.json": json.dumps(work), "bare.py": BARE_SCRIPT},
    }))  # fmt: skip
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": BARE, "namespace": NAMESPACE},
        "spec": {
            "restartPolicy": "Never", "nodeName": NODE, "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "containers": [{
                "name": "engine", "image": images.ENGINE_IMAGE, "imagePullPolicy": "Never",
                "command": ["python3", "/bench/bare.py"],
                "resources": {"limits": {"nvidia.com/gpu": 1}, "requests": {"cpu": "100m", "memory": "2Gi"}},
                "volumeMounts": [
                    {"name": "bench", "mountPath": "/bench"},
                    {"name": "work", "mountPath": "/steadyfleet-work"},
                    {"name": "shm", "mountPath": "/dev/shm"},
                    {"name": "models", "mountPath": "/mnt/node/models", "readOnly": True},
                ],
            }],
            "volumes": [
                {"name": "bench", "configMap": {"name": BARE}},
                {"name": "work", "emptyDir": {}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
                {"name": "models", "hostPath": {"path": "/mnt/node/models"}},
            ],
        },
    }  # fmt: skip
    with lab.pod(pod):

        def ended() -> Json | None:
            statuses = cluster.get("pod", BARE, "-n", NAMESPACE)["status"].get("containerStatuses", [])
            return next((status["state"]["terminated"] for status in statuses if "terminated" in status["state"]), None)

        found = cluster.wait_for(ended, what="the bare engine ends", timeout_seconds=VISIT_TIMEOUT_SECONDS)
        if found["exitCode"]:
            log = cluster.kubectl("logs", BARE, "-n", NAMESPACE, "--tail=20").stdout
            raise SystemExit(f"the bare run failed:\n{log}")
    return seconds_between(found["startedAt"], found["finishedAt"])


def memory_at_rest(lab: Lab) -> Figure:
    pod = lab.operator.pod()["metadata"]["name"]
    text = lab.cluster.kubectl("exec", pod, "-n", NAMESPACE, "--", "cat", "/proc/1/status").stdout
    kibibytes = int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1])
    return Figure("operator memory at rest", f"{kibibytes / 1024:.0f} MiB", "VmRSS, three nodes, after the visits")


def report_to_condition(lab: Lab, *, rounds: int) -> Figure:
    """Marks and clears one node again and again, with the simulated engine."""
    delays: list[float] = []
    faulty = {"seed": 1, "divergentNodes": [NODE], "launchMilliseconds": 100}
    manifest = simulated("bench-mark", {"engine.simulation": faulty | {"divergentNodes": []}, "action.mode": "Mark"})
    with lab.check(manifest) as check, NodeWatch(lab.cluster, NODE) as watch:
        check.wait_verdicts(dict.fromkeys(("gpu-1", "gpu-2", "gpu-3"), "Consistent"))
        for number in range(1, rounds + 1):
            with step(f"mark and clear {number} of {rounds}"):
                for nodes, status in (([NODE], "True"), ([], "False")):
                    watch.forget()
                    check.patch({"engine": {"simulation": faulty | {"divergentNodes": nodes}}})
                    check.sweep_by_hand()
                    at = watch.wait(status)
                    newest = max(
                        launch.received_at for launch in lab.evidence.launches(check.uid) if launch.received_at < at
                    )
                    delays.append((at - newest).total_seconds())
    delays.sort()
    worst = delays[-1]
    return Figure(
        "report accepted to node condition",
        f"{statistics.median(delays) * 1000:.0f} ms",
        f"median of {len(delays)} marks and clears, at most {worst * 1000:.0f} ms",
    )


class NodeWatch:
    """When our condition of one node changed, by the clock of whoever watches it."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self._cluster = cluster
        self._node = node
        self._seen: dict[str, datetime] = {}
        self._changed = threading.Condition()

    def __enter__(self) -> NodeWatch:
        kubectl = binaries.build(binaries.CONTROL_PLANE_MODULES).path("kubectl")
        path = f"{{.status.conditions[?(@.type=='{CONDITION_TYPE}')].status}}{{'\\n'}}"
        command = [str(kubectl), f"--kubeconfig={self._cluster.kubeconfig}", "get", "node", self._node, "--watch"]
        command += ["-o", f"jsonpath={path}"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)
        self._reader.join(10)

    def forget(self) -> None:
        with self._changed:
            self._seen.clear()

    def wait(self, status: str, *, timeout_seconds: float = 120) -> datetime:
        with self._changed:
            if not self._changed.wait_for(lambda: status in self._seen, timeout_seconds):
                raise SystemExit(f"node {self._node}: the condition did not become {status}")
            return self._seen[status]

    def _read(self) -> None:
        assert self._process.stdout is not None
        last = ""
        for line in self._process.stdout:
            status = line.strip()
            if status and status != last:
                with self._changed:
                    self._seen.setdefault(status, datetime.now(timezone.utc))
                    self._changed.notify_all()
            last = status


def seconds_between(started: str, ended: str) -> float:
    """The API's times are whole seconds: a visit of half a minute is known to about 3 %."""
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds()


def spread(seconds: list[float]) -> str:
    return f"{min(seconds):.1f} to {max(seconds):.1f} s"


if __name__ == "__main__":
    main()
