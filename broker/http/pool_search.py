"""A search for requests of a pool in its queues, and their cancellation (waits)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from msgspec.structs import replace

from clusterbroker.broker.management import pool_requests as p
from clusterbroker.broker.management.reading import Document
from clusterbroker.broker.stats.inspection import Request, Result

AT_ONCE: Final = 8
"""Queues that are looked into at once."""


@dataclass
class PoolSearch:
    """One. `ask`: of a queue's owner, or of a node; None: it cannot answer now."""

    ask: Callable[[Request], Awaitable[Result | None]]
    _items: list[Document] = field(default_factory=list)
    _silent: list[str] = field(default_factory=list)
    _cancelled: int = 0

    async def run(self, plan: p.Plan, *, cancels: bool) -> Document:
        """The answer. Part by part, in the order of a request's way: one that goes on meanwhile is found further on."""
        slots = asyncio.Semaphore(AT_ONCE)

        async def look(place: p.Place) -> None:
            async with slots:
                await self._look(place, cancels)

        for _, places in groupby(plan.places, key=lambda place: place.part):
            await asyncio.gather(*map(look, places))
        answer = p.answer(plan, self._items, sorted(self._silent))
        return {**answer, "cancelled": self._cancelled} if cancels else answer

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
            request = replace(request, first=result.next)

    async def _take(self, place: p.Place, result: Result, cancels: bool) -> None:
        holders: dict[int, tuple[str, int]] = {}
        for request in p.holders_of(place, result):
            told = await self.ask(request)
            if told is not None:
                holders.update(told.holders)
        found = p.documents(place, result, holders)
        if cancels:  # just now, perhaps
            found = [one for one in found if one["reason"] != "cancelled"]
        request_or_none = p.cancellation(place, result, found) if cancels else None
        if request_or_none is not None:
            done = await self.ask(request_or_none)
            if done is None:
                self._silent.append(place.queue)
            else:
                self._cancelled += done.done
                left = {seq for seqs in done.skipped.values() for seq in seqs}
                found = [one for one in found if one["state"] not in p.CANCELLED or one["seq"] in left]
        self._items += found
