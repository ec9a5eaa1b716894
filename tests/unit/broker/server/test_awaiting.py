"""Waiting that ends with the node."""

from __future__ import annotations

import asyncio

import pytest

from broker.server.awaiting import come
from broker.server.endings import Restart, Unstarted

Ending = BaseException | None


async def test_what_was_awaited_is_returned_and_looked_for_meanwhile() -> None:
    loop = asyncio.get_running_loop()
    awaited: asyncio.Future[int] = loop.create_future()
    looks: list[None] = []

    def look() -> None:
        looks.append(None)
        if len(looks) == 3:
            awaited.set_result(7)

    assert await come(awaited, loop.create_future(), look, 0.001) == 7
    assert len(looks) == 3


@pytest.mark.parametrize("ending", [Restart("the others took it for dead"), None])
async def test_the_end_of_the_node_comes_first(ending: Ending) -> None:
    loop = asyncio.get_running_loop()
    awaited: asyncio.Future[None] = loop.create_future()
    ended: asyncio.Future[Ending] = loop.create_future()
    waiting = loop.create_task(come(awaited, ended))
    await asyncio.sleep(0)
    ended.set_result(ending)
    awaited.set_result(None)
    with pytest.raises(Unstarted if ending is None else Restart):
        await waiting


async def test_what_a_look_raises_ends_the_waiting() -> None:
    loop = asyncio.get_running_loop()

    def look() -> None:
        raise Unstarted("nobody wants this node")

    with pytest.raises(Unstarted, match="nobody wants"):
        await come(loop.create_future(), loop.create_future(), look, 0.001)
