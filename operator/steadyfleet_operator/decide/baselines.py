"""What a ConsistencyBaseline says: the variants that a group has shown, and which one it is held against."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence

from steadyfleet_contract.report import Outcome
from steadyfleet_contract.spec import LaunchKind
from steadyfleet_operator.decide.observation import Baseline, LaunchRecord
from steadyfleet_operator.decide.plan import BaselineWrite
from steadyfleet_operator.decide.thresholds import MAX_VARIANTS
from steadyfleet_operator.decide.times import text
from steadyfleet_operator.decide.verdict import GroupJudgement
from steadyfleet_operator.resource import BaselineSpec, BaselineStatus, Variant, VariantState


def baseline_name(key: BaselineSpec) -> str:
    """At most 58 characters: the check's name has at most 40."""
    rest = "\0".join((key.version, key.product, key.prompt_set_digest))
    return f"{key.check}-{key.epoch[:8]}-{hashlib.sha256(rest.encode()).hexdigest()[:8]}"


def stored(baselines: Iterable[Baseline], name: str) -> BaselineStatus:
    return next((baseline.status for baseline in baselines if baseline.name == name), BaselineStatus())


def baseline_write(
    key: BaselineSpec,
    before: BaselineStatus,
    judged: GroupJudgement,
    launches: Sequence[LaunchRecord],
    *,
    stated_weights: str,
) -> BaselineWrite | None:
    """None if the stored object already says so."""
    agreed = judged.reference
    after = BaselineStatus(
        observed_generation=before.observed_generation,
        accepted=agreed.main,
        accepted_by=agreed.by,
        weights_digest=stated_weights,
        variants=_variants(launches, agreed.digests),
        conditions=before.conditions,
    )
    return None if after == before else BaselineWrite(baseline_name(key), key, after)


def _variants(launches: Sequence[LaunchRecord], accepted: frozenset[str]) -> tuple[Variant, ...]:
    made: dict[str, list[LaunchRecord]] = defaultdict(list)
    for launch in launches:
        if launch.kind is LaunchKind.PINNED and launch.outcome is Outcome.COMPLETED and launch.digest:
            made[launch.digest].append(launch)
    variants = [
        Variant(
            digest=digest,
            state=VariantState.ACCEPTED if digest in accepted else VariantState.SEEN,
            launches=len(group),
            nodes=len({launch.node for launch in group}),
            first_seen_time=text(group[0].received_at),
            last_seen_time=text(group[-1].received_at),
        )
        for digest, group in made.items()
    ]
    variants.sort(key=lambda variant: (-variant.launches, variant.digest))
    return tuple(variants[:MAX_VARIANTS])
