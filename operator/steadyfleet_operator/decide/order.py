"""From a check's spec to what its probe pods are asked, and to the epoch of each version."""

from __future__ import annotations

from steadyfleet_contract.spec import LaunchKind, LaunchRequest, ProbeSpec, epoch
from steadyfleet_operator.decide.observation import Check
from steadyfleet_operator.resource import Purpose, Version


def probe_spec(check: Check, version: Version, *, purpose: Purpose, gpu: str = "") -> ProbeSpec:
    """A confirming or control visit makes one pinned launch: it is the fresh process that counts, not the number."""
    engine = check.spec.engine
    pinned, as_served = check.spec.launches.pinned, check.spec.launches.as_served
    if purpose is not Purpose.SWEEP:
        pinned, as_served = 1, 0
    kinds = [LaunchKind.PINNED] * pinned + [LaunchKind.AS_SERVED] * as_served
    draft = ProbeSpec(
        check=f"{check.namespace}/{check.name}",
        epoch="",
        version=version.name,
        image=version.image,
        engine=engine.kind,
        model=engine.model,
        arguments=engine.arguments + version.arguments,
        environment=engine.environment + version.environment,
        python=engine.python,
        gpus_per_probe=engine.gpus_per_probe,
        wanted_gpu=gpu,
        prompt_set=check.spec.prompts.set,
        max_tokens=check.spec.prompts.max_tokens,
        top_logprobs=check.spec.prompts.top_logprobs,
        launches=tuple(LaunchRequest(index=index, kind=kind) for index, kind in enumerate(kinds)),
        launch_deadline_seconds=check.spec.schedule.launch_deadline_seconds,
        simulation=engine.simulation,
    )
    return draft.model_copy(update={"epoch": epoch(draft)})


def epochs(check: Check) -> dict[str, str]:
    """Version name -> epoch."""
    return {v.name: probe_spec(check, v, purpose=Purpose.SWEEP).epoch for v in check.spec.versions}
