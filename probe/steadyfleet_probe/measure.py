"""The passes over the prompts of one ready engine, and the digests over them.

One request is in flight at a time: in a batch the other requests would change the answer. The order is

    short decode, teacher-forced   -> launch digest: separates everything that differs
    repeats                        the short decode again, in other orders: does the engine agree with itself?
    full decode                    only if the operator does not know the digest: sizes are computed from it

Prompt sets, engines and the question to the operator are arguments; this module has no I/O of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from steadyfleet_contract.digest import Arrays, launch_digest, pass_digest, prompt_digest, prompt_result
from steadyfleet_contract.report import PassName, PassResult, Repeats
from steadyfleet_probe.prompts import Ids, PromptSet

SHORT_TOKENS = 16
ROUNDS = 5
"""Repeats: seconds each, and the only sign of a fault that comes and goes inside one process."""


class Engine(Protocol):
    """A ready engine, real or simulated."""

    def decode(self, prompt: Ids, *, tokens: int, top: int) -> Arrays: ...

    def score(self, prompt: Ids, forced: Ids, *, top: int) -> Arrays: ...


@dataclass
class Measured:
    digest: str
    passes: list[PassResult]
    repeats: Repeats
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall-clock seconds of each step, in order."""


@dataclass
class _Pass:
    name: PassName
    results: list[Arrays]
    seconds: float
    digests: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.digests = [prompt_digest(result) for result in self.results]

    @property
    def digest(self) -> str:
        return pass_digest(self.digests)

    def reported(self, *, with_arrays: bool) -> PassResult:
        prompts = tuple(prompt_result(result, with_arrays=with_arrays) for result in self.results)
        return PassResult(name=self.name, digest=self.digest, prompts=prompts, seconds=self.seconds)


def measure(
    engine: Engine,
    prompts: PromptSet,
    *,
    max_tokens: int,
    top_logprobs: int,
    digest_is_known: Callable[[str], bool],
) -> Measured:
    """Raises whatever the engine raises."""
    short = _run(
        PassName.SHORT_DECODE, (engine.decode(prompt, tokens=SHORT_TOKENS, top=0) for prompt in prompts.short)
    )
    scored = zip(prompts.short, prompts.forced, strict=True)
    forced = _run(
        PassName.TEACHER_FORCED, (engine.score(prompt, ids, top=top_logprobs) for prompt, ids in scored)
    )
    digest = launch_digest(short_decode=short.digest, teacher_forced=forced.digest)
    started = time.monotonic()
    repeats = _repeat(engine, prompts.short, short.digests)
    seconds = {
        "shortDecode": short.seconds,
        "teacherForced": forced.seconds,
        "repeats": time.monotonic() - started,
    }
    started = time.monotonic()
    known = digest_is_known(digest)
    seconds["digestQuery"] = time.monotonic() - started
    passes = [short.reported(with_arrays=not known), forced.reported(with_arrays=not known)]
    if not known:
        full = _run(
            PassName.FULL_DECODE,
            (engine.decode(prompt, tokens=max_tokens, top=top_logprobs) for prompt in prompts.full),
        )
        seconds["fullDecode"] = full.seconds
        passes.append(full.reported(with_arrays=True))
    return Measured(digest=digest, passes=passes, repeats=repeats, seconds=seconds)


def _run(name: PassName, answers: Iterable[Arrays]) -> _Pass:
    started = time.monotonic()
    results = list(answers)
    return _Pass(name=name, results=results, seconds=time.monotonic() - started)


def _repeat(engine: Engine, prompts: Sequence[Ids], expected: Sequence[str]) -> Repeats:
    differing_rounds = 0
    differing_prompts: set[int] = set()
    for order in orders(len(prompts)):
        found = {
            index: prompt_digest(engine.decode(prompts[index], tokens=SHORT_TOKENS, top=0)) for index in order
        }
        differing = {index for index, digest in found.items() if digest != expected[index]}
        differing_rounds += bool(differing)
        differing_prompts |= differing
    return Repeats(
        rounds=ROUNDS, differing_rounds=differing_rounds, differing_prompts=tuple(sorted(differing_prompts))
    )


def orders(count: int) -> Iterable[list[int]]:
    """As many orders as there are rounds: backwards first, then the odd ones before the even ones, turned about."""
    forwards = list(range(count))
    mixed = forwards[1::2] + forwards[0::2]
    for number in range(ROUNDS):
        turn = number * count // ROUNDS
        yield forwards[::-1] if number == 0 else mixed[turn:] + mixed[:turn]
