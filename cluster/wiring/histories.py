"""Rules of exchanges of type `x-recent-history`, and of the queues that keep their recent messages: pure.

As RabbitMQ's plug-in of this name: the exchange routes as a fanout, and what is bound to it gets its last messages.
"""

from __future__ import annotations

from typing import Final

from clusterbroker.cluster.errors import PreconditionFailed, exchange_text
from clusterbroker.cluster.ids import QueueId

from .commands import DeclareHistoryExchange
from .entities import HISTORY_PREFIX, RECALLS, Queue
from .exchange_queues import name_of, queue_with
from .exchange_rules import HISTORY_LENGTH, check_arguments

LENGTH: Final = 20
"""Messages that are kept of an exchange that does not say how many."""
HISTORY_LENGTH_MAX: Final = 10_000


def check_history(command: DeclareHistoryExchange) -> None:
    """406 for an exchange that would keep no messages, or too many."""
    length = command.arguments.get(HISTORY_LENGTH, LENGTH)
    if not isinstance(length, int) or isinstance(length, bool) or not 1 <= length <= HISTORY_LENGTH_MAX:
        where = exchange_text(command.vhost, command.name)
        raise PreconditionFailed(
            f"invalid arg '{HISTORY_LENGTH}' for {where}: expected an integer of 1 to {HISTORY_LENGTH_MAX}"
        )
    check_arguments(command.vhost, command.name, command.type, command.arguments)


def history_queue(exchange: str) -> str:
    """The name of the queue that keeps the recent messages of an exchange."""
    return name_of(HISTORY_PREFIX, exchange)


def keeping(queue_id: QueueId, name: str, command: DeclareHistoryExchange) -> Queue:
    """The queue of such an exchange, before it has a place: the oldest message leaves for the newest."""
    arguments = {RECALLS: command.name, "x-max-length": command.arguments.get(HISTORY_LENGTH, LENGTH)}
    return queue_with(queue_id, name, command, arguments)
