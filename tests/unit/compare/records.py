"""Real launches of an H200, and copies of them with a fault put in."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from steadyfleet_contract.compare import compare
from steadyfleet_contract.comparison import Comparison
from steadyfleet_contract.launches import Launch
from steadyfleet_contract.launchrecord import from_record

FOLDER = Path(__file__).resolve().parents[2] / "data" / "launches"
QUANTUM = 0.0625

Record = dict[str, Any]
Fault = Callable[[Record], None]


@cache
def _read(name: str) -> Record:
    content: Record = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
    return content


def record(name: str, *faults: Fault) -> Record:
    """A copy that may be changed."""
    found = copy.deepcopy(_read(name))
    for fault in faults:
        fault(found)
    return found


def launch(name: str, *faults: Fault) -> Launch:
    return from_record(record(name, *faults), file=f"{name}.json.gz")


def compared(a: str, b: str, *faults: Fault) -> Comparison:
    """The faults are put into B."""
    return compare(launch(a), launch(b, *faults))


def wrong_weights(found: Record) -> None:
    found["model"]["weights_sha256"] = "f" * 64


def weights_unknown(found: Record) -> None:
    found["model"]["weights_sha256"] = None


def outputs_of(name: str) -> Fault:
    """The other launch's numbers in this launch's surroundings: what a fault of that size looks like."""

    def fault(found: Record) -> None:
        for field in ("decode", "teacher_forced"):
            found[field] = copy.deepcopy(_read(name)[field])

    return fault


def shifted(nats: float, *, seed: int = 1) -> Fault:
    """Every logprob of the teacher-forced pass and of the decode moved at random by about that much."""

    def fault(found: Record) -> None:
        random = np.random.default_rng(seed)
        for field in ("decode", "teacher_forced"):
            for entry in found[field]:
                moved = np.asarray(entry["chosen_logprobs"], np.float32)
                noise = random.normal(0.0, nats, size=moved.shape).astype(np.float32)
                entry["chosen_logprobs"] = [float(value) for value in moved + noise]
                rows = np.asarray(entry["top_logprobs"], np.float32) + noise[:, None]
                entry["top_logprobs"] = [[float(value) for value in row] for row in rows]

    return fault


def last_bit(*, prompt: int, position: int, field: str = "teacher_forced") -> Fault:
    """One logprob moved to the next float32: the smallest difference there is."""

    def fault(found: Record) -> None:
        values = found[field][prompt]["chosen_logprobs"]
        values[position] = float(np.nextafter(np.float32(values[position]), np.float32(0)))

    return fault


def not_a_number(*, prompt: int, position: int, field: str, written_as: Any = float("nan")) -> Fault:
    def fault(found: Record) -> None:
        found[field][prompt]["chosen_logprobs"][position] = written_as

    return fault


def other_token(*, prompt: int, position: int, rank: int) -> Fault:
    """The token emitted is the one of that rank; the row stays as it was."""

    def fault(found: Record) -> None:
        entry = found["decode"][prompt]
        entry["token_ids"][position] = entry["top_ids"][position][rank]
        entry["chosen_logprobs"][position] = entry["top_logprobs"][position][rank]

    return fault


def setting(section: str, key: str, value: Any) -> Fault:
    def fault(found: Record) -> None:
        found[section][key] = value

    return fault
