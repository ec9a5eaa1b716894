"""Waiting that ends with the node."""

from __future__ import annotations

import asyncio

import pytest

from clusterbroker.broker.server.endings import Restart, Unstarted, come, ordered
from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring_log import unlogged
from tests.unit.cluster.cluster_world import ClusterWorld

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


class SlowLog:
    """Applies what is proposed at once; of the first `unheard` proposals nobody hears what came."""

    def __init__(self, unheard: int) -> None:
        self.world = ClusterWorld()
        self.map = self.world.map
        self._unheard = unheard

    def propose(self, command: c.AnyCommand, done: object = None) -> None:
        assert callable(done)
        applied = self.map.apply(self.map.applied + 1, command)  # type: ignore[arg-type]
        self._unheard -= 1
        done(unlogged(command, Unavailable("no outcome in time")) if self._unheard >= 0 else applied)


async def registered(log: SlowLog, incarnation: int) -> Applied:
    command = c.RegisterNode(node=NodeId("a"), disk_id="disk of a", incarnation=Incarnation(incarnation), address="a:1")
    return await ordered(log, command, asyncio.get_running_loop().create_future(), lambda: None, 1.0)


async def test_a_registration_of_which_nobody_heard_was_one() -> None:
    """Before, the second attempt was refused as one of the past, and its node ended (chaos, seed 2205)."""
    log = SlowLog(unheard=2)
    applied = await registered(log, 7)
    assert applied.error is None
    assert applied.result == log.world.member("a")
    assert log.world.member("a").incarnation == 7


async def test_a_registration_of_the_past_is_refused() -> None:
    log = SlowLog(unheard=0)
    assert (await registered(log, 1)).error is not None
    log = SlowLog(unheard=1)
    log.world.register("a")
    assert (await registered(log, 1)).error is not None
