"""Rules of delayed exchanges and of the queues in which their messages wait: pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from clusterbroker.cluster.errors import PreconditionFailed, exchange_text
from clusterbroker.cluster.ids import QueueId

from .commands import DeclareDelayedExchange
from .entities import DEAD_LETTERS, DELAY_PREFIX, DELAYS, Queue
from .exchange_queues import name_of, queue_with
from .exchange_rules import DELAY_LIMITS, DELAY_RATE, DELAYED, DELAYED_TYPE, TYPES, check_arguments

ALSO_DELAYED: Final = "x-delayed-exchange"

DELAY_MS_MAX: Final = 3653 * 24 * 3_600_000
"""Ten years: no longer delay is taken."""


def check_delayed(command: DeclareDelayedExchange) -> None:
    """406 for a delayed exchange that does not say how it routes, or as another delayed one."""
    vhost, name, arguments = command.vhost, command.name, command.arguments
    kind = arguments.get(DELAYED_TYPE)
    if kind not in TYPES:
        said = "missing" if kind is None else f"'{str(kind)[:255]}'"
        types = ", ".join(TYPES)
        raise PreconditionFailed(
            f"invalid arg '{DELAYED_TYPE}' for {exchange_text(vhost, name)}: {said}, expected one of {types}"
        )
    for limit in DELAY_LIMITS:
        most, least = arguments.get(limit), int(limit == DELAY_RATE)
        if limit in arguments and (not isinstance(most, int) or isinstance(most, bool) or most < least):
            raise PreconditionFailed(
                f"invalid arg '{limit}' for {exchange_text(vhost, name)}: expected an integer of {least} or more"
            )
    check_arguments(vhost, name, kind, arguments)


def as_delayed(kind: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Type and arguments of an exchange as this broker keeps them: LavinMQ's argument `x-delayed-exchange` makes a
    delayed one of a type."""
    kept = dict(arguments)
    if kept.get(ALSO_DELAYED) is not True or kind not in TYPES:
        return kind, kept
    del kept[ALSO_DELAYED]
    return DELAYED, {**kept, DELAYED_TYPE: kind}


def delay_queue(exchange: str) -> str:
    """The name of the queue in which the messages of a delayed exchange wait."""
    return name_of(DELAY_PREFIX, exchange)


def delaying(queue_id: QueueId, name: str, command: DeclareDelayedExchange) -> Queue:
    """The queue of a delayed exchange, before it has a place. What is due in it is a dead letter for the exchange, and
    waits when a target refuses it."""
    arguments: dict[str, Any] = {
        DELAYS: command.name,
        DEAD_LETTERS: command.name,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    for limit, of_queue in DELAY_LIMITS.items():
        if limit in command.arguments:
            arguments[of_queue] = command.arguments[limit]
    return queue_with(queue_id, name, command, arguments)
