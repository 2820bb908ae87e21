"""What the operator is started with. Read once in `__main__`; no other module reads the environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from steadyfleet_operator.errors import SettingsInvalid

PREFIX = "STEADYFLEET_"


def _comma_list(value: object) -> object:
    return tuple(part for part in value.split(",") if part) if isinstance(value, str) else value


class Settings(BaseModel):
    """Environment variable = STEADYFLEET_ + the upper-case name. Unknown ones with the prefix are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespace: Annotated[str, Field(min_length=1)]
    """The operator's own namespace: its Lease, its TLS Secret."""
    pod_name: str = "steadyfleet"
    """Holder identity of the Lease."""
    probe_image: Annotated[str, Field(min_length=1)]
    """Image of the init container that copies the probe into the serving pod."""
    probe_image_pull_policy: str = "IfNotPresent"
    check_namespaces: Annotated[tuple[str, ...], BeforeValidator(_comma_list)]
    """Namespaces whose checks are run; others are told so in a condition."""
    mark_namespaces: Annotated[tuple[str, ...], BeforeValidator(_comma_list)] = ()
    """Namespaces whose checks may mark nodes."""
    priority_class: str = ""
    report_url: Annotated[str, Field(pattern=r"^https://")]
    """How probe pods reach the report server, e.g. https://steadyfleet-report.steadyfleet.svc:8443 ."""
    report_port: int = 8443
    metrics_port: int = 8080
    """Serves /metrics, /livez and /readyz."""
    evidence_dir: Path = Path("/evidence")
    lease_name: str = "steadyfleet-operator"
    lease_seconds: Annotated[int, Field(ge=3)] = 15
    tls_secret_name: str = "steadyfleet-report-tls"  # noqa: S105  a name, not a secret
    dry_run: bool = False
    """Judge and report, but never write to a Node."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Raises SettingsInvalid, which names the variable and what it must be."""
        given = {name[len(PREFIX) :].lower(): value for name, value in environment.items() if name.startswith(PREFIX)}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            first = error.errors()[0]
            name = PREFIX + str(first["loc"][0]).upper()
            raise SettingsInvalid(f"environment variable {name}: {first['msg']}") from error
