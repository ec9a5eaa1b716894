"""One basic.consume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from clusterbroker.broker.access.errors import Refusal, resource_error
from clusterbroker.broker.access.readers import RangeReader
from clusterbroker.broker.fronts.amqp091.delivery import BasicConsumer, Ledger, too_large
from clusterbroker.broker.queues.link_held import NO_LINK
from clusterbroker.broker.queues.subscription import Source
from clusterbroker.broker.queues.watch import Delivery, Watch
from clusterbroker.journal.record import Message

ARGUMENTS: Final = frozenset({
    "x-cancel-on-ha-failover", "x-lease", "x-priority", "x-queue-seq", "x-stream-chunks", "x-stream-count",
    "x-stream-end", "x-stream-exact", "x-stream-offset",
})  # fmt: skip
"""Arguments with a meaning, here or in RabbitMQ. No others are kept: a channel may have thousands of consumers, and no
alarm ends them."""
ARGUMENT_LENGTH_MAX: Final = 255
ROOM_MAX: Final = 2**31
"""Of a consumer without a limit."""


class Holder(Protocol):
    """The channel behind a subscription."""

    def cancelled(self, subscription: Subscription) -> None:
        """The broker ended the subscription (the queue went, or the consumer took too long)."""

    def failed(self, refusal: Refusal) -> None:
        """The broker cannot go on with the subscription."""

    def want_send(self) -> None:
        """Deliveries wait in the channel's output buffer."""


class Subscription:
    """A consumer of a channel (`broker.access.receiver.Consumer`). `credit`: its part in `dispatch`."""

    __slots__ = ("arguments", "credit", "exclusive", "holder", "no_ack", "order", "queue", "tag", "worker")
    node = link = ""
    filter = None
    attach = NO_LINK

    def __init__(
        self,
        holder: Holder,
        ledger: Ledger,
        queue: Source,
        tag: str,
        *,
        no_ack: bool,
        exclusive: bool,
        prefetch: int,
        priority: int,
        arguments: Mapping[str, Any],
        worker: str = "",
    ) -> None:
        self.holder = holder
        self.queue = queue
        self.tag = tag
        self.worker = worker
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.arguments = {name: value for name, value in arguments.items() if _kept(name, value)}
        self.order = (0, "", 0)  # set by the queue
        raw = tag.encode()
        self.credit = BasicConsumer(queue.ring, ledger, bytes((len(raw),)) + raw, no_ack, prefetch, priority, self)

    @property
    def holds(self) -> bool:
        return self.credit.unacked > 0

    @property
    def held(self) -> int:
        return self.credit.unacked

    @property
    def held_most(self) -> int:
        return self.credit.unacked

    @property
    def limit(self) -> int:
        return self.credit.prefetch

    @property
    def is_limited(self) -> bool:
        return self.credit.prefetch > 0 or self.credit.ledger.prefetch > 0

    @property
    def session_held(self) -> int:
        return self.credit.ledger.unacked

    @property
    def room(self) -> int:
        credit, ledger = self.credit, self.credit.ledger
        if not credit.active or not ledger.flowing or not ledger.out.writable:
            return 0
        room = credit.prefetch - credit.unacked if credit.prefetch else ROOM_MAX
        return max(0, min(room, ledger.prefetch - ledger.unacked) if ledger.prefetch else room)

    @property
    def reads_to_an_end(self) -> bool:
        return isinstance(self.queue, RangeReader) and self.queue.reads_to_an_end

    def hand(self, seq: int, message: Message, now_ms: int) -> None:
        credit, ledger = self.credit, self.credit.ledger
        if ledger.flowing and not ledger.out.fits(message):
            self.unfit(f"what stands at {seq}: {too_large(ledger.out, message)}")
        elif ledger.flowing:
            ledger.out.deliver(ledger.number, credit.tag, ledger.add(credit, seq, now_ms), False, message)
            credit.delivered += 1

    def failed(self, refusal: Refusal) -> None:
        self.holder.failed(refusal)

    def unfit(self, why: str) -> None:
        """A message does not fit the client's frames: its channel ends (decision 054)."""
        if not self.credit.ledger.flowing:
            return
        self.failed(resource_error(f"consumer '{self.tag}' of queue '{self.queue.name}' cannot be handed {why}"))

    def flush(self) -> None:
        if self.credit.ledger.out.size:
            self.holder.want_send()

    def activated(self, active: bool) -> None: ...  # the protocol has no words for it

    def ended(self) -> None:
        self.holder.cancelled(self)

    def show(self, watch: Watch, message: Message, redelivered: bool, handed: bool) -> None:
        tag = self.credit.ledger.next_tag - handed
        watch.delivered(Delivery(self.holder, self.queue.name, self.tag, tag, message, redelivered, not self.no_ack))


def _kept(name: str, value: object) -> bool:
    if isinstance(value, (str, bytes)):
        return name in ARGUMENTS and len(value) <= ARGUMENT_LENGTH_MAX
    return name in ARGUMENTS and not isinstance(value, (list, dict))
