"""A queue with `x-message-deduplication`: a message whose header `x-deduplication-header` has the value of one that is
in the queue is not stored (RabbitMQ's plug-in of this name, noxdafox/rabbitmq-message-deduplication, README).

In the queue is what is ready or unacknowledged. What was acknowledged, rejected, expired or dropped is not, and a dead
letter on its way out is not either: so a message that comes back by a dead letter exchange is stored. What a
transaction settles has left before it publishes. The publisher of a repeat hears what the publisher of the first one
hears, and not before that is committed.

The values are no part of the log: they are known by digests, in memory, and an owner that begins reads them from what
is in its queue, in slices. Until it has, nothing is handed out, and a repeat that came meanwhile leaves before any
consumer had it. So there is one of each value, whoever owns the queue. A message that cannot be read has no value.

A value of which the message has left stays known until there are as many of these as of others (SPARE and more):
nothing has to be told when a message leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from clusterbroker.broker.content.formats import UnknownFormatError
from clusterbroker.broker.content.properties import routing_headers
from clusterbroker.broker.queues.dead_lettering.dropped import is_over
from clusterbroker.broker.queues.handle import CommitPart
from clusterbroker.broker.queues.local_queue import Host
from clusterbroker.broker.queues.queue import Queue
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.states import READY, UNACKED
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.routing.repeats import HEADER
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.journal.layout import Location
from clusterbroker.journal.record import Message
from clusterbroker.journal.values import Timestamp, canonical

_NAME: Final = HEADER.encode()
DIGEST_BYTES: Final = 16
READ_MAX: Final = 4096
READ_BYTES_MAX: Final = 4 << 20
"""Messages, and bytes of records on the disk, that are read at once; one record may be longer."""
SPARE: Final = 1024


def value_of(message: Message) -> bytes:
    """A digest of the header's value; empty: the message has none, and is compared with no other."""
    if _NAME not in message.header:
        return b""
    try:
        value = routing_headers(message).get(HEADER)
    except UnknownFormatError:
        return b""
    if value is None:
        return b""
    text = repr(canonical(value))
    if isinstance(value, Timestamp) and value.more_ms:  # AMQP 1.0 has times in ms
        text += f" {value.more_ms} ms"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


