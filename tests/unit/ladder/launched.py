"""Launches of a ladder by hand, for what the engine is not needed."""

import json

from steadyfleet_contract.digest import Arrays, arrays, launch_digest, pass_digest, prompt_digest, prompt_result
from steadyfleet_contract.report import Outcome, PassName, PassResult, Repeats, Report, Timing
from steadyfleet_contract.spec import CacheState, LaunchKind, LaunchRequest
from steadyfleet_probe.ladder import Launched

PROMPTS = 3


def launched(
    index: int,
    bits: int = 0,
    *,
    kind: str = "AsServed",
    filled_by: int | None = None,
    block: int | None = 64,
    decode_bits: int | None = None,
    turned_out: str = "",
    outcome: Outcome = Outcome.COMPLETED,
    plan: dict[str, str] | None = None,
) -> Launched:
    """`bits` name what the passes answer, `block` the choice for the one reduction; None: nothing compiled."""
    cache = CacheState.COLD if filled_by is None else CacheState.WARM
    request = LaunchRequest(index=index, kind=LaunchKind(kind), cache=cache)
    decoded = bits if decode_bits is None else decode_bits
    passes = (
        a_pass(PassName.SHORT_DECODE, decoded),
        a_pass(PassName.TEACHER_FORCED, bits),
        a_pass(PassName.FULL_DECODE, decoded),
    )
    complete = outcome is Outcome.COMPLETED
    report = Report(
        recipe=1,
        epoch="0" * 16,
        launch=index,
        kind=LaunchKind(turned_out or kind),
        cache=cache,
        outcome=outcome,
        message="" if complete and not turned_out else "the reason",
        started_at="2026-01-01T00:00:00+00:00",
        digest=launch_digest(short_decode=passes[0].digest, teacher_forced=passes[1].digest) if complete else None,
        passes=passes if complete else (),
        repeats=Repeats(rounds=5, differing_rounds=0) if complete else None,
        fingerprint={"plan": {"digest": f"plan {block}", **(a_plan(block) if plan is None else plan)}},
        timings=(Timing(step="engineStart", seconds=30), Timing(step="shortDecode", seconds=1),
                 Timing(step="total", seconds=32)),
    )  # fmt: skip
    return Launched(request, report, filled_by, None)


def a_plan(block: int | None) -> dict[str, str]:
    if block is None:
        return {"kernels": "none: the launch compiled no Triton kernel (eager, or a CPU build)"}
    chosen = json.dumps({"R0_BLOCK": block, "XBLOCK": 64, "num_warps": 16, "triton_cache_hash": f"H{block}"})
    return {
        "inductor/cred.py": f"triton_red_fused_1 reduction no flags {chosen}",
        "inductor/cpoi.py": f'triton_poi_fused_2 pointwise no flags {{"XBLOCK": {block * 8}}}',
    }


def a_pass(name: PassName, bits: int) -> PassResult:
    """Bits 0 to 9 differ in logprobs alone, from 10 on in tokens as well."""
    results = [an_answer(prompt, bits) for prompt in range(PROMPTS)]
    return PassResult(
        name=name,
        digest=pass_digest(map(prompt_digest, results)),
        prompts=tuple(prompt_result(result, with_arrays=True) for result in results),
        seconds=1,
    )


def an_answer(prompt: int, bits: int) -> Arrays:
    token = 100 + prompt + bits // 10
    return arrays([token], [-1.0 - bits / 16], [[(token, -1.0 - bits / 16)]], top=1)
