"""What enters a worker pool: requests that the broker may answer in their publisher's place, and workers' reports.

A request that dies is answered by the broker, which may publish to any queue. So a request says with its publish, as a
flag, that its publisher may have its answer where `reply_to` says:

    a direct reply address        nobody else knows it
    a queue                       the user may publish there by the default exchange, or read it
    anything else, and letters    no answer: the responder passes it over
    of other queues

The flag is the message's for as long as it is in pools: it moves, dies and waits with it. A client cannot set it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from clusterbroker.broker.access.services import REPLY_TO
from clusterbroker.broker.content.message import reply_to_of, with_flags
from clusterbroker.broker.pools.credentials import launch_of
from clusterbroker.journal.layout import ANSWERABLE, HAS_REPLY_TO

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization
    from clusterbroker.broker.queues.handle import QueueHandle
    from clusterbroker.cluster.wiring.pool_table import PoolTable
    from clusterbroker.journal.record import Message


def enters_pool(pools: PoolTable, targets: Sequence[QueueHandle]) -> bool:
    """Whether one of these queues is a pool's."""
    ids = (queue.entity.queue_id for queue in targets)
    return any(queue_id in pools.queues or pools.delays(queue_id) is not None for queue_id in ids)


def enter(access: Authorization, targets: Sequence[QueueHandle], messages: Sequence[Message]) -> Sequence[Message]:
    """The messages as the pool's queues get them: with the flag where their publisher may have an answer. Progress that
    they report is noted."""
    node = access.node
    parts = (node.map.pools.queue(queue.entity.queue_id) for queue in targets)
    if any(part is not None and part.part == "activity" for part in parts):
        node.pools.progress.heard(launch_of(access.user) or access.connection_id, messages, node.now_ms)
    return [
        with_flags(message, message.flags | ANSWERABLE)
        if message.flags & HAS_REPLY_TO and _may_hear(access, reply_to_of(message) or "")
        else message
        for message in messages
    ]


def _may_hear(access: Authorization, address: str) -> bool:
    if address.startswith(f"{REPLY_TO}."):
        return True
    rights, vhost = access.rights, access.vhost.name
    may = rights.may_publish
    if rights.allowed(vhost, "write", "") and (may is None or may("", address)):
        return True
    return rights.allowed(vhost, "read", address)
