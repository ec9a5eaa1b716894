"""Which numbered publishes a queue has: so that one that is sent again is confirmed and not stored twice.

What is known stands in attributes (`attributes`), which are written in the group of the message itself: PROXY and
PROXY_REFUSED, CLIENT, CLIENT_REFUSED and CLIENT_FLOOR, DEAD_LETTERS.

A number follows its message. That of a client's message which never comes to the log (a transient one, or any in a
queue of durability "memory") does not either: from then on there is a second table in memory (`ClientNumbers`), and a
later number that does come to the log says there that these are not here. After a crash they are stored, if they come
again, as all that was lost.

Bounds: NAMED_MAX clients per queue, the one that was silent for longest goes, and DYING_MAX dying queues (nobody tells
that one was deleted), of each the numbers in the last DEAD_BUCKETS buckets. REFUSED_BUCKETS per client, the lowest
goes, and REFUSED_MAX of these in all: those of the client go that was not refused for longest. What was refused and
forgotten is not taken for known: beyond these two bounds a number that is sent again may be stored twice, and is not
confirmed for nothing.
"""

from __future__ import annotations

import struct
from bisect import insort
from collections.abc import Mapping, Sequence
from typing import Final

from clusterbroker.broker.queues.attributes import DEAD_LETTERS, PROXY, PROXY_REFUSED
from clusterbroker.broker.queues.client_numbers import NAMED_MAX, ClientNumbers, MemoryTable
from clusterbroker.broker.queues.ring import Ring

DYING_MAX: Final = 10_000
DEAD_BUCKETS: Final = 64
BUCKET_BITS: Final = 63
DEAD_SPREAD: Final = BUCKET_BITS * (DEAD_BUCKETS - 1)
"""A dying queue never sends a number so much higher than one that is still open: its target would have forgotten."""
FLEETING_RANGES: Final = 64
"""So many ranges of numbers that are in memory alone are remembered of a client, for the next of its numbers that comes
to the log; beyond them the lowest are taken for one."""
_NONE: Final[dict[bytes, list[list[int]]]] = {}
"""Such ranges of most queues. It stays empty."""
LETTERS: Final = b"\0dlx"
_QUEUE_ID: Final = struct.Struct(">Q")
_GAP: Final = struct.Struct(">I")


def dead_letter_producer(queue_id: int, gap_epoch: int = 0) -> bytes:
    """The name under which a queue publishes its dead letters. Clients' names must not begin with a zero byte.

    `gap_epoch`: the newest epoch that may have begun without all that was committed, and so counts anew; 0: none.
    """
    return LETTERS + _QUEUE_ID.pack(queue_id) + (_GAP.pack(gap_epoch) if gap_epoch else b"")


def forget_proxies(ring: Ring, alive: Mapping[str, int]) -> None:
    """Takes out the remote queues of starts that are over: an owner that dies cannot say that its own one is gone."""
    for kind in (PROXY, PROXY_REFUSED):
        known = {kind.name(start) for start in alive.items()}
        for name in kind.names(ring.attributes):
            if name not in known:
                ring.set_attribute(name, 0)


