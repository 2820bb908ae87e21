"""The evidence store: one folder, one file a launch and one a visit, and an index of them in memory.

    <check uid>/<epoch>/<node>/<pod uid>/launch-<n>.json.gz
    <check uid>/visits/<slot>-<attempt>.json.gz

A put returns when its file is on disk, so what was acknowledged survives a crash. At start the folder is read again;
a file that is broken is set aside as *.broken and logged, never fatal. Of each GPU the folder keeps a longer history
than the memory holds: verdicts need the newest visits, people who look back need the others. File I/O runs in threads;
the index (`index.py`) is touched by the event loop alone.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from steadyfleet_contract.report import Report
from steadyfleet_contract.spec import LaunchKind
from steadyfleet_operator.decide.observation import LaunchRecord, VisitRecord
from steadyfleet_operator.errors import EvidenceError
from steadyfleet_operator.intake import bundle, files
from steadyfleet_operator.intake.answers import ReportResult, refused
from steadyfleet_operator.intake.authenticate import Sender
from steadyfleet_operator.intake.index import CheckIndex, Sections

log = logging.getLogger(__name__)

T = TypeVar("T")

KEEP_LAUNCHES = 64
"""Newest launches whose files are kept of a GPU in a version of a check: three weeks of daily visits of three. The
memory holds fewer of them, see `index`."""

KEEP_VISITS = 64
"""Newest visits kept of a node in a check."""

PROGRESS_SECONDS = 5.0

_SAFE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
"""What a part of a path may be: uids, node names, epochs. No dots at the ends, no separators."""

_VISITS = "visits"
_DELETED = ".deleted"


class EvidenceStore:
    """`open` first. Methods that touch the disk raise EvidenceError when it can't be written or read."""

    def __init__(self, root: Path, *, now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)) -> None:
        self._root = root
        self._now = now
        self._checks: defaultdict[str, CheckIndex] = defaultdict(CheckIndex)
        self._locks: WeakValueDictionary[tuple[object, ...], asyncio.Lock] = WeakValueDictionary()
        self._sections = Sections()

    async def open(self) -> None:
        """Reads the whole folder; takes about a millisecond a file."""
        await _in_thread(self._load)

    def check_uids(self) -> frozenset[str]:
        """Checks of which anything is stored, also such as exist no more."""
        return frozenset(self._checks)

    def launches(self, check_uid: str) -> tuple[LaunchRecord, ...]:
        """Those that the memory holds, oldest first."""
        found = self._checks.get(check_uid)
        return found.held() if found else ()

    def visits(self, check_uid: str) -> tuple[VisitRecord, ...]:
        """Oldest first."""
        found = self._checks.get(check_uid)
        return tuple(found.visits.values()) if found else ()

    def known(self, check_uid: str, *, epoch: str, version: str, kind: LaunchKind, digest: str) -> bool:
        """Whether a full decode with this launch digest is stored, so that another one would say nothing new."""
        found = self._checks.get(check_uid)
        return found is not None and (epoch, version, kind, digest) in found.full

    async def put_launch(self, sender: Sender, report: Report) -> tuple[LaunchRecord, bool]:
        """The stored record, and whether it was there already. Raises ReportRefused if the same launch of the same
        pod said something else before."""
        # Shielded: a sender that hangs up must not leave a file that the index does not know.
        return await asyncio.shield(self._put_launch(sender, report))

    async def put_visit(self, record: VisitRecord) -> VisitRecord:
        """The first record of an attempt stays: a pass that is run again after a crash changes nothing."""
        return await asyncio.shield(self._put_visit(record))

    async def read_report(self, evidence: str) -> Report:
        """The report of a launch with all its arrays."""
        path = self._path(evidence.split("/"))
        return bundle.unpack_report(await _in_thread(path.read_bytes))

    async def prune(self, check_uid: str, *, keep: frozenset[str] = frozenset()) -> int:
        """Removes what is older than the newest launches of each GPU and the newest visits of each node, but nothing
        named in `keep` (evidence that an open verdict points at). Returns how many files went."""
        found = self._checks.get(check_uid)
        if found is None:
            return 0
        old_launches = [evidence for evidence in found.beyond(KEEP_LAUNCHES) if evidence not in keep]
        old_visits = _all_but_newest(found.visits.values(), lambda visit: visit.node, KEEP_VISITS)
        paths = [self._path(evidence.split("/")) for evidence in old_launches]
        paths += [self._visit_path(visit) for visit in old_visits]
        await _in_thread(_remove_all, paths, self._root)
        found.remove(frozenset(old_launches))
        for visit in old_visits:
            found.visits.pop((visit.slot, visit.attempt), None)
        return len(paths)

    async def delete_check(self, check_uid: str) -> None:
        """Everything of a check that is gone."""
        self._checks.pop(check_uid, None)
        await _in_thread(_delete_folder, self._path([check_uid], suffix=""))

    async def _put_launch(self, sender: Sender, report: Report) -> tuple[LaunchRecord, bool]:
        content = bundle.content_hash(report)
        key = (sender.pod_uid, report.launch)
        parts = [sender.check_uid, report.epoch, sender.node, sender.pod_uid, f"launch-{report.launch}"]
        path = self._path(parts)
        async with self._lock(sender.check_uid, *key):
            stored = self._checks[sender.check_uid].launches.get(key) or await _in_thread(_read_launch, path)
            if stored is not None:
                record, before = stored
                if before != content:
                    raise refused(
                        ReportResult.CONFLICTING,
                        f"launch {report.launch} of this pod was reported before with other content",
                        field="launch",
                    )
                return record, True
            received_at = self._checks[sender.check_uid].next_moment(self._now())
            record = bundle.launch_record(sender, report, evidence="/".join(parts), received_at=received_at)
            await _in_thread(lambda: files.write_durably(path, bundle.pack_launch(record, report, content=content)))
            record = self._sections.share(record)
            self._checks[sender.check_uid].add(record, content)
            return record, False

    def _load(self) -> None:
        visits: list[VisitRecord] = []
        for _, launches in groupby(_read_all(self._root, visits), key=lambda entry: entry[0].pod_uid):
            for record, content in launches:
                self._checks[record.check_uid].load(self._sections.share(record), content)
        for check in self._checks.values():
            check.loaded()
        for visit in sorted(visits, key=lambda visit: visit.ended_at):
            self._checks[visit.check_uid].visits[visit.slot, visit.attempt] = visit

    async def _put_visit(self, record: VisitRecord) -> VisitRecord:
        key = (record.slot, record.attempt)
        async with self._lock(record.check_uid, *key):
            stored = self._checks[record.check_uid].visits.get(key)
            if stored is not None:
                return stored
            path = self._visit_path(record)
            await _in_thread(lambda: files.write_durably(path, bundle.pack_visit(record)))
            self._checks[record.check_uid].visits[key] = record
            return record

    def _lock(self, *key: object) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    def _visit_path(self, record: VisitRecord) -> Path:
        return self._path([record.check_uid, _VISITS, f"{record.slot}-{record.attempt}"])

    def _path(self, parts: Iterable[str], *, suffix: str = files.SUFFIX) -> Path:
        parts = list(parts)
        for part in parts:
            if not _SAFE.fullmatch(part):
                raise EvidenceError(f"{part!r} cannot be a part of a name in the evidence store")
        *folders, name = parts
        return self._root.joinpath(*folders, name + suffix)


