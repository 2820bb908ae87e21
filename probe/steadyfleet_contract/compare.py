"""Compares two launches: used settings and plan, then bits, then sizes; how much, why, whom that blames, or that two
launches can't tell. Pure: what is compared was read by `readlaunch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict

from steadyfleet_contract import causes, levels, plans, settings
from steadyfleet_contract.comparison import (
    Candidate,
    ChooserPair,
    Comparison,
    DecodeComparison,
    DeltaSizes,
    FirstDivergence,
    ForcedComparison,
    PassBits,
    PlanKernel,
    SettingDifference,
    Side,
)
from steadyfleet_contract.errors import NotComparable
from steadyfleet_contract.launches import Kind, Launch, Outputs, Pass
from steadyfleet_contract.levels import Measured, Thresholds
from steadyfleet_contract.quantum import quantum
from steadyfleet_contract.settings import KeyDifference
from steadyfleet_contract.sizes import (
    DecodeSizes,
    Deltas,
    Divergence,
    ForcedSizes,
    decode_sizes,
    differing,
    forced_sizes,
)

DEFAULTS = Thresholds()

PROMPT_PASS = "Prompt"  # noqa: S105  the name of a pass
"""Logprobs of the prompts' own tokens: far from the top they scatter more, so they count by bits and finiteness."""

BATCHED_PASS = "Batched"  # noqa: S105  the name of a pass


def compare(
    a: Launch, b: Launch, *, thresholds: Thresholds = DEFAULTS, expected_weights: str = ""
) -> Comparison:
    """`expected_weights` is the digest that both should have read, if it is known. Raises NotComparable."""
    names = _common(a, b)
    bits = tuple(_pass_bits(a.passes[name], b.passes[name]) for name in names)
    numbers = {name: pair for name in names if (pair := _outputs(a, b, name)) is not None}
    sizes = _Sizes(numbers)
    step = _quantum(numbers.values())
    measured = Measured(
        bits_equal=not any(found.differing_prompts for found in bits),
        tokens_equal=not any(found.differing_tokens for found in bits),
        quantum=step or thresholds.assumed_quantum,
        decodes=tuple(sizes.decodes.values()),
        forced=sizes.forced.get("TeacherForced"),
        a_non_finite=a.non_finite,
        b_non_finite=b.non_finite,
    )
    level = levels.judge(measured, thresholds)
    settings_differing = settings.differing(a.facts, b.facts)
    plan = plans.difference(a.plan, b.plan)
    judgement = causes.judge(
        causes.Found(
            a=a,
            b=b,
            level=level.level,
            bits_equal=measured.bits_equal,
            settings=settings_differing,
            plan=plan,
            a_not_greedy=sum(found.a_not_greedy for found in measured.decodes),
            b_not_greedy=sum(found.b_not_greedy for found in measured.decodes),
            expected_weights=expected_weights,
        )
    )
    divergences = tuple(_divergences(a, sizes.decodes))
    return Comparison(
        a=_side(a),
        b=_side(b),
        identical=measured.bits_equal,
        sound=not (a.non_finite or b.non_finite),
        level=level.level,
        level_reasons=level.reasons,
        cause=judgement.cause,
        certainty=judgement.certainty,
        cannot_tell=judgement.certainty is causes.Certainty.CANNOT_TELL,
        blames=judgement.blames,
        suspect=judgement.suspect,
        summary=judgement.summary,
        explanation=judgement.explanation,
        next_step=judgement.next_step,
        bits=bits,
        quantum=step,
        first_divergence=min(
            divergences,
            key=lambda found: (found.margin_quanta is None, found.position, found.prompt),
            default=None,
        ),
        divergences=divergences,
        decodes=tuple(_decode(name, found) for name, found in sizes.decodes.items()),
        forced=tuple(_forced(name, found) for name, found in sizes.forced.items()),
        settings={kind: _settings(keys) for kind, keys in settings_differing.by_kind.items()},
        circumstances=_settings(_differing_texts(a.circumstances, b.circumstances)),
        plan=tuple(PlanKernel(**asdict(kernel)) for kernel in plan.kernels),
        choosers=tuple(_choosers(a, b)),
        notes=tuple(_notes(a, b, bits)),
    )