class Producers:
    """The clients and dying queues that number what they publish into one queue."""

    __slots__ = ("_dying", "_fleeting", "_memory", "_numbers", "_ring")

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._numbers: ClientNumbers | None = None
        self._memory: ClientNumbers | None = None
        """What is known beyond the log; None: nothing is."""
        self._fleeting = _NONE
        """Client to the ranges (first, last) of such numbers above what the log has of it."""
        self._dying: dict[bytes, list[int]] = {}  # queues to their buckets, ascending; the longest silent first
        for (source, bucket), _ in DEAD_LETTERS.of(ring.attributes):
            self._dying[source] = self._dying.pop(source, [])
            insort(self._dying[source], bucket)

    @property
    def _logged(self) -> ClientNumbers:
        """Of clients; a queue that gets dead letters alone has none."""
        if self._numbers is None:
            self._numbers = ClientNumbers(self._ring)
        return self._numbers

    def knows(self, producer: bytes, number: int) -> bool:
        """Whether this publish is in the queue, or was."""
        if is_dead_letter(producer):
            name, bit = _bucket(producer, number)
            return bool(self._ring.attributes.get(name, 0) >> bit & 1)
        return (self._memory or self._logged).knows(producer, number)

    def note(self, producer: bytes, number: int, fleeting: bool = False) -> None:
        """A publish that is not known is appended in this turn; `fleeting`: its message never comes to the log."""
        if is_dead_letter(producer):
            self._note_dead(producer, number)
            return
        assert not self.knows(producer, number), "a publish is noted once"
        if fleeting and self._memory is None:
            self._memory = ClientNumbers(MemoryTable(self._ring))
        if self._memory is not None:
            self._memory.note(producer, number)
        if fleeting:
            self._note_fleeting(producer, number)
        elif not self._logged.knows(producer, number):
            self._tell_fleeting(producer, number)
            self._logged.note(producer, number)

    def refuse(self, producer: bytes, number: int) -> bool:
        """A publish that is not known finds no room. It must not seem known once a later one is taken; whether that was
        news for the log."""
        assert not self.knows(producer, number), "what is here is not refused"
        if is_dead_letter(producer):
            return False
        if self._memory is not None:
            self._memory.refuse(producer, number)
        return not self._logged.knows(producer, number) and self._logged.refuse(producer, number)

    def _note_fleeting(self, client: bytes, number: int) -> None:
        if number < self._logged.upto(client):
            return  # the log says by itself that it is not here: it was refused, and came again
        if self._fleeting is _NONE:
            self._fleeting = {}
        ranges = self._fleeting[client] = self._fleeting.pop(client, [])
        if ranges and ranges[-1][1] + 1 == number:
            ranges[-1][1] = number
        else:
            insort(ranges, [number, number])
        if len(ranges) > FLEETING_RANGES:
            ranges[0][1] = ranges.pop(1)[1]
        if len(self._fleeting) > NAMED_MAX:
            del self._fleeting[next(iter(self._fleeting))]

    def _tell_fleeting(self, client: bytes, number: int) -> None:
        """A number comes to the log: of those below it the log must not say that they are here."""
        ranges = self._fleeting.get(client, [])
        while ranges and ranges[0][0] < number:
            first, last = ranges.pop(0)
            if last > number:
                ranges.insert(0, [number + 1, last])
            self._logged.skip(client, first, min(last, number - 1))
        if not ranges:
            self._fleeting.pop(client, None)

    def note_new(self, producer: bytes, numbers: Sequence[int], fleeting: bool = False) -> Sequence[int]:
        """Those of these publishes that are not known are appended in this turn: their places. Numbers of a client
        rise. `fleeting` as of `note`."""
        if is_dead_letter(producer):
            return self.note_letters(producer, numbers)
        known_by_log = not fleeting and self._memory is None and producer not in self._fleeting
        if known_by_log and self._logged.note_above(producer, numbers[0], numbers[-1]):
            return range(len(numbers))
        new = []
        for place, number in enumerate(numbers):
            if not self.knows(producer, number):
                self.note(producer, number, fleeting)
                new.append(place)
        return new

    def note_letters(self, producer: bytes, numbers: Sequence[int]) -> list[int]:
        """Letters of one queue are appended in this turn; the places of those that were not known."""
        new: list[int] = []
        at, attributes = 0, self._ring.attributes
        while at < len(numbers):
            bucket = numbers[at] // BUCKET_BITS
            known = attributes.get(DEAD_LETTERS.name((producer[len(LETTERS) :], bucket)), 0)
            bits = 0
            while at < len(numbers) and numbers[at] // BUCKET_BITS == bucket:
                bit = 1 << numbers[at] % BUCKET_BITS
                if not (known | bits) & bit:
                    bits |= bit
                    new.append(at)
                at += 1
            if bits:
                self._note_bits(producer, bucket, known | bits)
        return new

    def _note_dead(self, producer: bytes, number: int) -> None:
        name, bit = _bucket(producer, number)
        known = self._ring.attributes.get(name, 0)
        assert not known >> bit & 1, "a publish is noted once"
        self._note_bits(producer, number // BUCKET_BITS, known | 1 << bit)

    def _note_bits(self, producer: bytes, bucket: int, bits: int) -> None:
        source = producer[len(LETTERS) :]
        name = DEAD_LETTERS.name((source, bucket))
        buckets = self._dying[source] = self._dying.pop(source, [])
        if name not in self._ring.attributes:
            insort(buckets, bucket)
        self._ring.set_attribute(name, bits)
        while buckets[0] <= buckets[-1] - DEAD_BUCKETS:
            self._ring.set_attribute(DEAD_LETTERS.name((source, buckets.pop(0))), 0)
        if len(self._dying) > DYING_MAX:
            oldest = next(iter(self._dying))
            for bucket in self._dying.pop(oldest):
                self._ring.set_attribute(DEAD_LETTERS.name((oldest, bucket)), 0)


def is_dead_letter(producer: bytes) -> bool:
    """Whether it is a queue that publishes its dead letters."""
    source = len(producer) - len(LETTERS)
    return producer.startswith(LETTERS) and source in (_QUEUE_ID.size, _QUEUE_ID.size + _GAP.size)


def _bucket(producer: bytes, number: int) -> tuple[bytes, int]:
    """The name of a dead letter's bucket, and its bit there."""
    bucket, bit = divmod(number, BUCKET_BITS)
    return DEAD_LETTERS.name((producer[len(LETTERS) :], bucket)), bit
