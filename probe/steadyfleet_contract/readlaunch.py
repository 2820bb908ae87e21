"""Reads one launch from a file, told by its content: a launch record, a bundle of the evidence store, or a report.

The file may come from anywhere: its size, what it unpacks to and every field are checked before they are used.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from steadyfleet_contract import evidence, launchrecord, launchreport
from steadyfleet_contract.errors import InputInvalid
from steadyfleet_contract.launches import Launch
from steadyfleet_contract.report import Report

MAX_FILE_BYTES = 16 * 1024 * 1024
"""Largest file that is opened at all; a launch record of 32 prompts x 128 tokens is about 1.5 MiB."""

EVIDENCE = "evidence"
REPORT = "report"

_KINDS = f'a launch record ("format": "{launchrecord.FORMAT}"), a bundle of the evidence store, or a report as JSON'


def read_launch(path: Path) -> Launch:
    """Raises InputInvalid (file, field and remedy in its message)."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputInvalid(str(path), error.strerror or str(error), remedy="give a file that can be read") from error
    return parse_launch(data, file=str(path))


def parse_launch(data: bytes, *, file: str) -> Launch:
    """`file` is for messages and the comparison's own account. Raises InputInvalid."""
    if len(data) > MAX_FILE_BYTES:
        raise InputInvalid(file, f"larger than {MAX_FILE_BYTES} bytes", remedy=f"give {_KINDS}")
    if data.startswith(evidence.GZIP_MAGIC):
        try:
            data = evidence.gunzip(data)
        except evidence.BundleInvalid as error:
            raise InputInvalid(file, str(error), remedy="copy it again from where it was written") from error
    first, _, rest = data.partition(b"\n")
    if rest.strip() and _is_bundle_head(first):
        return _from_bundle(data, file=file)
    return _from_document(_json(data, file=file), data, file=file)


def _from_document(document: Any, data: bytes, *, file: str) -> Launch:
    if isinstance(document, list):
        raise InputInvalid(file, f"a list of {len(document)} entries", remedy="give one report in a file of its own")
    if not isinstance(document, dict):
        raise InputInvalid(file, "not a JSON object", remedy=f"give {_KINDS}")
    if document.get("format") == launchrecord.FORMAT:
        return launchrecord.from_record(document, file=file)
    if "format" in document:
        told = str(document["format"])[:80]
        remedy = f"this program reads {launchrecord.FORMAT}"
        raise InputInvalid(file, f"{told!r} is not known", field="format", remedy=remedy)
    if "visit" in document:
        remedy = "compare bundles of launches (launch-*.json.gz)"
        raise InputInvalid(file, "a visit holds no outputs", field="visit", remedy=remedy)
    if "launch" in document and "content" in document:
        remedy = "copy it again from the store"
        raise InputInvalid(file, "a bundle without its report (line 2)", remedy=remedy)
    if "schemaVersion" not in document and "passes" not in document:
        raise InputInvalid(file, "neither kind of launch", remedy=f"give {_KINDS}")
    try:
        report = Report.model_validate_json(data)
    except ValidationError as error:
        raise _invalid(error, file=file) from error
    return launchreport.from_report(report, file=file, format=REPORT)


def _from_bundle(data: bytes, *, file: str) -> Launch:
    try:
        head, report = evidence.head_of(data), evidence.report_of(data)
    except evidence.BundleInvalid as error:
        if isinstance(error.__cause__, ValidationError):
            raise _invalid(error.__cause__, file=file) from error
        raise InputInvalid(file, str(error), remedy="copy it again from the store") from error
    return launchreport.from_report(report, file=file, format=EVIDENCE, known=launchreport.known(head, file=file))


def _is_bundle_head(line: bytes) -> bool:
    """A report or a record printed over several lines never has a whole object in its first."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "launch" in found and "content" in found


def _json(data: bytes, *, file: str) -> Any:
    try:
        return json.loads(data)
    except RecursionError as error:
        raise InputInvalid(file, "nested too deeply", remedy=f"give {_KINDS}") from error
    except ValueError as error:
        raise InputInvalid(file, f"not JSON: {error}", remedy=f"give {_KINDS}") from error


def _invalid(error: ValidationError, *, file: str) -> InputInvalid:
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    remedy = "give a report of schema version 1 as the probe wrote it"
    return InputInvalid(file, first["msg"], field=field, remedy=remedy)
