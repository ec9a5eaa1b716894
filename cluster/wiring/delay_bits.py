"""Delays that stand in routing keys, as Celery writes them (policy keys `delay-bits` and `delay-exchange`): pure.

A key `b.b. ... .b.KEY` begins with so many bits, each 0 or 1, of a number of seconds. An exchange with the policy keeps
such a message in a delay queue of its own, which publishes it to the `delay-exchange` when it is due: one write, in the
place of one for each bit.

    wanted, no queue     --KeepDelays, by who orders the log-->  kept
    kept                 messages with such keys wait in the queue
    not wanted any more  nothing new comes, and what waits goes on when it is due
    empty, not wanted    --EndDelays, by the queue's owner-->    no queue

The queue's arguments have its bits and its target, and never change: who routes and who owns the queue read a key
alike, whichever policy they know. A policy that says something else does not want this queue, and begins when it has
ended. As long as there is no queue, keys go as without the policy.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from clusterbroker.cluster.ids import QueueId

from .arguments import is_integer, type_name
from .delay_commands import KeepDelays
from .delays import delay_queue
from .entities import DEAD_LETTERS, DELAYS, KEY_BITS, Exchange, Queue
from .exchange_queues import queue_with

DELAY_BITS: Final = "delay-bits"
DELAY_EXCHANGE: Final = "delay-exchange"
BITS_SETTINGS: Final = (DELAY_BITS, DELAY_EXCHANGE)
"""Keys of policies for exchanges; feature level 7."""
BITS_MAX: Final = 28
"""Of seconds: eight and a half years; Celery's number."""
KIND: Final = "topic"
"""The type of the exchanges that have such keys."""
NAME_BYTES_MAX: Final = 255


class KeySettings(Protocol):
    """What the policy of an exchange says of its keys (`ExchangeSettings`)."""

    @property
    def delay_bits(self) -> int | None: ...
    @property
    def delay_exchange(self) -> str | None: ...


def problem_of(key: str, value: Any) -> str | None:
    """The fault of a value of one of the two keys; None: it is legal."""
    if key == DELAY_BITS:
        if not is_integer(value):
            return f"unacceptable type '{type_name(value)}', expected an integer"
        return None if 1 <= value <= BITS_MAX else f"{value} is not within 1 to {BITS_MAX}"
    if not isinstance(value, str):
        return f"unacceptable type '{type_name(value)}', expected a string"
    if not value:
        return "the default exchange routes by names of queues, which no such key is"
    return None if len(value.encode("utf-8", "replace")) <= NAME_BYTES_MAX else f"longer than {NAME_BYTES_MAX} bytes"


def missing_one(definition: dict[str, Any]) -> str | None:
    """The key that one of the two lacks; None: none."""
    said = [key for key in BITS_SETTINGS if key in definition]
    return next(key for key in BITS_SETTINGS if key not in said) if len(said) == 1 else None


def delays_by_keys(exchange: Exchange, settings: KeySettings) -> bool:
    """Whether its policy is for keys with a delay. No exchange of the broker's own has them, nor one of another type;
    one that is its own target would delay for ever."""
    return (
        settings.delay_bits is not None
        and exchange.type == KIND
        and not exchange.name.startswith("amq.")
        and settings.delay_exchange != exchange.name
    )


def wants(exchange: Exchange, settings: KeySettings, queue: Queue) -> bool:
    """Whether messages shall wait in this queue of the exchange."""
    said = settings.delay_bits, settings.delay_exchange
    return delays_by_keys(exchange, settings) and (queue.key_bits, queue.delay_exchange) == said


def keeping(queue_id: QueueId, command: KeepDelays, settings: KeySettings) -> Queue:
    """The queue before it has a place."""
    arguments: dict[str, Any] = {
        DELAYS: command.exchange,
        KEY_BITS: settings.delay_bits,
        DEAD_LETTERS: settings.delay_exchange,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    return queue_with(queue_id, delay_queue(command.exchange), command, arguments)
