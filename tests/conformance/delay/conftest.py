"""A delayed exchange with a queue behind it, for the tests of this suite."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from ..channel import Channel
from ..wire import Method

Name = Callable[[str], str]
LATE_S = 1.0
"""So late a message may come that is due, by rule 74."""


@dataclass
class Delayed:
    """A delayed exchange, and a queue bound to it by `key`."""

    channel: Channel
    exchange: str
    queue: str
    key: str = "k"
    published: int = 0
    """With confirms."""

    def publish(self, body: bytes, key: str | None = None, **headers: Any) -> float:
        """Publishes with these headers, `-` for `_`; when."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.channel.basic_publish(self.exchange, self.key if key is None else key, body, headers=named)
        return time.time()

    def comes(self) -> Method:
        return self.channel.delivery()

    def listen(self) -> Delayed:
        self.channel.consume(self.queue, no_ack=True)
        return self


def declare(channel: Channel, exchange: str, kind: str, **arguments: Any) -> None:
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    channel.exchange_declare(exchange, "x-delayed-message", durable=True, arguments={"x-delayed-type": kind, **named})


@pytest.fixture
def delayed(channel: Channel, name: Name) -> Delayed:
    made = Delayed(channel, name("later"), name("q"))
    declare(channel, made.exchange, "direct")
    channel.queue_declare(made.queue, durable=True)
    channel.queue_bind(made.queue, made.exchange, made.key)
    return made
