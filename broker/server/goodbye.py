"""Requests to clients to move: when a node drains, leaves or stops (waits).

A client without pending confirms goes at once. One with pending confirms is not read any more, and goes when it has
them, or after PATIENCE_S: a queue that lacks copies may confirm nothing for hours. A node without a lease waits for
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.node.failover import DRAINED, moving_text

if TYPE_CHECKING:
    from clusterbroker.broker.node.clients import SocketCore
    from clusterbroker.broker.server.ports import ServerPort

PATIENCE_S: Final = 3.0
LOOK_S: Final = 0.005


async def turn_clients_away(shell: ServerPort) -> None:
    """This node drains: its clients are asked to go, and others refused. Clients of the management API stay: any member
    answers for all."""
    node = shell.node
    node.turns_away = True
    here = [one for one in node.clients.values() if one.is_open and not one.trusted]
    await say_goodbye(shell, here, moving_text(DRAINED, node.map, node.options.name))


async def say_goodbye(shell: ServerPort, connections: Iterable[SocketCore], text: str) -> None:
    """Returns when all have been sent connection.close (320); their close-ok has not come yet."""
    end_s = shell.loop.time() + PATIENCE_S
    waiting = list(connections)
    for connection in waiting:
        connection.dismiss()
    while waiting and not shell.ended.done():
        late = not shell.may_speak or shell.loop.time() >= end_s
        owed = []
        for connection in waiting:
            if not late and connection.owed:
                owed.append(connection)
            else:
                connection.force_close(text)
        waiting = owed
        shell.schedule()
        if waiting:
            await asyncio.sleep(LOOK_S)
