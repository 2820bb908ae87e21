"""`steadyfleet compare A B`: how much two launches differ, why as far as two can tell, and whom that blames.

Exit codes: 0 the same bits, all finite · 1 they differ · 2 a file can't be used, or the two are not comparable ·
3 the same bits, but some are NaN or infinite.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from steadyfleet_contract.compare import compare
from steadyfleet_contract.comparison import Comparison
from steadyfleet_contract.errors import ContractError
from steadyfleet_contract.readlaunch import read_launch
from steadyfleet_probe.compare_text import text

IDENTICAL = 0
DIFFERS = 1
UNUSABLE = 2
IDENTICAL_NOT_SOUND = 3


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's `run` returns its exit code."""
    command = subparsers.add_parser(
        "compare",
        help="say how two launches differ and why",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("a", metavar="A", type=Path, help="launch record, bundle of the evidence store, or report")
    command.add_argument("b", metavar="B", type=Path)
    command.add_argument("--json", action="store_true", help="for programs; keys are stable within a schemaVersion")
    command.add_argument(
        "--weights", metavar="DIGEST", default="", help="digest that both should have read; names the side that did not"
    )
    command.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    try:
        found = compare(read_launch(chosen.a), read_launch(chosen.b), expected_weights=chosen.weights)
    except ContractError as error:
        sys.stderr.write(f"steadyfleet compare: {error}\n")
        return UNUSABLE
    sys.stdout.write(found.model_dump_json(by_alias=True, indent=2) + "\n" if chosen.json else text(found))
    return exit_code(found)


def exit_code(found: Comparison) -> int:
    if not found.identical:
        return DIFFERS
    return IDENTICAL if found.sound else IDENTICAL_NOT_SOUND
