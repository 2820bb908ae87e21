"""What is asked of the engine and how its answers become arrays: the completions API as vLLM 0.26 to 0.33 speak it.

Pure: dictionaries and bytes in, `Arrays` out; `engine` does the talking. Two kinds of question:

    decode   greedy continuation of fixed length, with the logprob of each chosen token and the top-k beside it
    score    logprobs of given tokens after a prompt (teacher forcing), by `prompt_logprobs`

Each question has a streamed form: the plain form is an HTTP error when a logprob is NaN (its JSON encoder refuses), the
streamed one says null, and such an answer is just what the probe is after.

The request names every sampling field, because a server may have defaults of its own for them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence

from pydantic import BaseModel, ValidationError

from steadyfleet_contract.digest import Arrays, arrays
from steadyfleet_contract.report import Outcome
from steadyfleet_probe.errors import LaunchFailed

MODEL_NAME = "model"
"""The name under which the engine serves, whatever the model's own name is."""

COMPLETIONS_PATH = "/v1/completions"

Request = Mapping[str, object]

_GREEDY: Request = {
    "model": MODEL_NAME,
    "temperature": 0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "seed": 0,
    "n": 1,
    "ignore_eos": True,
    "add_special_tokens": False,
    "skip_special_tokens": False,
    "return_token_ids": True,
    # Without it the keys are texts, and tokens that decode to the same text lose entries.
    "return_tokens_as_token_ids": True,
}


class _Entry(BaseModel):
    logprob: float | None


class _Logprobs(BaseModel):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float | None] | None] = []


class _Choice(BaseModel):
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    prompt_logprobs: list[dict[int, _Entry] | None] | None = None


class _Answer(BaseModel):
    choices: list[_Choice]


def decode_request(prompt: Sequence[int], *, tokens: int, top: int, salt: str) -> Request:
    """`salt` keeps the answer out of the prefix cache: a hit would take another way through the kernels."""
    return {
        **_GREEDY,
        "prompt": list(prompt),
        "max_tokens": tokens,
        "min_tokens": tokens,
        "logprobs": top,
        "cache_salt": salt,
    }


def score_request(prompt: Sequence[int], forced: Sequence[int], *, top: int, salt: str) -> Request:
    return {
        **_GREEDY,
        "prompt": [*prompt, *forced],
        "max_tokens": 1,
        "prompt_logprobs": top,
        "cache_salt": salt,
    }


def streamed(request: Request) -> Request:
    """The same question, answered as a stream. A stream has no `prompt_logprobs`; echo gives the same numbers."""
    streamed = {**request, "stream": True}
    top = streamed.pop("prompt_logprobs", None)
    return streamed if top is None else {**streamed, "echo": True, "logprobs": top}


def read_decode(body: bytes, prompt: Sequence[int], *, tokens: int, top: int) -> Arrays:
    """Raises LaunchFailed (EngineError) if the answer is not one to this question."""
    return _decoded(_only_choice(body), prompt, tokens=tokens, top=top)


def read_score(body: bytes, prompt: Sequence[int], forced: Sequence[int], *, top: int) -> Arrays:
    """Raises LaunchFailed (EngineError) if the answer is not one to this question."""
    choice = _only_choice(body)
    _check_prompt(choice, [*prompt, *forced])
    rows = choice.prompt_logprobs or []
    if len(rows) != len(prompt) + len(forced):
        raise _unusable(f"{len(rows)} prompt logprobs for {len(prompt) + len(forced)} prompt tokens")
    chosen, tops = [], []
    for token, row in zip(forced, rows[len(prompt) :], strict=True):
        if row is None or token not in row:
            raise _unusable(f"no logprob of the prompt's own token {token}")
        chosen.append(_number(row[token].logprob))
        tops.append([(other, _number(entry.logprob)) for other, entry in row.items()])
    return _arrays(forced, chosen, tops, top=top)


def read_streamed_decode(lines: Iterable[str], prompt: Sequence[int], *, tokens: int, top: int) -> Arrays:
    return _decoded(_join(_choices(lines)), prompt, tokens=tokens, top=top)


