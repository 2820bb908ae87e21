"""Cold means that nothing is found, warm that what the cold one left is found again; and any user can live there."""

import os
import socket
from pathlib import Path

import pytest

from steadyfleet_contract.spec import CacheState, LaunchKind
from steadyfleet_probe import caches
from steadyfleet_probe.caches import LaunchFolders


def prepare(work: Path, *, kind: str = "Pinned", cache: str = "Cold", **environment: str) -> LaunchFolders:
    return caches.prepare(work, kind=LaunchKind(kind), cache=CacheState(cache), environment=environment)


def leave_something(folders: LaunchFolders) -> Path:
    file = Path(folders.variables["TORCHINDUCTOR_CACHE_DIR"]) / "choice.best_config"
    file.write_text("{}")
    return file


def test_every_variable_names_an_existing_folder_below_the_work_folder(tmp_path: Path) -> None:
    folders = prepare(tmp_path)
    names = {name for name in folders.variables if name not in ("USER", "LOGNAME", "HF_HOME")}
    assert {"HOME", "TMPDIR", "XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR"} <= names
    for name in names:
        folder = Path(folders.variables[name])
        assert folder.is_dir()
        assert folder.is_relative_to(tmp_path)


def test_socket_paths_below_tmpdir_stay_within_the_limit_of_unix_sockets() -> None:
    """vLLM makes ipc sockets named by a uuid in TMPDIR; the kernel takes 107 characters."""
    for kind in LaunchKind:
        folder = Path("/steadyfleet-work") / "launches" / kind.value / "tmp"
        assert len(str(folder)) + 1 + 36 <= 107


def test_cold_launch_finds_nothing_of_the_one_before(tmp_path: Path) -> None:
    left = leave_something(prepare(tmp_path))
    folders = prepare(tmp_path)
    assert folders.cache is CacheState.COLD
    assert not left.exists()


def test_warm_launch_finds_the_tree_at_the_same_path(tmp_path: Path) -> None:
    cold = prepare(tmp_path)
    left = leave_something(cold)
    warm = prepare(tmp_path, cache="Warm")
    assert warm.cache is CacheState.WARM
    assert warm.variables == cold.variables
    assert left.exists()


def test_each_warm_launch_finds_what_the_cold_one_left(tmp_path: Path) -> None:
    left = leave_something(prepare(tmp_path))
    os.utime(left, (1_700_000_000, 1_700_000_000))
    (left.parent / "link").symlink_to(left.name)
    for _ in range(3):
        prepare(tmp_path, cache="Warm")
        assert left.read_text() == "{}"
        assert left.stat().st_mtime == 1_700_000_000
        assert sorted(path.name for path in left.parent.iterdir()) == ["choice.best_config", "link"]
        assert (left.parent / "link").is_symlink()
        left.write_text("changed by a warm launch")
        (left.parent / "new by a warm launch").touch()


def test_warm_launch_follows_the_last_cold_one(tmp_path: Path) -> None:
    leave_something(prepare(tmp_path))
    prepare(tmp_path, cache="Warm")
    leave_something(prepare(tmp_path)).write_text("second")
    for _ in range(2):
        folders = prepare(tmp_path, cache="Warm")
        assert Path(folders.variables["TORCHINDUCTOR_CACHE_DIR"], "choice.best_config").read_text() == "second"


def test_sockets_that_an_engine_left_are_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = prepare(tmp_path)
    left = leave_something(folders)
    monkeypatch.chdir(folders.variables["TMPDIR"])  # for a path short enough
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("left")
    for _ in range(2):
        prepare(tmp_path, cache="Warm")
    assert left.exists()


def test_copy_that_was_broken_off_is_made_anew(tmp_path: Path) -> None:
    left = leave_something(prepare(tmp_path))
    (tmp_path / "kept" / "Pinned.unfinished" / "half").mkdir(parents=True)
    for _ in range(2):
        prepare(tmp_path, cache="Warm")
    assert left.exists()
    assert not list((tmp_path / "kept").glob("**/half"))


def test_warm_launch_without_an_earlier_one_is_reported_as_cold(tmp_path: Path) -> None:
    assert prepare(tmp_path, cache="Warm").cache is CacheState.COLD


def test_kinds_do_not_share_a_tree(tmp_path: Path) -> None:
    left = leave_something(prepare(tmp_path, kind="Pinned"))
    folders = prepare(tmp_path, kind="AsServed", cache="Warm")
    assert folders.cache is CacheState.COLD
    assert left.exists()


def test_working_folder_is_empty_since_python_imports_from_it(tmp_path: Path) -> None:
    assert list(prepare(tmp_path).working.iterdir()) == []


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({"USER": "vllm"}, "vllm"), ({"LOGNAME": "svc", "USER": "vllm"}, "svc"), ({}, None)],
)
def test_user_always_has_a_name(tmp_path: Path, environment: dict[str, str], expected: str | None) -> None:
    variables = prepare(tmp_path, **environment).variables
    assert variables["USER"] == variables["LOGNAME"]
    assert variables["USER"] == (expected or variables["USER"])
    assert variables["USER"]


def test_user_without_a_passwd_entry_has_a_name_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 54321)
    assert prepare(tmp_path).variables["USER"] == "user"


def test_downloads_are_kept_for_all_launches_or_where_the_image_says(tmp_path: Path) -> None:
    assert prepare(tmp_path).variables["HF_HOME"] == str(tmp_path / "huggingface")
    assert prepare(tmp_path, HF_HOME="/models").variables["HF_HOME"] == "/models"
