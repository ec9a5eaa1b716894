"""The keys of a worker that serves several: loaded, consumed, given back (waits).

    assigned --> loading --> consuming --given back--> finishing its requests --> unloading --> none
                    |failed: the broker is told, and takes the key back

Each key has a channel of its own, and its steps come one after the other; those of different keys do not wait for each
other. What is loaded stays so over a lost connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage

from .connecting import GONE
from .spare import Assigned, Keys, Line
from .worker import Worker

logger = logging.getLogger("clusterbroker_workers")

Call = Callable[[Callable[[str], Awaitable[None] | None], str], Awaitable[None]]
Process = Callable[[AbstractChannel, AbstractIncomingMessage], Awaitable[None]]


@dataclass(slots=True)
class _Key:
    """One key, as long as it is known."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    steps: int = 0
    """Under way."""
    loaded: Assigned | None = None
    """Loaded for this assignment."""
    failed: Assigned | None = None
    """Could not be loaded for this one."""
    channel: AbstractChannel | None = None
    """Where it is consumed."""
    tag: str = ""
    at_work: set[asyncio.Task[None]] = field(default_factory=set)


class Several:
    """Of one worker, over its connections."""

    def __init__(self, worker: Worker, worker_id: str, prefetch: int, call: Call, process: Process) -> None:
        self._worker = worker
        self._id = worker_id
        self._prefetch = prefetch
        self._call = call
        self._process = process
        self._keys: dict[str, _Key] = {}
        self._told: Keys = {}
        self._steps: set[asyncio.Task[None]] = set()

    async def follow(self, connection: AbstractConnection, line: Line, keys: Keys) -> None:
        """Serve the keys that the broker tells of, until the connection is lost or the task is cancelled. Raises what
        `unload` does."""
        for one in self._keys.values():
            one.channel = None
        self._told = keys
        for key in {*keys, *self._keys}:
            self._look(connection, line, key)
        while True:
            asked = asyncio.create_task(line.keys(self._told))
            try:
                while not asked.done():
                    await asyncio.wait({asked, *self._steps}, return_when=asyncio.FIRST_COMPLETED)
                    for step in [step for step in self._steps if step.done()]:
                        self._steps.discard(step)
                        step.result()
                keys = asked.result()
            finally:
                asked.cancel()
            changed = [key for key in {*keys, *self._told} if keys.get(key) != self._told.get(key)]
            self._told = keys
            for key in changed:
                self._look(connection, line, key)

    def _look(self, connection: AbstractConnection, line: Line, key: str) -> None:
        self._steps -= {step for step in self._steps if step.done() and not (step.cancelled() or step.exception())}
        one = self._keys.setdefault(key, _Key())
        one.steps += 1
        self._steps.add(asyncio.create_task(self._step(connection, line, key, one)))

    async def _step(self, connection: AbstractConnection, line: Line, key: str, one: _Key) -> None:
        try:
            await self._adjust(connection, line, key, one)
        finally:
            one.steps -= 1
        if not one.steps and one.loaded is None and key not in self._told:
            self._keys.pop(key, None)

    async def _adjust(self, connection: AbstractConnection, line: Line, key: str, one: _Key) -> None:
        """Makes the key what it is told to be by now."""
        async with one.turn:
            wanted = self._told.get(key)
            if one.loaded is not None and wanted != one.loaded:
                await self._give_back(key, one)
            if wanted is None:
                one.failed = None
            elif one.failed != wanted and (one.loaded is not None or await self._load(line, key, one, wanted)):
                await self._consume(connection, line, key, one, wanted)

    async def _load(self, line: Line, key: str, one: _Key, wanted: Assigned) -> bool:
        try:
            await self._call(self._worker.load, key)
        except Exception as error:
            logger.exception("load(%r) failed: %s", key, error)
            one.failed = wanted
            with contextlib.suppress(*GONE):
                await line.failed(key, f"{type(error).__name__}: {error}")
            return False
        one.loaded = wanted
        return True

    async def _consume(
        self, connection: AbstractConnection, line: Line, key: str, one: _Key, wanted: Assigned
    ) -> None:  # fmt: skip
        """Until it is given back, or the connection is lost: again if the broker closes the channel alone."""
        if one.channel is not None:
            return
        try:
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            await channel.set_qos(prefetch_count=self._prefetch)
            queue = await channel.get_queue(wanted.queue, ensure=False)

            async def take(message: AbstractIncomingMessage) -> None:
                task = asyncio.ensure_future(self._process(channel, message))
                one.at_work.add(task)
                task.add_done_callback(one.at_work.discard)

            def closed(*_: object) -> None:
                if one.channel is channel:
                    one.channel = None
                    if not connection.is_closed:
                        self._look(connection, line, key)

            channel.close_callbacks.add(closed)
            one.tag = await queue.consume(take, arguments={"worker-id": self._id})
            one.channel = channel
            if channel.is_closed:
                closed()
        except GONE as error:  # the key was given back meanwhile, which is told, or the connection is lost
            logger.info("queue %s is not consumed: %s", wanted.queue, error)

    async def _cancel(self, one: _Key) -> None:
        channel, one.channel = one.channel, None
        if channel is None:
            return
        with contextlib.suppress(*GONE):
            await (await channel.get_underlay_channel()).basic_cancel(one.tag)

    async def _give_back(self, key: str, one: _Key) -> None:
        channel = one.channel
        await self._cancel(one)
        while one.at_work:
            await asyncio.wait(one.at_work)
        if channel is not None:
            with contextlib.suppress(*GONE):
                await channel.close()
        one.loaded = None
        await self._call(self._worker.unload, key)

    async def drain(self) -> None:
        """Take no more requests. What is at work goes on."""
        for step in self._steps:
            step.cancel()
        for one in self._keys.values():
            await self._cancel(one)

    @property
    def at_work(self) -> set[asyncio.Task[None]]:
        """Requests of all keys."""
        return {task for one in self._keys.values() for task in one.at_work}
