"""Requests of queues to the journal, as the shell takes them out of `Node.loads`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from clusterbroker.broker.node.effects import Load, StreamLoad
from clusterbroker.broker.queues.local_queue import Loaded, LocalQueue
from clusterbroker.journal.layout import Location
from clusterbroker.journal.record import Message
from clusterbroker.journal.stream_catalogue import Taken, Wish

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import NodeCore


def load(node: NodeCore, queue: LocalQueue, locations: list[Location], loaded: Loaded) -> None:
    """For the queue itself."""

    def read(messages: Sequence[Message]) -> None:
        loaded(locations, messages, locations)

    def unread(messages: Sequence[Message | None]) -> None:
        found = zip(locations, messages, strict=True)
        sound = [(where, message) for where, message in found if message is not None]
        loaded([where for where, _ in sound], [message for _, message in sound], locations)

    node.loads.append(Load(queue.entity.queue_id, queue.name, locations, read, lambda: not queue.deleted, unread))


def fetch(
    node: NodeCore,
    queue: LocalQueue,
    locations: Sequence[Location],
    then: Callable[[Sequence[Message]], None],
    otherwise: Callable[[], None] = lambda: None,
) -> None:
    """For somebody else: `then` gets the messages, unless the queue goes away; `otherwise` is called in its place when
    some of them are damaged, and held back from then on."""

    def loaded(messages: Sequence[Message]) -> None:
        if wanted():
            then(messages)

    def wanted() -> bool:
        return node.queues.get(queue.entity.queue_id) is queue

    node.loads.append(
        Load(
            queue.entity.queue_id, queue.name, locations, loaded, wanted, lambda _: otherwise() if wanted() else None
        )
    )  # fmt: skip


def read_stream(node: NodeCore, queue: LocalQueue, wish: Wish, then: Callable[[Taken], None]) -> None:
    """Records of a stream that are not in its ring; `then` is not called when the queue goes away."""

    def loaded(taken: Taken) -> None:
        if wanted():
            then(taken)

    def wanted() -> bool:
        return node.queues.get(queue.entity.queue_id) is queue

    past = queue.ring.past
    node.loads.append(
        StreamLoad(queue.entity.queue_id, queue.name, lambda: past.part_at(wish.seq), wish, loaded, wanted)
    )
