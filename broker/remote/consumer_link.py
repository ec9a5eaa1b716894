"""One local consumer of a queue elsewhere, and its owner's remaining credit.

Credit is cumulative per attachment: a maximum number of deliveries since the attachment. It is the number of arrived
deliveries, plus the room that the consumer's `ring.Taker` has, less the surplus. In any case at most WINDOW messages or
about WINDOW_BYTES are on the way, and no new ones while the client's socket does not take its output: the remote queue
must not become the backlog of a slow client.

It falls only when the consumer says so (AMQP 1.0: link-credit that is lowered, or drained). What was on the way by then
comes beyond the credit, and returns at once, uncounted.

A limit may be shared by consumers of several queues, perhaps of several owners (AMQP 0-9-1: basic.qos global), so each
is promised the rest of it. Surplus deliveries wait in `surplus`, held by this node like any delivery, until its taker
has room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.queues.handle import GONE
from clusterbroker.broker.queues.link_held import NO_LINK
from clusterbroker.broker.queues.stumble import Stumble, Unfit
from clusterbroker.broker.remote.messages import SETTLE_LEFT, SETTLE_REQUEUE, ConsumerHead
from clusterbroker.journal.ranges import Range
from clusterbroker.journal.record import DamagedRecord, read_records
from clusterbroker.replication.errors import BadMessage

if TYPE_CHECKING:
    from clusterbroker.broker.queues.ring import Ring
    from clusterbroker.broker.queues.subscription import LocalConsumer
    from clusterbroker.broker.queues.watch import Watch

FILTER_BYTES_MAX: Final = 8 << 20
"""Of all filters of a queue's consumers at this node: they travel in one frame."""
WINDOW_FIRST: Final = 32
"""Messages, as long as their size is not known."""
WINDOW_MAX: Final = 2048
WINDOW_BYTES: Final = 2 << 20

_SEQ_OFFSET: Final = 24
_HEADER_BYTES: Final = 32


def no_place_for(lines: Iterable[Line], subscription: LocalConsumer) -> str:
    """Why there is no place for one more consumer, if there is none."""
    if subscription.filter is None:
        return ""
    known = (line.subscription.filter for line in lines)
    size = len(subscription.filter.wire) + sum(len(each.wire) for each in known if each is not None)
    return "has consumers with too many filters" if size > FILTER_BYTES_MAX else ""


