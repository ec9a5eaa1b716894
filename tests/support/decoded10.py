"""What a decoder of AMQP 1.0 says, as values that the codec and its model must agree about."""

from __future__ import annotations

from typing import Any

from clusterbroker.broker.wire.amqp10.errors import Amqp10Error


def fields(message: Any) -> tuple[Any, ...]:
    names = ("address", "payload", "header_length", "flags", "priority", "time_ms", "ttl_ms", "format")
    return tuple(getattr(message, name) for name in names)


def told(event: Any) -> tuple[Any, ...]:
    if isinstance(event, Amqp10Error):
        return (type(event), event.condition, event.text)
    if hasattr(event, "messages"):
        refusal = event.refusal and told(event.refusal)
        marks = (
            event.link.channel,
            event.link.handle,
            event.first_id,
            event.settled,
            event.frames,
            event.flags,
            event.size,
        )
        return (*marks, refusal, list(event.tags), [fields(message) for message in event.messages])
    if hasattr(event, "ranges"):
        return ("disposed", event.channel, event.outcome, event.settled, event.ranges)
    if hasattr(event, "sasl"):
        return ("frame", event.channel, event.sasl, event.payload)
    return ("header", event.data)
