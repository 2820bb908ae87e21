"""The batched pass: really all at once, twice, and told apart from one prompt after the other."""

import threading

import pytest

from steadyfleet_contract.digest import Arrays
from steadyfleet_contract.report import Outcome
from steadyfleet_contract.spec import LaunchKind
from steadyfleet_probe.errors import LaunchFailed
from steadyfleet_probe.ladder_batched import BatchedPass, as_report, batched_finding
from steadyfleet_probe.prompts import Ids, PromptSet
from tests.unit.ladder.launched import PROMPTS, an_answer, launched
from tests.unit.probe.builders import probe_spec

SET = PromptSet(name="test", vocabulary=8, short=(), forced=(), full=tuple((index,) for index in range(PROMPTS)))


class Together:
    """An engine that answers only if all prompts are there at the same time; `bits` by round and prompt."""

    def __init__(self, rounds: list[dict[int, int]]) -> None:
        self._met = threading.Barrier(PROMPTS, timeout=10)
        self._rounds = rounds
        self._asked = [0] * PROMPTS

    def decode(self, prompt: Ids, *, tokens: int, top: int) -> Arrays:
        self._met.wait()
        bits = self._rounds[self._asked[prompt[0]]].get(prompt[0], 0)
        self._asked[prompt[0]] += 1
        return an_answer(prompt[0], bits)

    def score(self, prompt: Ids, forced: Ids, *, top: int) -> Arrays:
        raise AssertionError("the batched pass forces nothing")


def batched(*rounds: dict[int, int]) -> BatchedPass:
    asked = BatchedPass(probe_spec())
    asked(Together(list(rounds)), SET)
    return asked


@pytest.mark.parametrize(
    ("rounds", "changed", "tokens", "again"),
    [
        ([{}, {}], (), (), ()),
        ([{1: 1}, {1: 1}], (1,), (), ()),
        ([{1: 1, 2: 10}, {1: 1}], (1, 2), (2,), (2,)),
        ([{}, {0: 1}], (), (), (0,)),
    ],
    ids=["nothing", "logprobs", "tokens, not again", "only the second time"],
)
def test_prompts_that_batching_changes_are_counted(
    rounds: list[dict[int, int]], changed: tuple[int, ...], tokens: tuple[int, ...], again: tuple[int, ...]
) -> None:
    found = batched_finding(launched(4).report, LaunchKind.AS_SERVED, batched(*rounds).rounds)
    assert (found.launch, found.prompts) == (4, PROMPTS)
    assert (found.changed, found.tokens_changed, found.changed_again) == (changed, tokens, again)


def test_engine_that_fails_in_a_batch_fails_the_pass() -> None:
    class Failing(Together):
        def decode(self, prompt: Ids, *, tokens: int, top: int) -> Arrays:
            raise LaunchFailed(Outcome.ENGINE_ERROR, "out of memory")

    with pytest.raises(LaunchFailed, match="out of memory"):
        BatchedPass(probe_spec())(Failing([]), SET)


def test_batched_answers_take_the_place_of_the_full_decode() -> None:
    report = as_report(launched(0).report, batched({1: 1}, {}).rounds[0])
    alone = launched(0).report
    assert report.digest == alone.digest
    assert [one.digest == other.digest for one, other in zip(report.passes, alone.passes, strict=True)] == [
        True, True, False,
    ]  # fmt: skip
