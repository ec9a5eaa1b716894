"""Reasons for a node's end or restart, and waiting that the end of the node ends (waits)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec

from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.view import ClusterView
from clusterbroker.cluster.wiring_log import WiringLog


class Restart(Exception):
    """The node must begin again: the others have taken it for dead, or it fell behind the wiring log."""


class Unstarted(ValueError):
    """The node cannot take part in its cluster; one line says why."""


T = TypeVar("T")


async def come(
    awaited: asyncio.Future[T],
    ended: asyncio.Future[BaseException | None],
    look: Callable[[], None] = lambda: None,
    each_s: float | None = None,
) -> T:
    """The awaited result; `look` is called each `each_s` seconds meanwhile. Raises the errors of `look`, the one that
    ended the node, or Unstarted when the node was stopped."""
    while True:
        await asyncio.wait((awaited, ended), timeout=each_s, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            raise ended.result() or Unstarted("the node was stopped")
        if awaited.done():
            return awaited.result()
        look()


def proposed(log: WiringLog, command: c.AnyCommand) -> asyncio.Future[Applied]:
    """The outcome of a command, proposed once."""
    outcome: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()

    def done(applied: Applied) -> None:
        if not outcome.done():
            outcome.set_result(applied)

    log.propose(command, done)
    return outcome


async def ordered(
    log: WiringLog,
    command: c.AnyCommand,
    ended: asyncio.Future[BaseException | None],
    look: Callable[[], None],
    each_s: float,
) -> Applied:
    """The outcome of a command, proposed again as long as it is unknown. Raises as `come`."""
    again = False
    while True:
        applied = await come(proposed(log, command), ended, look, each_s)
        if not isinstance(applied.error, Unavailable):
            return known(applied, log.map) if again else applied
        again = True


def known(applied: Applied, map_: ClusterView) -> Applied:
    """The outcome of a command that was proposed more than once: a registration refused because this very incarnation
    has registered had been applied before, without a majority in time to say so. (Another process of the node would
    have another incarnation, decision 031.)"""
    command = applied.command
    if applied.error is None or not isinstance(command, c.RegisterNode):
        return applied
    member = map_.member(command.node)
    is_known = member is not None and member.incarnation == command.incarnation
    return msgspec.structs.replace(applied, error=None, result=member) if is_known else applied
