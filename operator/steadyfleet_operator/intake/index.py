"""What the evidence store holds in memory of one check.

Whole visits, newest first: a visit of which a part was dropped would look like one that lost launches. Visits that
measured nothing are counted apart, so that an engine that fails for a day pushes no result out. Of older launches only
the names of their files are known.
"""

from __future__ import annotations

import hashlib
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from weakref import WeakValueDictionary

from steadyfleet_contract.report import Outcome
from steadyfleet_contract.spec import LaunchKind
from steadyfleet_operator.decide.observation import LaunchRecord, VisitRecord
from steadyfleet_operator.decide.surroundings import BY_NATURE

HOLD_LAUNCHES = 16
"""Newest launches held of a GPU in a version, and what else belongs to their visits."""

HOLD_VISITS = 4
"""Held at least, however many launches a visit has: a conviction needs two, and the clean one before them."""

_LOADED_AT_ONCE = 4 * HOLD_LAUNCHES
"""While a folder is read, launches beyond the limit are dropped from this number on."""

_MOMENT = timedelta(microseconds=1)

Group = tuple[str, str]
"""GPU (or node, for a launch that used none) and version."""


@dataclass(slots=True)
class CheckIndex:
    launches: dict[tuple[str, int], tuple[LaunchRecord, str]] = field(default_factory=dict)
    """(pod uid, launch) -> record and content hash, of those that are held, oldest first."""
    visits: dict[tuple[int, int], VisitRecord] = field(default_factory=dict)
    """(slot, attempt) -> record, oldest first."""
    full: dict[tuple[str, str, LaunchKind, str], set[str]] = field(default_factory=dict)
    """(epoch, version, kind, digest) -> evidence with a full decode, whether held or not."""
    _groups: defaultdict[Group, list[LaunchRecord]] = field(default_factory=lambda: defaultdict(list))
    """Held, oldest first."""
    _older: defaultdict[Group, list[tuple[datetime, str]]] = field(default_factory=lambda: defaultdict(list))
    """Times and evidence of what lies in the folder alone, oldest first."""
    _newest: datetime | None = None
    _held: tuple[LaunchRecord, ...] | None = None

    def held(self) -> tuple[LaunchRecord, ...]:
        """Oldest first."""
        if self._held is None:
            self._held = tuple(record for record, _ in self.launches.values())
        return self._held

    def next_moment(self, now: datetime) -> datetime:
        """`now`, or just after the newest launch if the clock went back: a restart must find the same order."""
        self._newest = now if self._newest is None else max(now, self._newest + _MOMENT)
        return self._newest

    def add(self, record: LaunchRecord, content: str) -> None:
        """One whose moment `next_moment` gave. Two that are written at once may come here in the other order."""
        overtaken = bool(self.launches) and next(reversed(self.launches.values()))[0].received_at > record.received_at
        self._put(record, content)
        if overtaken:
            self._groups[_group(record)].sort(key=_received)
            self._sort()
        self._drop(_group(record))

    def load(self, record: LaunchRecord, content: str) -> None:
        """In any order, but all launches of a pod one after the other; `loaded` ends it."""
        group = _group(record)
        launches = self._groups[group]
        if len(launches) >= _LOADED_AT_ONCE and launches[-1].pod_uid != record.pod_uid:
            launches.sort(key=_received)
            self._drop(group)
        self._put(record, content)

    def loaded(self) -> None:
        for group, launches in self._groups.items():
            launches.sort(key=_received)
            self._drop(group)
            self._older[group].sort()
        self._sort()

    def beyond(self, limit: int) -> Iterator[str]:
        """Evidence of all but the newest launches of each GPU."""
        for group, launches in self._groups.items():
            older = self._older.get(group, [])
            extra = len(older) + len(launches) - limit
            if extra > 0:
                yield from ([name for _, name in older] + [record.evidence for record in launches])[:extra]

    def remove(self, names: frozenset[str]) -> None:
        """Evidence whose files are gone."""
        if not names:
            return
        for group in list(self._groups):
            self._older[group] = [entry for entry in self._older[group] if entry[1] not in names]
            self._groups[group] = [record for record in self._groups[group] if record.evidence not in names]
        self.launches = {key: entry for key, entry in self.launches.items() if entry[0].evidence not in names}
        self.full = {key: left for key, evidence in self.full.items() if (left := evidence - names)}
        self._held = None

    def _put(self, record: LaunchRecord, content: str) -> None:
        self.launches[record.pod_uid, record.launch] = (record, content)
        self._groups[_group(record)].append(record)
        if record.full and record.digest:
            key = (record.epoch, record.version, record.kind, record.digest)
            self.full.setdefault(key, set()).add(record.evidence)
        self._newest = max(record.received_at, self._newest or record.received_at)
        self._held = None

    def _sort(self) -> None:
        self.launches = dict(sorted(self.launches.items(), key=lambda entry: _received(entry[1][0])))
        self._held = None

    def _drop(self, group: Group) -> None:
        """From memory: what is beyond the limits, by whole visits."""
        launches = self._groups[group]
        if len(launches) <= HOLD_LAUNCHES:
            return
        pods = _newest_visits(launches)
        for record in launches:
            if record.pod_uid not in pods:
                self._older[group].append((record.received_at, record.evidence))
                self.launches.pop((record.pod_uid, record.launch), None)
                self._held = None
        self._groups[group] = [record for record in launches if record.pod_uid in pods]


class Sections:
    """Fingerprints are nearly the same on all nodes: equal sections are held once, and as long as a record has them."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[bytes, _Section] = WeakValueDictionary()

    def share(self, record: LaunchRecord) -> LaunchRecord:
        shared = {}
        for name, section in record.fingerprint.items():
            if name == "gpu":
                # Temperatures and clocks are new in each launch and never compared; the bundle has them.
                section = {key: value for key, value in section.items() if not BY_NATURE.fullmatch(f"gpu.{key}")}
            shared[sys.intern(name)] = self._one(section)
        return replace(record, fingerprint=shared)

    def __len__(self) -> int:
        return len(self._known)

    def _one(self, section: Mapping[str, str]) -> _Section:
        made = _Section(section)
        return self._known.setdefault(hashlib.sha256(repr(sorted(made.items())).encode()).digest(), made)


class _Section(dict[str, str]):
    """A dict that can be referred to weakly."""

    __slots__ = ("__weakref__",)


def _group(record: LaunchRecord) -> Group:
    # A launch that was refused its GPU tells those that it was given instead; it measured none of them.
    used = record.gpu if record.outcome is not Outcome.GPU_NOT_GIVEN else ""
    return used or f"node/{record.node}", record.version


def _received(record: LaunchRecord) -> datetime:
    return record.received_at


def _newest_visits(launches: list[LaunchRecord]) -> frozenset[str]:
    """Pod uids of the visits to hold."""
    measured = {record.pod_uid for record in launches if record.outcome is Outcome.COMPLETED}
    held: set[str] = set()
    counts = {True: 0, False: 0}
    visits = {True: 0, False: 0}
    for record in reversed(launches):
        kind = record.pod_uid in measured
        if record.pod_uid not in held:
            if counts[kind] >= HOLD_LAUNCHES and visits[kind] >= HOLD_VISITS:
                continue
            held.add(record.pod_uid)
            visits[kind] += 1
        counts[kind] += 1
    return frozenset(held)
