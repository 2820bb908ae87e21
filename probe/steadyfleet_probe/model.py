"""Where the weights of a launch come from, and what the probe has to know of the model: its folder and vocabulary.

A path is checked before anything is started. A repository is downloaded by the engine itself, by its own rules, so its
folder is known only when the engine is ready. A synthetic model is made once in each pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ValidationError

from steadyfleet_contract.report import Outcome
from steadyfleet_contract.spec import ModelSource
from steadyfleet_probe import synthetic
from steadyfleet_probe.errors import LaunchFailed, PackageError, SettingsInvalid
from steadyfleet_probe.weights import weight_files


class _TextConfig(BaseModel):
    vocab_size: int | None = None


class _Config(_TextConfig):
    text_config: _TextConfig | None = None
    llm_config: _TextConfig | None = None


def check_source(source: ModelSource) -> None:
    """Raises SettingsInvalid unless exactly one source is set."""
    given = [name for name in ("path", "repository", "synthetic") if getattr(source, name)]
    if len(given) != 1:
        raise SettingsInvalid(f"model: set exactly one of path, repository and synthetic, not {given or 'none'}")


def before_start(source: ModelSource, work: Path) -> tuple[str, Path | None]:
    """What to tell the engine as `--model`, and the model's folder if it is known yet.

    Raises LaunchFailed (ModelNotFound) for a path that can't be loaded.
    """
    if source.repository:
        return source.repository, None
    if source.synthetic:
        folder = work / "models" / source.synthetic.value
        try:
            if not folder.exists():
                synthetic.generate(source.synthetic, folder)
        except (OSError, PackageError) as error:
            raise LaunchFailed(Outcome.PROBE_ERROR, f"the synthetic model could not be made: {error}") from error
        return str(folder), folder
    folder = Path(source.path)
    _check_folder(folder)
    return source.path, folder


def downloaded_folder(source: ModelSource, environment: Mapping[str, str]) -> Path:
    """The snapshot that the engine has downloaded, in the layout of the Hugging Face cache.

    Raises LaunchFailed (ModelNotFound) if there is none or more than one.
    """
    cache = Path(environment.get("HF_HUB_CACHE") or Path(environment["HF_HOME"]) / "hub")
    repository = cache / f"models--{source.repository.replace('/', '--')}"
    snapshots = repository / "snapshots"
    named = repository / "refs" / (source.revision or "main")
    revision = named.read_text().strip() if named.is_file() else source.revision
    if revision and (snapshots / revision).is_dir():
        return snapshots / revision
    found = list(snapshots.glob("*"))
    if len(found) != 1:
        raise LaunchFailed(
            Outcome.MODEL_NOT_FOUND,
            f"model: {len(found)} snapshots of {source.repository} in {cache}, can't tell which one the engine reads; "
            "state model.revision as a commit",
        )
    return found[0]


def vocabulary(folder: Path) -> int:
    """Ids that the model knows, by its config.json. Raises LaunchFailed (ModelNotFound)."""
    file = folder / "config.json"
    try:
        config = _Config.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise LaunchFailed(Outcome.MODEL_NOT_FOUND, f"model: {file} can't be read: {error}") from error
    for part in (config, config.text_config, config.llm_config):
        if part is not None and part.vocab_size:
            return part.vocab_size
    raise LaunchFailed(Outcome.MODEL_NOT_FOUND, f"model: {file} names no vocab_size")


def _check_folder(folder: Path) -> None:
    try:
        if not folder.is_dir():
            raise LaunchFailed(
                Outcome.MODEL_NOT_FOUND,
                f"model.path: {folder} is no folder in this pod; mount it by engine.pod.volumes and volumeMounts",
            )
        files = weight_files(folder)
        if not files:
            raise LaunchFailed(Outcome.MODEL_NOT_FOUND, f"model.path: {folder} holds no *.safetensors file")
        for path in [*files, folder / "config.json"]:
            with path.open("rb"):
                pass
    except OSError as error:
        raise LaunchFailed(Outcome.MODEL_NOT_FOUND, f"model.path: {error.filename}: {error.strerror}") from error
