"""One bundle of the evidence store, in the format of `steadyfleet_contract.evidence`.

Line 1 (the operator's record) is all that a restart reads into memory; line 2 (the report) is what a verdict can be
recomputed from, offline.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from steadyfleet_contract import evidence as bundles
from steadyfleet_contract.report import PassName, Report
from steadyfleet_operator.decide.observation import LaunchRecord, VisitRecord
from steadyfleet_operator.errors import EvidenceError
from steadyfleet_operator.intake.authenticate import Sender

R = TypeVar("R", LaunchRecord, VisitRecord)

_LAUNCHES = TypeAdapter(LaunchRecord)
_VISITS = TypeAdapter(VisitRecord)


def launch_record(sender: Sender, report: Report, *, evidence: str, received_at: datetime) -> LaunchRecord:
    repeats = report.repeats
    return LaunchRecord(
        evidence=evidence,
        namespace=sender.namespace,
        check=sender.check,
        check_uid=sender.check_uid,
        epoch=report.epoch,
        version=sender.version,
        purpose=sender.purpose,
        slot=sender.slot,
        attempt=sender.attempt,
        node=sender.node,
        node_uid=sender.node_uid,
        pod_uid=sender.pod_uid,
        received_at=received_at,
        launch=report.launch,
        kind=report.kind,
        cache=report.cache,
        outcome=report.outcome,
        message=report.message,
        gpus=tuple(gpu.uuid for gpu in report.gpus),
        product=report.gpus[0].product if report.gpus else "",
        digest=report.digest or "",
        prompt_set_digest=report.prompt_set_digest or "",
        weights_digest=report.weights_digest or "",
        repeat_rounds=repeats.rounds if repeats else 0,
        differing_rounds=repeats.differing_rounds if repeats else 0,
        non_finite=sum(prompt.non_finite for result in report.passes for prompt in result.prompts),
        fingerprint=report.fingerprint,
        image=sender.image,
        image_id=sender.image_id,
        wanted_gpu=sender.asked.wanted_gpu,
        visit_started_at=sender.visit_started_at,
        asked=len(sender.asked.launches),
        full=any(result.name is PassName.FULL_DECODE for result in report.passes),
    )


def content_hash(report: Report) -> str:
    """Equal for two reports that say the same, however they were written or compressed."""
    return hashlib.sha256(report.model_dump_json(by_alias=True).encode()).hexdigest()


def pack_launch(record: LaunchRecord, report: Report, *, content: str) -> bytes:
    head = {"content": content, "launch": _LAUNCHES.dump_python(record, mode="json")}
    return bundles.pack(head, report.model_dump_json(by_alias=True).encode())


def pack_visit(record: VisitRecord) -> bytes:
    return bundles.pack({"visit": _VISITS.dump_python(record, mode="json")})


def unpack_launch(data: bytes) -> tuple[LaunchRecord, str]:
    """The record and the content hash. Raises EvidenceError for anything but a whole bundle."""
    head = _head(data)
    try:
        return _LAUNCHES.validate_python(head["launch"], strict=False), str(head["content"])
    except (KeyError, ValidationError) as error:
        raise EvidenceError(f"no launch record: {error}") from error


def unpack_visit(data: bytes) -> VisitRecord:
    """Raises EvidenceError for anything but a whole bundle."""
    head = _head(data)
    try:
        return _VISITS.validate_python(head["visit"], strict=False)
    except (KeyError, ValidationError) as error:
        raise EvidenceError(f"no visit record: {error}") from error


def unpack_report(data: bytes) -> Report:
    """Line 2, for whoever recomputes a verdict. Raises EvidenceError."""
    try:
        return bundles.report(data)
    except bundles.BundleInvalid as error:
        raise EvidenceError(str(error)) from error


def _head(data: bytes) -> Mapping[str, Any]:
    try:
        return bundles.head(data)
    except bundles.BundleInvalid as error:
        raise EvidenceError(str(error)) from error
