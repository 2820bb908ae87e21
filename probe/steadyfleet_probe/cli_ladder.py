"""`steadyfleet ladder`: options, progress on stderr, the result on stdout, and files of evidence.

    0  every launch was measured, whatever was found        2  the command line can't be used
    1  a launch, or all of them, could not be measured    130  interrupted; what was measured is still shown
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import os
import signal
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn, TextIO

from steadyfleet_contract.report import Report
from steadyfleet_contract.spec import LaunchKind, LaunchRequest, ModelSource, Synthetic
from steadyfleet_probe import gpu, ladder, package
from steadyfleet_probe.errors import SettingsInvalid
from steadyfleet_probe.ladder import CacheOrder, Ladder, Launched
from steadyfleet_probe.ladder_batched import BATCHED, as_report
from steadyfleet_probe.ladder_findings import result
from steadyfleet_probe.ladder_result import LadderResult
from steadyfleet_probe.ladder_table import render

_KINDS = {
    "pinned": (LaunchKind.PINNED,),
    "as-served": (LaunchKind.AS_SERVED,),
    "both": (LaunchKind.PINNED, LaunchKind.AS_SERVED),
}

_SYNTHETIC = "synthetic:"

_STEPS = {
    "prepare": "preparing",
    "engineStart": "the engine starts",
    "passes": "the engine is ready and is asked",
    BATCHED: "all prompts at once",
    "engineStop": "the engine is ended",
}

_INTERRUPTED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_RUN_ZIP = """
import sys
sys.path = [sys.argv.pop(1)] + [folder for folder in sys.path if folder]
from steadyfleet_probe.cli import main
sys.exit(main())
"""
"""For another Python: the zip takes the place of the current folder, from which `-c` would import."""


class _Interrupted(BaseException):
    """A signal. Not an Exception: nothing on the way may take it for a failed launch. Nor a KeyboardInterrupt: Python
    3.10 may end itself by SIGINT even after that was caught."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "ladder",
        help="launch a model fresh several times on this machine, without Kubernetes, and say what varies",
        description="Arguments of the engine follow after --. Its environment is that of this command.",
    )
    parser.add_argument("--model", required=True, help="a folder, a repository, or synthetic:Tiny or synthetic:Small")
    parser.add_argument("--revision", default="", help="of a repository; best a commit")
    parser.add_argument("--launches", type=int, default=3, metavar="N", help="of each kind (default: 3)")
    parser.add_argument("--kind", choices=list(_KINDS), default="both", help="default: both, in turns")
    parser.add_argument(
        "--cache",
        choices=[order.value for order in CacheOrder],
        default=CacheOrder.COLD.value,
        help="cold: every launch finds empty caches (default); warm: all but the first find what the first left; "
        "cold-then-warm: in turns, each warm one finds what the cold one before it left",
    )
    parser.add_argument(
        "--pass", dest="passes", action="append", choices=[BATCHED], default=[], help="a pass beside the usual ones"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=64, metavar="N", help="of the full decode of each prompt (default: 64)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of a table")
    parser.add_argument("--out", type=Path, help="folder for the result, the report of each launch, and engine logs")
    parser.add_argument("--work", type=Path, help="folder for caches and generated models (default: a temporary one)")
    parser.add_argument("--python", default="", help="a Python that has vLLM (default: the one that runs this command)")
    parser.add_argument("--gpus-per-launch", type=int, default=1, metavar="N", help="tensor parallel size (default: 1)")
    parser.add_argument("--gpu", default="", metavar="UUID", help="use this one of several GPUs")
    parser.add_argument("--deadline-seconds", type=int, default=1200, metavar="S", help="of one launch (default: 1200)")
    parser.add_argument("arguments", nargs="*", metavar="-- ARGUMENT", help="of the engine, as for `vllm serve`")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Raises ProbeError, OSError."""
    if chosen.python:
        return _run_on(chosen.python, chosen.command_line)
    with _work_folder(chosen.work) as work:
        asked = _ladder(chosen, work)
        asked.check()
        if chosen.out:
            chosen.out.mkdir(parents=True, exist_ok=True)
        progress = _Progress(len(ladder.requests(asked)))
        progress.say(f"{chosen.model}: {progress.launches} launches with {sys.executable}")
        launches, interrupted = _climb(asked, chosen.out, progress)
    found = result(launches, model=chosen.model, arguments=chosen.arguments, asked=progress.launches)
    _show(found, chosen)
    if interrupted:
        return _INTERRUPTED
    return 0 if all(one.is_complete for one in launches) else 1


def _climb(asked: Ladder, out: Path | None, progress: _Progress) -> tuple[list[Launched], bool]:
    """The launches, and whether the ladder was interrupted."""
    launches: list[Launched] = []

    def engine_log(request: LaunchRequest) -> TextIO:
        return (out / f"launch-{request.index:02}.log" if out else Path(os.devnull)).open("w")

    with _on_signals(_interrupt):
        steps = ladder.run(asked, progress=progress.begins, engine_log=engine_log)
        try:
            for one in steps:
                launches.append(one)
                progress.ended(one)
                if out:
                    _write_reports(out, one)
        except _Interrupted:
            progress.say("interrupted")
            return launches, True
        finally:
            steps.close()
    return launches, False


def _ladder(chosen: argparse.Namespace, work: Path) -> Ladder:
    environment = _environment(os.environ)
    return Ladder(
        model=_source(chosen.model, chosen.revision),
        launches=chosen.launches,
        kinds=_KINDS[chosen.kind],
        cache=CacheOrder(chosen.cache),
        batched=BATCHED in chosen.passes,
        max_tokens=chosen.max_tokens,
        arguments=tuple(chosen.arguments),
        environment=environment,
        work=work,
        deadline_seconds=chosen.deadline_seconds,
        gpus_per_launch=chosen.gpus_per_launch,
        wanted_gpu=chosen.gpu or _visible_gpu(environment, count=chosen.gpus_per_launch),
    )


def _source(text: str, revision: str) -> ModelSource:
    if text.startswith(_SYNTHETIC):
        name = text.removeprefix(_SYNTHETIC)
        known = {model.value.lower(): model for model in Synthetic}
        if name.lower() not in known:
            names = " or ".join(_SYNTHETIC + model.value for model in Synthetic)
            raise SettingsInvalid(f"--model: {text} is unknown; it can be {names}")
        return ModelSource(synthetic=known[name.lower()])
    if Path(text).exists() or text.startswith(("/", ".", "~")):
        return ModelSource(path=str(Path(text).expanduser().absolute()))
    return ModelSource(repository=text, revision=revision)


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """Of the engine. HOME becomes a folder of each launch, so what is looked for below the user's own is named."""
    engine = dict(own)
    caches = Path(own.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    engine.setdefault("HF_HOME", str(caches / "huggingface"))
    if site.ENABLE_USER_SITE:
        engine.setdefault("PYTHONUSERBASE", site.getuserbase())
    ours = Path(__file__).resolve().parent.parent
    folders = [folder for folder in own.get("PYTHONPATH", "").split(os.pathsep) if folder]
    # The engine has another current folder, and sees nothing of the probe.
    others = [str(Path(folder).absolute()) for folder in folders if Path(folder).resolve() != ours]
    engine.pop("PYTHONPATH", None)
    return {**engine, "PYTHONPATH": os.pathsep.join(others)} if others else engine


def _visible_gpu(environment: Mapping[str, str], *, count: int) -> str:
    """The GPU that CUDA_VISIBLE_DEVICES names: a launch sets that variable itself. Raises SettingsInvalid."""
    named = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    found = [one.uuid for one in gpu.look(environment).found] if named else []
    if not found or len(found) <= count:
        return ""
    if count > 1:
        raise SettingsInvalid(
            f"CUDA_VISIBLE_DEVICES: can't be followed for {count} GPUs a launch; unset it, and hide the others by a "
            "container"
        )
    first = named[0]
    if first.isdecimal() and int(first) < len(found):
        return found[int(first)]
    return next((uuid for uuid in found if uuid.startswith(first)), "")


def _show(found: LadderResult, chosen: argparse.Namespace) -> None:
    text = found.model_dump_json(by_alias=True, indent=2)
    table = render(found)
    if chosen.out:
        (chosen.out / "ladder.json").write_text(f"{text}\n")
        (chosen.out / "ladder.txt").write_text(table)
    print(text if chosen.json else table, end="\n" if chosen.json else "")


def _write_reports(out: Path, one: Launched) -> None:
    name = f"launch-{one.report.launch:02}"
    _write(out / f"{name}.json.gz", one.report)
    if one.batched and one.batched.rounds and one.is_complete:
        _write(out / f"{name}-batched.json.gz", as_report(one.report, one.batched.rounds[0]))


def _write(path: Path, report: Report) -> None:
    path.write_bytes(gzip.compress(report.model_dump_json(by_alias=True).encode(), mtime=0))


class _Progress:
    """Lines on stderr; stdout is for the result."""

    def __init__(self, launches: int) -> None:
        self.launches = launches
        self._started = time.monotonic()

    def begins(self, request: LaunchRequest, step: str) -> None:
        place = f"launch {request.index} ({request.index + 1} of {self.launches}"
        self.say(f"{place}, {request.kind.value}, {request.cache.value}): {_STEPS.get(step, step)}")

    def ended(self, one: Launched) -> None:
        words = f": {one.report.message}" if one.report.message else ""
        digest = f" {one.report.digest[:19]}" if one.report.digest else ""
        self.say(f"launch {one.report.launch}: {one.report.outcome.value}{digest}{words}")

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._started:6.0f} s  {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _work_folder(named: Path | None) -> Iterator[Path]:
    if named is not None:
        named.mkdir(parents=True, exist_ok=True)
        yield named.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="ladder-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """A second signal must not break into the clean-up that the first one starts."""
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise _Interrupted


@contextlib.contextmanager
def _on_signals(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    before = [signal.signal(number, handler) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, former in zip(_SIGNALS, before, strict=True):
            signal.signal(number, former)


def _run_on(python: str, command_line: Sequence[str]) -> int:
    """The same command by another Python, in which nothing of this needs to be installed. Raises OSError."""
    end = command_line.index("--") if "--" in command_line else len(command_line)
    arguments = [*command_line[:end], "--python=", *command_line[end:]]
    with tempfile.TemporaryDirectory(prefix="steadyfleet-") as folder:
        zipped = Path(folder) / package.ARCHIVE
        package.build_archive(zipped)
        child = subprocess.Popen([python, "-c", _RUN_ZIP, zipped, *arguments])
        # The child ends its engine first; a terminal tells it as well, and it takes the first signal alone.
        with _on_signals(lambda number, frame: child.send_signal(number)):
            return child.wait()
