"""Whether a report says what was asked, in a form that can be judged: pure, from bytes and the probe's order.

A report that contradicts itself or answers something else is refused with the field. What it says of the engine, a NaN
included, is not judged here.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
from pydantic import ValidationError

from steadyfleet_contract.digest import DigestMismatch, check_report, unpack
from steadyfleet_contract.report import DigestQuery, Outcome, PassName, PassResult, Report
from steadyfleet_contract.spec import CacheState, ContractModel, LaunchKind, ProbeSpec
from steadyfleet_operator.intake.answers import ReportResult, refused

MAX_TOKEN_ID = 2**24
"""No vocabulary comes near; a negative id that was packed as unsigned is far above."""

M = TypeVar("M", bound=ContractModel)


def accept_report(body: bytes, asked: ProbeSpec) -> Report:
    """Raises ReportRefused."""
    report = parse(Report, body)
    if report.recipe != asked.recipe:
        raise _not_asked("recipe", f"{report.recipe}, but the Job asked for {asked.recipe}")
    if report.epoch != asked.epoch:
        raise _not_asked("epoch", f"{report.epoch}, but the Job asked for {asked.epoch}")
    _check_launch(asked, launch=report.launch, kind=report.kind, cache=report.cache)
    _check_numbers(report)
    for result in report.passes:
        _check_arrays(result, asked)
    try:
        check_report(report)
    except DigestMismatch as error:
        field, _, text = str(error).partition(": ")
        raise _invalid(field, text) from error
    if report.outcome is Outcome.COMPLETED:
        _check_complete(report, asked)
    return report


def accept_query(body: bytes, asked: ProbeSpec) -> DigestQuery:
    """Raises ReportRefused."""
    query = parse(DigestQuery, body)
    _check_launch(asked, launch=query.launch, kind=query.kind, cache=query.cache)
    return query


def parse(model: type[M], body: bytes) -> M:
    """Raises ReportRefused with the first field that does not fit; an unknown schema version goes before all others."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        details = error.errors(include_input=False, include_url=False)
        schema = [detail for detail in details if detail["loc"] == ("schemaVersion",)]
        first = (schema or details)[0]
        field = ".".join(str(step) for step in first["loc"])
        if first["type"] == "json_invalid":
            raise refused(ReportResult.UNREADABLE, first["msg"]) from error
        result = ReportResult.SCHEMA_UNKNOWN if schema else ReportResult.FIELD_INVALID
        raise refused(result, first["msg"], field=field[:256]) from error


def _check_launch(asked: ProbeSpec, *, launch: int, kind: LaunchKind, cache: CacheState) -> None:
    """A pinned launch may turn out as served (the pin did not hold), never the other way round."""
    by_index = {request.index: request for request in asked.launches}
    request = by_index.get(launch)
    if request is None:
        raise _not_asked("launch", f"{launch}, but the Job asked for {sorted(by_index)}")
    if kind is not request.kind and kind is LaunchKind.PINNED:
        raise _not_asked("kind", f"{kind.value}, but the Job asked for {request.kind.value}")
    if cache is not request.cache:
        raise _not_asked("cache", f"{cache.value}, but the Job asked for {request.cache.value}")


def _check_numbers(report: Report) -> None:
    """JSON as Python reads it has infinity, and a time of infinity is no time."""
    for index, timing in enumerate(report.timings):
        if not math.isfinite(timing.seconds):
            raise _invalid(f"timings.{index}.seconds", "must be a finite number")
    for index, result in enumerate(report.passes):
        if not math.isfinite(result.seconds):
            raise _invalid(f"passes.{index}.seconds", "must be a finite number")
    if report.repeats is not None:
        if report.repeats.differing_rounds > report.repeats.rounds:
            raise _invalid("repeats.differingRounds", "more rounds differ than there were")
        prompts = sum(len(result.prompts) for result in report.passes if result.name is PassName.SHORT_DECODE)
        if any(not 0 <= prompt < prompts for prompt in report.repeats.differing_prompts):
            raise _invalid("repeats.differingPrompts", f"an index is beyond the {prompts} prompts of the short decode")


def _check_arrays(result: PassResult, asked: ProbeSpec) -> None:
    for index, prompt in enumerate(result.prompts):
        field = f"passes[{result.name.value}].prompts[{index}]"
        try:
            found = unpack(prompt)
        except DigestMismatch as error:
            raise _invalid(field, str(error)) from error
        if found is None:
            if prompt.logprobs or prompt.top_ids or prompt.top_logprobs:
                raise _invalid(f"{field}.tokens", "is empty, but other arrays of the prompt are not")
            continue
        length, top = found.top_ids.shape
        if result.name is PassName.FULL_DECODE and length > asked.max_tokens:
            raise _invalid(f"{field}.tokens", f"{length} tokens, but {asked.max_tokens} were asked for")
        if top > asked.top_logprobs:
            raise _invalid(f"{field}.topIds", f"top {top}, but {asked.top_logprobs} were asked for")
        for name, ids in (("tokens", found.tokens), ("topIds", found.top_ids)):
            if ids.size and int(np.max(ids)) >= MAX_TOKEN_ID:
                raise _invalid(f"{field}.{name}", f"{int(np.max(ids))} is no token id")


def _check_complete(report: Report, asked: ProbeSpec) -> None:
    if report.digest is None:
        raise _invalid("digest", "must be set when the outcome is Completed")
    if report.prompt_set_digest is None:
        raise _invalid("promptSetDigest", "must be set when the outcome is Completed")
    if not report.gpus:
        raise _invalid("gpus", "must name the GPU that was used when the outcome is Completed")
    uuids = [gpu.uuid for gpu in report.gpus]
    if asked.wanted_gpu and (uuids[0] != asked.wanted_gpu or len(uuids) != asked.gpus_per_probe):
        raise _not_asked(
            "gpus", f"{', '.join(uuids)}, but the Job asked for {asked.gpus_per_probe}, {asked.wanted_gpu} first"
        )


def _invalid(field: str, message: str) -> Exception:
    return refused(ReportResult.FIELD_INVALID, message, field=field)


def _not_asked(field: str, message: str) -> Exception:
    return refused(ReportResult.NOT_ASKED, message, field=field)
