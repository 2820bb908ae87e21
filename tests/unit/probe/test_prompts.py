"""The prompt set is the same on every machine, and fits or says which numbers don't."""

import pytest

from steadyfleet_contract.report import Outcome
from steadyfleet_probe.errors import LaunchFailed, SettingsInvalid
from steadyfleet_probe.prompts import FORCED_TOKENS, STANDARD, check_fits, prompt_set


@pytest.mark.parametrize(
    ("vocabulary", "digest"),
    [
        (512, "c4ddfd66eef0604ab6d2858fe914484d42e27a7e63e1f90fede1803ba7c9fa76"),
        (32768, "8fa0ddd25a019c56ead07588c58fedb587d1daabee55dc8606cdefd6b6157c94"),
        (151936, "1ed82109050cbf46b92c1aa19a354ed63a2aa9fe22325ec6facb9e77174dd7e7"),
    ],
)
def test_ids_never_change(vocabulary: int, digest: str) -> None:
    assert prompt_set(STANDARD, vocabulary=vocabulary).digest == f"sha256:{digest}"


def test_lengths_are_those_at_which_kernels_change() -> None:
    prompts = prompt_set(STANDARD, vocabulary=512)
    assert [len(ids) for ids in prompts.short] == [512, 257, 256, 255, 17, 16, 15, 1]
    assert prompts.full[:8] == prompts.short
    assert len(prompts.full) == 16
    assert {len(ids) for ids in prompts.forced} == {FORCED_TOKENS}


def test_all_prompts_differ() -> None:
    prompts = prompt_set(STANDARD, vocabulary=512)
    assert len({*prompts.full, *prompts.forced}) == 24


def test_longest_prompt_comes_first() -> None:
    """A first question of one token kills vLLM's CPU engine on machines with AMX."""
    prompts = prompt_set(STANDARD, vocabulary=512)
    assert len(prompts.short[0]) == max(map(len, prompts.full))


def test_both_ends_of_the_vocabulary_stay_free_for_special_tokens() -> None:
    prompts = prompt_set(STANDARD, vocabulary=151936)
    ids = {token for group in (prompts.full, prompts.forced) for one in group for token in one}
    assert min(ids) >= 151936 // 64
    assert max(ids) < 151936 - 151936 // 8


def test_texts_repeat_and_random_prompts_hardly_do() -> None:
    prompts = prompt_set(STANDARD, vocabulary=151936)
    random, text = prompts.full[0], prompts.full[8]
    assert len(random) == len(text) == 512
    assert len(set(random)) > 500
    assert len(set(text)) < 400


def test_vocabulary_changes_the_digest() -> None:
    assert prompt_set(STANDARD, vocabulary=512).digest != prompt_set(STANDARD, vocabulary=513).digest


def test_unknown_set_is_refused_by_name() -> None:
    with pytest.raises(SettingsInvalid, match="promptSet: 'other' is unknown; this probe knows standard-v1"):
        prompt_set("other", vocabulary=512)


def test_tiny_vocabulary_is_refused() -> None:
    with pytest.raises(SettingsInvalid, match="a vocabulary of 16 ids is too small"):
        prompt_set(STANDARD, vocabulary=16)


@pytest.mark.parametrize(("max_tokens", "needed"), [(16, 577), (64, 577), (128, 640)])
def test_too_short_a_context_names_the_numbers(max_tokens: int, needed: int) -> None:
    prompts = prompt_set(STANDARD, vocabulary=512)
    check_fits(prompts, max_tokens=max_tokens, max_model_len=needed)
    words = f"needs sequences of {needed} tokens, the engine takes {needed - 1}"
    with pytest.raises(LaunchFailed, match=words) as raised:
        check_fits(prompts, max_tokens=max_tokens, max_model_len=needed - 1)
    assert raised.value.outcome is Outcome.PROMPTS_TOO_LONG
