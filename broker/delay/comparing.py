"""The queue of an exchange of type `x-message-deduplication` at its owner: one message of each value passes.

    message ready   not judged: its value is known, and it is settled and counted;
                    else, in one group: it begins its way to the queues behind the exchange, and an *entry* is appended
                    judged (header `x-delay-to`): it waits for one queue, which does not take it now

It goes its way as what is due in a delay queue does (`delay_queue`, `due_letters`): each queue has its lane, so none
waits for another. All are due at once, in the order in which they came.

Entries are messages of this queue without a body, whose key is the value's digest: they are the cache, so it is in the
log and its copies. An owner that begins judges nothing before it has read all entries. So a value passes once, whoever
owned the queue when. What is judged never waits without saying so, or the next owner would take it for a repeat.

An entry goes when its value is too old (`x-cache-ttl` of the exchange or of the message), and the oldest one when there
are more than `x-cache-size`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clusterbroker.broker.content.formats import BASIC
from clusterbroker.broker.content.properties import routing_headers
from clusterbroker.broker.delay.delay_queue import BATCH, DelayQueue
from clusterbroker.broker.delay.due_letters import DueLetters, Letter
from clusterbroker.broker.delay.lanes import Lane
from clusterbroker.broker.delay.own_targets import own_targets
from clusterbroker.broker.queues.deduplicating import DIGEST_BYTES, value_of
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.local_queue import Host
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.routing.repeats import CACHE_TTL
from clusterbroker.cluster.wiring.deduplication import CACHE_TTL_MAX, bounds_of, whole
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.journal.due_index import DueIndex
from clusterbroker.journal.layout import PERSISTENT
from clusterbroker.journal.record import Message

_TTL_NAME: Final = CACHE_TTL.encode()
_ADDRESS: Final = bytes([0, 2 * DIGEST_BYTES])
"""No message that was published has an empty exchange: none is published to this queue by its name."""
_HEADER: Final = bytes(2)
"""No properties."""
AT_ONCE: Final = 1
"""The due time of all messages: a message behind another one has a higher number."""
FOREVER: Final = 1 << 62


class ComparingQueue(DelayQueue):
    """See the module."""

    __slots__ = ("_ages", "_entries", "_most", "_ttl_ms")

    def __init__(self, entity: QueueEntity, settings: QueueSettings, ring: Ring, host: Host, now_ms: int) -> None:
        self._most, self._ttl_ms = bounds_of(entity.arguments)
        self._entries: dict[bytes, tuple[int, int]] = {}
        """Digest to the seq of its entry, and until when it counts; the oldest first."""
        self._ages = DueIndex()
        """Entries that end: when, and their seqs."""
        super().__init__(entity, settings, ring, host, now_ms)

    def _begin(self) -> None:
        self._entries = {}
        self._ages = DueIndex()
        super()._begin()

    @property
    def known(self) -> int:
        """Values, and some that are too old."""
        return len(self._entries)

    # -- in -----------------------------------------------------------------------------------------------------

    def _time_and_key(self, _message: Message, _now_ms: int, /) -> tuple[int, str]:
        return AT_ONCE, ""

    def _key(self, _: Message, /) -> str:
        return ""

    def _note_all(self, seqs: list[int], messages: list[Message]) -> int:
        at, effort = 0, self.host.effort
        while at < len(seqs) and not effort.spent:
            message = messages[at]
            effort.popped()
            if message.exchange:
                self._index.add(AT_ONCE, seqs[at])
            else:
                value = bytes.fromhex(message.routing_key.decode())
                self._note_entry(value, seqs[at], self.ring.expiry_ms(message))
            at += 1
        return at

    # -- the turn -----------------------------------------------------------------------------------------------

    def _serve(self, now_ms: int) -> None:
        if not (self.paused or self.halted) and self.is_read:
            while not self.host.effort.spent and (old := self._ages.take(now_ms, BATCH)):
                for seq in old:
                    self._drop_entry(seq)
                    self.host.effort.popped()
            while self._entries and now_ms >= (first := next(iter(self._entries.items())))[1][1]:
                del self._entries[first[0]]
        super()._serve(now_ms)

    def _schedule(self, now_ms: int) -> None:
        super()._schedule(now_ms)
        if self._ages and not (self.paused or self.halted):
            self.host.wake(self, max(self._ages.first_ms, now_ms + 1))

    def _offer(self, letters: DueLetters, seq: int, message: Message, lane: Lane | None, now_ms: int) -> None:
        if lane is not None or own_targets(message) is not None:
            super()._offer(letters, seq, message, lane, now_ms)
            return
        value = self._value(message)
        if self._repeats(seq, value):
            return
        super()._offer(letters, seq, message, lane, now_ms)
        if value and not self._waits(seq):  # else it is offered again as it was
            self._keep(value, self._ttl_of(message))

    def _sift(self, seqs: list[int], messages: list[Message]) -> tuple[list[int], list[Message]]:
        passed = []
        for seq, message in zip(seqs, messages, strict=True):
            value = self._value(message)
            if not self._repeats(seq, value):
                passed.append((seq, message))
                if value:
                    self._keep(value, self._ttl_of(message))
        return [seq for seq, _ in passed], [one for _, one in passed]

    def _parts(self, message: Message, targets: Sequence[QueueHandle]) -> bool:
        return len(targets) > 1 or own_targets(message) is None

    def letter_returned(self, letter: Letter, /) -> None:
        assert self.letters is not None, "it was held in this epoch"
        for message in letter.returned or letter.messages:
            self._part(self.letters, message, letter.refused)

    # -- the cache ----------------------------------------------------------------------------------------------

    def _value(self, message: Message) -> bytes:
        self.host.effort.decoded(message.header_length)
        return value_of(message)

    def _repeats(self, seq: int, value: bytes) -> bool:
        """Judges a message that was set aside: a repeat leaves. The value of another one is kept in the turn in which
        that is held, or waits by its targets."""
        if not value or not self._is_known(value):
            return False
        self.ring.settle(seq)
        self.host.repeated(self)
        return True

    def _ttl_of(self, message: Message) -> int:
        said = whole(routing_headers(message).get(CACHE_TTL)) if _TTL_NAME in message.header else None
        return self._ttl_ms if said is None else max(1, min(said, CACHE_TTL_MAX))

    def _is_known(self, value: bytes) -> bool:
        return value in self._entries and self._entries[value][1] > self.host.now_ms

    def _keep(self, value: bytes, ttl_ms: int) -> None:
        now_ms, ring = self.host.now_ms, self.ring
        address = _ADDRESS + value.hex().encode()
        entry = Message(address, _HEADER, len(_HEADER), PERSISTENT, 0, now_ms, ttl_ms or -1, BASIC)
        seq = ring.next_seq
        ring.append((entry,))
        self._note_entry(value, seq, ring.expiry_ms(entry))

    def _note_entry(self, value: bytes, seq: int, until_ms: int) -> None:
        before = self._entries.get(value)
        if before is not None:
            if before[0] >= seq:  # it was read again, and keeps its place in the order
                return
            self._forget_value(value)
        self._entries[value] = seq, until_ms if until_ms >= 0 else FOREVER
        if until_ms >= 0:
            self._ages.add(max(until_ms, 1), seq)
        while len(self._entries) > self._most:
            self._forget_value(next(iter(self._entries)))

    def _forget_value(self, value: bytes) -> None:
        """Its entry leaves before its time."""
        seq, until_ms = self._entries.pop(value)
        self._drop_entry(seq)
        if until_ms != FOREVER:
            self._ages.void(seq)

    def _drop_entry(self, seq: int) -> None:
        """An entry leaves, if it has not."""
        if self.ring.set_aside(seq):
            self.ring.settle(seq)
