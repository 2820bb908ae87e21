"""What the group's launches are held against: an accepted variant, the stored baseline, or the vote of the nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from steadyfleet_operator.decide.observation import LaunchRecord
from steadyfleet_operator.decide.thresholds import FIRST_VOTE_NODES, FIRST_VOTE_SHARE, MIN_VOTERS
from steadyfleet_operator.reasons import Reason


@dataclass(frozen=True, slots=True)
class Reference:
    """`digests` is empty while nothing is agreed; `reason` and `message` then say why."""

    digests: frozenset[str] = frozenset()
    main: str = ""
    """The one that is named and stored: the voted one before those that the spec adds."""
    by: Literal["", "Majority", "Spec"] = ""
    reason: Reason = Reason.MATCHES_BASELINE
    message: str = ""


def newest_per_gpu(launches: Iterable[LaunchRecord]) -> dict[str, LaunchRecord]:
    """Of launches in the order in which they were received."""
    return {launch.gpu: launch for launch in launches}


def node_votes(launches: Iterable[LaunchRecord]) -> dict[str, str]:
    """Node -> the digest that most of its GPUs gave last; a node that is split evenly has no entry.

    One vote a node: eight GPUs of one node share its weights, driver and image.
    """
    by_node: dict[str, list[str]] = defaultdict(list)
    for launch in newest_per_gpu(launches).values():
        by_node[launch.node].append(launch.digest)
    votes = {}
    for node, digests in by_node.items():
        ranked = Counter(digests).most_common(2)
        if len(ranked) == 1 or ranked[0][1] > ranked[1][1]:
            votes[node] = ranked[0][0]
    return votes


def reference(
    launches: Sequence[LaunchRecord],
    *,
    accepted_variants: Collection[str],
    baseline: str,
    baseline_by: Literal["", "Majority", "Spec"],
    wrong_weights: Collection[str],
    all_tried: bool,
) -> Reference:
    """`wrong_weights` names the nodes known to read other weights: they count as voters, but their vote for nobody."""
    seen = {launch.digest for launch in launches}
    accepted = frozenset(seen & set(accepted_variants))
    if baseline and baseline_by == "Majority":
        return Reference(accepted | {baseline}, baseline, "Majority")
    if accepted:
        return Reference(accepted, min(accepted), "Spec")
    measured = {launch.node for launch in launches}
    if not all_tried and len(measured) < FIRST_VOTE_NODES:
        return Reference(
            reason=Reason.NOT_YET_JUDGED,
            message=f"{len(measured)} nodes measured; waiting for the others before the vote",
        )
    if len(measured) < MIN_VOTERS:
        return Reference(
            reason=Reason.TOO_FEW_NODES,
            message=f"{len(measured)} comparable nodes and no accepted variant; {MIN_VOTERS} nodes are needed, "
            "or list a launch digest in spec.acceptedVariants",
        )
    votes = Counter(digest for node, digest in node_votes(launches).items() if node not in wrong_weights)
    winner, count = votes.most_common(1)[0] if votes else ("", 0)
    needed = Fraction(1, 2) if all_tried else FIRST_VOTE_SHARE
    if count > needed * len(measured) and count >= 2:
        return Reference(frozenset({winner}), winner, "Majority")
    largest = sorted(votes.items(), key=lambda camp: (-camp[1], camp[0]))[:4]
    camps = ", ".join(f"{digest[:19]} on {number}" for digest, number in largest)
    return Reference(
        reason=Reason.NO_MAJORITY,
        message=f"no launch digest has more than {needed} of {len(measured)} nodes ({camps}); "
        "list the right one in spec.acceptedVariants",
    )
