"""Rules of exchanges of type `x-message-deduplication`, and of the queues through which their messages pass: pure.

As RabbitMQ's plug-in of this name (noxdafox/rabbitmq-message-deduplication, README): the exchange routes as a fanout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from clusterbroker.cluster.errors import PreconditionFailed, exchange_text
from clusterbroker.cluster.ids import QueueId

from .commands import DeclareDeduplicatingExchange
from .entities import CACHE_PREFIX, COMPARES, Queue
from .exchange_queues import name_of, queue_with
from .exchange_rules import CACHE_PERSISTENCE, CACHE_SIZE, CACHE_TTL, check_arguments

CACHE_SIZE_MAX: Final = 10_000_000
CACHE_TTL_MAX: Final = 3653 * 24 * 3_600_000
"""Ten years, in ms."""
PERSISTENCES: Final = ("memory", "disk")
"""Both are taken: the cache is in the log of a durable queue."""
_DIGITS_MAX: Final = 16


def whole(value: object) -> int | None:
    """A number that an argument or a header says, as an integer or its decimal digits; None: it says none."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX:
        return int(value)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def check_deduplicating(command: DeclareDeduplicatingExchange) -> None:
    """406 for an exchange without a size of its cache, or with arguments of a wrong form."""
    where, arguments = exchange_text(command.vhost, command.name), command.arguments
    for name, most in ((CACHE_SIZE, CACHE_SIZE_MAX), (CACHE_TTL, CACHE_TTL_MAX)):
        number = whole(arguments.get(name))
        if (name == CACHE_SIZE or name in arguments) and (number is None or not 1 <= number <= most):
            raise PreconditionFailed(f"invalid arg '{name}' for {where}: expected an integer of 1 to {most}")
    if arguments.get(CACHE_PERSISTENCE, PERSISTENCES[0]) not in PERSISTENCES:
        raise PreconditionFailed(f"invalid arg '{CACHE_PERSISTENCE}' for {where}: expected 'memory' or 'disk'")
    check_arguments(command.vhost, command.name, command.type, arguments)


def cache_queue(exchange: str) -> str:
    """The name of the queue through which the messages of such an exchange pass."""
    return name_of(CACHE_PREFIX, exchange)


def comparing(queue_id: QueueId, name: str, command: DeclareDeduplicatingExchange) -> Queue:
    """The queue of such an exchange, before it has a place. What a target refuses is tried again."""
    arguments: dict[str, Any] = {COMPARES: command.name, "x-dead-letter-strategy": "at-least-once"}
    for argument in (CACHE_SIZE, CACHE_TTL):
        if argument in command.arguments:
            arguments[argument] = whole(command.arguments[argument])
    return queue_with(queue_id, name, command, arguments)


def bounds_of(arguments: Mapping[str, Any]) -> tuple[int, int]:
    """Of such a queue: how many values are known at most, and for how many ms; 0: for ever."""
    return int(arguments.get(CACHE_SIZE, 1)), int(arguments.get(CACHE_TTL, 0))
