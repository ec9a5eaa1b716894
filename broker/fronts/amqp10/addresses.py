"""Addresses of AMQP 1.0: what they name (RabbitMQ's addresses v2, and plain names).

    target  /exchanges/:exchange/:key   that exchange, by that routing key
            /exchanges/:exchange        that exchange, by the empty key
            /queues/:queue              that queue, by way of the default exchange
            null                        anonymous: each message says its own, in `to`
            name                        the queue of that name; if there is none, the exchange
            name::queue                 that queue
    source  /queues/:queue, name, name::queue, /management
    topic   /exchanges/:exchange/:key, name: a key of amq.topic (`subscriptions`)

Segments are percent-encoded UTF-8. A plain name has no slash at its begin.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from clusterbroker.broker.wire.amqp091.domains import push_shortstr
from clusterbroker.broker.wire.amqp10.errors import INVALID_FIELD, LinkError

_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_QUEUES: Final = "/queues/"
_EXCHANGES: Final = "/exchanges/"
MANAGEMENT: Final = "/management"
NAME_BYTES_MAX: Final = 255


class Target(NamedTuple):
    """Where messages go."""

    exchange: str
    key: str
    is_topic: bool = False
    """A topic of JMS: a message that nobody subscribes to is accepted, and forgotten."""

    @property
    def address(self) -> str:
        """The address that names it."""
        exchange, key = (quote(name, safe="") for name in (self.exchange, self.key))
        if not self.exchange:
            return f"{_QUEUES}{key}"
        return f"{_EXCHANGES}{exchange}/{key}" if key else f"{_EXCHANGES}{exchange}"

    @property
    def encoded(self) -> bytes:
        """As `Message.address`: two short strings."""
        return push_shortstr(self.exchange) + push_shortstr(self.key)


def target_of(address: str, is_exchange: Callable[[str], bool]) -> Target:
    """Where messages to this address go. `is_exchange`: whether a plain name is an exchange's, and no queue's. Raises
    LinkError."""
    if address.startswith(_QUEUES):
        return Target("", segment(address, address[len(_QUEUES) :]))
    if address.startswith(_EXCHANGES):
        exchange, _, key = address[len(_EXCHANGES) :].partition("/")
        return Target(segment(address, exchange), segment(address, key, empty=True))
    name = _plain(address)
    return Target(name, "") if is_exchange(name) else Target("", name)


def topic_of(address: str, exchange: str) -> Target:
    """The topic that an address names: a plain name is a key of `exchange`. Raises LinkError."""
    if address.startswith(_QUEUES):
        raise _bad(address, "a queue is no topic")
    if address.startswith(_EXCHANGES):
        return target_of(address, lambda _: False)._replace(is_topic=True)
    if not address or address.startswith("/"):
        raise _bad(address, "it is no /exchanges/:exchange/:key, or name")
    return Target(exchange, checked(address, address), is_topic=True)


def queue_of(address: str) -> str:
    """The queue that a source's address names. Raises LinkError."""
    if address.startswith(_QUEUES):
        return segment(address, address[len(_QUEUES) :])
    return _plain(address)


def _plain(address: str) -> str:
    _, _, queue = address.rpartition("::")
    if not queue or queue.startswith("/"):
        raise _bad(address, "it is no /queues/:queue, /exchanges/:exchange/:key, or name")
    return checked(address, queue)


def segment(address: str, text: str, empty: bool = False) -> str:
    """The name that a percent-encoded segment of an address is. Raises LinkError."""
    if _BAD_ESCAPE.search(text):
        raise _bad(address, "a % without two hexadecimal digits")
    if "/" in text:
        raise _bad(address, "a / that is not written %2F")
    try:
        name = unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise _bad(address, "its escapes are not UTF-8") from None
    if not name and not empty:
        raise _bad(address, "a name is empty")
    return checked(address, name)


def checked(address: str, name: str) -> str:
    """A name of an address. Raises LinkError for one that is too long."""
    if len(name.encode()) > NAME_BYTES_MAX:
        raise _bad(address, f"a name has more than {NAME_BYTES_MAX} bytes")
    return name


def _bad(address: str, why: str) -> LinkError:
    return LinkError(INVALID_FIELD, f"address '{address[:NAME_BYTES_MAX]}': {why}")
