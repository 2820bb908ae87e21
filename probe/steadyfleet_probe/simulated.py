"""A launch without vLLM: the same passes, digests and report, from hashes, with faults by configuration.

For tests, for scale, and for people who want to see their alerts fire. The right answers depend on the prompt alone.
Another variant, a divergent GPU or wrong weights shift logprobs by single quanta of a bfloat16 grid, as a real change
of rounding does; every launch with the same reason to differ answers with the same bits. Restart variants show in
as-served launches only: a pinned one is what they are pinned against.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

import numpy as np

from steadyfleet_contract.digest import Arrays, arrays
from steadyfleet_contract.report import Outcome, Report
from steadyfleet_contract.spec import LaunchKind, LaunchRequest, SimulationSpec
from steadyfleet_probe import gpu, surroundings
from steadyfleet_probe.deadline import Deadline
from steadyfleet_probe.draft import Draft
from steadyfleet_probe.errors import LaunchFailed
from steadyfleet_probe.measure import measure
from steadyfleet_probe.prompts import Ids, prompt_set
from steadyfleet_probe.settings import Settings

_VOCABULARY = 32768
_QUANTUM = 1 / 16


def run_simulated_launch(
    settings: Settings, request: LaunchRequest, *, digest_is_known: Callable[[str], bool]
) -> Report:
    """Never raises for anything that goes wrong with the launch."""
    draft = Draft.begin(settings.spec, request)
    deadline = Deadline.after(settings.spec.launch_deadline_seconds)
    try:
        with draft.timed("total"):
            _launch(settings, draft, deadline, digest_is_known)
    except Exception as error:  # noqa: BLE001  the border, as of a real launch
        draft.fail_with(error)
    return draft.report()


class SimulatedEngine:
    """Answers from hashes. `shift` names the reason to differ; empty: the right answers."""

    def __init__(self, *, seed: int, shift: str) -> None:
        self._seed = seed
        self._shift = shift

    def decode(self, prompt: Ids, *, tokens: int, top: int) -> Arrays:
        ids = self._draw("tokens", prompt, tokens) % _VOCABULARY
        return self._answer(prompt, [int(token) for token in ids], top)

    def score(self, prompt: Ids, forced: Ids, *, top: int) -> Arrays:
        return self._answer(prompt, forced, top)

    def _answer(self, prompt: Ids, tokens: Ids | list[int], top: int) -> Arrays:
        context = (*prompt, *tokens)
        best = -(self._draw("logprobs", context, len(tokens)) % 48) * _QUANTUM
        if self._shift:
            best -= self._draw(f"shift/{self._shift}", context, len(tokens)) % 3 * _QUANTUM
        rows = [
            [((token + step) % _VOCABULARY, float(logprob) - step * _QUANTUM) for step in range(top)]
            for token, logprob in zip(tokens, best, strict=True)
        ]
        return arrays(tokens, [float(logprob) for logprob in best], rows, top=top)

    def _draw(self, label: str, ids: Ids, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        key = _hash(self._seed, label, *ids).digest()
        drawn = np.random.Philox(key=int.from_bytes(key[:16], "little")).random_raw(count)
        return (drawn >> 33).astype(np.int64)


def _launch(
    settings: Settings, draft: Draft, deadline: Deadline, digest_is_known: Callable[[str], bool]
) -> None:
    simulation = settings.spec.simulation or SimulationSpec()
    node = settings.node_name
    gpus = gpu.choose(
        gpu.look(settings.environment), count=settings.spec.gpus_per_probe, wanted=settings.spec.wanted_gpu
    )
    draft.gpus = gpus.found
    draft.fingerprint = {
        "versions": {"steadyfleet-simulated": str(settings.spec.recipe)},
        "gpu": gpu.describe(gpus),
        "host": surroundings.host(),
        "weights": {},
        "plan": {"kernels": "none: simulated", "pin": "holds"},
    }
    wrong_weights = node in simulation.wrong_weights_nodes
    weights = _hash(simulation.seed, settings.spec.model.model_dump_json(), "wrong" if wrong_weights else "right")
    draft.weights_digest = f"sha256:{weights.hexdigest()}"
    if node in simulation.hang_nodes:
        with draft.timed("engineStart"):
            time.sleep(deadline.remaining_seconds)
        raise LaunchFailed(Outcome.ENGINE_NOT_READY, "the simulated engine hangs on this node")
    with draft.timed("engineStart"):
        time.sleep(min(simulation.launch_milliseconds / 1000, deadline.remaining_seconds))
    if node in simulation.crash_nodes:
        raise LaunchFailed(Outcome.ENGINE_EXITED, "the simulated engine exits on this node: RuntimeError: simulated")
    prompts = prompt_set(settings.spec.prompt_set, vocabulary=_VOCABULARY)
    draft.prompt_set_digest = prompts.digest
    draft.measured = measure(
        SimulatedEngine(seed=simulation.seed, shift=_shift(simulation, settings, draft)),
        prompts,
        max_tokens=settings.spec.max_tokens,
        top_logprobs=settings.spec.top_logprobs,
        digest_is_known=digest_is_known,
    )
    draft.timings |= draft.measured.seconds


def _shift(simulation: SimulationSpec, settings: Settings, draft: Draft) -> str:
    """Why this launch answers with other bits than variant 0. Chances are drawn from the pod and the launch."""
    reasons = []
    uuids = {gpu.uuid for gpu in draft.gpus}
    faulty = settings.node_name in simulation.divergent_nodes or uuids & set(simulation.divergent_gpus)
    if faulty and _chance(simulation, settings, draft, "divergent") < simulation.divergent_per_mille:
        reasons.append(f"fault of {settings.node_name} {sorted(uuids)}")
    if settings.node_name in simulation.wrong_weights_nodes:
        reasons.append("wrong weights")
    if (
        draft.kind is LaunchKind.AS_SERVED
        and simulation.variants > 1
        and _chance(simulation, settings, draft, "variant") < simulation.variant_per_mille
    ):
        other = 1 + _chance(simulation, settings, draft, "which") % (simulation.variants - 1)
        reasons.append(f"variant {other}")
    return ", ".join(reasons)


def _chance(simulation: SimulationSpec, settings: Settings, draft: Draft, label: str) -> int:
    """Uniform in 0..999."""
    digest = _hash(simulation.seed, label, settings.pod_uid, draft.request.index).digest()
    return int.from_bytes(digest[:8], "little") % 1000


def _hash(*parts: object) -> hashlib._Hash:
    return hashlib.sha256("/".join(map(str, parts)).encode())
