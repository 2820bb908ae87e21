"""The `steadyfleet` command, for people and for image builds; the probe in a pod is `__main__`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from steadyfleet_contract.spec import Synthetic
from steadyfleet_probe import cli_compare, cli_ladder, package, synthetic
from steadyfleet_probe.errors import ProbeError, SettingsInvalid
from steadyfleet_probe.weights import read_weights, weight_files


def main(arguments: Sequence[str] | None = None) -> int:
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    chosen = _parser().parse_args(command_line, argparse.Namespace(command_line=command_line))
    try:
        status: int | None = chosen.run(chosen)
    except SettingsInvalid as error:
        print(f"steadyfleet: {error}", file=sys.stderr)
        return 2
    except (ProbeError, OSError) as error:
        print(f"steadyfleet: {error}", file=sys.stderr)
        return 1
    return status or 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="steadyfleet", description="Consistency checks of LLM serving.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("synthetic", help="write a seeded model; nothing is downloaded")
    command.add_argument("model", choices=[model.value for model in Synthetic])
    command.add_argument("folder", type=Path, help="must not exist or be empty")
    command.set_defaults(run=_synthetic)

    command = commands.add_parser("weights-digest", help="print what a check's model.digest is compared with")
    command.add_argument("folder", type=Path)
    command.set_defaults(run=_weights_digest)

    command = commands.add_parser("probe-zip", help="write the probe (probe.pyz and its launcher `run`) into a folder")
    command.add_argument("folder", type=Path)
    command.set_defaults(run=_probe_zip)

    cli_compare.add_parser(commands)
    cli_ladder.add_parser(commands)
    return parser


def _synthetic(chosen: argparse.Namespace) -> None:
    synthetic.generate(Synthetic(chosen.model), chosen.folder)
    print(read_weights(chosen.folder).digest)


def _weights_digest(chosen: argparse.Namespace) -> None:
    if not weight_files(chosen.folder):
        raise FileNotFoundError(f"{chosen.folder} holds no *.safetensors file")
    print(read_weights(chosen.folder).digest)


def _probe_zip(chosen: argparse.Namespace) -> None:
    package.build(chosen.folder)
    print(chosen.folder / package.ARCHIVE)


if __name__ == "__main__":
    sys.exit(main())
