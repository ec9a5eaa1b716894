"""The queue of an exchange of type `x-message-deduplication` at its owner: one message of each value passes.

    message ready   its value is known: it is settled, and counted
                    else, in one group: a DEAD record (reason `passed`), and an *entry* that keeps the value
    DEAD            published to the queues behind the exchange, once, over failovers; then settled

Entries are messages of this queue without a body, whose key is the value's digest: they are the cache, so it is in the
log and its copies. What is ready and no entry has not been judged, and an owner that begins judges nothing before it
has read all entries. So a value passes once, whoever owned the queue when.

An entry goes when its value is too old (`x-cache-ttl` of the exchange or of the message), and the oldest one when there
are more than `x-cache-size`.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from clusterbroker.broker.content.formats import BASIC
from clusterbroker.broker.content.properties import routing_headers
from clusterbroker.broker.queues.deduplicating import DIGEST_BYTES, value_of
from clusterbroker.broker.queues.local_queue import Host
from clusterbroker.broker.queues.passing import PassingQueue
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.routing.repeats import CACHE_TTL
from clusterbroker.cluster.wiring.deduplication import CACHE_TTL_MAX, bounds_of, whole
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.journal.layout import PERSISTENT
from clusterbroker.journal.record import Message

_TTL_NAME: Final = CACHE_TTL.encode()
_ADDRESS: Final = bytes([0, 2 * DIGEST_BYTES])
"""No message that was published has an empty exchange: none is published to this queue by its name."""
_HEADER: Final = bytes(2)
"""No properties."""
FOREVER: Final = 1 << 62


class _Judged:
    """A message that came, on its way into `_pass`."""

    __slots__ = ("seq", "ttl_ms", "value")

    def __init__(self, seq: int, value: bytes, ttl_ms: int) -> None:
        self.seq = seq
        self.value = value
        self.ttl_ms = ttl_ms


class ComparingQueue(PassingQueue):
    """See the module."""

    __slots__ = ("_entries", "_first", "_line", "_most", "_read_end", "_ttl_ms")

    def __init__(self, entity: QueueEntity, settings: QueueSettings, ring: Ring, host: Host, now_ms: int) -> None:
        self._most, self._ttl_ms = bounds_of(entity.arguments)
        self._entries: dict[bytes, tuple[int, int]] = {}
        """Digest to the seq of its entry, and until when it counts; the oldest first."""
        self._line: deque[_Judged] = deque()
        """Looked at, in order; nothing more is before these have passed."""
        self._first = 0
        """The first message that is no entry, while entries are read."""
        self._read_end = 0
        """0: all entries are known."""
        super().__init__(entity, settings, ring, host, now_ms)

    def _begin(self) -> None:
        super()._begin()
        self._entries = {}
        self._line.clear()
        self._first, self._read_end = 0, self.ring.next_seq

    @property
    def known(self) -> int:
        """Values, and some that are too old."""
        return len(self._entries)

    def kept(self, message: Message) -> Message:
        """Without a time to live, which begins where it passes to: none expires here, whatever it waits for."""
        return Message(
            message.address, message.payload, message.header_length, message.flags | PERSISTENT, message.priority,
            message.time_ms, -1, message.format,
        )  # fmt: skip

    # -- what came ----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        if self._line:
            return
        super()._look()
        if self._read_end and self._next >= self._read_end and not (self._fetching or self._fetched):
            self._read_end = 0
            self._next = self._first or self._next
            self.ring.mark()

    def _came(self, seq: int, message: Message) -> None:
        if not message.exchange:
            self._note(bytes.fromhex(message.routing_key.decode()), seq, self.ring.expiry_ms(message))
        elif self._read_end:
            self._first = self._first or seq
        else:
            self.host.effort.decoded(message.header_length)
            value = value_of(message)
            self._line.append(_Judged(seq, value, self._ttl_of(message) if value else 0))

    def _ttl_of(self, message: Message) -> int:
        said = whole(routing_headers(message).get(CACHE_TTL)) if _TTL_NAME in message.header else None
        return self._ttl_ms if said is None else max(1, min(said, CACHE_TTL_MAX))

    def _pass(self) -> None:
        line = self._line
        while line and self._has_room:
            one = line.popleft()
            if not self.ring.set_aside(one.seq):
                continue
            if self._is_known(one.value):
                self.ring.settle(one.seq)
                self.host.effort.popped()
                self.host.repeated(self)
                continue
            self._hold(one.seq, "passed")
            if one.value:
                self._keep(one)
        looks = not line and self._next < self.ring.next_seq and not self._fetching
        if (line or looks) and self.host.effort.spent:
            self.host.later(self)
        elif looks:
            self.ring.mark()

    # -- the cache ----------------------------------------------------------------------------------------------

    def _is_known(self, value: bytes) -> bool:
        return value in self._entries and self._entries[value][1] > self.host.now_ms

    def _keep(self, one: _Judged) -> None:
        """Its value is known from now on."""
        now_ms, ring = self.host.now_ms, self.ring
        ttl_ms = one.ttl_ms or -1
        address = _ADDRESS + one.value.hex().encode()
        entry = Message(address, _HEADER, len(_HEADER), PERSISTENT, 0, now_ms, ttl_ms, BASIC)
        seq = ring.next_seq
        ring.append((entry,))
        if self._next == seq:  # all before it has been looked at
            self._next += 1
        self._note(one.value, seq, ring.expiry_ms(entry))

    def _note(self, value: bytes, seq: int, until_ms: int) -> None:
        before = self._entries.get(value)
        if before is not None:
            if before[0] >= seq:  # it was read again, and keeps its place in the order
                return
            del self._entries[value]
            self._drop(before[0])
        self._entries[value] = seq, until_ms if until_ms >= 0 else FOREVER
        while len(self._entries) > self._most:
            oldest, (its_seq, _) = next(iter(self._entries.items()))
            del self._entries[oldest]
            self._drop(its_seq)

    def _drop(self, seq: int) -> None:
        """An entry leaves, if it has not."""
        if self.ring.set_aside(seq):
            self.ring.settle(seq)
