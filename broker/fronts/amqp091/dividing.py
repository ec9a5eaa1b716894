"""Events of one read, or of a parked channel, are handled in portions when they are much work.

A read has thousands of publishes, each with a route of its own or to thousands of queues, and one frame may return all
deliveries of a channel; no other client is served meanwhile. After STEPS_AT_ONCE (`broker.routing.labour`) the rest
waits in its order for the node's next turn, and the connection is not read before. A long batch is divided, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

from clusterbroker.broker.fronts.amqp091.ports import ConnectionCore
from clusterbroker.broker.fronts.amqp091.state import State
from clusterbroker.broker.routing.labour import METHODS_AT_ONCE, STEPS_AT_ONCE
from clusterbroker.broker.wire.amqp091.codec import MethodReceived, Published
from clusterbroker.broker.wire.amqp091.errors import ConnectionFault

WAITED_STEPS: Final = 200
"""An event that waited in a parked channel: a get, a passive declare or a commit may be answered within the turn."""


class Ticking(Protocol):
    """A channel."""

    number: int

    def tick(self, now_ms: int, until: int) -> bool:
        """Looks for what is late. False: there may be more, when the node has done so much (`Labour.done`)."""


def take(connection: ConnectionCore, events: Sequence[Any]) -> None:
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


def go_on(connection: ConnectionCore) -> None:
    """It is this connection's turn again."""
    rest, connection.rest = connection.rest, None
    if rest and connection.ending is None:
        take(connection, list(rest))
        connection.review_reading()


def divided(connection: ConnectionCore) -> deque[Any]:
    """The part of a batch that was left, to be handled before anything else of its connection."""
    rest, connection.divided = connection.divided, None
    return deque() if rest is None else deque((rest,))


def divide(connection: ConnectionCore, event: Published, count: int) -> None:
    """Leaves `count` messages in the batch, of which there are more; the others wait."""
    rest = Published(event.channel, event.address, event.mandatory, event.immediate)
    rest.messages = event.messages[count:]
    event.messages = event.messages[:count]
    rest.flags = event.flags
    rest.size = sum(len(message.payload) for message in rest.messages)
    event.size -= rest.size
    connection.divided = rest


def look(connection: ConnectionCore, channels: deque[Ticking], now_ms: int) -> None:
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


def look_on(connection: ConnectionCore, channels: deque[Ticking]) -> None:
    """It is this connection's turn again."""
    try:
        look(connection, channels, connection.node.now_ms)
    except Exception as error:
        connection.crashed(error)
