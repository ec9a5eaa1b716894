"""Consumers of one session: how they come to their queues, and what they leave behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from clusterbroker.broker.access.errors import Refusal, access_refused
from clusterbroker.broker.queues.handle import GONE, QueueHandle
from clusterbroker.broker.queues.subscription import LocalConsumer, Source
from clusterbroker.broker.routing.labour import STEPS_AT_ONCE

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization
    from clusterbroker.broker.node.core import Node

RETURNS_AT_ONCE: Final = 5_000
RETURN_STEPS: Final = 6
"""A delivery that returns to its queue; of many sessions that end together as many return at once as of one."""
CONSUMER_STEPS: Final = 20
"""A consumer that goes."""


class Consumer(LocalConsumer, Protocol):
    """A consumer of a session."""

    @property
    def queue(self) -> Source:
        """Its deliveries come from there."""

    @property
    def reads_to_an_end(self) -> bool:
        """The broker cancels it when it has had everything: so whatever else ends it must be told otherwise."""


def attach(
    access: Authorization, queue: QueueHandle, consumer: Consumer, then: Callable[[Refusal | None], None]
) -> None:
    """Asks the owner of the queue, which may be read (`Authorization.check`). `then(None)`: deliveries follow. A
    session that does not want the consumer any more by then has to unsubscribe it."""

    def subscribed(refused: str) -> None:
        if refused == GONE:
            then(access.no_queue(queue.name))
        elif refused:
            then(access_refused(f"queue '{queue.name}' in vhost '{access.vhost.name}' {refused}"))
        else:
            then(None)

    queue.subscribe(consumer, access.node.now_ms, subscribed)


def give_back(
    node: Node, entries: Sequence[tuple[Any, Any, int]], *, requeue: bool, counted: bool, until: int | None = None
) -> None:
    """Deliveries of a ledger return to their queues, or are rejected; of very many some in later turns, and all of them
    when the node has done what is to be done at once (`until`, of `Labour.done`)."""
    at_once = RETURNS_AT_ONCE if until is None or node.labour.done < until else 0
    for _, consumer, seq in entries[:at_once]:
        queue = consumer.ring.owner
        if requeue:
            node.setting_aside.work(queue, queue.requeue, seq, counted)
        else:
            node.setting_aside.work(queue, queue.reject, seq)
        consumer.ring.mark()
    node.labour.done += RETURN_STEPS * len(entries[:at_once])
    rest = entries[at_once:]
    if rest:
        node.labour.done += STEPS_AT_ONCE
        node.soon(lambda: give_back(node, rest, requeue=requeue, counted=counted))


def let_go(node: Node, consumers: Sequence[Consumer], until: int) -> None:
    """Consumers of a session that has ended leave their queues; later, when the node has done so much. They get nothing
    meanwhile, for the ledger of such a session does not flow."""
    if node.labour.done < until:
        for subscription in consumers:
            queue = subscription.queue
            if not queue.deleted:
                node.setting_aside.work(queue, queue.unsubscribe, subscription, node.now_ms)
        node.labour.done += CONSUMER_STEPS * len(consumers)
    elif consumers:
        node.soon(lambda: let_go(node, consumers, node.labour.done + STEPS_AT_ONCE))
