"""A search for requests of a pool in its queues, their cancellation, and their list (waits)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from msgspec.structs import replace

from clusterbroker.broker.management import pool_requests as p
from clusterbroker.broker.management.reading import Document
from clusterbroker.broker.stats.inspection import LOOKED_MAX, Request, Result

AT_ONCE: Final = 8
"""Queues that are looked into at once."""


@dataclass
class PoolSearch:
    """One. `ask`: of a queue's owner, or of a node; None: it cannot answer now, or refuses to."""

    ask: Callable[[Request], Awaitable[Result | None]]
    _items: list[Document] = field(default_factory=list)
    _silent: list[str] = field(default_factory=list)
    cancelled: int = 0
    """Of those that it found, until now."""
    _looked_at: int = 0

    async def run(self, plan: p.Plan, *, cancels: bool) -> Document:
        """The answer. Part by part, in the order of a request's way: one that goes on meanwhile is found further on."""
        if plan.limit:
            return await self._list(plan)
        slots = asyncio.Semaphore(AT_ONCE)

        async def look(place: p.Place) -> None:
            async with slots:
                await self._look(place, cancels)

        for _, places in groupby(plan.places, key=lambda place: place.part):
            await asyncio.gather(*map(look, places))
        answer = p.answer(plan, self._items, sorted(self._silent))
        return {**answer, "cancelled": self.cancelled} if cancels else answer

    # -- all of an id -------------------------------------------------------------------------------------------

    async def _look(self, place: p.Place, cancels: bool) -> None:
        request, found = place.request, 0
        while True:  # one question ends after so many messages, or so much time
            result = await self.ask(request)
            if result is not None:
                await self._take(place, result, cancels)
                if not result.next:
                    return
                found += len(result.shown)
            if result is None or found >= p.OF_QUEUE_MAX:
                self._silent.append(place.queue)
                return
            request = replace(request, first=result.next, passed=result.passed)

    async def _take(self, place: p.Place, result: Result, cancels: bool) -> None:
        found = await self._told(place, result)
        if cancels:  # just now, perhaps
            found = [one for one in found if one["reason"] != "cancelled"]
        request_or_none = p.cancellation(place, result, found) if cancels else None
        if request_or_none is not None:
            done = await self.ask(request_or_none)
            if done is None:
                self._silent.append(place.queue)
            else:
                self.cancelled += done.done
                left = {seq for seqs in done.skipped.values() for seq in seqs}
                found = [one for one in found if one["state"] not in p.CANCELLED or one["seq"] in left]
        self._items += found

    async def _told(self, place: p.Place, result: Result) -> list[Document]:
        """What was found, with what the nodes of its holders know."""
        held = p.Held()
        for request in p.holders_of(place, result):
            told = await self.ask(request)
            if told is not None:
                held.holders.update(told.holders)
                held.progress.update(told.progress)
        return p.documents(place, result, held)

    # -- a list -------------------------------------------------------------------------------------------------

    async def _list(self, plan: p.Plan) -> Document:
        """In order; some queues are looked into ahead, for most have nothing."""
        for at in range(0, len(plan.places), AT_ONCE):
            places = plan.places[at : at + AT_ONCE]
            results = await asyncio.gather(*(self.ask(place.request) for place in places))
            for place, result in zip(places, results, strict=True):
                end = place if self._is_full(plan) else await self._append(plan, place, result)
                if end is not None:
                    return p.answer(plan._replace(next=p.next_of(end)), self._items, sorted(self._silent))
        return p.answer(plan, self._items, sorted(self._silent))

    def _is_full(self, plan: p.Plan) -> bool:
        return len(self._items) >= plan.limit or self._looked_at >= LOOKED_MAX

    async def _append(self, plan: p.Plan, place: p.Place, result: Result | None) -> p.Place | None:
        """The queue's requests. Where the list goes on if it ends within the queue."""
        while result is not None:
            shown = result.shown[: plan.limit - len(self._items)]
            self._items += p.listed(plan, await self._told(place, replace(result, shown=shown)))
            self._looked_at += result.looked_at
            if len(shown) < len(result.shown):
                return p.behind(place, shown[-1])
            if not result.next:
                return None
            place = p.rest(place, result)
            if self._is_full(plan):
                return place
            result = await self.ask(place.request)
        self._silent.append(place.queue)
        return None
