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
from steadyfleet_operator.decide.gpuhistory import Visit, convicting, streak, visits_of
from steadyfleet_operator.decide.observation import LaunchRecord
from steadyfleet_operator.decide.plan import GPUJudgement
from steadyfleet_operator.decide.surroundings import changing_keys, differing_keys, named
from steadyfleet_operator.decide.thresholds import LEARN_FROM_GPUS, TWINS_LOOKED_AT, UNREPEATABLE_SHARE
from steadyfleet_operator.decide.vote import Reference, newest_per_gpu, node_votes, reference
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
    gpus: tuple[GPUJudgement, ...]
    needs: tuple[Need, ...]


def judge_group(
    launches: Sequence[LaunchRecord],
    *,
    stated_weights: str,
    accepted_variants: Collection[str] = (),
    baseline: str = "",
    baseline_by: Literal["", "Majority", "Spec"] = "",
    all_tried: bool,
) -> GroupJudgement:
    """`launches`: of one group (epoch, version, GPU product, prompt set), oldest first. `stated_weights`: the digest in
    the spec, empty if there is none. `all_tried`: each selected node was visited, or cannot be."""
    pinned = [launch for launch in launches if is_judged(launch)]
    wrong = {launch.node for launch in newest_per_gpu(pinned).values() if _wrong_weights(launch, stated_weights)}
    agreed = reference(
        pinned,
        accepted_variants=accepted_variants,
        baseline=baseline,
        baseline_by=baseline_by,
        wrong_weights=wrong,
        all_tried=all_tried,
    )
    group = _Group(launches, pinned, agreed, stated_weights)
    judged = [group.judge(uuid) for uuid in sorted(group.visits)]
    return GroupJudgement(
        reference=agreed,
        gpus=tuple(judgement for judgement, _ in judged) + _never_pinned(launches, set(group.visits)),
        needs=tuple(need for _, needs in judged for need in needs),
    )


def is_judged(launch: LaunchRecord) -> bool:
    """Pinned, finished, and with the names that a verdict needs."""
    ended = launch.outcome is Outcome.COMPLETED and bool(launch.digest)
    return ended and launch.kind is LaunchKind.PINNED and bool(launch.gpu)


def _wrong_weights(launch: LaunchRecord, stated: str) -> bool:
    return bool(stated and launch.weights_digest and launch.weights_digest != stated)


Said = tuple[GPUJudgement, tuple[Need, ...]]


