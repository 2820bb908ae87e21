"""The batched pass of the ladder: all prompts of the full decode at once, twice, in the same process.

It stays out of the report: what a batch answers depends on which requests meet in which step of the scheduler, so it is
no property of a launch that others could be compared with.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from steadyfleet_contract.digest import Arrays, pass_digest, prompt_digest, prompt_result, unpack
from steadyfleet_contract.report import PassName, PassResult, PromptResult, Report, Sha256
from steadyfleet_contract.spec import ContractModel, LaunchKind, ProbeSpec
from steadyfleet_probe.measure import Engine
from steadyfleet_probe.prompts import Ids, PromptSet

BATCHED = "batched"
"""Its step in the timings."""

_ROUNDS = 2


class BatchedFinding(ContractModel):
    launch: int
    asked: LaunchKind
    digest: Sha256
    """Of the answers of the first round."""
    prompts: int
    changed: tuple[int, ...]
    """Prompts that answered otherwise than alone."""
    tokens_changed: tuple[int, ...]
    changed_again: tuple[int, ...]
    """Prompts that answered otherwise when all were asked at once a second time."""


class BatchedPass:
    """Asks when called; keeps the answers of every round."""

    def __init__(self, spec: ProbeSpec) -> None:
        self._tokens, self._top = spec.max_tokens, spec.top_logprobs
        self.rounds: list[list[Arrays]] = []

    def __call__(self, engine: Engine, prompts: PromptSet) -> None:
        """Raises whatever the engine raises."""
        self.rounds = [self._all_at_once(engine, prompts.full) for _ in range(_ROUNDS)]

    def _all_at_once(self, engine: Engine, prompts: Sequence[Ids]) -> list[Arrays]:
        together = threading.Barrier(len(prompts))

        def ask(prompt: Ids) -> Arrays:
            together.wait()
            return engine.decode(prompt, tokens=self._tokens, top=self._top)

        with ThreadPoolExecutor(max_workers=len(prompts), thread_name_prefix="batched") as pool:
            return list(pool.map(ask, prompts))


def as_report(report: Report, batched: Sequence[Arrays]) -> Report:
    """The report with the batched answers in the place of the full decode, for a comparison of the two."""
    found = PassResult(
        name=PassName.FULL_DECODE,
        digest=pass_digest(prompt_digest(result) for result in batched),
        prompts=tuple(prompt_result(result, with_arrays=True) for result in batched),
        seconds=0,
    )
    kept = tuple(part for part in report.passes if part.name is not PassName.FULL_DECODE)
    message = "the full decode of this report was asked all at once, not one prompt after the other"
    return report.model_copy(update={"passes": (*kept, found), "message": message})


def batched_finding(report: Report, asked: LaunchKind, rounds: Sequence[Sequence[Arrays]]) -> BatchedFinding:
    """The first round against the full decode, one prompt after the other; the second against the first."""
    alone = next(part for part in report.passes if part.name is PassName.FULL_DECODE).prompts
    first, second = rounds
    digests = [prompt_digest(result) for result in first]
    changed = [index for index, prompt in enumerate(alone) if prompt.digest != digests[index]]
    return BatchedFinding(
        launch=report.launch,
        asked=asked,
        digest=pass_digest(digests),
        prompts=len(alone),
        changed=tuple(changed),
        tokens_changed=tuple(index for index in changed if _tokens(alone[index]) != first[index].tokens.tolist()),
        changed_again=tuple(
            index for index, result in enumerate(second) if prompt_digest(result) != digests[index]
        ),
    )


def _tokens(prompt: PromptResult) -> list[int]:
    found = unpack(prompt)
    return [] if found is None else [int(token) for token in found.tokens]
