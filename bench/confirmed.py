"""Publisher confirms of a client of the benchmarks."""

from __future__ import annotations

import asyncio
from typing import Final

from clusterbroker.broker.bridges.confirms import Confirms
from clusterbroker.broker.trial.client import Client

ALL: Final = 1 << 62
"""More than are published."""


class Confirmed:
    """Of one client, whose publishes are never refused."""

    def __init__(self, client: Client) -> None:
        self._confirms = Confirms()
        self._wanted = 0
        self._there = asyncio.Event()
        client.on_confirm = self._on_confirm

    def _on_confirm(self, acked: bool, tag: int, multiple: bool) -> None:
        assert acked, "nothing has a limit here"
        self._confirms.take(tag, multiple, ALL)
        if self._confirms.upto >= self._wanted:
            self._there.set()

    async def wait(self, number: int) -> None:
        """Until all publishes up to this one are confirmed."""
        self._wanted = number
        self._there.clear()
        if self._confirms.upto < number:
            await self._there.wait()
