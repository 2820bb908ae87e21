"""Objects for the operator's I/O tests: small, valid, and changed by keyword."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from steadyfleet_contract import digest
from steadyfleet_contract.report import GPU, Outcome, PassName, PassResult, PromptResult, Repeats, Report, Timing
from steadyfleet_contract.spec import CacheState, LaunchKind, LaunchRequest, ModelSource, ProbeSpec, Synthetic
from steadyfleet_operator.decide.observation import Check
from steadyfleet_operator.kube.podspec import Visit
from steadyfleet_operator.resource import CheckSpec, CheckStatus, Engine, Purpose, Slot, Version
from steadyfleet_operator.settings import Settings

IMAGE = "registry.example/vllm:1"
EPOCH = "0123456789abcdef"
GPU_A = "GPU-00000000-0000-0000-0000-00000000000a"


def node_manifest(name: str, *, gpus: int = 2, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A Node that a scheduler takes: ready at birth, with GPUs."""
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti", "nvidia.com/gpu": str(gpus)}
    now = "2026-01-01T00:00:00Z"
    conditions = [
        {"type": kind, "status": status, "reason": "Test", "message": "", "lastHeartbeatTime": now,
         "lastTransitionTime": now}
        for kind, status in (
            ("Ready", "True"), ("MemoryPressure", "False"), ("DiskPressure", "False"), ("PIDPressure", "False"))
    ]  # fmt: skip
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                # The controller manager adds the beta ones when they are missing.
                **{f"{prefix}kubernetes.io/os": "linux" for prefix in ("", "beta.")},
                **{f"{prefix}kubernetes.io/arch": "amd64" for prefix in ("", "beta.")},
                **(labels or {}),
            },
        },
        "spec": {"providerID": f"test://{name}", **spec},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": conditions,
            "nodeInfo": {
                "kubeletVersion": "v1.37.2", "kubeProxyVersion": "", "osImage": "", "kernelVersion": "6.1",
                "containerRuntimeVersion": "", "machineID": "", "systemUUID": "", "bootID": "boot-1",
                "operatingSystem": "linux", "architecture": "amd64",
            },
        },
    }  # fmt: skip


def check_spec(**changes: Any) -> CheckSpec:
    base = CheckSpec(
        engine=Engine(model=ModelSource(synthetic=Synthetic.TINY)),
        versions=(Version(name="stable", image=IMAGE),),
    )
    return base.model_copy(update=changes)


def check_manifest(name: str, namespace: str, spec: CheckSpec | None = None) -> dict[str, Any]:
    body = (spec or check_spec()).model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    return {
        "apiVersion": "steadyfleet.dev/v1alpha1",
        "kind": "ConsistencyCheck",
        "metadata": {"name": name, "namespace": namespace},
        "spec": body,
    }


def a_check(**changes: Any) -> Check:
    """One that lives in memory alone."""
    base = Check(
        namespace="serving",
        name="qwen",
        uid="11111111-1111-1111-1111-111111111111",
        generation=1,
        resource_version="1",
        spec=check_spec(),
        status=CheckStatus(),
    )
    return replace(base, **changes)


def probe_spec(**changes: Any) -> ProbeSpec:
    base = ProbeSpec(
        check="serving/qwen",
        epoch=EPOCH,
        version="stable",
        image=IMAGE,
        model=ModelSource(synthetic=Synthetic.TINY),
        launches=(
            LaunchRequest(index=0, kind=LaunchKind.PINNED),
            LaunchRequest(index=1, kind=LaunchKind.PINNED),
            LaunchRequest(index=2, kind=LaunchKind.AS_SERVED),
        ),
    )
    return base.model_copy(update=changes)


def a_visit(
    check: Check, node: str, node_uid: str, *, slot: int = 0, attempt: int = 1, gpus: int = 1, **probe: Any
) -> Visit:
    return Visit(
        check=check,
        slot=Slot(
            slot=slot,
            attempt=attempt,
            node=node,
            node_uid=node_uid,
            version="stable",
            purpose=Purpose.SWEEP,
            epoch=EPOCH,
        ),
        image=IMAGE,
        probe=probe_spec(check=f"{check.namespace}/{check.name}", **probe),
        gpus=gpus,
    )


def settings(**changes: Any) -> Settings:
    given: dict[str, Any] = {
        "namespace": "steadyfleet",
        "probe_image": "registry.example/steadyfleet-probe:1",
        "check_namespaces": "serving",
        "report_url": "https://localhost:8443",
    }
    return Settings.model_validate(given | changes)


def prompt_result(seed: int, *, tokens: int = 4, top: int = 2, with_arrays: bool = False) -> PromptResult:
    random = np.random.default_rng(seed)
    arrays = digest.arrays(
        [int(token) for token in random.integers(0, 1000, tokens)],
        [float(value) for value in random.normal(-2, 1, tokens).astype(np.float32)],
        [[(rank, -1.0 - rank) for rank in range(top)] for _ in range(tokens)],
        top=top,
    )
    return digest.prompt_result(arrays, with_arrays=with_arrays)


def pass_result(name: PassName, *, seed: int = 0, prompts: int = 3, **arrays: Any) -> PassResult:
    results = tuple(prompt_result(seed * 100 + index, **arrays) for index in range(prompts))
    return PassResult(
        name=name, digest=digest.pass_digest(result.digest for result in results), prompts=results, seconds=0.5
    )


def a_report(*, seed: int = 0, full: bool = True, **changes: Any) -> Report:
    """One that is consistent in itself; `seed` chooses its bits."""
    short = pass_result(PassName.SHORT_DECODE, seed=seed)
    forced = pass_result(PassName.TEACHER_FORCED, seed=seed + 1)
    decoded = (pass_result(PassName.FULL_DECODE, seed=seed + 2, with_arrays=True),) if full else ()
    base = Report(
        recipe=1,
        epoch=EPOCH,
        launch=0,
        kind=LaunchKind.PINNED,
        cache=CacheState.COLD,
        outcome=Outcome.COMPLETED,
        started_at="2026-01-01T00:00:00Z",
        gpus=(GPU(uuid=GPU_A, product="NVIDIA H100"),),
        digest=digest.launch_digest(short_decode=short.digest, teacher_forced=forced.digest),
        prompt_set_digest="sha256:" + "1" * 64,
        weights_digest="sha256:" + "2" * 64,
        passes=(short, forced, *decoded),
        repeats=Repeats(rounds=5, differing_rounds=0),
        fingerprint={"versions": {"vllm": "0.32.0"}, "gpu": {"driver": "570"}},
        timings=(Timing(step="ready", seconds=20.0),),
    )
    return base.model_copy(update=changes)
