"""A search for requests of a pool goes through each queue to its end, or says that it has not."""

from __future__ import annotations

import asyncio
from typing import Any

from clusterbroker.broker.http.pool_search import PoolSearch
from clusterbroker.broker.management.pool_requests import FOUND_MAX, OF_QUEUE_MAX, Place, Plan
from clusterbroker.broker.stats.inspection import Request, Result, Shown

LOOK = 10
"""Messages that the owner looks at for one question."""


def shown(seq: int) -> Shown:
    return Shown(seq, "ready", "", False, 0, b"core", b"42", b"\0\0", b"", 0, 1)


class Owner:
    """Of a queue with some wanted requests among others."""

    def __init__(self, *wanted: int, last: int, answers: int = 1000) -> None:
        self.wanted, self.last, self.answers = wanted, last, answers
        self.cancelled: list[int] = []

    async def ask(self, asked: Request) -> Result | None:
        self.answers -= 1
        if self.answers < 0:
            return None
        if asked.what == "delete":
            self.cancelled += asked.seqs or ()
            return Result("a", 1, "", 0, 0, self.last, done=len(asked.seqs or ()))
        end = min(self.last, asked.first + LOOK - 1)
        found = tuple(shown(seq) for seq in self.wanted if asked.first <= seq <= end)
        return Result("a", 1, "", LOOK, end + 1 if end < self.last else 0, self.last, shown=found)

    def search(self, *, cancels: bool = False) -> dict[str, Any]:
        plan = Plan([Place("group", "core-req-42", Request("browse", 1, count=FOUND_MAX))], None)
        return asyncio.run(PoolSearch(self.ask).run(plan, cancels=cancels))


def test_what_waits_behind_very_many_is_found_and_cancelled() -> None:
    owner = Owner(3, 95, last=100)
    answer = owner.search(cancels=True)
    assert (answer["cancelled"], owner.cancelled, answer["not_looked_into"]) == (2, [3, 95], [])
    assert [one["seq"] for one in owner.search()["items"]] == [3, 95]


def test_an_owner_that_goes_on_the_way_is_told() -> None:
    answer = Owner(3, 95, last=100, answers=4).search()
    assert [one["seq"] for one in answer["items"]] == [3]
    assert answer["not_looked_into"] == ["core-req-42"]


def test_so_many_of_one_id_that_the_search_stops_are_told() -> None:
    answer = Owner(*range(1, 2001), last=2000).search()
    assert len(answer["items"]) == OF_QUEUE_MAX
    assert answer["not_looked_into"] == ["core-req-42"]