class _Sizes:
    """Sizes of every pass whose numbers both launches have."""

    def __init__(self, numbers: Mapping[str, tuple[Kind, Outputs, Outputs]]) -> None:
        self.decodes = {
            name: decode_sizes(mine, theirs) for name, (kind, mine, theirs) in numbers.items() if kind is Kind.DECODE
        }
        self.forced = {
            name: forced_sizes(mine, theirs) for name, (kind, mine, theirs) in numbers.items() if kind is Kind.FORCED
        }


def _common(a: Launch, b: Launch) -> list[str]:
    """Names of the passes that both have. Raises NotComparable."""
    if not a.prompt_set or not b.prompt_set:
        file = a.file if not a.prompt_set else b.file
        raise NotComparable(f"{file}: it does not say which prompts it answered (promptSetDigest)")
    if a.prompt_set != b.prompt_set:
        raise NotComparable(
            f"{a.file} and {b.file} answered other prompts ({a.prompt_set[-12:]}, {b.prompt_set[-12:]}):"
            " compare launches of one prompt set"
        )
    names = [name for name in a.passes if name in b.passes]
    if not names:
        raise NotComparable(f"{a.file} and {b.file} have no pass in common")
    for name in names:
        _check_shapes(a, b, name)
    return names


def _check_shapes(a: Launch, b: Launch, name: str) -> None:
    mine, theirs = a.passes[name], b.passes[name]
    if mine.outputs is None or theirs.outputs is None:
        if len(mine.digests) != len(theirs.digests) or not mine.digests:
            raise NotComparable(f"{name}: one file has only digests, and not of the same number of prompts")
        return
    if len(mine.outputs.lengths) != len(theirs.outputs.lengths):
        raise NotComparable(
            f"{name}: {len(mine.outputs.lengths)} prompts in {a.file}, {len(theirs.outputs.lengths)} in {b.file}"
        )
    for index, (one, other) in enumerate(zip(mine.outputs.lengths, theirs.outputs.lengths, strict=True)):
        if one != other:
            raise NotComparable(
                f"{name}, prompt {index}: {one} tokens in {a.file}, {other} in {b.file}; ask for one length"
            )
    if mine.outputs.top != theirs.outputs.top:
        raise NotComparable(
            f"{name}: top-{mine.outputs.top} in {a.file}, top-{theirs.outputs.top} in {b.file}; ask for one number of"
            " logprobs"
        )
    if mine.kind is Kind.FORCED and (mine.outputs.tokens != theirs.outputs.tokens).any():
        raise NotComparable(f"{name}: other tokens were forced in {a.file} than in {b.file}")


def _outputs(a: Launch, b: Launch, name: str) -> tuple[Kind, Outputs, Outputs] | None:
    mine, theirs = a.passes[name], b.passes[name]
    if mine.outputs is None or theirs.outputs is None:
        return None
    return mine.kind, mine.outputs, theirs.outputs


def _pass_bits(mine: Pass, theirs: Pass) -> PassBits:
    if mine.outputs is None or theirs.outputs is None:
        return PassBits(
            name=mine.name,
            prompts=len(mine.digests),
            differing_prompts=tuple(
                index
                for index, pair in enumerate(zip(mine.digests, theirs.digests, strict=True))
                if pair[0] != pair[1]
            ),
            positions=None,
            differing_tokens=None,
            differing_positions=None,
        )
    tokens, other_bits = differing(mine.outputs, theirs.outputs)
    either = tokens | other_bits
    return PassBits(
        name=mine.name,
        prompts=len(mine.outputs.lengths),
        differing_prompts=tuple(sorted({int(index) for index in mine.outputs.prompt[either]})),
        positions=len(either),
        differing_tokens=int(tokens.sum()),
        differing_positions=int(either.sum()),
    )


def _quantum(pairs: Iterable[tuple[Kind, Outputs, Outputs]]) -> float | None:
    """The finer of both launches' steps: with it no margin looks smaller than it is."""
    found = [
        step
        for _, mine, theirs in pairs
        if mine.top
        for step in (quantum(mine.top_logprobs), quantum(theirs.top_logprobs))
        if step is not None
    ]
    return min(found, default=None)


