"""Where weights come from, and the words for each way in which they can be missing."""

import os
from pathlib import Path

import pytest

from steadyfleet_contract.report import Outcome
from steadyfleet_contract.spec import ModelSource
from steadyfleet_probe import model
from steadyfleet_probe.errors import LaunchFailed, SettingsInvalid


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.safetensors").write_bytes(b"x")
    (tmp_path / "m" / "config.json").write_text('{"vocab_size": 1000}')
    return tmp_path / "m"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (ModelSource(), "not none"),
        (ModelSource(path="/m", synthetic="Tiny"), "not ['path', 'synthetic']"),
        (ModelSource(path="/m", repository="a/b"), "not ['path', 'repository']"),
    ],
)
def test_exactly_one_source_is_needed(source: ModelSource, words: str) -> None:
    with pytest.raises(SettingsInvalid) as raised:
        model.check_source(source)
    assert words in str(raised.value)


def test_path_with_weights_is_used_as_it_is(folder: Path, tmp_path: Path) -> None:
    assert model.before_start(ModelSource(path=str(folder)), tmp_path) == (str(folder), folder)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "holds no *.safetensors file"),
        (lambda folder: (folder / "config.json").unlink(), "config.json: No such file"),
        (lambda folder: folder.rename(folder.with_name("elsewhere")), "is no folder in this pod; mount it by"),
    ],
    ids=["no weights", "no config", "no folder"],
)
def test_path_that_can_not_be_loaded_is_model_not_found(folder: Path, spoil: object, words: str) -> None:
    assert callable(spoil)
    spoil(folder)
    with pytest.raises(LaunchFailed) as raised:
        model.before_start(ModelSource(path=str(folder)), folder.parent)
    assert raised.value.outcome is Outcome.MODEL_NOT_FOUND
    assert words in str(raised.value)


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything; the end-to-end test drops root")
def test_unreadable_weights_are_model_not_found(folder: Path) -> None:
    (folder / "model.safetensors").chmod(0)
    with pytest.raises(LaunchFailed, match="Permission denied"):
        model.before_start(ModelSource(path=str(folder)), folder.parent)


def test_synthetic_model_is_made_once(tmp_path: Path) -> None:
    named, folder = model.before_start(ModelSource(synthetic="Tiny"), tmp_path)
    assert folder is not None
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert model.before_start(ModelSource(synthetic="Tiny"), tmp_path) == (named, folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == made


@pytest.mark.parametrize(
    "config",
    ['{"vocab_size": 1000}', '{"text_config": {"vocab_size": 1000}, "model_type": "x"}'],
    ids=["text model", "multimodal model"],
)
def test_vocabulary_is_read_from_the_config(folder: Path, config: str) -> None:
    (folder / "config.json").write_text(config)
    assert model.vocabulary(folder) == 1000


@pytest.mark.parametrize(("config", "words"), [("{}", "names no vocab_size"), ("{", "can't be read")])
def test_config_without_a_vocabulary_is_model_not_found(folder: Path, config: str, words: str) -> None:
    (folder / "config.json").write_text(config)
    with pytest.raises(LaunchFailed, match=words):
        model.vocabulary(folder)


def snapshot(hub: Path, revision: str, *, named: str = "") -> Path:
    repository = hub / "hub" / "models--org--name"
    folder = repository / "snapshots" / revision
    folder.mkdir(parents=True)
    if named:
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / named).write_text(revision)
    return folder


def test_downloaded_snapshot_is_found_by_branch_commit_or_alone(tmp_path: Path) -> None:
    source = ModelSource(repository="org/name")
    environment = {"HF_HOME": str(tmp_path)}
    alone = snapshot(tmp_path, "aaa")
    assert model.downloaded_folder(source, environment) == alone
    main = snapshot(tmp_path, "bbb", named="main")
    assert model.downloaded_folder(source, environment) == main
    pinned = ModelSource(repository="org/name", revision="aaa")
    assert model.downloaded_folder(pinned, environment) == alone


def test_ambiguous_snapshots_are_refused(tmp_path: Path) -> None:
    snapshot(tmp_path, "aaa")
    snapshot(tmp_path, "bbb")
    with pytest.raises(LaunchFailed, match=r"2 snapshots of org/name .* state model.revision as a commit"):
        model.downloaded_folder(ModelSource(repository="org/name"), {"HF_HOME": str(tmp_path)})
