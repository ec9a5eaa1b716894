"""A channel that waits for the answer of a queue's owner does not wait for ever (amqp-rules 5.1).

An owner that dies has a successor within seconds, which is asked again. But a queue all of whose copies are away has no
owner, perhaps for hours: then the client hears 404 with their names, as of a RabbitMQ queue whose home node is down,
after a time that is long enough for nodes that are restarted together. What is answered later finds the channel closed,
and goes back to the queue; a consumer that nobody waits for any more is taken back, or an auto-delete queue would end
with it. Only a purge, and a deletion that asks whether it may be, are carried out when they are answered: they are
refused at once, or not at all. 541 says that nothing is known: there was an owner, and no answer; then they are not
asked any more, for the queue may have new messages by the time that it answers (`broker.remote.questions`).

An exclusive queue ends with its connection. A client of a node that is lost comes to another one sooner than the loss
is known, and declares it again; 405, which tells it that somebody else has the queue, would be wrong. So the queue's
node is asked first: when it answers, it lives, and the declaration gets its 405; when it is failed, the queue is gone,
and the declaration makes a new one. It waits for LOCKED_MS at most: a node that stands still is failed sooner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from clusterbroker.broker.amqp.errors import AmqpError, internal_error, not_found
from clusterbroker.broker.amqp.layout import Method
from clusterbroker.broker.amqp.methods import QueueDelete, QueuePurge
from clusterbroker.broker.queues.handle import UNANSWERED_MS, QueueHandle

OWNERLESS_MS: Final = 10_000
LOCKED_MS: Final = 3000
LASTING: Final = (QueueDelete, QueuePurge)
"""What an owner carries out also when nobody waits for its answer any more."""


class Asked(NamedTuple):
    """What a parked channel waits for."""

    queue: QueueHandle
    method: Method
    since_ms: int
    withdraw: Callable[[], None] | None
    """Takes the question back when the channel ends."""
    instead: Callable[[], None] | None = None
    """What is done when there is no answer after LOCKED_MS."""


class Waiting(Protocol):
    """A channel."""

    @property
    def closing(self) -> bool: ...

    def resume(self) -> None:
        """It goes on without the answer."""

    def refuse(self, error: AmqpError, method: Method) -> None:
        """The answer is an error."""


def ownerless(queue: QueueHandle) -> AmqpError | None:
    """404 for a queue that nobody owns now: all copies that might are away."""
    entity = queue.entity
    if entity.owner is not None or not entity.replicas:
        return None
    nodes = " or ".join(f"'{name}'" for name in (*entity.in_sync, *entity.eligible))
    return not_found(
        f"home node {nodes} of durable queue '{entity.name}' in vhost '{entity.vhost}' is down or inaccessible"
    )


def review(channel: Waiting, asked: Asked, now_ms: int) -> None:
    """Closes the channel when the queue has no owner; one that was closed meanwhile goes on, as its close-ok waits too.
    Raises ConnectionFault when its owner does not answer."""
    entity, waited_ms = asked.queue.entity, now_ms - asked.since_ms
    if asked.instead is not None and waited_ms >= LOCKED_MS:
        asked.instead()
    elif channel.closing:
        if waited_ms >= UNANSWERED_MS or (waited_ms >= OWNERLESS_MS and ownerless(asked.queue)):
            channel.resume()
    elif waited_ms >= OWNERLESS_MS and not isinstance(asked.method, LASTING) and (error := ownerless(asked.queue)):
        channel.refuse(error, asked.method)
    elif waited_ms >= UNANSWERED_MS:
        asked.queue.ring.mark()  # it is not asked any more
        what = f"timed out waiting for the owner of queue '{entity.name}' in vhost '{entity.vhost}'"
        raise internal_error(what).at(asked.method.CLASS_ID, asked.method.METHOD_ID)
