"""Messages that the broker itself makes: answers to requests, events, parts of what a reader asked for."""

from __future__ import annotations

from clusterbroker.broker.amqp.codec import make_message
from clusterbroker.broker.amqp.domains import push_shortstr
from clusterbroker.journal.record import Message


def own_message(exchange: str, routing_key: str, header: bytes, body: bytes, now_ms: int) -> Message:
    """A message with this address; `header` as `properties.encode` gives it. ValueError: a name of over 255 bytes."""
    made = make_message(push_shortstr(exchange) + push_shortstr(routing_key), header, body, now_ms)
    assert isinstance(made, Message), "a message of ours is well-formed"
    return made
