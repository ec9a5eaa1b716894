"""Waiting of a member, ended by the end of its node (waits)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from clusterbroker.broker.server.endings import Unstarted
from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.view import ClusterView
from clusterbroker.cluster.wiring_log import Done

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


class Log(Protocol):
    """The wiring log."""

    @property
    def map(self) -> ClusterView: ...
    def propose(self, command: c.AnyCommand, done: Done | None = None) -> None: ...


async def ordered(
    log: Log,
    command: c.AnyCommand,
    ended: asyncio.Future[BaseException | None],
    look: Callable[[], None],
    each_s: float,
) -> Applied:
    """The outcome of a command, which is proposed again as long as nobody knows it. Raises as `come`."""
    again = False
    while True:
        done: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()
        log.propose(command, lambda applied, done=done: done.done() or done.set_result(applied))  # type: ignore[misc]
        applied = await come(done, ended, look, each_s)
        if not isinstance(applied.error, Unavailable):
            return known(applied, log.map) if again else applied
        again = True


def known(applied: Applied, map_: ClusterView) -> Applied:
    """Of a command that was proposed more than once: a registration that is refused, since this very incarnation has
    registered, had been applied before, and no majority was there in time to say so. (The incarnation is this
    process's: of another life of the node the log would have told, decision 031.)"""
    command = applied.command
    if applied.error is None or not isinstance(command, c.RegisterNode):
        return applied
    member = map_.member(command.node)
    is_known = member is not None and member.incarnation == command.incarnation
    return msgspec.structs.replace(applied, error=None, result=member) if is_known else applied
