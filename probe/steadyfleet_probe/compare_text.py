"""A comparison of two launches for people: the verdict first, then what it rests on, in the order of judgement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from steadyfleet_contract.causes import short_config
from steadyfleet_contract.comparison import Comparison, DeltaSizes, FirstDivergence, PlanKernel, SettingDifference, Side

_SHOWN_DIVERGENCES = 8
_SHOWN_SETTINGS = 12
_SHOWN_VALUE = 60


def text(found: Comparison) -> str:
    sections = (
        _verdict(found),
        _bits(found),
        _sizes(found),
        _divergences(found),
        _settings(found),
        _plan(found),
        _choosers(found),
        _notes(found),
    )
    return "\n\n".join("\n".join(lines) for section in sections if (lines := list(section))) + "\n"


def _verdict(found: Comparison) -> Iterator[str]:
    for side, launch in (("A", found.a), ("B", found.b)):
        yield f"{side}  {_side(launch)}"
    yield ""
    yield f"level    {found.level.value if found.level else 'cannot be told'}" + _because(found.level_reasons)
    yield f"cause    {found.cause.value} ({_certainty(found)})"
    yield f"blames   {found.blames.value}" + (f", points at {found.suspect}" if found.suspect else "")
    yield f"         {found.summary}"
    for line in found.explanation:
        yield f"         - {line}"
    if found.next_step:
        yield f"next     {found.next_step}"


def _side(launch: Side) -> str:
    parts = [launch.name, launch.format, launch.node, launch.product, launch.gpu]
    parts.append(f"weights ...{launch.weights[-12:]}" if launch.weights else "weights not recorded")
    parts.append(launch.file)
    return "  ".join(part for part in parts if part)


def _because(reasons: Sequence[str]) -> str:
    if not reasons:
        return ""
    rest = len(reasons) - 3
    return ": " + "; ".join(reasons[:3]) + (f"; and {rest} more" if rest > 0 else "")


def _certainty(found: Comparison) -> str:
    return {"Fact": "a fact", "Likely": "likely", "CannotTell": "cannot tell"}[found.certainty.value]


def _bits(found: Comparison) -> Iterator[str]:
    rows = [("bits", "prompts that differ", "positions that differ", "tokens that differ")]
    for entry in found.bits:
        rows.append(
            (
                entry.name,
                f"{len(entry.differing_prompts)} of {entry.prompts}",
                "-" if entry.positions is None else f"{entry.differing_positions} of {entry.positions}",
                "-" if entry.differing_tokens is None else str(entry.differing_tokens),
            )
        )
    yield from _table(rows)


def _sizes(found: Comparison) -> Iterator[str]:
    if found.identical:
        return
    rows: list[tuple[str, ...]] = [("sizes", "positions", "differ", "median", "p99", "max", "bias")]
    rows += [_delta_row(f"{entry.pass_name}, before it parts", entry.before_divergence) for entry in found.decodes]
    rows += [_delta_row(entry.pass_name, entry.delta) for entry in found.forced]
    yield from _table(rows)
    for forced in found.forced:
        if forced.kl_lower_bound is not None and forced.argmax_agreement is not None:
            yield (
                f"{forced.pass_name}: best tokens agree in {forced.argmax_agreement:.3f}, mean KL at least"
                f" {forced.kl_lower_bound:.2g} (up to {forced.kl_tail_mass:.2f} of the probability is outside the top)"
            )
    for decode in found.decodes:
        if decode.not_greedy_a or decode.not_greedy_b:
            yield (
                f"{decode.pass_name}: tokens that are not the best of their own row: {decode.not_greedy_a} of A,"
                f" {decode.not_greedy_b} of B"
            )
    step = f"one quantum is {found.quantum}" if found.quantum else "no logit grid shows; margins are in sixteenths"
    yield f"|delta logprob| in nats; {step}"


def _delta_row(name: str, delta: DeltaSizes) -> tuple[str, ...]:
    return (
        name,
        str(delta.positions),
        f"{delta.fraction_differing:.1%}",
        f"{delta.median:.4f}",
        f"{delta.p99:.4f}",
        f"{delta.max:.4f}",
        f"{delta.bias:+.4f}",
    )


def _divergences(found: Comparison) -> Iterator[str]:
    first = found.first_divergence
    if first is None:
        return
    yield (
        f"first divergence: {first.pass_name}, prompt {first.prompt_name}, token {first.position}:"
        f" A chose {first.chosen_by_a.token}, B chose {first.chosen_by_b.token}, margin {_margin(first)}"
    )
    rows = [("", "logprob in A", "logprob in B")]
    for side, candidate in (("A", first.chosen_by_a), ("B", first.chosen_by_b)):
        name = f"{candidate.token} ({side}'s)"
        rows.append((name, _logprob(candidate.logprob_a), _logprob(candidate.logprob_b)))
    yield from _table(rows)
    others = [entry for entry in found.divergences if entry is not first]
    if others:
        shown = ", ".join(
            f"{entry.prompt_name}@{entry.position} {_margin(entry)}" for entry in others[:_SHOWN_DIVERGENCES]
        )
        rest = len(others) - _SHOWN_DIVERGENCES
        yield f"others: {shown}" + (f", and {rest} more" if rest > 0 else "")


def _margin(found: FirstDivergence) -> str:
    if found.margin_quanta is None:
        return "not known"
    return f"{'at least ' if found.margin_is_lower_bound else ''}{found.margin_quanta:g} q"


def _logprob(value: float | None) -> str:
    return "not in its top" if value is None else f"{value:.6f}"


def _settings(found: Comparison) -> Iterator[str]:
    for kind, keys in found.settings.items():
        heading = "acts through the plan alone" if kind == "plan" else f"{kind} differs"
        yield f"{heading}:"
        yield from _keys(keys)
    if found.circumstances:
        yield "circumstances that differ:"
        yield from _keys(found.circumstances)


def _keys(keys: Sequence[SettingDifference]) -> Iterator[str]:
    for key in keys[:_SHOWN_SETTINGS]:
        yield f"  {key.key}: {_short(key.a)} (A), {_short(key.b)} (B)"
    if len(keys) > _SHOWN_SETTINGS:
        yield f"  and {len(keys) - _SHOWN_SETTINGS} more (--json has all)"


def _plan(found: Comparison) -> Iterator[str]:
    for side, launch in (("A", found.a), ("B", found.b)):
        if launch.plan != "Read":
            yield f"plan of {side}: {'none, ' if launch.plan == 'None' else 'unreadable, '}{launch.plan_detail}"
    if not found.plan:
        yield "plan: no kernel in use differs"
        return
    rows: list[tuple[str, ...]] = [("kernels in use that differ", "A", "B", "may explain other bits", "source")]
    rows += [_kernel(kernel) for kernel in found.plan]
    yield from _table(rows)
    for kernel in found.plan:
        if kernel.remark:
            yield f"{kernel.name}: {kernel.remark}"


def _kernel(kernel: PlanKernel) -> tuple[str, ...]:
    explains = "yes" if kernel.explains else "no, pointwise"
    return (kernel.name, short_config(kernel.a), short_config(kernel.b), explains, kernel.source[:12])


def _choosers(found: Comparison) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("what may choose kernels", "A", "B", "")]
    for pair in found.choosers:
        states = [state.value if state else "-" for state in (pair.a, pair.b)]
        detail = pair.detail_a if pair.detail_a == pair.detail_b else f"{pair.detail_a} / {pair.detail_b}"
        rows.append((pair.name, *states, detail))
    yield from _table(rows)


def _notes(found: Comparison) -> Iterator[str]:
    for note in found.notes:
        yield f"note: {note}"


def _short(value: str) -> str:
    return value if len(value) <= _SHOWN_VALUE else f"{value[:_SHOWN_VALUE]}..."


def _table(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    cells = [list(row) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
