"""Which numbered publishes a queue has: so that one that is sent again is confirmed and not stored twice.

What is known stands in `ring.producers`, and a PRD record in the group of the message itself tells it to the disk and
to the other replicas. The names that share that table are told apart by their first byte:

    b"n" + node/incarnation   a proxy: its publishes are numbered without a gap, the value is the last number that is
                              in the log (`broker.proxy.attachment`)
    b"r" + node/incarnation   the same proxy: the highest number that was refused and died for it (reject-publish-dlx)
    b"p" + name               a client that numbers its messages (x-producer, x-seq): the value is the highest number
                              plus one; what is below is known. Numbers rise, from 0 or 1, gaps are allowed
    b"h" + bucket + name      numbers of that client that were refused for want of room: they are not known, though
                              higher ones are. Bit 2i stands for number 31 * bucket + i, the bit above it says that it
                              came again and was taken. Bits are only added, so values only rise
    b"f" + name               a floor: of that client's numbers below it the queue knows only those that its buckets say
                              were taken. It rises above what was refused and forgotten
    b"d" + queue id [+ gap epoch] + bucket
                              dead letters of a queue, numbered in the order of its DEAD records. They may come in any
                              order (one may be tried again later), so the value is a set: bit i stands for number
                              63 * bucket + i. Bits are only added, so values only rise. A queue that lost what was
                              committed has lost its numbers too, so its next letters have another name
    b"l" + name, b"a" + name  a lease, its end and what of it has left (`broker.queues.leasing`)
    b"t" + queue id           rows of a committed segment (`moved`): the highest seq that came, and one
    b"o" + name               how far a stream's reader says it is (`broker.streams.bookmarks`)
    b"c"                      1: the queue has had a consumer (auto-delete survives a failover)

A value of 0 takes a name out of the table.

Bounds: NAMED_MAX clients per queue, the one that was silent for longest goes, and as many dying queues (nobody tells
that one was deleted), of each the numbers in the last DEAD_BUCKETS buckets. REFUSED_BUCKETS per client, the lowest
goes, and REFUSED_MAX of these in all: those of the client go that was not refused for longest. What was refused and
forgotten is not taken for known: beyond these two bounds a number that is sent again may be stored twice, and is not
confirmed for nothing.
"""

from __future__ import annotations

import struct
from bisect import insort
from collections.abc import Mapping
from typing import Final

from broker.queues.ring import Ring

NAMED_MAX: Final = 10_000
DEAD_BUCKETS: Final = 64
BUCKET_BITS: Final = 63
DEAD_SPREAD: Final = BUCKET_BITS * (DEAD_BUCKETS - 1)
"""A dying queue never sends a number so much higher than one that is still open: its target would have forgotten."""
REFUSED_BUCKETS: Final = 64
REFUSED_MAX: Final = 10_000
"""Of these buckets, of all clients of a queue."""
REFUSED_BITS: Final = 31
DEAD_LETTERS: Final = b"\0dlx"
HAD_CONSUMERS: Final = b"c"
REFUSED: Final = 1
TAKEN_SINCE: Final = 2
"""What the two bits of a refused number say."""
_QUEUE_ID: Final = struct.Struct(">Q")
_GAP: Final = struct.Struct(">I")


def dead_letter_producer(queue_id: int, gap_epoch: int = 0) -> bytes:
    """The name under which a queue publishes its dead letters. Clients' names must not begin with a zero byte.

    `gap_epoch`: the newest epoch that may have begun without all that was committed, and so counts anew; 0: none.
    """
    return DEAD_LETTERS + _QUEUE_ID.pack(queue_id) + (_GAP.pack(gap_epoch) if gap_epoch else b"")


def proxy_producer(node: str, incarnation: int) -> bytes:
    """The key of a proxy."""
    return b"n" + f"{node}/{incarnation}".encode()


def refused_producer(node: str, incarnation: int) -> bytes:
    """The key of what a proxy has published and the queue has killed."""
    return b"r" + f"{node}/{incarnation}".encode()


def forget_proxies(ring: Ring, alive: Mapping[str, int]) -> None:
    """Takes out the proxies of starts that are over: an owner that dies cannot say that its own one is gone."""
    known = {name(*start) for start in alive.items() for name in (proxy_producer, refused_producer)}
    for producer in [name for name in ring.producers if name[:1] in (b"n", b"r") and name not in known]:
        ring.produced(producer, 0)


