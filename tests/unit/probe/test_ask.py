"""Answers of vLLM 0.26, 0.32 and 0.33 become the same arrays, and anything else is refused with what is wrong."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steadyfleet_contract.digest import Arrays
from steadyfleet_contract.report import Outcome
from steadyfleet_probe import ask
from steadyfleet_probe.errors import LaunchFailed

ANSWERS = Path(__file__).parents[2] / "data" / "engine"
CUDA_ANSWERS = ANSWERS / "0.26.0-cuda.json.gz"
VERSIONS = ["0.26.0", "0.32.0", "0.33.0"]


@pytest.fixture(params=VERSIONS)
def recorded(request: pytest.FixtureRequest) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ANSWERS / f"{request.param}.json").read_text())
    return content


def equal(a: Arrays, b: Arrays) -> bool:
    names = ("tokens", "logprobs", "top_ids", "top_logprobs")
    return all(np.array_equal(getattr(a, name), getattr(b, name), equal_nan=True) for name in names)


def body(answer: Any) -> bytes:
    return json.dumps(answer).encode()


def test_decode_gives_tokens_logprobs_and_sorted_top(recorded: dict[str, Any]) -> None:
    result = ask.read_decode(body(recorded["decode"]), recorded["prompt"], tokens=3, top=4)
    assert result.tokens.tolist() == [134, 200, 33]
    assert result.logprobs[0] == np.float32(-0.37230274081230164)
    assert result.top_ids[0].tolist()[0] == 134
    assert (np.diff(result.top_logprobs, axis=1) <= 0).all()


def test_decode_without_top_gives_the_same_tokens_and_logprobs(recorded: dict[str, Any]) -> None:
    full = ask.read_decode(body(recorded["decode"]), recorded["prompt"], tokens=3, top=4)
    short = ask.read_decode(body(recorded["decode_chosen_only"]), recorded["prompt"], tokens=3, top=0)
    assert short.tokens.tolist() == full.tokens.tolist()
    assert short.logprobs.tolist() == full.logprobs.tolist()
    assert short.top_ids.shape == (3, 0)


def test_score_gives_logprobs_of_the_forced_tokens(recorded: dict[str, Any]) -> None:
    result = ask.read_score(body(recorded["score"]), recorded["prompt"], recorded["forced"], top=4)
    assert result.tokens.tolist() == recorded["forced"]
    expected = [
        recorded["score"]["choices"][0]["prompt_logprobs"][len(recorded["prompt"]) + n][str(token)]["logprob"]
        for n, token in enumerate(recorded["forced"])
    ]
    assert result.logprobs.tolist() == [float(np.float32(value)) for value in expected]


def test_streamed_answers_are_the_plain_ones(recorded: dict[str, Any]) -> None:
    prompt, forced = recorded["prompt"], recorded["forced"]
    assert equal(
        ask.read_streamed_decode(recorded["streamed_decode"], prompt, tokens=3, top=4),
        ask.read_decode(body(recorded["decode"]), prompt, tokens=3, top=4),
    )
    assert equal(
        ask.read_streamed_score(recorded["streamed_score"], prompt, forced, top=4),
        ask.read_score(body(recorded["score"]), prompt, forced, top=4),
    )


@pytest.fixture(scope="module")
def cuda() -> dict[str, Any]:
    """Answers of vLLM 0.26.0 on an H200, by name."""
    return {entry["name"]: entry for entry in json.loads(gzip.decompress(CUDA_ANSWERS.read_bytes()))}


def test_answers_of_a_gpu_are_read_like_those_of_a_cpu(cuda: dict[str, Any]) -> None:
    plain, streamed, short = cuda["decode-top20"], cuda["streamed"], cuda["decode-short"]
    prompt = plain["request"]["prompt"]
    best = ask.read_decode(plain["body"].encode(), prompt, tokens=4, top=20)
    assert equal(
        ask.read_streamed_decode(streamed["body"].splitlines(), prompt, tokens=4, top=5),
        ask.read_decode(plain["body"].encode(), prompt, tokens=4, top=5),
    )
    first = ask.read_decode(short["body"].encode(), prompt, tokens=16, top=0)
    assert first.tokens.tolist()[:4] == best.tokens.tolist()
    assert first.logprobs.tolist()[:4] == best.logprobs.tolist()
    assert best.non_finite == 0


def test_scores_of_a_gpu_are_read_like_those_of_a_cpu(cuda: dict[str, Any]) -> None:
    plain, streamed = cuda["score-top20"], cuda["streamed-score"]
    prompt, forced = plain["request"]["prompt"][:17], plain["request"]["prompt"][17:]
    assert equal(
        ask.read_streamed_score(streamed["body"].splitlines(), prompt, forced, top=5),
        ask.read_score(plain["body"].encode(), prompt, forced, top=5),
    )


def test_null_in_a_stream_is_nan(recorded: dict[str, Any]) -> None:
    lines = [line.replace("-0.37230274081230164", "null") for line in recorded["streamed_decode"]]
    result = ask.read_streamed_decode(lines, recorded["prompt"], tokens=3, top=4)
    assert math.isnan(result.logprobs[0])
    assert math.isnan(result.top_logprobs[0, -1])
    assert result.non_finite == 2


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity"])
def test_literals_that_are_not_json_are_numbers(literal: str) -> None:
    answer = json.loads((ANSWERS / "0.32.0.json").read_text())
    text = json.dumps(answer["decode"]).replace("-0.37230274081230164", literal)
    result = ask.read_decode(text.encode(), answer["prompt"], tokens=3, top=4)
    assert not math.isfinite(result.logprobs[0])


def test_requests_name_every_sampling_field_so_no_server_default_applies() -> None:
    request = ask.decode_request([1, 2], tokens=3, top=4, salt="s")
    assert request["temperature"] == 0
    for field in ("top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "seed"):
        assert field in request
    assert request["min_tokens"] == request["max_tokens"] == 3
    assert request["cache_salt"] == "s"


def test_streamed_score_asks_for_an_echo_since_streams_have_no_prompt_logprobs() -> None:
    request = ask.streamed(ask.score_request([1], [2], top=4, salt="s"))
    assert request["echo"] is True
    assert request["logprobs"] == 4
    assert "prompt_logprobs" not in request



@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(logprobs=None), "no logprobs"),
        (lambda c: c["logprobs"]["tokens"].__setitem__(0, " the"), "named ' the' instead of by its id"),
        (lambda c: c["logprobs"]["tokens"].__setitem__(0, "token_id:5"), "token_ids and logprobs.tokens differ"),
        (lambda c: c["logprobs"]["top_logprobs"].__setitem__(1, {}), "position 1 has 0 top logprobs, 4 were asked"),
        (lambda c: c["logprobs"]["token_logprobs"].pop(), "3 tokens, 2 logprobs"),
        (lambda c: c.update(prompt_token_ids=[1]), "the engine changed the prompt's tokens"),
        (lambda c: c.update(token_ids="x"), "1 faults, first: Input should be a valid"),
    ],
    ids=["no logprobs", "text keys", "ids differ", "row short", "logprob missing", "prompt changed", "not a list"],
)
def test_unusable_decode_is_an_engine_error(change: Any, words: str) -> None:
    answer = json.loads((ANSWERS / "0.32.0.json").read_text())
    change(answer["decode"]["choices"][0])
    with pytest.raises(LaunchFailed, match=words) as raised:
        ask.read_decode(body(answer["decode"]), answer["prompt"], tokens=3, top=4)
    assert raised.value.outcome is Outcome.ENGINE_ERROR


def test_answer_of_another_length_is_refused() -> None:
    answer = json.loads((ANSWERS / "0.32.0.json").read_text())
    with pytest.raises(LaunchFailed, match="3 tokens, 5 were asked for"):
        ask.read_decode(body(answer["decode"]), answer["prompt"], tokens=5, top=4)


def test_score_without_the_forced_token_is_refused() -> None:
    answer = json.loads((ANSWERS / "0.32.0.json").read_text())
    answer["score"]["choices"][0]["prompt_logprobs"][len(answer["prompt"])].pop("17")
    with pytest.raises(LaunchFailed, match="no logprob of the prompt's own token 17"):
        ask.read_score(body(answer["score"]), answer["prompt"], answer["forced"], top=4)


@pytest.mark.parametrize("text", [b"", b"<html>", b"[]", b'{"choices": []}'])
def test_answer_that_is_no_completion_is_refused(text: bytes) -> None:
    with pytest.raises(LaunchFailed, match="the engine's answer can't be used"):
        ask.read_decode(text, [1], tokens=1, top=0)


def test_error_inside_a_stream_is_told() -> None:
    with pytest.raises(LaunchFailed, match=r"the engine broke off.*EngineCore"):
        ask.read_streamed_decode(['data: {"error": {"message": "EngineCore died"}}'], [1], tokens=1, top=0)
