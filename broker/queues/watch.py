"""Whoever looks at what clients of this node publish and get: the firehose of a vhost, spans of sampled messages.

Nobody does, as a rule. Then a batch of publishes costs one look at `Node.watches`, and so does a basic.get; a batch
that comes from a queue's owner costs a look for the handle's `Watch`; and a hand-out of a queue that lives here
costs one branch for each message (`Ring.annotates_all`). What is to be shown although not everything is (`everything`)
wears the flag HAS_BCC: rings ask for what a consumer sees of such a message, whatever its header says.

A watch is told while queues work. It changes nothing of theirs, and publishes nothing before they have ended. What it
may change is a message that a client publishes, before any queue has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.journal.record import Message


class Delivery(NamedTuple):
    """A message on its way into a channel.

    `channel`: the session's; `queue`: its name; `consumer`: "" for a basic.get.
    """

    channel: Any
    queue: str
    consumer: str
    tag: int
    message: Message
    redelivered: bool
    unsettled: bool
    """The client will acknowledge it."""


class Traced(Protocol):
    """Deliveries of one channel that somebody follows to their end."""

    def settled(self, tag: int, multiple: bool, outcome: str) -> None:
        """As basic.ack says it: `multiple` with tag 0 means all. `outcome`: ack, reject, requeue, closed."""


class Watch(Protocol):
    """Of one vhost at one node."""

    @property
    def everything(self) -> bool:
        """Each delivery is to be shown."""

    def wants(self, records: bytes | memoryview) -> bool:
        """Whether one of the messages in these bytes is to be shown. May err on the careful side."""

    def published(
        self, channel: Any, route: Any, messages: Sequence[Message], ticket: Ticket | None
    ) -> Sequence[Message]:
        """A client's messages go to the queues of a route: those that are returned, as many. `ticket`: passes when they
        are safe; None: nobody is told, or a transaction tells."""

    def delivered(self, delivery: Delivery) -> None:
        """A message goes to a client."""
