"""The numbers of a launch record: lists of lists as JSON has them, into the arrays of one pass.

A number that is not finite may be written as NaN, Infinity, null, or as one of those words in quotes; it is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from steadyfleet_contract.digest import F32, U32, Arrays
from steadyfleet_contract.errors import InputInvalid
from steadyfleet_contract.launches import Outputs, canonical, stacked

_LARGEST_ID = 2**32 - 1
_WORDS = {"nan", "inf", "-inf", "+inf", "infinity", "-infinity", "+infinity"}


def outputs(
    entries: Any, *, file: str, field: str, prompts: int, vocabulary: int, with_tokens: bool = True
) -> Outputs:
    """One pass. Raises InputInvalid unless every prompt has arrays of one length and rows of one width."""
    if not isinstance(entries, list) or len(entries) != prompts:
        count = f"{len(entries)} entries" if isinstance(entries, list) else "not a list"
        raise InputInvalid(file, f"{count}, {prompts} prompts", field=field, remedy="give each prompt one entry")
    found = []
    for index, entry in enumerate(entries):
        at = f"{field}[{index}]"
        if not isinstance(entry, dict):
            raise InputInvalid(file, "not an object", field=at, remedy="it needs the arrays of one prompt")
        found.append(_prompt(entry, file=file, field=at, vocabulary=vocabulary, with_tokens=with_tokens))
    try:
        return stacked(found)
    except ValueError as error:
        raise InputInvalid(file, str(error), field=field, remedy="every row needs the same number of tokens") from error


def prompt_outputs(
    entries: Sequence[dict[str, Any]], prompts: Sequence[Sequence[int]], *, file: str, field: str
) -> Outputs | None:
    """Logprobs of the prompts' own tokens from the second on; None if the record has none."""
    if not all("prompt_chosen_logprobs" in entry for entry in entries):
        return None
    found = []
    for index, (entry, ids) in enumerate(zip(entries, prompts, strict=True)):
        at = f"{field}[{index}].prompt_chosen_logprobs"
        logprobs = _floats(entry["prompt_chosen_logprobs"], file=file, field=at)
        _same_length(len(logprobs), max(len(ids) - 1, 0), file=file, field=at, other="the prompt after its first token")
        found.append(
            Arrays(
                tokens=np.asarray(ids[1:], dtype=np.uint32),
                logprobs=logprobs,
                top_ids=np.zeros((len(logprobs), 0), np.uint32),
                top_logprobs=np.zeros((len(logprobs), 0), np.float32),
            )
        )
    return stacked(found)


def _prompt(entry: dict[str, Any], *, file: str, field: str, vocabulary: int, with_tokens: bool) -> Arrays:
    logprobs = _floats(entry.get("chosen_logprobs"), file=file, field=f"{field}.chosen_logprobs")
    length = len(logprobs)
    if with_tokens:
        tokens = _ids(entry.get("token_ids"), (None,), file=file, field=f"{field}.token_ids", vocabulary=vocabulary)
        _same_length(len(tokens), length, file=file, field=f"{field}.token_ids", other="chosen_logprobs")
    else:
        tokens = np.zeros(length, np.uint32)
    values = _floats(entry.get("top_logprobs"), file=file, field=f"{field}.top_logprobs", rows=True)
    ids = _ids(entry.get("top_ids"), values.shape, file=file, field=f"{field}.top_ids", vocabulary=vocabulary)
    _same_length(len(values), length, file=file, field=f"{field}.top_logprobs", other="chosen_logprobs")
    top_ids, top_logprobs = canonical(ids, values)
    return Arrays(tokens=tokens, logprobs=logprobs, top_ids=top_ids, top_logprobs=top_logprobs)


def _floats(values: Any, *, file: str, field: str, rows: bool = False) -> F32:
    array = _array(values, file=file, field=field, rows=rows)
    if array.dtype == object:
        array = np.array([_number(value, file=file, field=field) for value in array.ravel()]).reshape(array.shape)
    if array.dtype.kind not in "fiu":
        raise InputInvalid(file, "not numbers", field=field, remedy="logprobs are numbers")
    with np.errstate(over="ignore"):
        found: F32 = array.astype(np.float32)
    return found


def _ids(values: Any, shape: tuple[int | None, ...], *, file: str, field: str, vocabulary: int) -> U32:
    array = _array(values, file=file, field=field, rows=len(shape) == 2)
    if array.size and array.dtype.kind not in "iu":
        raise InputInvalid(file, "not whole numbers", field=field, remedy="token ids are whole numbers")
    if shape[0] is not None and array.shape != shape:
        message = f"shape {array.shape}, but the logprobs beside it have {shape}"
        raise InputInvalid(file, message, field=field, remedy="the arrays of a prompt belong together: was it cut?")
    largest = vocabulary - 1 if vocabulary else _LARGEST_ID
    if array.size and (array.min() < 0 or array.max() > largest):
        wrong = int(array.min()) if array.min() < 0 else int(array.max())
        raise InputInvalid(file, f"{wrong} is no token id", field=field, remedy=f"ids go from 0 to {largest}")
    found: U32 = array.astype(np.uint32)
    return found


def _array(values: Any, *, file: str, field: str, rows: bool) -> Any:
    if not isinstance(values, list):
        raise InputInvalid(file, "missing or not a list", field=field, remedy="it needs a list of numbers")
    if rows:
        widths = {len(row) if isinstance(row, list) else -1 for row in values}
        if -1 in widths or len(widths) > 1:
            message = "not a list of rows" if -1 in widths else f"rows of {min(widths)} to {max(widths)} entries"
            raise InputInvalid(file, message, field=field, remedy="every position needs a row of the same width")
        if not values:
            return np.zeros((0, 0))
    try:
        array = np.array(values) if values else np.zeros(0)
        if array.dtype.kind == "U":
            # One number in quotes made texts of them all.
            array = np.array(values, dtype=object)
    except (ValueError, OverflowError) as error:
        raise InputInvalid(file, str(error), field=field, remedy="it needs a list of numbers") from error
    if array.ndim != (2 if rows else 1) or array.dtype == bool:
        raise InputInvalid(file, "lists nested otherwise", field=field, remedy="it needs plain numbers at its end")
    return array


def _number(value: Any, *, file: str, field: str) -> float:
    if value is None:
        return float("nan")
    if isinstance(value, str) and value.lower() in _WORDS:
        return float(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise InputInvalid(file, f"{str(value)[:40]!r} is no number", field=field, remedy="logprobs are numbers")


def _same_length(found: int, expected: int, *, file: str, field: str, other: str) -> None:
    if found != expected:
        message = f"{found} entries, {other} has {expected}"
        raise InputInvalid(file, message, field=field, remedy="the arrays of a prompt belong together: was it cut?")
