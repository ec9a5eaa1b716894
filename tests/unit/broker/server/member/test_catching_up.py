"""Whose command tells a start that its map is current."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from clusterbroker.broker.server.member.catching_up import NOTHING, CatchingUp
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring.map import Applied


class Raft:
    session = 1

    def __init__(self, me_id: str) -> None:
        self.me_id = me_id
        self.proposed: list[Any] = []
        self.waiting_for = ()

    def propose(self, command: Any, done: Any) -> None:
        self.proposed.append(command)


def start(me_id: str) -> tuple[CatchingUp, Raft]:
    raft = Raft(me_id)
    cluster: Any = SimpleNamespace(name="c", raft=raft, log_line=lambda *_: None)
    loop = asyncio.get_running_loop()
    shell: Any = SimpleNamespace(loop=loop, ended=loop.create_future())
    roster: Any = SimpleNamespace(reached={})
    return CatchingUp(cluster, shell, roster), raft


async def test_a_start_on_another_disk_is_not_answered_by_the_log_of_the_one_before() -> None:
    """The newcomer has the name of a member that was here, and counts its starts anew: the log that it follows has the
    other's first command, and much behind it."""
    former, before = start("c/disk-1")
    waiting = asyncio.ensure_future(former.wait())
    await asyncio.sleep(0)
    newcomer, raft = start("c/disk-2")
    catching_up = asyncio.ensure_future(newcomer.wait())
    await asyncio.sleep(0)
    (theirs,), (own,) = before.proposed, raft.proposed
    newcomer.applied(Applied(LogIndex(100), theirs, None, None, ()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not catching_up.done()
    newcomer.applied(Applied(LogIndex(9000), own, None, None, ()))
    await catching_up
    waiting.cancel()


async def test_a_barrier_in_the_log_does_not_end_a_wait_that_has_not_begun() -> None:
    """Entries come as soon as there are links; one is what an operator's move of a queue waited for, days ago."""
    starting, raft = start("c/disk-1")
    starting.applied(Applied(LogIndex(5), NOTHING, None, None, ()))
    catching_up = asyncio.ensure_future(starting.wait())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not catching_up.done()
    starting.applied(Applied(LogIndex(9), raft.proposed[0], None, None, ()))
    await catching_up
