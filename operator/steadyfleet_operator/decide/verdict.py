"""The judgement of one group of launches: which GPUs are consistent, which are not, and what is still needed to say.

Bits of pinned launches against the group's reference, keyed by GPU UUID. A GPU is Divergent only after a fresh launch
of it differed as well, and a fresh launch of a known-good GPU elsewhere did not. Launches that served as asked are
recorded, not judged. This module is the one to replace by a finer judgement; its callers know only `judge_group`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from steadyfleet_contract.report import Outcome
from steadyfleet_contract.spec import LaunchKind
from steadyfleet_operator.decide.observation import LaunchRecord
from steadyfleet_operator.decide.plan import GPUJudgement
from steadyfleet_operator.decide.surroundings import changing_keys, differing_keys, named
from steadyfleet_operator.decide.thresholds import LEARN_FROM_GPUS
from steadyfleet_operator.decide.vote import Reference, expected_weights, newest_per_gpu, node_votes, reference
from steadyfleet_operator.reasons import Reason
from steadyfleet_operator.resource import Cause, Purpose, Verdict


@dataclass(frozen=True, slots=True)
class Need:
    """A launch that would decide. `gpus` are the choices, best first, as (node, uuid)."""

    purpose: Purpose
    version: str
    gpus: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class GroupJudgement:
    reference: Reference
    expected_weights: str
    gpus: tuple[GPUJudgement, ...]
    needs: tuple[Need, ...]


@dataclass(frozen=True, slots=True)
class _Visit:
    """The pinned launches of one pod on one GPU."""

    pod_uid: str
    purpose: Purpose
    launches: tuple[LaunchRecord, ...]

    @property
    def began(self) -> datetime:
        return self.launches[0].received_at


def judge_group(
    launches: Sequence[LaunchRecord],
    *,
    stated_weights: str,
    accepted_variants: Collection[str] = (),
    baseline: str = "",
    baseline_by: Literal["", "Majority", "Spec"] = "",
    all_tried: bool,
    pinned_per_sweep: int = 1,
) -> GroupJudgement:
    """`launches`: of one group (epoch, version, GPU product, prompt set), oldest first; `all_tried`: each selected node
    was visited in this epoch, with or without a result; `pinned_per_sweep`: launches that a whole sweep visit makes."""
    pinned = [launch for launch in launches if _is_judged(launch)]
    weights = expected_weights(newest_per_gpu(pinned).values(), stated_weights)
    wrong = {launch.node for launch in newest_per_gpu(pinned).values() if _wrong_weights(launch, weights)}
    agreed = reference(
        pinned,
        accepted_variants=accepted_variants,
        baseline=baseline,
        baseline_by=baseline_by,
        wrong_weights=wrong,
        all_tried=all_tried,
    )
    group = _Group(pinned, agreed, weights, stated=bool(stated_weights), pinned_per_sweep=pinned_per_sweep)
    judged = [group.judge(uuid) for uuid in sorted(group.visits)]
    unpinned = _never_pinned(launches, set(group.visits))
    return GroupJudgement(
        reference=agreed,
        expected_weights=weights,
        gpus=tuple(judgement for judgement, _ in judged) + unpinned,
        needs=tuple(need for _, needs in judged for need in needs),
    )


def _is_judged(launch: LaunchRecord) -> bool:
    return (
        launch.kind is LaunchKind.PINNED
        and launch.outcome is Outcome.COMPLETED
        and bool(launch.gpu)
        and bool(launch.digest)
    )


def _wrong_weights(launch: LaunchRecord, expected: str) -> bool:
    return bool(expected and launch.weights_digest and launch.weights_digest != expected)


class _Group:
    """The judged launches of one group, and the answers that several GPUs' judgements share."""

    def __init__(
        self,
        pinned: Sequence[LaunchRecord],
        agreed: Reference,
        weights: str,
        *,
        stated: bool,
        pinned_per_sweep: int,
    ) -> None:
        self.pinned_per_sweep = pinned_per_sweep
        self.agreed = agreed
        self.weights = weights
        self.stated = stated
        self.visits: dict[str, list[_Visit]] = {}
        by_pod: dict[tuple[str, str], list[LaunchRecord]] = defaultdict(list)
        for launch in pinned:
            by_pod[launch.gpu, launch.pod_uid].append(launch)
        for (uuid, pod_uid), made in by_pod.items():
            self.visits.setdefault(uuid, []).append(_Visit(pod_uid, made[0].purpose, tuple(made)))
        self.node_of = {uuid: visits[-1].launches[-1].node for uuid, visits in self.visits.items()}
        self.moved = self._moved(pinned)
        self.unrepeatable = len({launch.node for launch in pinned if launch.differing_rounds}) >= 2

    def judge(self, uuid: str) -> tuple[GPUJudgement, tuple[Need, ...]]:
        """Guards first; each says what it protects from."""
        streak = self._streak(uuid)
        newest = (streak or self.visits[uuid])[-1].launches[-1]
        wrong = _wrong_weights(newest, self.weights)
        if not self.agreed.digests and not (wrong and self.stated):
            # Nobody knows what is right: saying anything of anyone would be a guess.
            verdict = Verdict.NOT_COMPARABLE if self.agreed.reason is Reason.TOO_FEW_NODES else Verdict.UNKNOWN
            return _say(newest, verdict, self.agreed.reason, self.agreed.message), ()
        if not streak:
            return self._clean(uuid), ()
        if self.unrepeatable and not wrong:
            # The version itself does not repeat inside one process; a difference between GPUs then means nothing.
            return _say(
                newest,
                Verdict.UNKNOWN,
                Reason.REPEATS_DIFFER,
                "repeats inside one process differ on two or more nodes: this version can't be judged by bits",
            ), ()
        if self.moved and not wrong:
            # When most of the fleet moves at once the version or the baseline is to blame, not each node.
            return _say(
                newest,
                Verdict.UNKNOWN,
                Reason.FLEET_MOVED,
                "more than half of the nodes differ from the baseline: the version moved, no node is blamed",
            ), ()
        return self._suspect(uuid, streak, newest, wrong=wrong)

    def _suspect(
        self, uuid: str, streak: list[_Visit], newest: LaunchRecord, *, wrong: bool
    ) -> tuple[GPUJudgement, tuple[Need, ...]]:
        began = streak[0].began
        convicting = self._convicting(streak)
        controls = self._fresh_controls(uuid, began)
        clean_controls = [launch for launch in controls if not self._is_novel(launch)]
        if len(streak) > 1 and len(convicting) < 2:
            return _say(
                newest,
                Verdict.UNKNOWN,
                Reason.NOT_CONFIRMED,
                "a launch differed, a later one of the same GPU did not: not confirmed",
                since=began,
            ), ()
        if controls and not clean_controls:
            # The control moved as well: whatever this is, it is not this GPU.
            return _say(
                newest,
                Verdict.UNKNOWN,
                Reason.CONTROL_DISAGREES,
                "a control launched after the suspect differs too: no node is blamed",
                since=began,
            ), ()
        needs = self._needs(uuid, newest, relaunched=len(convicting) >= 2, controlled=bool(clean_controls))
        if any(need.purpose is Purpose.CONTROL and not need.gpus for need in needs):
            return _say(
                newest,
                Verdict.UNKNOWN,
                Reason.NO_CONTROL,
                "differs, but no known-good GPU is left to compare with",
                since=began,
            ), ()
        if needs:
            missing = " and ".join(sorted({need.purpose.value.lower() for need in needs}))
            return _say(
                newest,
                Verdict.UNKNOWN,
                Reason.CONFIRMING,
                f"{self._difference(newest, wrong=wrong)}; awaiting a fresh launch ({missing})",
                since=began,
            ), needs
        twin, keys = self._twin(uuid, newest)
        if keys and not wrong:
            # An explained difference is no fault of the GPU: name the key and blame nobody.
            return _say(
                newest,
                Verdict.NOT_COMPARABLE,
                Reason.SURROUNDINGS_DIFFER,
                f"differs, and so do its surroundings from every consistent GPU: {named(keys, newest, twin)}",
                since=began,
            ), ()
        return _say(
            newest,
            Verdict.DIVERGENT,
            Reason.WRONG_WEIGHTS if wrong else Reason.DIFFERS_FROM_BASELINE,
            f"{self._difference(newest, wrong=wrong)}; a fresh launch of this GPU differs as well, "
            f"a control on {clean_controls[0].node} does not"
            + (", though their bits are equal" if newest.digest == clean_controls[0].digest else ""),
            cause=Cause.WEIGHTS if wrong else Cause.UNEXPLAINED,
            since=began,
        ), ()

    def _clean(self, uuid: str) -> GPUJudgement:
        visits = self.visits[uuid]
        newest = visits[-1].launches[-1]
        if any(launch.differing_rounds for launch in visits[-1].launches):
            return _say(newest, Verdict.UNKNOWN, Reason.REPEATS_DIFFER, "repeats inside one process differ")
        if visits[-1].purpose is Purpose.CONFIRM and len(visits) > 1 and self._has_novel(visits[-2]):
            return _say(
                newest,
                Verdict.UNKNOWN,
                Reason.NOT_CONFIRMED,
                "a launch differed, a fresh one of the same GPU did not: not confirmed; the next sweep decides",
            )
        return _say(
            newest, Verdict.CONSISTENT, Reason.MATCHES_BASELINE, f"launch digest {newest.digest[:19]} as accepted"
        )

    def _is_novel(self, launch: LaunchRecord) -> bool:
        return _wrong_weights(launch, self.weights) or (
            bool(self.agreed.digests) and launch.digest not in self.agreed.digests
        )

    def _has_novel(self, visit: _Visit) -> bool:
        return any(self._is_novel(launch) for launch in visit.launches)

    def _streak(self, uuid: str) -> list[_Visit]:
        """The visits since the GPU was last wholly clean. A visit under way clears nothing until all of it is clean."""
        visits = self.visits[uuid]
        streak: list[_Visit] = []
        for visit in reversed(visits):
            if self._has_novel(visit):
                streak.insert(0, visit)
            elif visit is not visits[-1] or self._is_whole(visit):
                break
        return streak

    def _is_whole(self, visit: _Visit) -> bool:
        """A confirming or control visit makes one launch."""
        return len(visit.launches) >= (self.pinned_per_sweep if visit.purpose is Purpose.SWEEP else 1)

    def _convicting(self, streak: list[_Visit]) -> list[_Visit]:
        """The leading visits in which every launch was novel: a mixed one confirms nothing, nor what follows."""
        convicting = []
        for visit in streak:
            if not all(self._is_novel(launch) for launch in visit.launches):
                break
            convicting.append(visit)
        return convicting

    def _fresh_controls(self, uuid: str, began: datetime) -> list[LaunchRecord]:
        """Launches on other nodes, of GPUs that were clean just before, in pods made after the suspect differed."""
        return [
            launch
            for other, visits in self.visits.items()
            if self.node_of[other] != self.node_of[uuid]
            for position, visit in enumerate(visits)
            if visit.began > began
            and (visit.purpose is Purpose.CONTROL or (position > 0 and not self._has_novel(visits[position - 1])))
            for launch in visit.launches
        ]

    def _needs(self, uuid: str, newest: LaunchRecord, *, relaunched: bool, controlled: bool) -> tuple[Need, ...]:
        needs = []
        if not relaunched:
            needs.append(Need(Purpose.CONFIRM, newest.version, ((newest.node, uuid),)))
        if not controlled:
            good = [
                (len(differing_keys(newest, launch, ignored=self._changing(uuid))), launch.node, launch.gpu)
                for launch in self._clean_elsewhere(newest.node)
            ]
            needs.append(Need(Purpose.CONTROL, newest.version, tuple((node, gpu) for _, node, gpu in sorted(good))))
        return tuple(needs)

    def _clean_elsewhere(self, node: str) -> list[LaunchRecord]:
        """The newest launch of each GPU on other nodes that is in no streak of its own."""
        return [
            visits[-1].launches[-1]
            for other, visits in self.visits.items()
            if self.node_of[other] != node and not self._has_novel(visits[-1])
        ]

    def _twin(self, uuid: str, newest: LaunchRecord) -> tuple[LaunchRecord, tuple[str, ...]]:
        """The clean GPU whose surroundings are the nearest, and the keys in which even it differs."""
        ignored = self._changing(uuid)
        candidates = [
            (differing_keys(newest, launch, ignored=ignored), launch) for launch in self._clean_elsewhere(newest.node)
        ]
        keys, nearest = min(candidates, key=lambda found: (len(found[0]), found[1].node, found[1].gpu))
        return nearest, keys

    def _changing(self, uuid: str) -> frozenset[str]:
        """From the suspect's own pods and those of a few others: enough to learn the names."""
        watched = [uuid, *sorted(self.visits.keys() - {uuid})[:LEARN_FROM_GPUS]]
        return changing_keys(launch for gpu in watched for visit in self.visits[gpu] for launch in visit.launches)

    def _moved(self, pinned: Sequence[LaunchRecord]) -> bool:
        if not self.agreed.digests:
            return False
        newest = newest_per_gpu(pinned).values()
        right = [launch for launch in newest if not _wrong_weights(launch, self.weights)]
        votes = node_votes(right)
        novel = sum(digest not in self.agreed.digests for digest in votes.values())
        return 2 * novel > len(votes)

    def _difference(self, launch: LaunchRecord, *, wrong: bool) -> str:
        if wrong:
            source = "the spec states" if self.stated else "most nodes read"
            return f"weights {launch.weights_digest[:19]}, {source} {self.weights[:19]}"
        return f"launch digest {launch.digest[:19]}, accepted {self.agreed.main[:19]}"


