"""Builds the wheel and tests it where the checkout is not: what is missing in it, or stray, fails here.

    python -m tests.wheel

The unit and contract tests run against the installed wheel on Python 3.11; those of the contract and the probe also on
Python 3.10 with the oldest pydantic and numpy that serving images carry.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"steadyfleet_operator", "steadyfleet_contract", "steadyfleet_probe"}
TEST_TOOLS = ["pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "pyyaml", "cryptography"]
COPIED = ["tests/unit", "tests/contract", "tests/operator", "tests/data", "crds", "charts", "examples", "docs"]
OLDEST = ["pydantic==2.10.*", "numpy==1.26.*"]
CHECKOUT_ONLY = ["tests/unit/test_repository.py", "tests/unit/test_readme.py"]
"""Tests about files that a wheel has not."""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="steadyfleet-wheel-") as folder:
        place = Path(folder)
        wheel = build(place)
        check_contents(wheel)
        tests = copy_tests(place)
        run_tests(
            place, wheel, tests, python="3.11", extra="[operator]", pins=[], paths=["tests/unit", "tests/contract"]
        )
        probe_tests = sorted(str(path.relative_to(tests)) for path in (tests / "tests/unit").glob("probe*"))
        probe_tests += ["tests/unit/ladder", "tests/contract/test_digest.py"]
        run_tests(place, wheel, tests, python="3.10", extra="", pins=OLDEST, paths=probe_tests)


def build(place: Path) -> Path:
    run([uv(), "build", "--quiet", "--wheel", "--out-dir", str(place / "dist"), str(ROOT)])
    (wheel,) = (place / "dist").glob("*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    top = {name.split("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")}
    if top != PACKAGES:
        sys.exit(f"the wheel holds {sorted(top)} at its top, it should hold {sorted(PACKAGES)}")
    if stray := [name for name in names if name.endswith((".pyc", ".so")) or "/tests/" in name]:
        sys.exit(f"the wheel holds what does not belong there: {stray[:5]}")
    sources = {
        str(path.relative_to(path.parents[len(path.relative_to(ROOT).parts) - 2]))
        for package in ("operator", "probe")
        for path in (ROOT / package).rglob("*.py")
    }
    if missing := sorted(sources - set(names)):
        sys.exit(f"the wheel lacks {missing[:5]}")
    print(f"wheel: {len(names)} files, {wheel.stat().st_size / 1024:.0f} KiB")


def copy_tests(place: Path) -> Path:
    """The tests and what they read, without the packages under test."""
    target = place / "checkout"
    for folder in COPIED:
        if (ROOT / folder).exists():
            shutil.copytree(
                ROOT / folder, target / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
    shutil.copy(ROOT / "tests/__init__.py", target / "tests/__init__.py")
    shutil.copy(ROOT / "pyproject.toml", target / "pyproject.toml")
    for name in CHECKOUT_ONLY:
        (target / name).unlink(missing_ok=True)
    return target


def run_tests(
    place: Path, wheel: Path, tests: Path, *, python: str, extra: str, pins: list[str], paths: list[str]
) -> None:
    environment = place / f"python-{python}"
    run([uv(), "venv", "--quiet", "--python", interpreter_of(python), str(environment)])
    interpreter = str(environment / "bin/python")
    run([uv(), "pip", "install", "--quiet", "--python", interpreter, f"{wheel}{extra}", *TEST_TOOLS, *pins])
    print(f"Python {python}: {' '.join(paths)}", flush=True)
    run(
        [interpreter, "-m", "pytest", "-q", *paths, "-m", "not cluster and not engine"],
        cwd=tests,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )


def interpreter_of(version: str) -> str:
    """A Python of this version on the machine (uv does not look into pyenv); else its number, for uv to fetch it."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = shutil.which(f"python{version}")
    candidates = [on_path] if on_path else []
    candidates += [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)]
    for candidate in candidates:
        asked = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False)
        if asked.returncode == 0 and asked.stdout.startswith(f"Python {version}."):
            return candidate
    return version


def run(command: list[str], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, env=env, check=False)
    if done.returncode:
        sys.exit(f"failed ({done.returncode}): {' '.join(command[:6])} ...")


def uv() -> str:
    return shutil.which("uv") or str(ROOT / ".cache/uv/bin/uv")


if __name__ == "__main__":
    main()
