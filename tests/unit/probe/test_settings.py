"""Bad settings are refused with the variable, the field and the remedy."""

from pathlib import Path

import pytest

from steadyfleet_contract import wire
from steadyfleet_contract.spec import ModelSource, ProbeSpec
from steadyfleet_probe.errors import SettingsInvalid
from steadyfleet_probe.settings import Settings, read_settings
from tests.unit.probe.builders import probe_spec


def read(monkeypatch: pytest.MonkeyPatch, spec: ProbeSpec | str | None = None, **changes: str) -> Settings:
    text = spec if isinstance(spec, str) else (spec or probe_spec()).model_dump_json(by_alias=True)
    environment = {
        wire.ENV_SPEC: text,
        wire.ENV_REPORT_URL: "https://report.steadyfleet.svc/",
        wire.ENV_REPORT_CA: "PEM",
    } | changes
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return read_settings()


def test_settings_of_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read(monkeypatch, **{wire.ENV_NODE_NAME: "node-a", wire.ENV_POD_UID: "uid"})
    assert settings.report_url == "https://report.steadyfleet.svc"
    assert settings.work_dir == Path(wire.WORK_DIR)
    assert settings.token_file == Path(wire.TOKEN_FILE)
    assert (settings.node_name, settings.pod_uid) == ("node-a", "uid")


@pytest.mark.parametrize("name", [wire.ENV_SPEC, wire.ENV_REPORT_URL, wire.ENV_REPORT_CA])
def test_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(SettingsInvalid, match=f"{name} is not set"):
        read(monkeypatch, **{name: ""})


def test_plain_http_is_refused_since_a_token_goes_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsInvalid, match="must begin with https://"):
        read(monkeypatch, **{wire.ENV_REPORT_URL: "http://report"})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("{", "STEADYFLEET_PROBE_SPEC: "),
        ('{"check": "a/b"}', "epoch: Field required"),
        (probe_spec(recipe=99), "recipe 99 was asked for, this probe has recipe 1"),
        (probe_spec(engine="Simulated"), "simulation: missing"),
        (probe_spec(model=ModelSource()), "set exactly one of path, repository and synthetic"),
        (probe_spec(prompt_set="mine"), "promptSet: 'mine' is unknown"),
    ],
    ids=["not json", "field missing", "recipe", "simulation", "model", "prompts"],
)
def test_unusable_spec_names_the_field(monkeypatch: pytest.MonkeyPatch, spec: ProbeSpec | str, words: str) -> None:
    with pytest.raises(SettingsInvalid, match=words.replace("(", r"\(")):
        read(monkeypatch, spec)
