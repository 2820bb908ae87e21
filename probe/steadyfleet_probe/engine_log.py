"""What vLLM's log says: facts about the launch, and the one line that tells why it failed."""

from __future__ import annotations

import re
from collections.abc import Sequence

_FACTS = {
    "config": re.compile(r"Initializing a V1 LLM engine .* with config: (.*)"),
    "attentionBackend": re.compile(r"Using (\w+) (?:attention )?backend"),
    "modelRunner": re.compile(r"Model Runner (V\d)"),
    "allReduce": re.compile(r"(Using .* all-reduce backends .*)"),
    "moeBackend": re.compile(r"(Using .* MoE backend.*)"),
    "irOpPriority": re.compile(r"(Final IR op priority.*)"),
    "aot": re.compile(r"(Directly load AOT compilation|saved AOT compiled function)"),
    "triton": re.compile(r"(\[triton-autotune-disabled\].*)"),
    "tunedDuringInference": re.compile(r"(JIT.* during inference.*)"),
}
"""What vLLM tells only in its log."""

_ERROR_LINE = re.compile(r"\w*(Error|Exception|Interrupt)\b.*:|error:|not found|out of memory", re.IGNORECASE)
_LOG_PREFIX = re.compile(r"^(\(\w+ pid=\d+\) )?((ERROR|WARNING|INFO|CRITICAL) [\d-]+ [\d:]+ (\[[^\]]+\] ?)?)?")
_ARGUMENT_ERROR = re.compile(r"error: (unrecognized arguments|ambiguous option|argument |the following arguments)")
_MODEL_ERROR = re.compile(
    r"(EntryNotFound|RepositoryNotFound|RevisionNotFound|GatedRepo)Error|not a valid model identifier"
)
"""huggingface_hub's and transformers' words for a repository that can't be had."""


def note_facts(line: str, facts: dict[str, str]) -> None:
    """Add what `line` tells; the first line that tells something counts."""
    for name, pattern in _FACTS.items():
        if name not in facts and (match := pattern.search(line)):
            facts[name] = match.group(1)


def most_telling(lines: Sequence[str]) -> str:
    """The last error that does not only say that another process failed; else the last line; empty if there is none."""
    plain = [_LOG_PREFIX.sub("", line).strip() for line in lines]
    errors = [line for line in plain if _ERROR_LINE.search(line)]
    telling = [line for line in errors if not _is_consequence(line)]
    return next(reversed(telling or errors or [line for line in plain if line]), "")


def refused_argument(lines: Sequence[str]) -> str:
    """The words of the argument parser; empty if it did not refuse."""
    return next((line.strip() for line in lines if _ARGUMENT_ERROR.search(line)), "")


def tells_of_a_missing_model(line: str) -> bool:
    return _MODEL_ERROR.search(line) is not None


def _is_consequence(line: str) -> bool:
    consequences = ("See root cause above", "See stack trace", "EngineDeadError", "Engine core initialization failed")
    return any(words in line for words in consequences) or line.startswith(("RuntimeError: cancelled", "raise "))
