"""A ladder's result as plain text for a terminal: one line a launch, then one paragraph a question."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from steadyfleet_contract.report import Outcome
from steadyfleet_contract.spec import CacheState, LaunchKind
from steadyfleet_probe.ladder_batched import BATCHED, BatchedFinding
from steadyfleet_probe.ladder_result import Cause, Change, LadderResult, LaunchLine, Pin, Rate

_WIDTH = 118
_LABEL_WIDTH = 20
_KERNELS_SHOWN = 10
_WEAK = 0.5
"""A bound above this says less than tossing a coin would."""

_KINDS = {LaunchKind.PINNED: "pinned", LaunchKind.AS_SERVED: "as served"}
_PASSES = {"ShortDecode": "short decode", "TeacherForced": "teacher-forced", "FullDecode": "full decode"}
_STEPS = (
    ("prepare", "prepare"),
    ("engineStart", "engine start"),
    ("shortDecode", "short decode"),
    ("teacherForced", "forced"),
    ("repeats", "repeats"),
    ("fullDecode", "full decode"),
    (BATCHED, "batched"),
    ("engineStop", "stop"),
    ("total", "total"),
)

Lines = Iterable[str]


def render(result: LadderResult) -> str:
    """Ends with a newline."""
    paragraphs = (
        ("Within a process", _within(result)),
        ("Across launches", map(_rate, result.rates)),
        ("What moved", _moved(result)),
        ("Warm against cold", _warm(result)),
        ("Pin", _pin(result.pin)),
        ("Settings", _lost(result)),
        ("Batching", _batching(result.batched)),
        ("Not measured", _not_measured(result)),
    )
    lines = [*_head(result), "", *_launches(result), ""]
    for label, texts in paragraphs:
        lines += _paragraph(label, list(texts))
    lines += ["", *_times(result), ""]
    return "\n".join(line.rstrip() for line in lines)


def _head(result: LadderResult) -> Lines:
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    yield f"{result.model}: {len(result.launches)} of {result.asked} launches, {versions or 'versions unknown'}"
    yield f"on {', '.join(result.gpus) or 'this machine, no GPU'}"
    if result.arguments:
        yield f"engine arguments: {' '.join(result.arguments)}"


def _launches(result: LadderResult) -> Lines:
    rows: list[tuple[str, ...]] = [("launch", "kind", "caches", "bits", "repeats", "plan", "digest", "seconds")]
    rows += map(_row, result.launches)
    return _columns(rows)


def _row(line: LaunchLine) -> tuple[str, ...]:
    kind = _KINDS[line.asked] + ("" if line.kind is line.asked else ", pin broken")
    caches = "cold" if line.cache is CacheState.COLD else "warm"
    caches += f", of launch {line.filled_by}" if line.filled_by is not None else ""
    if line.outcome is not Outcome.COMPLETED:
        return str(line.launch), kind, caches, line.outcome.value, "", "", "", f"{line.total_seconds:.1f}"
    repeats = f"{line.repeats - line.differing_repeats} of {line.repeats} equal"
    plan, digest = _short(line.plan), _short(line.digest)
    return str(line.launch), kind, caches, line.variant, repeats, plan, digest, f"{line.total_seconds:.1f}"


def _within(result: LadderResult) -> Lines:
    complete = [line for line in result.launches if line.outcome is Outcome.COMPLETED]
    unstable = [line for line in complete if line.differing_repeats]
    for line in unstable:
        prompts = ", ".join(map(str, line.differing_prompts))
        yield (
            f"not stable in launch {line.launch}: {line.differing_repeats} of {line.repeats} repeats differ from the "
            f"first answers (prompts {prompts})"
        )
    if complete and not unstable:
        rounds = sum(line.repeats for line in complete)
        yield f"stable: {rounds} repeats in {_count(len(complete), 'process', 'processes')}, all equal to the first"
    if infinite := [str(line.launch) for line in complete if line.non_finite]:
        yield f"logprobs that are NaN or infinite in launch {', '.join(infinite)}"


def _rate(rate: Rate) -> str:
    caches = "cold" if rate.cache is CacheState.COLD else "warm"
    if rate.tree_of is not None:
        caches = f"warm from the caches of launch {rate.tree_of} alone"
    counted = f"{_KINDS[rate.asked]}, {caches}: {rate.differing} of {rate.launches} launches differ"
    if rate.excluded_above is not None:
        only = "only " if rate.high > _WEAK else ""
        return f"{counted}; {only}a rate of change above {_percent(rate.high)} is excluded at 95 %"
    variants = "; ".join(f"{letter}: {_numbers(members)}" for letter, members in rate.variants.items())
    return (
        f"{counted} from the most common bits ({variants}); rates below {_percent(rate.low)} and above "
        f"{_percent(rate.high)} are excluded at 95 %"
    )


def _moved(result: LadderResult) -> Lines:
    for change in result.changes:
        yield from _change(change)
    if not result.changes and result.rates:
        yield "no pass in any launch"


def _warm(result: LadderResult) -> Lines:
    equal = [change for change in result.warm if not change.moved]
    if equal:
        pairs = ", ".join(f"{change.launch} as {change.against}" for change in equal)
        yield f"the bits of the cold launch that filled the caches: {pairs}"
    told = {(change.launch, change.against) for change in result.changes}
    for change in result.warm:
        if change.moved and (change.launch, change.against) in told:
            yield f"{_pair(change)}: not the same bits, see above"
        elif change.moved:
            yield from _change(change)


def _change(change: Change) -> Lines:
    yield f"{_pair(change)}: {_passes(change)}"
    for kernel in change.kernels[:_KERNELS_SHOWN]:
        yield f"  {kernel.kernel}: {kernel.before} -> {kernel.after}"
    if len(change.kernels) > _KERNELS_SHOWN:
        yield f"  and {len(change.kernels) - _KERNELS_SHOWN} more kernels"
    yield f"  {_CAUSES[change.cause] if change.plan_readable else _NO_PLAN}"


def _pair(change: Change) -> str:
    return f"{_KINDS[change.asked]}, launch {change.launch} against launch {change.against}"


_CAUSES = {
    Cause.NONE: "nothing moved",
    Cause.KERNEL_PLAN: "KernelPlan: launches with one plan gave one set of bits, and each of the two plans ran more "
    "than once",
    Cause.CANNOT_TELL: "the plans differ, but one of them ran only once: can't tell whether they explain it all "
    "(more launches may run it again)",
    Cause.UNEXPLAINED: "Unexplained: never a recorded choice of kernels, since launches with the same plan gave other "
    "bits",
}
_NO_PLAN = "no plan to compare: a launch left no kernel that can be read (eager, a CPU build, or another backend)"


def _passes(change: Change) -> str:
    moved = []
    for part in change.passes:
        name = _PASSES.get(part.name, part.name)
        if part.changed:
            tokens = f", tokens in {len(part.tokens_changed)}" if part.tokens_changed else ", logprobs alone"
            moved.append(f"{name} in {len(part.changed)} of {part.prompts} prompts{tokens}")
        else:
            moved.append(f"{name} in none")
    return "; ".join(moved)


def _pin(pin: Pin | None) -> Lines:
    if pin is None:
        return
    if pin.kept:
        unread = "" if pin.plan_readable else "; no kernel can be read here, so the bits alone say so"
        launches = _count(pin.launches, "pinned launch", "pinned launches")
        yield f"kept: {launches}, one set of bits ({pin.variants[0]}){unread}"
        return
    if len(pin.variants) > 1:
        yield f"not kept: the pinned launches gave {len(pin.variants)} sets of bits ({', '.join(pin.variants)})"
    for launch, why in pin.broken.items():
        yield f"not kept in launch {launch}: {why.removeprefix('reported as AsServed: ')}"


def _lost(result: LadderResult) -> Lines:
    for lost in result.lost:
        setting = lost.setting
        yield (
            f"{setting.setting} was asked for, but {setting.kernels - setting.carried} of {setting.kernels} kernels "
            f"that reduce were compiled without `{setting.flag}` (launch {_numbers(lost.launches)}): it did not reach "
            "them"
        )


def _batching(found: Sequence[BatchedFinding]) -> Lines:
    same_words: dict[str, list[int]] = {}
    for one in found:
        same_words.setdefault(_batched(one), []).append(one.launch)
    for words, launches in same_words.items():
        yield f"launch {_numbers(launches)}: {words}"
    for kind in dict.fromkeys(one.asked for one in found):
        digests = [one.digest for one in found if one.asked is kind]
        if len(digests) > 1:
            sets = _count(len(set(digests)), "set", "sets")
            yield f"{_KINDS[kind]}: {sets} of bits in {len(digests)} launches, all prompts at once"


def _batched(one: BatchedFinding) -> str:
    """All at once against one after the other; then a second time against the first."""
    words = f"all {one.prompts} prompts at once answer as they do alone"
    if one.changed:
        tokens = f"tokens in {len(one.tokens_changed)}" if one.tokens_changed else "logprobs alone"
        words = f"all at once changes {len(one.changed)} of {one.prompts} prompts, {tokens}"
    return f"{words}; the same again changes {len(one.changed_again) or 'none'}"


def _not_measured(result: LadderResult) -> Lines:
    for line in result.launches:
        if line.outcome is not Outcome.COMPLETED:
            yield f"launch {line.launch}: {line.outcome.value}: {line.message}"
    if missing := result.asked - len(result.launches):
        yield f"{_count(missing, 'launch', 'launches')} not run: interrupted"


def _times(result: LadderResult) -> Lines:
    """Mean seconds of each step, for each kind and cache state."""
    groups: dict[tuple[LaunchKind, CacheState], list[LaunchLine]] = {}
    for line in result.launches:
        if line.outcome is Outcome.COMPLETED:
            groups.setdefault((line.asked, line.cache), []).append(line)
    steps = [step for step in _STEPS if any(_seconds([line], step[0]) for line in result.launches)]
    rows = [("mean seconds", *(name for _, name in steps), "overhead")]
    for (kind, cache), lines in groups.items():
        spent, bare = sum(line.overhead_seconds for line in lines), sum(map(_bare_seconds, lines))
        times = [f"{_seconds(lines, step):.2f}" for step, _ in steps]
        overhead = f"{spent / len(lines):.2f} ({_percent(spent / bare)})" if bare else ""
        rows.append((f"{_KINDS[kind]}, {cache.value.lower()}", *times, overhead))
    return _columns(rows) if groups else []


def _bare_seconds(line: LaunchLine) -> float:
    return line.engine_seconds + line.asking_seconds


def _seconds(lines: Sequence[LaunchLine], step: str) -> float:
    return sum(timing.seconds for line in lines for timing in line.timings if timing.step == step) / len(lines)


def _paragraph(label: str, texts: Sequence[str]) -> Lines:
    for number, text in enumerate(texts):
        indent = " " * (_LABEL_WIDTH + len(text) - len(text.lstrip()))
        first = (label if number == 0 else "").ljust(len(indent))
        yield from textwrap.wrap(
            text.strip(),
            _WIDTH,
            initial_indent=first,
            subsequent_indent=f"{indent}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))


def _short(digest: str | None) -> str:
    return digest.removeprefix("sha256:")[:12] if digest else "none"


def _numbers(launches: Sequence[int]) -> str:
    return " ".join(map(str, launches))


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f} %"
