"""The toy with leases: requests to the broker's own exchanges, and readers of what is leased.

ASK <exchange> <key> <JSON>                      -> TOLD <JSON>
LEASE <queue> <name> <first> <end> <limit>       -> ON <queue>, then MSG as of SUB; END when all of it was delivered
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clusterbroker.broker.access.questions import Pending
from clusterbroker.broker.access.readers import LeaseReader
from clusterbroker.broker.access.receiver import attach_replies
from clusterbroker.broker.access.services import REPLY_TO, requested
from clusterbroker.broker.access.virtual_exchanges import VIRTUAL_EXCHANGES
from clusterbroker.broker.content.message import new_message
from clusterbroker.broker.fronts.opening import Fronts
from clusterbroker.broker.wire.amqp091.properties import Properties
from tests.fronts.toy import FIRST, Toy


class LeasingToy(Toy):
    is_transactional = False
    requests = 0
    reply_key = ""

    def _do(self, word: bytes, rest: bytes = b"") -> None:
        if word == b"ASK":
            exchange, key, body = rest.decode().split(" ", 2)
            if not self.reply_key:
                attach_replies(self)
            message = new_message(exchange, key, Properties(reply_to=REPLY_TO), body.encode(), self.node.now_ms)
            assert requested(self, VIRTUAL_EXCHANGES[exchange], exchange, key, (message,))
        elif word == b"LEASE":
            name, lease, first, end, limit = rest.decode().split(" ")
            self.access.check("read", "queue", name)
            reader = LeaseReader(self.access, self.access.queue(name), lease, int(first), int(end))
            self._attach(reader, name, int(limit))
        else:
            super()._do(word, rest)

    def reply(self, message: Any) -> None:
        self._say(b"TOLD", message.body)

    def ticket(self, count: int) -> None:
        """Requests are not confirmed."""

    def answers(self, then: Callable[..., None]) -> Callable[..., None]:
        return Pending(self).answers(then)

    def cancelled(self, subscription: Any) -> None:
        if subscription.reads_to_an_end:
            self.consumers.pop(subscription.tag)
            self._say(b"END", subscription.tag)
        else:
            super().cancelled(subscription)


LEASING = Fronts({FIRST: LeasingToy}, otherwise=LeasingToy)
