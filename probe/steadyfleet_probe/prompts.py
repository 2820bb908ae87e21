"""The prompt set `standard-v1`: token ids made for the vocabulary of the model in use.

Sixteen prompts. The first eight, of lengths at which kernels change (1, 15..17, 255..257, 512), are uniformly random
ids: flat distributions and small margins, so the least change shows. They make the short decode and, each followed by
64 forced ids, the teacher-forced pass. The other eight look like text: few ids are frequent, and they repeat.

Integer arithmetic on SHA-256 alone, so the ids are the same on every machine; a test pins their hash. The longest comes
first: vLLM's CPU attention uses AMX, which is switched on only by a matrix product of some size; a first prompt of one
token kills that engine with an illegal instruction (seen with 0.32 under --enforce-eager).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from steadyfleet_contract.report import Outcome
from steadyfleet_probe.errors import LaunchFailed, SettingsInvalid

STANDARD = "standard-v1"

FORCED_TOKENS = 64

Ids = tuple[int, ...]

_RANDOM_LENGTHS = (512, 257, 256, 255, 17, 16, 15, 1)
_TEXT_LENGTHS = (512, 384, 300, 200, 128, 100, 64, 32)


@dataclass(frozen=True)
class PromptSet:
    name: str
    vocabulary: int
    short: tuple[Ids, ...]
    """Short decode, and prompts of the teacher-forced pass."""
    forced: tuple[Ids, ...]
    """One continuation for each of `short`."""
    full: tuple[Ids, ...]
    """Full decode; begins with `short`."""

    @property
    def digest(self) -> str:
        hashed = hashlib.sha256(f"{self.name}/{self.vocabulary}".encode())
        for group in (self.full, self.forced):
            for ids in group:
                hashed.update(struct.pack(f"<I{len(ids)}I", len(ids), *ids))
        return f"sha256:{hashed.hexdigest()}"

    def longest(self, *, max_tokens: int) -> int:
        """Tokens of the longest sequence that any pass makes."""
        decode = max(map(len, self.full)) + max_tokens
        scored = max(len(ids) + len(forced) for ids, forced in zip(self.short, self.forced, strict=True)) + 1
        return max(decode, scored)


def prompt_set(name: str, *, vocabulary: int) -> PromptSet:
    """Raises SettingsInvalid for an unknown set or a vocabulary too small to draw from."""
    check_name(name)
    low, high = _range(vocabulary)
    if high - low < 16:
        raise SettingsInvalid(f"model: a vocabulary of {vocabulary} ids is too small for the prompt set {name}")
    random = tuple(_uniform(f"random/{length}", length, low, high) for length in _RANDOM_LENGTHS)
    text = tuple(_textlike(f"text/{length}", length, low, high) for length in _TEXT_LENGTHS)
    forced = tuple(_uniform(f"forced/{length}", FORCED_TOKENS, low, high) for length in _RANDOM_LENGTHS)
    return PromptSet(name=name, vocabulary=vocabulary, short=random, forced=forced, full=random + text)


def check_name(name: str) -> None:
    if name != STANDARD:
        raise SettingsInvalid(f"promptSet: {name!r} is unknown; this probe knows {STANDARD}")


def check_fits(prompts: PromptSet, *, max_tokens: int, max_model_len: int) -> None:
    """Raises LaunchFailed (PromptsTooLong) that names the numbers."""
    needed = prompts.longest(max_tokens=max_tokens)
    if needed > max_model_len:
        raise LaunchFailed(
            Outcome.PROMPTS_TOO_LONG,
            f"the prompt set {prompts.name} with maxTokens {max_tokens} needs sequences of {needed} tokens, the engine "
            f"takes {max_model_len}: raise --max-model-len to at least {needed}, or lower maxTokens",
        )


def _range(vocabulary: int) -> tuple[int, int]:
    """Leaves out both ends of the vocabulary, where special tokens and placeholders for images and audio live."""
    return vocabulary // 64, vocabulary - vocabulary // 8


def _uniform(label: str, length: int, low: int, high: int) -> Ids:
    words = _words(label)
    return tuple(low + (next(words) * (high - low) >> 32) for _ in range(length))


def _textlike(label: str, length: int, low: int, high: int) -> Ids:
    """Frequent ids are small, rare ones large (each halving of the range is equally likely), and one in four repeats
    one of the last sixteen."""
    words = _words(label)
    ids: list[int] = []
    for _ in range(length):
        choice, word = next(words), next(words)
        if ids and choice % 4 == 0:
            recent = ids[-16:]
            ids.append(recent[word % len(recent)])
        else:
            span = max(16, (high - low) >> (choice // 4 % 12))
            ids.append(low + (word * span >> 32))
    return tuple(ids)


def _words(label: str) -> Iterator[int]:
    """An endless stream of 32-bit integers that depends on the label alone."""
    block = 0
    while True:
        yield from struct.unpack("<8I", hashlib.sha256(f"{STANDARD}/{label}/{block}".encode()).digest())
        block += 1