def read_streamed_score(lines: Iterable[str], prompt: Sequence[int], forced: Sequence[int], *, top: int) -> Arrays:
    choice = _join(_choices(lines))
    _check_prompt(choice, [*prompt, *forced])
    ids, chosen, tops = _logprobs(choice)
    wanted = slice(len(prompt), len(prompt) + len(forced))
    if ids[wanted] != list(forced):
        raise _unusable("the echoed tokens are not those of the prompt")
    return _arrays(forced, chosen[wanted], tops[wanted], top=top)


def _decoded(choice: _Choice, prompt: Sequence[int], *, tokens: int, top: int) -> Arrays:
    _check_prompt(choice, prompt)
    ids, chosen, tops = _logprobs(choice)
    if choice.token_ids is not None and choice.token_ids != ids:
        raise _unusable("token_ids and logprobs.tokens differ")
    if len(ids) != tokens:
        raise _unusable(f"{len(ids)} tokens, {tokens} were asked for")
    return _arrays(ids, chosen, tops, top=top)


def _only_choice(body: bytes) -> _Choice:
    try:
        answer = _Answer.model_validate_json(body)
    except ValidationError as error:
        raise _unusable(f"{error.error_count()} faults, first: {error.errors()[0]['msg']}") from error
    if len(answer.choices) != 1:
        raise _unusable(f"{len(answer.choices)} choices, one was asked for")
    return answer.choices[0]


def _choices(lines: Iterable[str]) -> Iterable[_Choice]:
    """The choices of a stream of server-sent events; an error inside the stream is raised."""
    for line in lines:
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or data == "[DONE]":
            continue
        message = json.loads(data)
        if "error" in message:
            raise LaunchFailed(Outcome.ENGINE_ERROR, f"the engine broke off: {json.dumps(message['error'])[:500]}")
        try:
            yield from _Answer.model_validate(message).choices
        except ValidationError as error:
            raise _unusable(f"{error.error_count()} faults, first: {error.errors()[0]['msg']}") from error


def _join(choices: Iterable[_Choice]) -> _Choice:
    joined = _Choice(logprobs=_Logprobs())
    assert joined.logprobs is not None  # noqa: S101  for the type checker: set on the line above
    for choice in choices:
        joined.prompt_token_ids = joined.prompt_token_ids or choice.prompt_token_ids
        if choice.logprobs is not None:
            joined.logprobs.tokens += choice.logprobs.tokens
            joined.logprobs.token_logprobs += choice.logprobs.token_logprobs
            joined.logprobs.top_logprobs += choice.logprobs.top_logprobs
    return joined


def _logprobs(choice: _Choice) -> tuple[list[int], list[float], list[list[tuple[int, float]]]]:
    if choice.logprobs is None:
        raise _unusable("no logprobs")
    ids = [_token_id(text) for text in choice.logprobs.tokens]
    chosen = [_number(value) for value in choice.logprobs.token_logprobs]
    tops = [
        [(_token_id(text), _number(value)) for text, value in (row or {}).items()]
        for row in choice.logprobs.top_logprobs
    ]
    return ids, chosen, tops


def _token_id(text: str) -> int:
    prefix, _, number = text.partition(":")
    if prefix != "token_id" or not number.isdecimal():
        raise _unusable(f"a token is named {text[:40]!r} instead of by its id")
    return int(number)


def _number(value: float | None) -> float:
    """null is how the stream says NaN."""
    return math.nan if value is None else value


def _check_prompt(choice: _Choice, prompt: Sequence[int]) -> None:
    """An engine that truncates the prompt or adds a token to it answers another question than its peers."""
    if choice.prompt_token_ids is not None and choice.prompt_token_ids != list(prompt):
        raise _unusable("the engine changed the prompt's tokens")


def _arrays(
    tokens: Sequence[int], chosen: Sequence[float], tops: Sequence[Sequence[tuple[int, float]]], *, top: int
) -> Arrays:
    try:
        return arrays(tokens, chosen, tops, top=top)
    except (ValueError, OverflowError) as error:
        raise _unusable(str(error)) from error


def _unusable(why: str) -> LaunchFailed:
    return LaunchFailed(Outcome.ENGINE_ERROR, f"the engine's answer can't be used: {why}")
