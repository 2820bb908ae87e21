"""Which passes run, in which order, and what the repeats notice."""

from dataclasses import dataclass, field

from steadyfleet_contract.digest import Arrays, check_report, unpack
from steadyfleet_contract.report import PassName, Report
from steadyfleet_probe.measure import ROUNDS, SHORT_TOKENS, Measured, measure
from steadyfleet_probe.prompts import STANDARD, Ids, prompt_set
from steadyfleet_probe.simulated import SimulatedEngine

PROMPTS = prompt_set(STANDARD, vocabulary=512)


@dataclass
class WatchedEngine:
    """Notes what it is asked; from question number `flaky_from` on it answers one prompt with other bits."""

    right: SimulatedEngine = field(default_factory=lambda: SimulatedEngine(seed=0, shift=""))
    wrong: SimulatedEngine = field(default_factory=lambda: SimulatedEngine(seed=0, shift="flaky"))
    flaky_from: int = 10**9
    asked: list[tuple[str, int, int]] = field(default_factory=list)

    def decode(self, prompt: Ids, *, tokens: int, top: int) -> Arrays:
        self.asked.append(("decode", len(prompt), tokens))
        flaky = len(self.asked) > self.flaky_from and len(prompt) == 255
        return (self.wrong if flaky else self.right).decode(prompt, tokens=tokens, top=top)

    def score(self, prompt: Ids, forced: Ids, *, top: int) -> Arrays:
        self.asked.append(("score", len(prompt), len(forced)))
        return self.right.score(prompt, forced, top=top)


def run(engine: WatchedEngine, *, known: bool = False) -> Measured:
    return measure(engine, PROMPTS, max_tokens=6, top_logprobs=3, digest_is_known=lambda digest: known)


def test_unknown_digest_brings_the_full_decode_and_all_arrays() -> None:
    measured = run(WatchedEngine())
    assert [part.name for part in measured.passes] == [
        PassName.SHORT_DECODE,
        PassName.TEACHER_FORCED,
        PassName.FULL_DECODE,
    ]
    shapes = [unpack(part.prompts[0]) for part in measured.passes]
    assert [arrays and arrays.top_ids.shape for arrays in shapes] == [(SHORT_TOKENS, 0), (64, 3), (6, 3)]
    assert len(measured.passes[2].prompts) == 16


def test_known_digest_saves_the_full_decode_and_sends_digests_only() -> None:
    engine = WatchedEngine()
    measured = run(engine, known=True)
    assert [part.name for part in measured.passes] == [PassName.SHORT_DECODE, PassName.TEACHER_FORCED]
    assert all(unpack(prompt) is None for part in measured.passes for prompt in part.prompts)
    assert "fullDecode" not in measured.seconds


def test_digest_does_not_depend_on_what_the_operator_knows() -> None:
    assert run(WatchedEngine(), known=True).digest == run(WatchedEngine()).digest


def test_longest_prompt_is_asked_first() -> None:
    engine = WatchedEngine()
    run(engine, known=True)
    assert engine.asked[0] == ("decode", 512, SHORT_TOKENS)


def test_repeats_ask_every_prompt_in_another_order_each_round() -> None:
    engine = WatchedEngine()
    run(engine, known=True)
    repeats = [length for kind, length, _ in engine.asked[16:]]
    rounds = [tuple(repeats[start : start + 8]) for start in range(0, len(repeats), 8)]
    assert len(rounds) == ROUNDS
    assert len({*rounds, tuple(len(ids) for ids in PROMPTS.short)}) == ROUNDS + 1
    assert all(sorted(order) == sorted(rounds[0]) for order in rounds)


def test_engine_that_agrees_with_itself_has_no_differing_round() -> None:
    repeats = run(WatchedEngine(), known=True).repeats
    assert (repeats.rounds, repeats.differing_rounds, repeats.differing_prompts) == (ROUNDS, 0, ())


def test_engine_that_changes_its_answers_is_noticed_with_the_prompt() -> None:
    repeats = run(WatchedEngine(flaky_from=16 + 3 * 8), known=True).repeats
    assert (repeats.rounds, repeats.differing_rounds, repeats.differing_prompts) == (ROUNDS, 2, (3,))


def test_passes_make_a_consistent_report() -> None:
    measured = run(WatchedEngine())
    report = Report(
        recipe=1,
        epoch="0" * 16,
        launch=0,
        kind="Pinned",
        cache="Cold",
        outcome="Completed",
        started_at="now",
        digest=measured.digest,
        passes=tuple(measured.passes),
    )
    check_report(Report.model_validate_json(report.model_dump_json(by_alias=True)))
