"""Driver `noop`: workers come by themselves, and are told to go by their queue's end.

What was started is a name in memory, so that a launch counts as running. A foreman that begins anew starts it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from clusterbroker.broker.foreman.drivers.port import Capacity, Place
from clusterbroker.broker.foreman.reconcile import Seen, State
from clusterbroker.broker.foreman.spec import WorkerSpec
from clusterbroker.broker.foreman.templates import Template


class Noop:
    """Starts nothing."""

    name = "noop"
    shared = False

    def __init__(self, place: Place) -> None:
        self._place = place
        self._workers: dict[str, Seen] = {}
        self._changed: asyncio.Queue[str] = asyncio.Queue()

    async def start(self, spec: WorkerSpec, template: Template) -> None:  # noqa: ARG002
        self._workers.setdefault(
            spec.worker_id,
            Seen(spec.worker_id, State.RUNNING, self._place.cluster, self._place.node, spec.pool),
        )
        self._changed.put_nowait(spec.worker_id)

    async def stop(self, worker_id: str, grace_s: float) -> None:  # noqa: ARG002
        if (seen := self._workers.get(worker_id)) is not None:
            self._workers[worker_id] = Seen(worker_id, State.EXITED, seen.cluster, seen.place, seen.pool, 0)
            self._changed.put_nowait(worker_id)

    async def kill(self, worker_id: str) -> None:
        await self.stop(worker_id, 0)

    async def remove(self, worker_id: str) -> None:
        if (seen := self._workers.get(worker_id)) is not None and seen.state is State.EXITED:
            del self._workers[worker_id]

    async def list(self) -> tuple[Seen, ...]:
        return tuple(self._workers.values())

    async def watch(self) -> AsyncIterator[str]:
        while True:
            yield await self._changed.get()

    async def capacity(self) -> Capacity:
        return Capacity()

    async def close(self) -> None:
        pass