class Producers:
    """The clients and dying queues that number what they publish into one queue."""

    __slots__ = ("_dying", "_named", "_refused", "_refused_buckets", "_ring")

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._refused: dict[bytes, list[int]] = {}  # client to its buckets, ascending; who was refused last at the end
        self._named: dict[bytes, None] = {}  # clients, the longest silent first
        self._dying: dict[bytes, list[int]] = {}  # queues to their buckets, ascending; the longest silent first
        for name in ring.producers:  # who was heard later stands behind, by whichever of his names
            if name[:1] == b"d":
                source, (bucket,) = name[1 : -_QUEUE_ID.size], _QUEUE_ID.unpack(name[-_QUEUE_ID.size :])
                self._dying[source] = self._dying.pop(source, [])
                insort(self._dying[source], bucket)
            elif name[:1] == b"p":
                self._named.pop(name[1:], None)
                self._named[name[1:]] = None
            elif name[:1] == b"h":
                (bucket,), client = _QUEUE_ID.unpack_from(name, 1), name[1 + _QUEUE_ID.size :]
                self._named.pop(client, None)
                self._named[client] = None
                self._refused[client] = self._refused.pop(client, [])
                insort(self._refused[client], bucket)
        self._refused_buckets = sum(map(len, self._refused.values()))
        # of whom nothing but a floor is left, nothing can be confirmed in error: they go first
        floors = [name[1:] for name in ring.producers if name[:1] == b"f" and name[1:] not in self._named]
        if floors:
            self._named = dict.fromkeys(floors) | self._named

    def knows(self, producer: bytes, number: int) -> bool:
        """Whether this publish is in the queue, or was."""
        if is_dead_letter(producer):
            name, bit = _bucket(producer, number)
            return bool(self._ring.producers.get(name, 0) >> bit & 1)
        if number >= self._ring.producers.get(b"p" + producer, 0):
            return False
        said = self._refusal(producer, number)
        return said & TAKEN_SINCE > 0 if number < self._floor(producer) else said != REFUSED

    def _floor(self, client: bytes) -> int:
        return self._ring.producers.get(b"f" + client, 0)

    def _refusal(self, producer: bytes, number: int) -> int:
        if producer not in self._refused:
            return 0
        name, bit = _refused_bucket(producer, number)
        return self._ring.producers.get(name, 0) >> bit & 3

    def note(self, producer: bytes, number: int) -> None:
        """A publish that is not known is appended in this turn."""
        assert not self.knows(producer, number), "a publish is noted once"
        if is_dead_letter(producer):
            self._note_dead(producer, number)
            return
        name = b"p" + producer
        if self._refusal(producer, number) == REFUSED or number < self._floor(producer):
            self._say(producer, number, REFUSED | TAKEN_SINCE)
        if number >= self._ring.producers.get(name, 0):
            self._ring.produced(name, number + 1)
        self._heard(producer)

    def refuse(self, producer: bytes, number: int) -> bool:
        """A publish that is not known finds no room. It must not seem known once a later one is taken; whether that was
        news for the log."""
        assert not self.knows(producer, number), "what is here is not refused"
        if is_dead_letter(producer) or self._refusal(producer, number) == REFUSED:
            return False
        self._say(producer, number, REFUSED)
        self._heard(producer)
        return True

    def _say(self, client: bytes, number: int, bits: int) -> None:
        """Adds the bits to what is said of one number."""
        name, bit = _refused_bucket(client, number)
        buckets = self._refused[client] = self._refused.pop(client, [])
        if name not in self._ring.producers:
            insort(buckets, number // REFUSED_BITS)
            self._refused_buckets += 1
        self._ring.produced(name, self._ring.producers.get(name, 0) | bits << bit)
        if len(buckets) > REFUSED_BUCKETS:
            self._raise_floor(client, (buckets[0] + 1) * REFUSED_BITS)
            self._forget_refused(client, 1)
        elif self._refused_buckets > REFUSED_MAX:
            oldest = next(iter(self._refused))
            self._raise_floor(oldest, (self._refused[oldest][-1] + 1) * REFUSED_BITS)
            self._forget_refused(oldest, REFUSED_BUCKETS)

    def _raise_floor(self, client: bytes, number: int) -> None:
        if number > self._floor(client):
            self._ring.produced(b"f" + client, number)

    def _forget_refused(self, client: bytes, count: int) -> None:
        """Takes out so many of the client's buckets, the lowest first."""
        buckets = self._refused[client]
        for bucket in buckets[:count]:
            self._ring.produced(_refused_bucket(client, bucket * REFUSED_BITS)[0], 0)
            self._refused_buckets -= 1
        del buckets[:count]
        if not buckets:
            del self._refused[client]

    def _heard(self, producer: bytes) -> None:
        """The client is the one that was silent for the shortest time."""
        self._named.pop(producer, None)
        self._named[producer] = None
        if len(self._named) > NAMED_MAX:
            oldest = next(iter(self._named))
            del self._named[oldest]
            for name in (b"p" + oldest, b"f" + oldest):
                if name in self._ring.producers:
                    self._ring.produced(name, 0)
            if oldest in self._refused:
                self._forget_refused(oldest, REFUSED_BUCKETS)

    def _note_dead(self, producer: bytes, number: int) -> None:
        name, bit = _bucket(producer, number)
        source = producer[len(DEAD_LETTERS) :]
        buckets = self._dying[source] = self._dying.pop(source, [])
        if name not in self._ring.producers:
            insort(buckets, number // BUCKET_BITS)
        self._ring.produced(name, self._ring.producers.get(name, 0) | 1 << bit)
        while buckets[0] <= buckets[-1] - DEAD_BUCKETS:
            self._ring.produced(b"d" + source + _QUEUE_ID.pack(buckets.pop(0)), 0)
        if len(self._dying) > NAMED_MAX:
            oldest = next(iter(self._dying))
            for bucket in self._dying.pop(oldest):
                self._ring.produced(b"d" + oldest + _QUEUE_ID.pack(bucket), 0)


def is_dead_letter(producer: bytes) -> bool:
    """Whether it is a queue that publishes its dead letters."""
    source = len(producer) - len(DEAD_LETTERS)
    return producer.startswith(DEAD_LETTERS) and source in (_QUEUE_ID.size, _QUEUE_ID.size + _GAP.size)


def _bucket(producer: bytes, number: int) -> tuple[bytes, int]:
    """The name of a dead letter's bucket, and its bit there."""
    bucket, bit = divmod(number, BUCKET_BITS)
    return b"d" + producer[len(DEAD_LETTERS) :] + _QUEUE_ID.pack(bucket), bit


def _refused_bucket(client: bytes, number: int) -> tuple[bytes, int]:
    """The name of a refused number's bucket, and the first of its two bits there."""
    bucket, place = divmod(number, REFUSED_BITS)
    return b"h" + _QUEUE_ID.pack(bucket) + client, 2 * place
