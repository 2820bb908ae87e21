"""The copy of what NodeConsistency objects say: writes win over a list that was read meanwhile."""

from __future__ import annotations

import asyncio

from steadyfleet_operator.kube.results import NodeResult, with_entry, without_entry
from steadyfleet_operator.resource import NodeCheck, NodeStatus, Verdict
from steadyfleet_operator.results import Results
from tests.unit.decide.fleet import node


class Stored:
    """Answers like NodeResults, a list as slowly as the test wants."""

    def __init__(self) -> None:
        self.statuses: dict[str, NodeStatus] = {}
        self.listing = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def list_all(self) -> tuple[NodeResult, ...]:
        found = tuple(NodeResult(name, "r", f"uid-{name}", "1", status) for name, status in self.statuses.items())
        self.listing.set()
        await self.go_on.wait()
        return found

    async def put_entry(self, of: object, entry: NodeCheck) -> NodeStatus:
        name = of.name  # type: ignore[attr-defined]
        self.statuses[name] = with_entry(self.statuses.get(name, NodeStatus()), entry)
        return self.statuses[name]

    async def drop_entry(self, of: object, *, namespace: str, check: str) -> NodeStatus:
        name = of.name  # type: ignore[attr-defined]
        self.statuses[name] = without_entry(self.statuses[name], namespace=namespace, check=check)
        return self.statuses[name]


def entry(*, marked: bool) -> NodeCheck:
    return NodeCheck(namespace="ns", name="x", uid="u", verdict=Verdict.DIVERGENT, may_mark=True, marked=marked)


async def test_a_mark_that_is_cleared_while_the_list_is_read_stays_cleared() -> None:
    stored = Stored()
    results = Results(stored)  # type: ignore[arg-type]
    await results.put(node("a"), entry(marked=True))
    stored.go_on.clear()
    loading = asyncio.create_task(results.load())
    await stored.listing.wait()
    await results.put(node("a"), entry(marked=False))
    stored.go_on.set()
    await loading
    assert [found.marked for found in results.status_of(node("a")).checks] == [False]


async def test_what_somebody_else_edited_is_seen_after_the_next_load() -> None:
    stored = Stored()
    results = Results(stored)  # type: ignore[arg-type]
    await results.put(node("a"), entry(marked=True))
    stored.statuses["a"] = NodeStatus()
    await results.load()
    assert results.status_of(node("a")) == NodeStatus()


async def test_entries_of_checks_that_do_not_live_are_orphans() -> None:
    results = Results(Stored())  # type: ignore[arg-type]
    await results.put(node("a"), entry(marked=True))
    assert results.orphans({("ns", "x"): "u"}) == []
    assert [name for name, _ in results.orphans({("ns", "x"): "another uid"})] == ["a"]
    assert [name for name, _ in results.orphans({})] == ["a"]
