"""Definitions on their way to the node: staged in parts, decided by the last one, and waited for (waits).

What others change of the things that are named, or an import of somebody else, makes this one begin anew: nothing of it
was done. When it was accepted it will be carried out in any case, and this only waits until the replica has all of it.
Worker pools follow it, one by one, and then what is bound to their reports.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from clusterbroker.broker.server.control import protocol as m
from clusterbroker.cluster.errors import Unavailable, WiringError
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.imports import parted
from clusterbroker.cluster.wiring.view import ClusterView

from .operations import OrderError

PART_BYTES_MAX: Final = 256 << 10
PATIENCE_S: Final = 20.0
"""How long others may make an import begin anew."""
AGAIN_S: Final = 0.25
STALL_S: Final = 20.0
"""An accepted import that does not go on for so long waits for a majority, or for a member that holds messages."""


class Replica(Protocol):
    """Whoever folds the wiring: a management process, or the node itself."""

    @property
    def map(self) -> ClusterView:
        """As far as it is folded."""


Order = Callable[[c.AnyCommand], Awaitable[m.Ordered | OrderError]]


Progress = Callable[[], Awaitable[None]]


async def imported(
    replica: Replica,
    order: Order,
    progress: Progress,
    commands: Sequence[c.Defining],
    pools: Sequence[c.DeclarePool] = (),
    bindings: Sequence[c.Bind] = (),
) -> OrderError | None:
    """All commands, or none and why; then the pools, until one is refused, and the bindings of their reports. `order`
    comes back when the replica has the command, `progress` when another."""
    refused = await _imported(replica, order, progress, commands) if commands else None
    for command in pools:
        if refused is None:
            refused = await _declared(order, command)
    if refused is None and bindings:
        refused = await _imported(replica, order, progress, bindings)
    return refused


async def _declared(order: Order, command: c.DeclarePool) -> OrderError | None:
    """An import of somebody else is waited for."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + PATIENCE_S
    while True:
        ordered = await order(command)
        if not ordered.kind:
            return None
        if not _known(ordered) or ordered.kind != Unavailable.kind or loop.time() > until_s:
            return OrderError(ordered.kind, f"pool '{command.name[:255]}' in vhost '{command.vhost}': {ordered.text}")
        await asyncio.sleep(AGAIN_S)


def _known(refused: m.Ordered | OrderError) -> bool:
    """What has an index was answered by the wiring: it is known that nothing was done."""
    return isinstance(refused, m.Ordered) and refused.index > 0


async def _imported(
    replica: Replica, order: Order, progress: Progress, commands: Sequence[c.Defining]
) -> OrderError | None:
    loop = asyncio.get_running_loop()
    try:
        parts = parted(commands, [len(c.encode(command)) for command in commands], PART_BYTES_MAX)
    except WiringError as error:
        return OrderError(error.kind, error.text)
    at_once = len(commands) if len(parts) == 1 and replica.map.next_slice(commands, 0) == len(commands) else 0
    until_s = loop.time() + PATIENCE_S
    while True:
        import_id = uuid.uuid4().hex
        refused = await _staged(order, import_id, parts, at_once)
        if refused is None:
            return await _finished(replica, progress, import_id)
        known = _known(refused)
        if not known and len(parts) > 1:
            await order(c.DropImport(import_id=import_id))
        if not known or refused.kind != Unavailable.kind or loop.time() > until_s:
            return OrderError(refused.kind, refused.text)
        await asyncio.sleep(AGAIN_S)


async def _staged(
    order: Order, import_id: str, parts: Sequence[Sequence[c.Defining]], at_once: int
) -> m.Ordered | OrderError | None:
    """What refused it."""
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        ordered = await order(
            c.ImportDefinitions(import_id=import_id, number=number, commands=tuple(part), last=last, apply=at_once)
        )
        if ordered.kind:
            return ordered
    return None


async def _finished(replica: Replica, progress: Progress, import_id: str) -> OrderError | None:
    """When nothing is left to be done."""
    while (held := replica.map.importing) is not None and held.import_id == import_id:
        done = held.done
        try:
            async with asyncio.timeout(STALL_S):
                while replica.map.importing is held and held.done == done:
                    await progress()
        except (TimeoutError, ConnectionError):
            text = f"it is decided, and {done} of {len(held.commands)} changes are made: the others will follow"
            return OrderError(Unavailable.kind, text)
    return None
