"""Reports of a request's progress: the first at once, then the last one of each EVERY_S."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Final

EVERY_S: Final = 0.25


class Progress:
    """Of one request. Called from any thread, however often."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[float], Awaitable[None]]) -> None:
        self._loop = loop
        self._send = send
        self._lock = threading.Lock()
        self._last: float | None = None
        """Not sent yet."""
        self._sending = False
        self._task: asyncio.Task[None] | None = None

    def __call__(self, part: float) -> None:
        with self._lock:
            self._last = part
            if self._sending:
                return
            self._sending = True
        self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        while (part := self._next()) is not None:
            await self._send(part)
            await asyncio.sleep(EVERY_S)

    def _next(self) -> float | None:
        with self._lock:
            part, self._last = self._last, None
            self._sending = part is not None
            return part
