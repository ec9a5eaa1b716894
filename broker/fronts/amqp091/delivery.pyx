# Deliveries of a queue to a consumer of a channel; `tests/model/delivery.py` explains each name.
#
# The queue (ring) knows a `Taker`; basic.deliver is written here. What a channel holds is its ledger's.
cimport cython
from libc.stdint cimport int64_t, uint16_t, uint64_t


from clusterbroker.broker.access.ledger cimport DeliveryLedger, Holder, delivery
from clusterbroker.broker.content.translation cimport Translation
from clusterbroker.broker.queues.ring cimport Taker
from clusterbroker.broker.wire.amqp091.codec cimport Acked, OutBuffer, with_number
from clusterbroker.journal.record cimport Message

from clusterbroker.broker.queues.stumble import Stumble, Unfit

cdef enum:
    BASIC = 0  # broker/content/formats.py

cdef uint64_t NONE = 0xFFFFFFFFFFFFFFFF

cdef class Ledger


@cython.final
cdef class BasicConsumer(Holder):
    """A consumer as `dispatch` sees it."""

    cdef Ledger channel
    cdef readonly bytes tag
    cdef public bint no_ack
    cdef public uint64_t prefetch
    cdef public bytes numbered
    cdef public int64_t shift
    cdef Translation translation  # made for the first message that needs it

    def __init__(self, ring, Ledger ledger not None, bytes tag not None, bint no_ack,
                 uint64_t prefetch, int64_t priority=0, owner=None):
        Holder.__init__(self, ring, ledger, priority, owner)
        self.channel = ledger
        self.tag = tag
        self.no_ack = no_ack
        self.prefetch = prefetch
        self.numbered = b""

    cdef bint credit(self) noexcept:
        if not self.active or not self.channel.flowing or self.channel.out.paused or (
            self.channel.out.size >= self.channel.out.size_max
        ) or self.delivered >= self.limit:
            return False
        if self.no_ack:
            return True
        return (not self.prefetch or self.unacked < self.prefetch) and (
            not self.channel.prefetch or self.channel.unacked < self.channel.prefetch
        )

    cdef bint flows(self) noexcept:
        return self.active and self.channel.flowing

    cdef int64_t space(self) noexcept:
        cdef int64_t room = Taker.space(self)
        if self.no_ack:
            return room
        if self.prefetch:
            room = min(room, max(<int64_t>0, <int64_t>self.prefetch - <int64_t>self.unacked))
        if self.channel.prefetch:
            room = min(room, max(<int64_t>0, <int64_t>self.channel.prefetch - <int64_t>self.channel.unacked))
        return room

    @property
    def writable(self) -> bool:
        return self.channel.flowing and self.channel.out.writable

    @property
    def shared(self) -> bool:
        return self.channel.prefetch != 0

    cdef int hand(self, uint64_t seq, Message message, bint redelivered, uint16_t delivery_count,
                  int64_t now_ms) except -1:
        cdef uint64_t tag
        cdef Message kept = message
        if message.format != BASIC:
            message = in_basic(self, seq, message)
        if self.numbered:
            message = with_number(message, self.numbered, <int64_t>seq + self.shift)
        if not self.channel.out.takes(message):
            self.active = False
            raise Unfit(seq, self.owner, f"message {seq}: {too_large(self.channel.out, message)}")
        if self.no_ack:
            tag = self.channel.next_tag
            self.channel.next_tag = tag + 1
            self.channel.skipped += 1
        else:
            tag = self.channel.put(self, seq, now_ms)
            if self.channel.took is not None:
                self.channel.took(self.channel, tag, kept)
        self.channel.out.put_deliver(self.channel.number, self.tag, tag, redelivered, message)
        if redelivered:
            self.channel.redelivered += 1
        return self.no_ack


cdef Message in_basic(BasicConsumer consumer, uint64_t seq, Message message):
    # a message that cannot be read here returns to its place, and the queue is told over which it stumbled
    try:
        if consumer.translation is None:
            consumer.translation = Translation(BASIC)
        return consumer.translation.of(message)
    except Exception as error:
        if not consumer.ring.proxy:
            consumer.ring.requeue(seq, False)
        raise Stumble(seq) from error


def too_large(OutBuffer out not None, Message message not None) -> str:
    """Why a client's frames cannot carry this message."""
    return f"its content header has {message.header_length} bytes, and the connection's frame_max is {out.frame_max}"


@cython.final
cdef class Ledger(DeliveryLedger):
    """A channel's unacknowledged deliveries by tag, and where they go."""

    cdef readonly uint16_t number
    cdef readonly OutBuffer out

    def __init__(self, uint16_t number, OutBuffer out not None):
        DeliveryLedger.__init__(self)
        self.number = number
        self.out = out

    cdef bint ack_one(self, uint64_t ack) except -1:
        # False: the tag is unknown
        cdef uint64_t tag = ack >> 1
        cdef delivery *entry
        if ack & 1 == 0:
            entry = self.find(tag)
            if entry == NULL:
                return False
            self.settle_entry(entry)
            return True
        # amqp-rules 5.5: `multiple` with tag 0 means all
        if tag == 0:
            tag = NONE
        elif self.find(tag) == NULL:
            return False
        while self.first < self.end and self.entries[self.first].tag <= tag:
            self.settle_entry(&self.entries[self.first])
        return True

    def ack(self, acks) -> int:
        """Settles the deliveries named by `acks` (tag * 2 + multiple). Returns 0, or the unknown tag + 1."""
        cdef size_t i
        cdef Acked batch
        if type(acks) is Acked:
            batch = <Acked>acks
            for i in range(batch.count):
                if not self.ack_one(batch.values[i]):
                    return (batch.values[i] >> 1) + 1
            return 0
        for ack in acks:
            if ack > NONE or not self.ack_one(ack):
                return (ack >> 1) + 1
        return 0
