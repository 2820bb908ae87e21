"""What the pod tells the probe. The only module that reads the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from steadyfleet_contract import wire
from steadyfleet_contract.spec import RECIPE, EngineKind, ProbeSpec
from steadyfleet_probe.errors import SettingsInvalid
from steadyfleet_probe.model import check_source
from steadyfleet_probe.prompts import check_name

ENV_WORK_DIR = "STEADYFLEET_WORK_DIR"
ENV_TOKEN_FILE = "STEADYFLEET_TOKEN_FILE"  # noqa: S105  the name of a variable
ENV_TERMINATION_MESSAGE_FILE = "STEADYFLEET_TERMINATION_MESSAGE_FILE"
"""Where a pod's fixed paths lie when the probe runs outside of one; not set by the operator."""


@dataclass(frozen=True)
class Settings:
    spec: ProbeSpec
    report_url: str
    report_ca: str
    """PEM; the only authorities trusted for the report server."""
    node_name: str
    pod_uid: str
    work_dir: Path
    token_file: Path
    termination_message_file: Path
    environment: Mapping[str, str]
    """The whole environment of the pod, to be handed to the engine without what is ours."""


def termination_message_file() -> Path:
    """Known before the rest, so that a bad setting can be told."""
    return Path(os.environ.get(ENV_TERMINATION_MESSAGE_FILE) or wire.TERMINATION_MESSAGE_FILE)


def read_settings() -> Settings:
    """Raises SettingsInvalid that names the variable or the field."""
    environment = dict(os.environ)
    url = _required(environment, wire.ENV_REPORT_URL).rstrip("/")
    if not url.startswith("https://"):
        raise SettingsInvalid(f"{wire.ENV_REPORT_URL}: {url!r} must begin with https://, a token goes there")
    return Settings(
        spec=_spec(_required(environment, wire.ENV_SPEC)),
        report_url=url,
        report_ca=_required(environment, wire.ENV_REPORT_CA),
        node_name=environment.get(wire.ENV_NODE_NAME, ""),
        pod_uid=environment.get(wire.ENV_POD_UID, ""),
        work_dir=Path(environment.get(ENV_WORK_DIR) or wire.WORK_DIR),
        token_file=Path(environment.get(ENV_TOKEN_FILE) or wire.TOKEN_FILE),
        termination_message_file=termination_message_file(),
        environment=environment,
    )


def _spec(text: str) -> ProbeSpec:
    try:
        spec = ProbeSpec.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise SettingsInvalid(f"{wire.ENV_SPEC}: {field}: {first['msg']}") from error
    if spec.recipe != RECIPE:
        raise SettingsInvalid(
            f"{wire.ENV_SPEC}: recipe {spec.recipe} was asked for, this probe has recipe {RECIPE}; the probe image and "
            "the operator must be of one release"
        )
    if spec.engine is EngineKind.SIMULATED and spec.simulation is None:
        raise SettingsInvalid(f"{wire.ENV_SPEC}: simulation: missing, but the engine is Simulated")
    check_source(spec.model)
    check_name(spec.prompt_set)
    return spec


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise SettingsInvalid(f"{name} is not set; the operator's Job sets it")
    return value
