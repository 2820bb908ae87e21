"""What `steadyfleet compare` costs for 32 prompts x 128 tokens x top-20, beside reading the files.

    python -m tests.bench.compare [--rounds N]

Fails if the median of one comparison takes longer than the limit, or if two launches that differ look alike.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import numpy as np

from steadyfleet_contract.compare import compare
from steadyfleet_contract.launches import Chooser, ChooserState, Kind, Launch, Outputs, Pass, canonical
from steadyfleet_contract.plans import PlanState, UsedPlan

PROMPTS, TOKENS, TOP = 32, 128, 20
LIMIT_MILLISECONDS = 20.0
VOCABULARY = 150_000


def outputs(seed: int, *, noise: float) -> Outputs:
    """Logits on a grid of 1/16, as bfloat16 makes them; the same seed gives the same logits before the noise."""
    count = PROMPTS * TOKENS
    grid = np.random.default_rng(seed)
    ids = grid.integers(0, VOCABULARY, size=(count, TOP), dtype=np.uint32)
    logits = np.sort(np.round(grid.normal(8.0, 1.5, size=(count, TOP)) * 16) / 16, axis=1)[:, ::-1]
    moved = np.random.default_rng(seed + 1).normal(0.0, noise, size=logits.shape)
    logits = np.round((logits + moved) * 16) / 16
    logprobs = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)) - 1.0).astype(np.float32)
    top_ids, top_logprobs = canonical(ids, logprobs)
    return Outputs(
        tokens=top_ids[:, 0].copy(),
        logprobs=top_logprobs[:, 0].copy(),
        top_ids=top_ids,
        top_logprobs=top_logprobs,
        lengths=(TOKENS,) * PROMPTS,
    )


def launch(name: str, *, noise: float) -> Launch:
    decode, forced = outputs(1, noise=noise), outputs(2, noise=noise)
    forced = Outputs(
        tokens=np.zeros_like(forced.tokens),
        logprobs=forced.logprobs,
        top_ids=forced.top_ids,
        top_logprobs=forced.top_logprobs,
        lengths=forced.lengths,
    )
    return Launch(
        file=name,
        format="bench",
        name=name,
        prompt_set="bench",
        passes={
            "FullDecode": Pass("FullDecode", Kind.DECODE, decode),
            "TeacherForced": Pass("TeacherForced", Kind.FORCED, forced),
        },
        plan=UsedPlan(PlanState.NONE, "none in a benchmark"),
        choosers=(Chooser("Inductor kernels", ChooserState.ABSENT, ""),),
        weights="bench",
        facts={"versions.bench": "1"},
    )


def milliseconds(a: Launch, b: Launch, *, rounds: int) -> list[float]:
    """Each round on fresh copies: nothing that a comparison keeps may help the next one."""
    found = []
    for _ in range(rounds):
        mine, theirs = _fresh(a), _fresh(b)
        started = time.perf_counter()
        compare(mine, theirs)
        found.append((time.perf_counter() - started) * 1000)
    return found


def _fresh(found: Launch) -> Launch:
    passes = {}
    for name, entry in found.passes.items():
        assert entry.outputs is not None
        numbers = entry.outputs
        copy = Outputs(numbers.tokens, numbers.logprobs, numbers.top_ids, numbers.top_logprobs, numbers.lengths)
        passes[name] = Pass(entry.name, entry.kind, copy)
    return Launch(**{**found.__dict__, "passes": passes})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    rounds = parser.parse_args().rounds
    a, drifted = launch("a", noise=0.0), launch("b", noise=0.02)
    assert not compare(a, drifted).identical
    slowest = 0.0
    print(f"{PROMPTS} prompts x {TOKENS} tokens x top-{TOP}, decode and teacher-forced, {rounds} rounds")
    for what, other in (("equal", a), ("drifted", drifted)):
        times = milliseconds(a, other, rounds=rounds)
        median = statistics.median(times)
        slowest = max(slowest, median)
        print(f"  {what:8} median {median:5.1f} ms   best {min(times):5.1f}   worst {max(times):5.1f}")
    if slowest > LIMIT_MILLISECONDS:
        sys.exit(f"over the limit of {LIMIT_MILLISECONDS} ms")


if __name__ == "__main__":
    main()
