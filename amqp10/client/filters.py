"""Filters of a source (specification 3.5.8), for the argument `filter` of `receiver`: `{**stream_offset("first")}`.

Which of them are in force says the source of the peer's attach.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from clusterbroker.broker.wire.amqp10.types import Described, Milliseconds, Symbol
from clusterbroker.broker.wire.numbers import UInt64

STREAM_OFFSET: Final = "rabbitmq:stream-offset-spec"
SELECTOR: Final = "apache.org:selector-filter:string"
NO_LOCAL: Final = "apache.org:no-local-filter:list"


def stream_offset(start: str | int | datetime) -> dict[str, Any]:
    """Where to begin in a stream: "first", "last", "next", an offset, or a time."""
    value: Any = start
    if isinstance(start, datetime):
        value = Milliseconds(start.timestamp() * 1000)
    elif isinstance(start, int):
        value = UInt64(start)
    return {STREAM_OFFSET: Described(Symbol(STREAM_OFFSET), value)}


def selector(condition: str) -> dict[str, Any]:
    """Messages for which a condition in the words of JMS holds."""
    return {"selector": Described(Symbol(SELECTOR), condition)}


def no_local() -> dict[str, Any]:
    """No messages of this connection."""
    return {"no-local": Described(Symbol(NO_LOCAL), [])}
