"""Whatever a member waits for, the end of its node comes first (waits)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from broker.server.endings import Unstarted

T = TypeVar("T")


async def come(
    awaited: asyncio.Future[T],
    ended: asyncio.Future[BaseException | None],
    look: Callable[[], None] = lambda: None,
    each_s: float | None = None,
) -> T:
    """What was awaited. `look` is called each `each_s` seconds meanwhile. Raises what `look` raises, what ended the
    node, or Unstarted when it was stopped."""
    while True:
        await asyncio.wait((awaited, ended), timeout=each_s, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            raise ended.result() or Unstarted("the node was stopped")
        if awaited.done():
            return awaited.result()
        look()
