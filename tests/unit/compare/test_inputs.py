"""What is no launch is refused: the message names the file, the field and the remedy."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from steadyfleet_contract.compare import compare
from steadyfleet_contract.errors import InputInvalid, NotComparable
from steadyfleet_contract.evidence import MAX_UNPACKED_BYTES
from steadyfleet_contract.readlaunch import MAX_FILE_BYTES, parse_launch, read_launch
from tests.unit.compare.records import FOLDER, Fault, Record, launch, record


def cut(field: str, key: str, *, prompt: int = 2, entries: int = 1) -> Fault:
    def fault(found: Record) -> None:
        del found[field][prompt][key][-entries:]

    return fault


def put(value: Any, *path: Any) -> Fault:
    def fault(found: Record) -> None:
        place: Any = found
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = value

    return fault


def without(*path: Any) -> Fault:
    def fault(found: Record) -> None:
        place: Any = found
        for part in path[:-1]:
            place = place[part]
        del place[path[-1]]

    return fault


@pytest.mark.parametrize(
    ("fault", "field"),
    [
        pytest.param(cut("decode", "token_ids"), "decode[2].token_ids", id="token ids cut"),
        pytest.param(cut("decode", "chosen_logprobs"), "decode[2].token_ids", id="logprobs cut"),
        pytest.param(cut("decode", "top_ids"), "decode[2].top_ids", id="rows of ids cut"),
        pytest.param(cut("teacher_forced", "top_logprobs"), "teacher_forced[2].top_ids", id="rows of logprobs cut"),
        pytest.param(put([1.0], "decode", 0, "top_logprobs", 3), "decode[0].top_logprobs", id="one row cut"),
        pytest.param(
            cut("teacher_forced", "prompt_chosen_logprobs"),
            "teacher_forced[2].prompt_chosen_logprobs",
            id="prompt logprobs cut",
        ),
        pytest.param(lambda found: found["decode"].pop(), "decode", id="one prompt missing"),
        pytest.param(without("decode"), "decode", id="no decode"),
        pytest.param(without("teacher_forced"), "teacher_forced", id="no teacher-forced pass"),
        pytest.param(without("decode", 1, "chosen_logprobs"), "decode[1].chosen_logprobs", id="no logprobs"),
        pytest.param(put(151936, "decode", 0, "token_ids", 0), "decode[0].token_ids", id="id beyond the vocabulary"),
        pytest.param(put(-1, "decode", 0, "top_ids", 0, 0), "decode[0].top_ids", id="negative id"),
        pytest.param(put(1.5, "decode", 0, "token_ids", 0), "decode[0].token_ids", id="id that is no whole number"),
        pytest.param(put(2**70, "decode", 0, "token_ids", 0), "decode[0].token_ids", id="id beyond 64 bits"),
        pytest.param(put("x", "decode", 0, "chosen_logprobs", 0), "decode[0].chosen_logprobs", id="word for a number"),
        pytest.param(put({}, "decode", 0, "chosen_logprobs", 0), "decode[0].chosen_logprobs", id="object for a number"),
        pytest.param(put([], "decode", 0), "decode[0]", id="list for an object"),
        pytest.param(without("model"), "model", id="no model"),
        pytest.param(put(5, "model", "weights_sha256"), "model.weights_sha256", id="digest that is a number"),
        pytest.param(put([], "prompts"), "prompts", id="no prompts"),
        pytest.param(put(-4, "prompts", 0, "token_ids", 0), "prompts[0].token_ids", id="negative prompt id"),
        pytest.param(put("x", "kernel_plan", "kernels"), "kernel_plan.kernels", id="kernels that are no list"),
        pytest.param(put("launch-record-2", "format"), "format", id="another version of the format"),
    ],
)
def test_record_that_contradicts_itself_is_refused_by_field(fault: Fault, field: str) -> None:
    data = json.dumps(record("a1", fault)).encode()
    with pytest.raises(InputInvalid) as raised:
        parse_launch(data, file="some.json")
    assert raised.value.field == field
    assert str(raised.value).startswith(f"some.json: {field}: ")
    assert raised.value.remedy


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"", "not JSON", id="empty"),
        pytest.param(b"PK\x03\x04 a zip", "not JSON", id="another kind of file"),
        pytest.param(b"\xff\xfe\x00", "not JSON", id="no text"),
        pytest.param(b"[1, 2]", "a list of 2 entries", id="list"),
        pytest.param(b"3", "not a JSON object", id="number"),
        pytest.param(b'{"a": 1}', "neither kind of launch", id="another object"),
        pytest.param(b'{"visit": {}}\n', "a visit holds no outputs", id="visit"),
        pytest.param(b'{"content": "x", "launch": {}}\n', "without its report", id="bundle of one line"),
        pytest.param(b"[" * 100_000, "nested too deeply", id="nested without end"),
        pytest.param(b'{"schemaVersion": 2, "passes": []}', "schemaVersion", id="later report"),
        pytest.param(b'{"format": ' + b"9" * 10_000 + b"}", "not JSON", id="number without end"),
    ],
)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_what_is_no_launch_is_refused(data: bytes, message: str, packed: bool) -> None:
    with pytest.raises(InputInvalid, match=message) as raised:
        parse_launch(gzip.compress(data) if packed else data, file="some.json")
    assert raised.value.remedy


def test_gzip_file_that_unpacks_without_end_is_refused_before_it_is_unpacked() -> None:
    bomb = gzip.compress(bytes(MAX_UNPACKED_BYTES + 1), 9)
    assert len(bomb) < 100_000
    with pytest.raises(InputInvalid, match="unpacks to more than"):
        parse_launch(bomb, file="bomb.gz")


def test_many_small_members_do_not_add_up_to_more_than_the_limit() -> None:
    member = gzip.compress(bytes(MAX_UNPACKED_BYTES // 4), 9)
    with pytest.raises(InputInvalid, match="unpacks to more than"):
        parse_launch(member * 5, file="bomb.gz")


@pytest.mark.parametrize("end", [20, 1000, -1])
def test_gzip_file_that_ends_too_early_is_refused(end: int) -> None:
    data = (FOLDER / "a1.json.gz").read_bytes()[:end]
    with pytest.raises(InputInvalid, match="not a whole gzip file"):
        parse_launch(data, file="half.gz")


def test_huge_file_is_refused_without_being_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as stream:
        stream.truncate(MAX_FILE_BYTES * 100)
    with pytest.raises(InputInvalid, match="larger than"):
        read_launch(path)


def test_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputInvalid, match=r"absent\.json: No such file.*; give"):
        read_launch(tmp_path / "absent.json")
    with pytest.raises(InputInvalid, match="Is a directory"):
        read_launch(tmp_path)


def test_number_too_large_for_float32_is_a_finding_and_not_an_error() -> None:
    def fault(found: Record) -> None:
        found["decode"][0]["chosen_logprobs"][0] = -1e300

    assert launch("a1", fault).non_finite == 1


def fewer_tokens(found: Record) -> None:
    for field in ("decode", "teacher_forced"):
        for key in ("token_ids", "chosen_logprobs", "top_ids", "top_logprobs"):
            if key in found[field][2]:
                del found[field][2][key][-1:]


def shorter_top(found: Record) -> None:
    for field in ("decode", "teacher_forced"):
        for entry in found[field]:
            entry["top_ids"] = [row[:10] for row in entry["top_ids"]]
            entry["top_logprobs"] = [row[:10] for row in entry["top_logprobs"]]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        pytest.param(put(7, "prompts", 0, "token_ids", 0), "other prompts", id="other prompts"),
        pytest.param(fewer_tokens, "prompt 2: 32 tokens in .* 31 in", id="fewer tokens"),
        pytest.param(shorter_top, "top-20 in .* top-10 in", id="shorter top"),
    ],
)
def test_launches_that_answer_other_questions_are_not_compared(fault: Fault, message: str) -> None:
    with pytest.raises(NotComparable, match=message):
        compare(launch("a1"), launch("a3", fault))