def _never_pinned(launches: Sequence[LaunchRecord], judged: set[str]) -> tuple[GPUJudgement, ...]:
    """GPUs of which every completed launch turned out not to be pinned, although it was to be."""
    loose = {
        launch.gpu: launch
        for launch in launches
        if launch.gpu
        and launch.gpu not in judged
        and launch.outcome is Outcome.COMPLETED
        and launch.kind is LaunchKind.AS_SERVED
    }
    return tuple(
        _say(
            launch,
            Verdict.UNKNOWN,
            Reason.PIN_DOES_NOT_HOLD,
            "no launch was pinned (a numerics-relevant kernel was tuned, or launches.pinned is 0): nothing to judge by",
        )
        for _, launch in sorted(loose.items())
    )


def _say(
    launch: LaunchRecord,
    verdict: Verdict,
    reason: Reason,
    message: str,
    *,
    cause: Cause = Cause.NONE,
    since: datetime | None = None,
) -> GPUJudgement:
    return GPUJudgement(
        uuid=launch.gpu,
        node=launch.node,
        version=launch.version,
        epoch=launch.epoch,
        verdict=verdict,
        reason=reason,
        message=message,
        cause=cause,
        since=since or launch.received_at,
        evidence=launch.evidence,
        newest=launch.received_at,
    )