class Line:
    """A consumer's line to the owner.

    number   the consumer's, unique in this node's incarnation
    told     the owner knows it in this attachment
    then     who waits for the answer to its first Consume; None: it was accepted
    """

    __slots__ = (
        "came",
        "falls",
        "fell",
        "granted",
        "link",
        "number",
        "order_ms",
        "subscription",
        "surplus",
        "then",
        "told",
        "window",
    )  # fmt: skip

    def __init__(self, number: int, subscription: LocalConsumer, order_ms: int, then: Callable[[str], None]) -> None:
        self.number = number
        self.subscription = subscription
        self.order_ms = order_ms
        self.then: Callable[[str], None] | None = then
        self.told = False
        self.came = 0  # deliveries in this attachment
        self.granted = 0
        self.falls = False  # the consumer took credit back, and its owner has not heard of that
        self.fell = False  # it did so in this attachment: deliveries may come beyond the credit
        self.window = WINDOW_FIRST
        self.surplus: deque[memoryview] = deque()  # one record each
        self.link = NO_LINK

    @property
    def held(self) -> int:
        unacked: int = self.subscription.credit.unacked
        return unacked + len(self.surplus)

    @property
    def room(self) -> int:
        """How many more its taker may hold."""
        room: int = self.subscription.credit.room
        return room

    @property
    def returned(self) -> int:
        """What becomes of a delivery that its consumer does not take: it returns, or stays with its link."""
        return SETTLE_LEFT if self.link.link else SETTLE_REQUEUE

    def attach(self) -> None:
        """A new attachment counts from nothing."""
        self.told = self.falls = self.fell = False
        self.came = self.granted = 0

    def upto(self) -> int:
        """The credit as it should be; it does not fall because a client's socket takes nothing."""
        room = min(self.window, self.room - len(self.surplus)) if self.subscription.credit.writable else 0
        return max(0 if self.falls else self.granted, self.came + max(0, room))

    def take_back(self) -> None:
        """The consumer has less room than before, of its own will."""
        if self.told and self.granted > self.came + max(0, self.room - len(self.surplus)):
            self.falls = self.fell = True

    def excess(self) -> int:
        """So many deliveries have come that the consumer has no credit for any more."""
        return max(0, self.came - self.granted) if self.fell else 0

    @property
    def rests(self) -> bool:
        """Nothing but a delivery, or a new limit, can change what its owner should hear of it."""
        credit = self.subscription.credit
        return bool(self.told and not self.held and credit.writable and not credit.shared)

    def owes_credit(self, upto: int) -> bool:
        """Whether the owner should hear of the new credit now: when at most half of it is left, or it is less."""
        return self.falls or (upto > self.granted and self.granted - self.came <= (upto - self.came) // 2)

    def head(self) -> ConsumerHead:
        """How its owner is told of it; counts as told."""
        subscription = self.subscription
        self.told = True
        self.granted = self.upto()
        return ConsumerHead(
            consumer=self.number,
            tag=subscription.tag,
            priority=subscription.credit.priority,
            exclusive=subscription.exclusive,
            no_ack=subscription.no_ack,
            prefetch=subscription.limit,
            upto=self.granted,
            held=self.held,
            order=self.order_ms,
            link=subscription.link,
            filter=b"" if subscription.filter is None else subscription.filter.wire,
            holding=self.link.link,
            attach=self.link.attach,
            worker=subscription.worker,
        )

    def answered(self, active: bool | None) -> Callable[[str], None] | None:
        """The owner has spoken of the consumer; who waits for the first word. `active`: it is the single active one."""
        then, self.then = self.then, None
        if active is not None:
            self.subscription.activated(active)
        return then

    def ended(self) -> None:
        """Its owner says so, or the queue is deleted: the channel is told that its consumer has ended."""
        if self.then is not None:
            then, self.then = self.then, None
            then(GONE)
        else:
            self.subscription.ended()

    def check_credit(self) -> None:
        """Raises BadMessage when far more came than the owner was promised room for: nobody bounds what waits here."""
        if self.came > self.granted + WINDOW_MAX:
            raise BadMessage(f"{self.came} deliveries to consumer {self.number}, with credit for {self.granted}")

    def show(
        self, watch: Watch, ring: Ring, data: bytes | memoryview, now_ms: int
    ) -> tuple[int, list[Range], list[Stumble | Unfit], list[Range]]:
        """As `Ring.receive`; each message that the consumer gets is shown."""
        count, refused, void = 0, [], []
        stumbles: list[Stumble | Unfit] = []
        credit = self.subscription.credit
        for record in split(memoryview(data)):
            before = credit.delivered
            came, not_taken, failed, settled = ring.receive(credit, bytes(record), now_ms)
            count += came
            refused += not_taken
            stumbles += failed
            void += settled
            if credit.delivered > before:
                ((_, message, _, redelivered),) = read_records(record)
                self.subscription.show(watch, message, bool(redelivered), handed=True)
        return count, refused, stumbles, void

    def measure(self, count: int, size: int) -> None:
        """Deliveries came: the window follows their size."""
        self.came += count
        if count:
            wanted = max(1, min(WINDOW_MAX, WINDOW_BYTES * count // max(1, size)))
            self.window = wanted if wanted < self.window else min(wanted, 2 * self.window)


def split(data: memoryview) -> Iterator[memoryview]:
    """The records of a payload, one by one, padding included. Raises DamagedRecord."""
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        end = at + (length + 7 & ~7)
        if length < _HEADER_BYTES or end > len(data):
            raise DamagedRecord(at, f"a record of {length} bytes does not fit its delivery")
        yield data[at:end]
        at = end


def seq_of(record: memoryview) -> int:
    return int.from_bytes(record[_SEQ_OFFSET : _SEQ_OFFSET + 8], "little")
