"""A search for requests of a pool goes through each queue to its end, or says that it has not. A list ends where it is
long enough, or where enough was looked at, and goes on there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusterbroker.broker.http import pool_search
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


class Owners:
    """Of groups' queues, by their numbers; each has so many waiting requests."""

    def __init__(self, *waiting: int, silent: int = 0) -> None:
        self.owners = {number: Owner(*range(1, many + 1), last=many) for number, many in enumerate(waiting, 1)}
        self.silent = silent
        self.asked: list[int] = []

    async def ask(self, asked: Request) -> Result | None:
        self.asked.append(asked.queue_id)
        return None if asked.queue_id == self.silent else await self.owners[asked.queue_id].ask(asked)

    def listed(self, limit: int) -> dict[str, Any]:
        places = [
            Place("group", f"core-req-{number}", Request("browse", number, count=limit), str(number))
            for number in self.owners
        ]
        return asyncio.run(PoolSearch(self.ask).run(Plan(places, "further", limit), cancels=False))


def test_a_list_ends_within_a_queue_between_queues_and_at_the_end() -> None:
    owners = Owners(2, 0, 25, 1)
    assert (len((one := owners.listed(1))["items"]), one["next"]) == (1, "group:2:-1:1")
    assert (len((two := owners.listed(2))["items"]), two["next"]) == (2, "group:1:0:2")
    assert (len((deep := owners.listed(20))["items"]), deep["next"]) == (20, "group:19:-1:3")
    assert (len((whole := owners.listed(100))["items"]), whole["next"]) == (28, "further")


def test_a_list_asks_few_queues_more_than_it_shows() -> None:
    owners = Owners(*[1] * 100)
    assert owners.listed(3)["next"] == "group:1:0:4"
    assert len(owners.asked) == pool_search.AT_ONCE


def test_a_list_names_the_queues_that_did_not_answer() -> None:
    answer = Owners(1, 1, 1, silent=2).listed(10)
    assert [one["queue"] for one in answer["items"]] == ["core-req-1", "core-req-3"]
    assert answer["not_looked_into"] == ["core-req-2"]


def test_a_list_ends_when_so_much_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_search, "LOOKED_MAX", 2 * LOOK)
    owners = Owners(1)
    owners.owners[1] = Owner(95, last=100)
    answer = owners.listed(10)
    assert (answer["items"], answer["next"]) == ([], "group:21:-1:1")
