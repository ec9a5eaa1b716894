"""Hand-over of all queues of a member: before it stops, drains or leaves (waits)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.balance import MOVES_AT_ONCE, Load
from clusterbroker.cluster.wiring.entities import Queue
from clusterbroker.cluster.wiring.view import ClusterView

if TYPE_CHECKING:
    from clusterbroker.broker.server.ports import ServerPort

LOOK_S: Final = 0.02
HAND_OVERS_AT_ONCE: Final = 256
"""Each has a deadline, clients of its queue wait meanwhile, and all of them stand in one line, the wiring log's."""
ASK_AGAIN_S: Final = 1.0
"""An order for another copy of which nothing was seen is given again."""


async def hand_over_all(shell: ServerPort, timeout_s: float, thoroughly: bool = False) -> tuple[int, int]:
    """Hands every queue to another in-sync member, as far as there is one: (handed over, left here).

    `thoroughly`: a queue that nobody else can own now gets another copy first, if a member can hold one.
    """
    node, loop = shell.node, shell.loop
    part = node.part
    assert part is not None, "a member has a part"
    end_s = loop.time() + timeout_s
    first: int | None = None
    copying: dict[int, float] = {}  # queues for which another copy was ordered, and when, s
    while True:
        owned = [queue for queue in node.queues.values() if queue.ring.replicated]
        left = [queue for queue in owned if thoroughly or heirs(node.map, queue.entity)]
        first = len(left) if first is None else first
        if not left or loop.time() >= end_s or shell.ended.done():
            return first - len(left), len(left)
        now_s = loop.time()
        copying = {queue.entity.queue_id: at_s for queue in left if (at_s := copying.get(queue.entity.queue_id))}
        moving = 0
        for queue in left:
            queue_id = queue.entity.queue_id
            able = heirs(node.map, queue.entity)
            if able:
                copying.pop(queue_id, None)
                if moving < HAND_OVERS_AT_ONCE:
                    to = min(able, key=lambda name: (node.map.owned(name), name))
                    part.hand_over(queue_id, to)
                    moving += part.copying.primary.moves(queue_id)
            elif (asked_s := copying.get(queue_id)) is None and len(copying) >= MOVES_AT_ONCE:
                continue
            elif asked_s is not None and now_s - asked_s < ASK_AGAIN_S:
                continue  # what is ordered stands in a line with all that this node orders
            elif (move := one_copy_more(node.map, queue.entity)) is not None:
                copying[queue_id] = now_s
                shell.storage.wiring.propose(move)
        shell.schedule()
        await asyncio.sleep(max(LOOK_S, loop.time() - now_s))


def heirs(view: ClusterView, entity: Queue) -> list[NodeId]:
    """Who could own the queue instead of its owner."""
    members = (view.member(name) for name in entity.in_sync if name != entity.owner)
    return [member.name for member in members if member is not None and member.alive and not member.draining]


def one_copy_more(view: ClusterView, entity: Queue) -> c.MoveReplica | None:
    """A copy elsewhere for a queue that has none; None: there is one, or nobody can hold it."""
    load = Load(view)
    if any(name in load.ready for name in entity.replicas):
        return None
    to = load.emptiest(entity)
    return None if to is None else c.MoveReplica(queue_id=entity.queue_id, add=(to,))