async def _in_thread(call: Callable[..., T], *arguments: object) -> T:
    try:
        return await asyncio.to_thread(call, *arguments)
    except OSError as error:
        raise EvidenceError(f"evidence store: {error}") from error


def _read_all(root: Path, visits: list[VisitRecord]) -> Iterator[tuple[LaunchRecord, str]]:
    """Launches pod by pod, with their content hashes; visits are added to the list."""
    root.mkdir(parents=True, exist_ok=True)
    for leftover in root.glob(f"*{_DELETED}"):
        shutil.rmtree(leftover)
    launches = 0
    said = time.monotonic()
    for path in files.walk(root):
        if path.name.endswith(files.TEMPORARY):
            # Never acknowledged: the probe sends it again, or knows that it was not taken.
            path.unlink()
        elif path.name.endswith(files.SUFFIX):
            try:
                if path.parent.name == _VISITS:
                    visits.append(bundle.unpack_visit(path.read_bytes()))
                else:
                    yield bundle.unpack_launch(path.read_bytes())
                    launches += 1
            except (EvidenceError, OSError) as error:
                log.error("evidence %s is broken and set aside: %s", path, error)
                files.set_aside(path)
        if time.monotonic() - said > PROGRESS_SECONDS:
            said = time.monotonic()
            log.info("reading the evidence store: %d launches, %d visits so far", launches, len(visits))
    log.info("evidence store %s: %d launches, %d visits", root, launches, len(visits))


def _read_launch(path: Path) -> tuple[LaunchRecord, str] | None:
    """One that the memory may no longer hold."""
    try:
        return bundle.unpack_launch(path.read_bytes())
    except FileNotFoundError:
        return None


def _remove_all(paths: list[Path], root: Path) -> None:
    for path in paths:
        files.remove(path, root=root)


def _delete_folder(folder: Path) -> None:
    """Renamed first: a crash in the middle must not leave half of a check that looks whole."""
    doomed = folder.with_name(folder.name + _DELETED)
    try:
        folder.rename(doomed)
    except FileNotFoundError:
        return
    shutil.rmtree(doomed)


def _all_but_newest(records: Iterable[T], key: Callable[[T], str], keep: int) -> list[T]:
    groups: defaultdict[str, list[T]] = defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    return [record for group in groups.values() for record in group[:-keep]]