def _side(launch: Launch) -> Side:
    return Side(
        file=launch.file,
        format=launch.format,
        name=launch.name,
        node=launch.node,
        gpu=launch.gpu,
        product=launch.product,
        weights=launch.weights,
        plan=launch.plan.state.value,
        plan_detail=launch.plan.detail,
        non_finite=launch.non_finite,
        differs_from_itself=launch.self_differing,
    )


def _divergences(a: Launch, decodes: Mapping[str, DecodeSizes]) -> Iterator[FirstDivergence]:
    for name, sizes in decodes.items():
        for found in sizes.divergences:
            prompt = a.prompt_names[found.prompt] if found.prompt < len(a.prompt_names) else str(found.prompt)
            yield _divergence(name, prompt, found)


def _divergence(name: str, prompt: str, found: Divergence) -> FirstDivergence:
    return FirstDivergence(
        pass_name=name,
        prompt=found.prompt,
        prompt_name=prompt,
        position=found.position,
        chosen_by_a=Candidate(token=found.a_token, logprob_a=found.a_of_a, logprob_b=found.b_of_a),
        chosen_by_b=Candidate(token=found.b_token, logprob_a=found.a_of_b, logprob_b=found.b_of_b),
        quantum=found.quantum,
        margin_quanta=_in_quanta(found),
        margin_is_lower_bound=found.missing,
    )


def _in_quanta(found: Divergence) -> float | None:
    if found.margin is None:
        return None
    return round(found.margin / (found.quantum or DEFAULTS.assumed_quantum), 3)


def _deltas(found: Deltas) -> DeltaSizes:
    return DeltaSizes(
        positions=found.positions,
        fraction_differing=found.fraction,
        median=found.median,
        p99=found.p99,
        max=found.largest,
        bias=found.bias,
    )


def _decode(name: str, found: DecodeSizes) -> DecodeComparison:
    return DecodeComparison(
        pass_name=name,
        prompts=found.prompts,
        diverging_prompts=len(found.divergences),
        margins_quanta=tuple(_in_quanta(entry) for entry in found.divergences),
        before_divergence=_deltas(found.deltas),
        not_greedy_a=found.a_not_greedy,
        not_greedy_b=found.b_not_greedy,
    )


def _forced(name: str, found: ForcedSizes) -> ForcedComparison:
    return ForcedComparison(
        pass_name=name,
        delta=_deltas(found.deltas),
        argmax_agreement=found.agreement,
        kl_lower_bound=found.divergence,
        kl_tail_mass=found.tail_mass,
    )


def _settings(keys: Iterable[KeyDifference]) -> tuple[SettingDifference, ...]:
    return tuple(SettingDifference(key=found.key, a=found.a, b=found.b) for found in keys)


def _differing_texts(a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[KeyDifference]:
    for key in sorted(a.keys() | b.keys()):
        mine, theirs = a.get(key, settings.ABSENT), b.get(key, settings.ABSENT)
        if mine != theirs:
            yield KeyDifference(key, mine, theirs)


def _choosers(a: Launch, b: Launch) -> Iterator[ChooserPair]:
    mine = {found.name: found for found in a.choosers}
    theirs = {found.name: found for found in b.choosers}
    for name in dict.fromkeys([*mine, *theirs]):
        one, other = mine.get(name), theirs.get(name)
        yield ChooserPair(
            name=name,
            a=one.state if one else None,
            b=other.state if other else None,
            detail_a=one.detail if one else "",
            detail_b=other.detail if other else "",
        )


def _notes(a: Launch, b: Launch, bits: Iterable[PassBits]) -> Iterator[str]:
    for side, launch, other in (("A", a, b), ("B", b, a)):
        for note in launch.notes:
            yield f"{side}: {note}"
        if launch.non_finite:
            yield f"{side}: {launch.non_finite} logprobs are NaN or infinite"
        if launch.self_differing:
            yield f"{side}: a repeat in the same process had other bits"
        if not launch.weights:
            yield f"{side}: no digest of its weights"
        for name in launch.passes:
            if name not in other.passes:
                yield f"{side}: has a pass {name} that the other has not; it was not compared"
    for found in bits:
        if found.positions is None:
            yield (
                f"{found.name}: compared by digests alone; the first bundle of each digest in the store has the numbers"
            )
