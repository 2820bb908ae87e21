"""The evidence store as it lies on the host: what the operator acknowledged, whatever has become of its process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from steadyfleet_operator.decide.observation import LaunchRecord, VisitRecord
from steadyfleet_operator.intake.bundle import unpack_launch, unpack_visit


@dataclass(frozen=True)
class Evidence:
    folder: Path

    def launches(self, check_uid: str) -> list[LaunchRecord]:
        files = (self.folder / check_uid).glob("*/*/*/launch-*.json.gz")
        return sorted((unpack_launch(file.read_bytes())[0] for file in files), key=lambda launch: launch.received_at)

    def visits(self, check_uid: str) -> list[VisitRecord]:
        files = (self.folder / check_uid / "visits").glob("*.json.gz")
        return sorted((unpack_visit(file.read_bytes()) for file in files), key=lambda visit: visit.ended_at)

    def last_visit(self, check_uid: str, node: str) -> VisitRecord | None:
        return next((visit for visit in reversed(self.visits(check_uid)) if visit.node == node), None)

    def broken(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.name.endswith(".broken")]
