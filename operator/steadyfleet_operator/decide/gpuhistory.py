"""What the pinned launches of one GPU say over time: which visits were clean, and which convict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from steadyfleet_operator.decide.observation import LaunchRecord
from steadyfleet_operator.resource import Purpose

IsNovel = Callable[[LaunchRecord], bool]
"""Whether a launch differs from what the group is held against."""


@dataclass(frozen=True, slots=True)
class Visit:
    """The launches of one pod on one GPU. `pinned` are those that are judged, oldest first, at least one."""

    purpose: Purpose
    pinned: tuple[LaunchRecord, ...]
    completed: int
    """Launches of any kind that came to their end."""

    @property
    def is_whole(self) -> bool:
        """Every launch that its Job asked for came in; else the visit shows nothing clean."""
        return self.completed >= (self.pinned[0].asked or 1)

    def started_after(self, moment: datetime) -> bool:
        """By the Job's creation: a launch that was under way before can't be called fresh."""
        return (self.pinned[0].visit_started_at or self.pinned[0].received_at) > moment

    def has_novel(self, is_novel: IsNovel) -> bool:
        return any(is_novel(launch) for launch in self.pinned)

    def is_all_novel(self, is_novel: IsNovel) -> bool:
        return all(is_novel(launch) for launch in self.pinned)


def visits_of(launches: Sequence[LaunchRecord], is_judged: Callable[[LaunchRecord], bool]) -> list[Visit]:
    """Of one GPU, oldest first; a pod none of whose launches is judged is left out."""
    by_pod: dict[str, list[LaunchRecord]] = {}
    for launch in launches:
        by_pod.setdefault(launch.pod_uid, []).append(launch)
    visits = []
    for made in by_pod.values():
        if pinned := tuple(launch for launch in made if is_judged(launch)):
            visits.append(Visit(made[0].purpose, pinned, sum(bool(launch.digest) for launch in made)))
    return visits


def streak(visits: Sequence[Visit], is_novel: IsNovel) -> list[Visit]:
    """The visits with a difference since the GPU was last wholly clean. Half a clean visit ends no streak."""
    found: list[Visit] = []
    for visit in reversed(visits):
        if visit.has_novel(is_novel):
            found.insert(0, visit)
        elif visit.is_whole:
            break
    return found


def convicting(since_clean: Sequence[Visit], is_novel: IsNovel) -> list[Visit]:
    """The leading visits in which every launch differed: a mixed one confirms nothing, nor what follows."""
    found = []
    for visit in since_clean:
        if not visit.is_all_novel(is_novel):
            break
        found.append(visit)
    return found