class _Group:
    """The judged launches of one group, and the answers that several GPUs' judgements share."""

    def __init__(
        self, launches: Sequence[LaunchRecord], pinned: Sequence[LaunchRecord], agreed: Reference, stated_weights: str
    ) -> None:
        self.agreed = agreed
        self.stated_weights = stated_weights
        by_gpu: dict[str, list[LaunchRecord]] = defaultdict(list)
        for launch in launches:
            by_gpu[launch.gpu].append(launch)
        found = {uuid: visits_of(made, is_judged) for uuid, made in by_gpu.items()}
        self.visits = {uuid: visits for uuid, visits in found.items() if visits}
        self.newest = newest_per_gpu(pinned)
        self.moved = self._moved()
        self.unrepeatable = self._is_unrepeatable()

    def judge(self, uuid: str) -> Said:
        """Guards first; each says what it protects from."""
        newest = self.newest[uuid]
        since_clean = streak(self.visits[uuid], self._is_novel)
        wrong = bool(since_clean) and _wrong_weights(self._guilty(since_clean), self.stated_weights)
        if not self.agreed.digests and not wrong:
            # Nobody knows what is right: saying anything of anyone would be a guess.
            verdict = Verdict.NOT_COMPARABLE if self.agreed.reason is Reason.TOO_FEW_NODES else Verdict.UNKNOWN
            return _say(newest, verdict, self.agreed.reason, self.agreed.message), ()
        if not since_clean:
            return self._clean(uuid), ()
        if not wrong and (excuse := self._excuse(uuid, since_clean)):
            return excuse, ()
        return self._suspect(uuid, since_clean, wrong=wrong)

    def _excuse(self, uuid: str, since_clean: list[Visit]) -> GPUJudgement | None:
        """What is true of many GPUs at once is no fault of one."""
        guilty, newest = self._guilty(since_clean), self.newest[uuid]
        if self.unrepeatable:
            return _say(
                newest,
                Verdict.UNKNOWN,
                Reason.REPEATS_DIFFER,
                "repeats inside one process differ on several nodes: this version can't be judged by bits",
            )
        if self.moved:
            return _say(
                newest,
                Verdict.UNKNOWN,
                Reason.FLEET_MOVED,
                "more than half of the nodes differ from the baseline: the version moved, no node is blamed",
            )
        alike = {
            launch.node
            for launch in self.newest.values()
            if launch.digest == guilty.digest and launch.node != guilty.node
        }
        if alike:
            # Two broken GPUs do not make the same error: something that they share is to be looked for.
            return _say(
                newest,
                Verdict.UNKNOWN,
                Reason.DIFFERENCE_SHARED,
                f"launch digest {guilty.digest[:19]} is not accepted, but {', '.join(sorted(alike)[:3])} gave it as "
                "well: no node is blamed; look for what they share, or list it in spec.acceptedVariants",
            )
        return None

    def _suspect(self, uuid: str, since_clean: list[Visit], *, wrong: bool) -> Said:
        guilty, newest = self._guilty(since_clean), self.newest[uuid]
        began = self._first_novel(since_clean).received_at
        against = convicting(since_clean, self._is_novel)
        controls = self._fresh_controls(guilty.node, began)
        clean_controls = [launch for launch in controls if not self._is_novel(launch)]

        def cannot_tell(reason: Reason, message: str, *needs: Need) -> Said:
            return _say(guilty, Verdict.UNKNOWN, reason, message, since=began, newest=newest.received_at), needs

        if len(since_clean) > 1 and len(against) < 2:
            return cannot_tell(
                Reason.NOT_CONFIRMED, "a launch differed, another one of the same GPU did not: not confirmed"
            )
        if controls and not clean_controls:
            # The control moved as well: whatever this is, it is not this GPU.
            return cannot_tell(
                Reason.CONTROL_DISAGREES, "a control launched after the suspect differs too: no node is blamed"
            )
        needs = self._needs(uuid, guilty, relaunched=len(against) >= 2, controlled=bool(clean_controls))
        if any(need.purpose is Purpose.CONTROL and not need.gpus for need in needs):
            return cannot_tell(Reason.NO_CONTROL, "differs, but no known-good GPU is left to compare with")
        if needs:
            missing = " and ".join(sorted({need.purpose.value.lower() for need in needs}))
            difference = self._difference(guilty, wrong=wrong)
            return cannot_tell(Reason.CONFIRMING, f"{difference}; awaiting a fresh launch ({missing})", *needs)
        if not wrong:
            twin = self._twin(uuid, guilty)
            if twin is None:
                return cannot_tell(Reason.NO_CONTROL, "differs, but no known-good GPU is left to compare with")
            keys, nearest = twin
            if keys:
                # An explained difference is no fault of the GPU: name the key and blame nobody.
                words = f"differs, and so do its surroundings from every consistent GPU: {named(keys, guilty, nearest)}"
                return _say(
                    guilty,
                    Verdict.NOT_COMPARABLE,
                    Reason.SURROUNDINGS_DIFFER,
                    words,
                    since=began,
                    newest=newest.received_at,
                ), ()
        return _say(
            guilty,
            Verdict.DIVERGENT,
            Reason.WRONG_WEIGHTS if wrong else Reason.DIFFERS_FROM_BASELINE,
            f"{self._difference(guilty, wrong=wrong)}; a fresh launch of this GPU differs as well, "
            f"a control on {clean_controls[0].node} does not"
            + (", though their bits are equal" if guilty.digest == clean_controls[0].digest else ""),
            cause=Cause.WEIGHTS if wrong else Cause.UNEXPLAINED,
            since=began,
            newest=newest.received_at,
        ), ()

    def _clean(self, uuid: str) -> GPUJudgement:
        visits, newest = self.visits[uuid], self.newest[uuid]
        if any(launch.differing_rounds for launch in visits[-1].pinned):
            return _say(newest, Verdict.UNKNOWN, Reason.REPEATS_DIFFER, "repeats inside one process differ")
        if visits[-1].purpose is Purpose.CONFIRM and len(visits) > 1 and visits[-2].has_novel(self._is_novel):
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
        return _wrong_weights(launch, self.stated_weights) or (
            bool(self.agreed.digests) and launch.digest not in self.agreed.digests
        )

    def _guilty(self, since_clean: list[Visit]) -> LaunchRecord:
        """The newest launch that differed: what is said is said of it, not of a clean one beside it."""
        return next(launch for launch in reversed(since_clean[-1].pinned) if self._is_novel(launch))

    def _first_novel(self, since_clean: list[Visit]) -> LaunchRecord:
        return next(launch for launch in since_clean[0].pinned if self._is_novel(launch))

    def _fresh_controls(self, node: str, began: datetime) -> list[LaunchRecord]:
        """Launches on other nodes, of GPUs that were clean just before, in visits begun after the suspect differed."""
        return [
            launch
            for visits in self.visits.values()
            if visits[-1].pinned[-1].node != node
            for position, visit in enumerate(visits)
            if visit.started_after(began)
            and (
                visit.purpose is Purpose.CONTROL
                or (position > 0 and not visits[position - 1].has_novel(self._is_novel))
            )
            for launch in visit.pinned
        ]

    def _needs(self, uuid: str, guilty: LaunchRecord, *, relaunched: bool, controlled: bool) -> tuple[Need, ...]:
        needs = []
        if not relaunched:
            needs.append(Need(Purpose.CONFIRM, guilty.version, ((guilty.node, uuid),)))
        if not controlled:
            good = self._clean_elsewhere(guilty.node)
            close = self._by_distance(uuid, guilty, good[:TWINS_LOOKED_AT])
            best = [(launch.node, launch.gpu) for _, launch in close]
            rest = [(launch.node, launch.gpu) for launch in good[TWINS_LOOKED_AT:]]
            needs.append(Need(Purpose.CONTROL, guilty.version, tuple(best + rest)))
        return tuple(needs)

    def _clean_elsewhere(self, node: str) -> list[LaunchRecord]:
        """The newest launch of each GPU on other nodes that is in no streak of its own; the newest first."""
        found = [
            self.newest[uuid]
            for uuid, visits in self.visits.items()
            if self.newest[uuid].node != node and not streak(visits, self._is_novel)
        ]
        return sorted(found, key=lambda launch: (launch.received_at, launch.node, launch.gpu), reverse=True)

    def _twin(self, uuid: str, guilty: LaunchRecord) -> tuple[tuple[str, ...], LaunchRecord] | None:
        """The clean GPU whose surroundings are the nearest, and the keys in which even it differs; None without one."""
        close = self._by_distance(uuid, guilty, self._clean_elsewhere(guilty.node)[:TWINS_LOOKED_AT])
        return close[0] if close else None

    def _by_distance(
        self, uuid: str, guilty: LaunchRecord, others: Sequence[LaunchRecord]
    ) -> list[tuple[tuple[str, ...], LaunchRecord]]:
        ignored = self._changing(uuid)
        found = [(differing_keys(guilty, launch, ignored=ignored), launch) for launch in others]
        return sorted(found, key=lambda pair: (len(pair[0]), pair[1].node, pair[1].gpu))

    def _changing(self, uuid: str) -> frozenset[str]:
        """From the suspect's own pods and those of a few others: enough to learn the names."""
        watched = [uuid, *sorted(self.visits.keys() - {uuid})[:LEARN_FROM_GPUS]]
        return changing_keys(launch for gpu in watched for visit in self.visits[gpu] for launch in visit.pinned)

    def _moved(self) -> bool:
        if not self.agreed.digests:
            return False
        right = [launch for launch in self.newest.values() if not _wrong_weights(launch, self.stated_weights)]
        votes = node_votes(right)
        novel = sum(digest not in self.agreed.digests for digest in votes.values())
        return 2 * novel > len(votes)

    def _is_unrepeatable(self) -> bool:
        """By the newest visits alone: a glitch of last month says nothing of this version."""
        nodes = {launch.node for launch in self.newest.values()}
        differing = {
            visits[-1].pinned[-1].node
            for visits in self.visits.values()
            if any(launch.differing_rounds for launch in visits[-1].pinned)
        }
        return len(differing) >= 2 and len(differing) > UNREPEATABLE_SHARE * len(nodes)

    def _difference(self, launch: LaunchRecord, *, wrong: bool) -> str:
        if wrong:
            return f"weights {launch.weights_digest[:19]}, the spec states {self.stated_weights[:19]}"
        return f"launch digest {launch.digest[:19]}, accepted {self.agreed.main[:19]}"


def _never_pinned(launches: Sequence[LaunchRecord], judged: set[str]) -> tuple[GPUJudgement, ...]:
    """GPUs of which launches came to their end, but none was a pinned one."""
    loose = {
        launch.gpu: launch
        for launch in launches
        if launch.gpu and launch.gpu not in judged and launch.outcome is Outcome.COMPLETED
    }
    return tuple(
        _say(
            launch,
            Verdict.UNKNOWN,
            Reason.PIN_DOES_NOT_HOLD,
            "no pinned launch came to its end (a kernel was tuned by timing, or they failed): nothing to judge by",
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
    newest: datetime | None = None,
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
        newest=newest or launch.received_at,
    )
