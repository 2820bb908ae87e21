"""What is launched in which order, and what is refused before anything is."""

from dataclasses import replace
from pathlib import Path

import pytest

from steadyfleet_contract.spec import LaunchKind, ModelSource, Synthetic
from steadyfleet_probe.errors import SettingsInvalid
from steadyfleet_probe.ladder import CacheOrder, Ladder, requests

BOTH = (LaunchKind.PINNED, LaunchKind.AS_SERVED)


def a_ladder(
    launches: int, cache: str = "cold", *, kinds: tuple[LaunchKind, ...] = BOTH, work: Path = Path("/tmp/ladder")
) -> Ladder:
    return Ladder(
        model=ModelSource(synthetic=Synthetic.TINY),
        launches=launches,
        kinds=kinds,
        cache=CacheOrder(cache),
        batched=False,
        max_tokens=4,
        arguments=(),
        environment={},
        work=work,
        deadline_seconds=10,
    )


@pytest.mark.parametrize(
    ("cache", "states"),
    [
        ("cold", ["Cold", "Cold", "Cold", "Cold"]),
        ("warm", ["Cold", "Warm", "Warm", "Warm"]),
        ("cold-then-warm", ["Cold", "Warm", "Cold", "Warm"]),
    ],
)
def test_caches_follow_the_order_within_each_kind(cache: str, states: list[str]) -> None:
    asked = requests(a_ladder(4, cache))
    for kind in BOTH:
        assert [request.cache.value for request in asked if request.kind is kind] == states


def test_kinds_take_turns_and_launches_are_numbered_through() -> None:
    asked = requests(a_ladder(2))
    assert [request.kind.value for request in asked] == ["Pinned", "AsServed", "Pinned", "AsServed"]
    assert [request.index for request in asked] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("ladder", "words"),
    [
        (a_ladder(0), "--launches: 0 launches in all"),
        (replace(a_ladder(1), max_tokens=4097), "--max-tokens: 4097, 1 to 4096 are possible"),
        (a_ladder(33), "--launches: 66 launches in all, 1 to 64 are possible"),
        (a_ladder(1, "warm"), "--launches: warm needs two of each kind"),
        (a_ladder(1, "cold-then-warm"), "--launches: cold-then-warm needs two of each kind"),
        (a_ladder(1, work=Path("/" + "x" * 48)), "--work: /x+ is longer than 48 characters"),
    ],
    ids=["none", "too long", "too many", "nothing to be warm from", "no turn", "sockets would not fit"],
)
def test_what_can_not_be_done_is_refused_by_the_options_name(ladder: Ladder, words: str) -> None:
    with pytest.raises(SettingsInvalid, match=words):
        ladder.check()


def test_most_that_is_possible_is_taken() -> None:
    a_ladder(64, kinds=(LaunchKind.PINNED,), work=Path("/" + "x" * 47)).check()
