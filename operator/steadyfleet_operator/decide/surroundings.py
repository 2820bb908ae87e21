"""What differs around two launches. A GPU is accused only if a clean one shares all that is compared here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from steadyfleet_contract.surroundings import BY_NATURE as BY_NATURE  # also for the store's index
from steadyfleet_contract.surroundings import COMPARED_SECTIONS
from steadyfleet_operator.decide.observation import LaunchRecord


def differing_keys(
    one: LaunchRecord, other: LaunchRecord, *, ignored: Collection[str] = frozenset()
) -> tuple[str, ...]:
    """`section.key` of all that differs, sorted; the image's runtime digest counts as `image.id`."""
    mine, theirs = _facts(one), _facts(other)
    return tuple(
        sorted(key for key in mine.keys() | theirs.keys() if key not in ignored and mine.get(key) != theirs.get(key))
    )


def changing_keys(launches: Iterable[LaunchRecord]) -> frozenset[str]:
    """Keys that differ between launches of one pod: drawn anew by each process, they explain nothing.

    The list above can't know every such name of every engine version; each visit of two launches shows them.
    """
    first: dict[str, LaunchRecord] = {}
    found: set[str] = set()
    for launch in launches:
        found.update(differing_keys(first.setdefault(launch.pod_uid, launch), launch))
    return frozenset(found)


def named(keys: tuple[str, ...], one: LaunchRecord, other: LaunchRecord, *, limit: int = 3) -> str:
    """The first keys for a message, with both values where these can be shown to everybody who may read the results."""
    mine, theirs = _facts(one), _facts(other)
    shown = ", ".join(
        f"{key} ({mine.get(key, 'absent')[:60]} / {theirs.get(key, 'absent')[:60]})" if _is_public(key) else key
        for key in keys[:limit]
    )
    rest = len(keys) - limit
    return shown + (f" and {rest} more" if rest > 0 else "")


def _is_public(key: str) -> bool:
    """Variables and arguments are the user's own; no filter knows every secret in them."""
    return key != "engine.arguments" and not key.startswith(("environment.", "engine.env."))


def _facts(launch: LaunchRecord) -> Mapping[str, str]:
    facts = {
        f"{section}.{key}": value
        for section in COMPARED_SECTIONS
        for key, value in launch.fingerprint.get(section, {}).items()
        if not BY_NATURE.fullmatch(f"{section}.{key}")
    }
    if launch.image_id:
        facts["image.id"] = launch.image_id
    if launch.weights_digest:
        facts["weights.digest"] = launch.weights_digest
    return facts
