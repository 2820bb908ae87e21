"""The one line of a log that a person needs, and the facts that stand nowhere else."""

import pytest

from steadyfleet_probe import engine_log

TRACEBACK = [
    "(EngineCore pid=7) ERROR 11-30 10:00:00 [core.py:1512] EngineCore failed to start.",
    "(EngineCore pid=7) ERROR 11-30 10:00:00 [core.py:1512] ValueError: Available memory on node 0 is too small.",
    "(APIServer pid=1) Traceback (most recent call last):",
    '(APIServer pid=1)     raise RuntimeError("Engine core initialization failed. See root cause above.")',
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (TRACEBACK, "ValueError: Available memory on node 0 is too small."),
        (TRACEBACK[4:], TRACEBACK[4].removeprefix("(APIServer pid=1) ")),
        (["INFO 11-30 10:00:00 [a.py:1] Starting", "Killed", ""], "Killed"),
        (["torch.OutOfMemoryError: CUDA out of memory.", "bye"], "torch.OutOfMemoryError: CUDA out of memory."),
        ([], ""),
    ],
    ids=["root cause", "only consequences", "no error", "out of memory", "silence"],
)
def test_most_telling_line(lines: list[str], expected: str) -> None:
    assert engine_log.most_telling(lines) == expected


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("INFO [cuda.py:507] Using FLASH_ATTN attention backend out of", "attentionBackend", "FLASH_ATTN"),
        ("INFO [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: a=1, b=2", "config", "a=1, b=2"),
        ("WARNING JIT tuned during inference: f", "tunedDuringInference", "JIT tuned during inference: f"),
    ],
)
def test_facts_are_noted_once(line: str, name: str, value: str) -> None:
    facts: dict[str, str] = {}
    engine_log.note_facts(line, facts)
    engine_log.note_facts(line.replace(value, "OTHER"), facts)
    assert facts == {name: value}


def test_refusal_of_an_argument_is_quoted() -> None:
    assert engine_log.refused_argument(["usage: x", "api_server.py: error: argument --dtype: invalid choice: 'x'"]) == (
        "api_server.py: error: argument --dtype: invalid choice: 'x'"
    )
    assert engine_log.refused_argument(TRACEBACK) == ""
