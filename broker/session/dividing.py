"""What one read brings, or a channel has waiting, is handled a part at a time when it is much work.

A read is a few hundred kilobytes, and so are thousands of publishes; each may look for a route of its own, or go to
thousands of queues; and one frame may return all that a channel holds. While they are handled nobody else is served. So
after STEPS_AT_ONCE (`broker.routing.labour`) the rest waits for the node's next turn, in its order, and the connection
is not read before. A batch whose messages alone are so much is divided, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.amqp.codec import MethodReceived, Published
from clusterbroker.broker.amqp.errors import ConnectionFault
from clusterbroker.broker.routing.labour import METHODS_AT_ONCE, STEPS_AT_ONCE
from clusterbroker.broker.session.state import State

if TYPE_CHECKING:
    from clusterbroker.broker.node.core import Node
    from clusterbroker.broker.session.channel import Channel
    from clusterbroker.broker.session.connection import Connection
    from clusterbroker.broker.session.subscription import Subscription

DELIVERY_STEPS: Final = 2
"""A message that goes into a queue."""
DELIVERIES_AT_ONCE: Final = STEPS_AT_ONCE // DELIVERY_STEPS
RETURNS_AT_ONCE: Final = 5_000
RETURN_STEPS: Final = 6
"""A delivery that returns to its queue; of many channels that end together as many return at once as of one."""
CONSUMER_STEPS: Final = 20
"""A consumer that goes."""
WAITED_STEPS: Final = 200
"""An event that waited in a parked channel: a get, a passive declare or a commit may be answered within the turn."""


def take(connection: Connection, events: Sequence[Any]) -> None:
    """Handles events, or the first of them; the others are taken up in later turns."""
    if connection.rest:
        connection.rest.extend(events)
        return
    labour = connection.node.labour
    connection.until = until = labour.done + STEPS_AT_ONCE
    for place, event in enumerate(events, 1):
        connection.handle(event)
        if connection.ending is not None:
            return
        if type(event) is MethodReceived:
            labour.methods += 1
        if labour.done > until or labour.methods > METHODS_AT_ONCE or connection.divided is not None:
            left = divided(connection)
            left.extend(events[place:])
            if left:
                connection.rest = left
                connection.review_reading()
                connection.node.soon(lambda: go_on(connection))
            return


def go_on(connection: Connection) -> None:
    """It is this connection's turn again."""
    rest, connection.rest = connection.rest, None
    if rest and connection.ending is None:
        take(connection, list(rest))
        connection.review_reading()


def divided(connection: Connection) -> deque[Any]:
    """The part of a batch that was left, to be handled before anything else of its connection."""
    rest, connection.divided = connection.divided, None
    return deque() if rest is None else deque((rest,))


def divide(connection: Connection, event: Published, count: int) -> None:
    """Leaves `count` messages in the batch, of which there are more; the others wait."""
    rest = Published(event.channel, event.address, event.mandatory, event.immediate)
    rest.messages = event.messages[count:]
    event.messages = event.messages[:count]
    rest.flags = event.flags
    rest.size = sum(len(message.payload) for message in rest.messages)
    event.size -= rest.size
    connection.divided = rest


def look(connection: Connection, channels: deque[Channel], now_ms: int) -> None:
    """Channels look for what is late, the rest of very much in later turns. What it raises costs this connection."""
    labour = connection.node.labour
    until = labour.done + STEPS_AT_ONCE
    while channels and connection.state is State.OPEN:
        try:
            if channels[0].tick(now_ms, until):
                channels.popleft()
        except ConnectionFault as fault:
            connection.fail(fault, channels[0].number)
        if labour.done > until:
            break
    connection.looks = bool(channels) and connection.state is State.OPEN
    if connection.looks:
        labour.done += STEPS_AT_ONCE
        connection.node.soon(lambda: look_on(connection, channels))


def look_on(connection: Connection, channels: deque[Channel]) -> None:
    """It is this connection's turn again."""
    try:
        look(connection, channels, connection.node.now_ms)
    except Exception as error:
        connection.crashed(error)


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


def let_go(node: Node, consumers: Sequence[Subscription], until: int) -> None:
    """Consumers of a channel that has ended leave their queues; later, when the node has done so much. They get nothing
    meanwhile, for the ledger of such a channel does not flow."""
    if node.labour.done < until:
        for subscription in consumers:
            queue = subscription.queue
            if not queue.deleted:
                node.setting_aside.work(queue, queue.unsubscribe, subscription, node.now_ms)
        node.labour.done += CONSUMER_STEPS * len(consumers)
    elif consumers:
        node.soon(lambda: let_go(node, consumers, node.labour.done + STEPS_AT_ONCE))