class DeduplicatingQueue(Queue):
    """See the module."""

    __slots__ = ("_fetching", "_known", "_leaving", "_next", "_read_end", "_reading", "_stopped")

    def __init__(self, entity: QueueEntity, settings: QueueSettings, ring: Ring, host: Host, now_ms: int) -> None:
        self._stopped = False
        self._known: dict[bytes, int] = {}
        """Value to the message that has it, or had it when it left."""
        self._leaving: frozenset[int] = frozenset()
        """What the transaction that is carried out just now settles: beside its publishes that has left."""
        self._next = self._read_end = 1
        self._reading = 0
        self._fetching = False
        super().__init__(entity, settings, ring, host, now_ms)

    @property
    def paused(self) -> bool:
        """Also while the values of what is here are read."""
        return self._stopped or not self.is_read

    @paused.setter
    def paused(self, stopped: bool) -> None:
        self._stopped = stopped

    @property
    def is_read(self) -> bool:
        """The values of all that is here are known."""
        return self._next >= self._read_end

    def begin_alone(self) -> None:
        """The queue has no copies: what its log holds is all there is."""
        self._begin()

    def begin_epoch(self, now_ms: int) -> None:
        super().begin_epoch(now_ms)
        self._begin()

    def end_epoch(self) -> None:
        super().end_epoch()
        self._begin()

    def _begin(self) -> None:
        self._known = {}
        self._next, self._read_end = 1, self.ring.next_seq
        self._reading += 1
        self._fetching = False
        self.ring.mark()

    # -- in -----------------------------------------------------------------------------------------------------

    def accepts(self, message: Message, now_ms: int, named: tuple[bytes, int] | None = None) -> bool:
        return self.is_repeat(message) or super().accepts(message, now_ms, named)

    def is_repeat(self, message: Message) -> bool:
        seq = self._known.get(value_of(message), 0)
        return bool(seq) and self._is_here(seq)

    def publish(self, messages: Sequence[Message], ticket: Ticket | None, now_ms: int) -> None:
        new = self._new(messages)
        if new:
            super().publish(new, ticket, now_ms)
        elif ticket is not None:
            self.log.promise(ticket)

    def publish_records(self, records: bytes | memoryview, ticket: Ticket, now_ms: int) -> int:
        return self._publish_each(records, ticket, now_ms, taken=True)

    def accept_dead_letter(self, message: Message) -> None:
        if self._new((message,)):
            super().accept_dead_letter(message)

    def _carry_out(self, part: CommitPart, ticket: Ticket, now_ms: int) -> None:
        self.replacing(one.seq for one in part.settles if one.outcome != "requeue" and one.seq not in part.void)
        super()._carry_out(part, ticket, now_ms)
        self.replacing()

    def replacing(self, seqs: Iterable[int] = ()) -> None:
        self._leaving = frozenset(seqs)

    def _new(self, messages: Sequence[Message]) -> list[Message]:
        """Those to store, which are appended next: their values are noted."""
        ring, known = self.ring, self._known
        end, new = ring.next_seq, list[Message]()
        for message in messages:
            value = value_of(message)
            if value:
                self.host.effort.decoded(message.header_length)
                seq = known.get(value, 0)
                if seq and (seq >= end or self._is_here(seq)):
                    continue
                known[value] = end + len(new)
            new.append(message)
        if len(known) > 2 * (ring.ready + ring.unacked) + len(new) + SPARE:
            self._known = {value: seq for value, seq in known.items() if seq >= end or self._is_here(seq)}
        return new

    def _is_here(self, seq: int) -> bool:
        dying = self.dead_letters.local
        if seq in self._leaving:
            return False
        if dying is not None and dying.has(seq):
            return False
        for _, state, *_ in self.ring.living(seq, seq, 1):
            return state == UNACKED or (state == READY and not self._is_over(seq))
        return False

    def _is_over(self, seq: int) -> bool:
        """Its time is over, behind others whose time is not. Of one on the disk alone that is not known."""
        message = self.ring.message(seq)
        return message is not None and is_over(self.ring, message, self.host.now_ms)

    # -- what was here when this owner began ----------------------------------------------------------------------

    def _serve(self, now_ms: int) -> None:
        if not (self.is_read or self._fetching or self.broken):
            self._read()
        super()._serve(now_ms)

    def _read(self) -> None:
        """The next slice, if it is in memory; else it is read from the disk."""
        ring, effort = self.ring, self.host.effort
        rows = ring.living(self._next, self._read_end - 1, READ_MAX)
        absent, size = list[Location](), 0
        for seq, state, *_ in rows:
            if state not in (READY, UNACKED):
                continue
            message = ring.message(seq)
            if message is None:
                absent.append(ring.location(seq))
                size += absent[-1][3]
                if size >= READ_BYTES_MAX:
                    break
            elif not absent:
                self._note(seq, message)
                self._next = seq + 1
                if effort.spent:
                    self.host.later(self)
                    return
        if absent:
            self._fetch(absent)
        elif len(rows) == READ_MAX:
            self._next = rows[-1][0] + 1
            self.host.later(self)
        else:
            self._next = self._read_end
            ring.mark()  # what waited for it goes on

    def _fetch(self, absent: list[Location]) -> None:
        reading, first, last = self._reading, absent[0][0], absent[-1][0]
        self._fetching = True

        def read(messages: Sequence[Message]) -> None:
            if self._reading != reading:
                return
            self._fetching = False
            for seq, state, message in self._read_back(absent, messages, first, last, READ_MAX):
                if state in (READY, UNACKED):
                    self._note(seq, message)
            self._next = last + 1
            self.ring.mark()

        def damaged() -> None:
            """Some cannot be read: one by one, and those that cannot are passed over."""
            if self._reading != reading:
                return
            self._fetching = False
            if first == last:
                self._next = last + 1
                self.ring.mark()
            else:
                self._fetch(absent[:1])

        self.host.fetch(self, absent, read, damaged)

    def _note(self, seq: int, message: Message) -> None:
        """A message was here when this owner began."""
        value = value_of(message)
        self.host.effort.decoded(message.header_length if value else 0)
        if not value:
            return
        other = self._known.get(value, 0)
        if other >= self._read_end and self.ring.set_aside(other):
            self.ring.settle(other)  # a repeat that came while this was not known
            other = 0
        if not (other and self._is_here(other)):
            self._known[value] = seq
        elif self._is_here(seq) and self.ring.set_aside(seq):
            self.ring.settle(seq)  # likewise, of an owner that ended before it knew this
