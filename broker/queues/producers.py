"""Which numbered publishes a queue has: so that one that is sent again is confirmed and not stored twice.

What is known stands in `ring.producers`, and a PRD record in the group of the message itself tells it to the disk and
to the other replicas. The names that share that table are told apart by their first byte:

    b"n" + node/incarnation   a proxy: its publishes are numbered without a gap, the value is the last number that is
                              in the log (`broker.proxy.attachment`)
    b"r" + node/incarnation   the same proxy: the highest number that was refused and died for it (reject-publish-dlx)
    b"p" + name               a client that numbers its messages (x-producer, x-seq): the value is the highest number
                              plus one; what is below is known. Numbers rise, from 0 or 1, gaps are allowed
    b"d" + queue id + bucket  dead letters of a queue, numbered in the order of its DEAD records. They may come in any
                              order (one may be tried again later), so the value is a set: bit i stands for number
                              63 * bucket + i. Bits are only added, so values only rise
    b"c"                      1: the queue has had a consumer (auto-delete survives a failover)

A value of 0 takes a name out of the table.

Bounds: NAMED_MAX clients per queue, the one that was silent for longest goes; DEAD_BUCKETS buckets per dying queue.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from broker.queues.ring import Ring

NAMED_MAX: Final = 10_000
DEAD_BUCKETS: Final = 64
BUCKET_BITS: Final = 63
DEAD_SPREAD: Final = BUCKET_BITS * (DEAD_BUCKETS - 1)
"""A dying queue never sends a number so much higher than one that is still open: its target would have forgotten."""
DEAD_LETTERS: Final = b"\0dlx"
HAD_CONSUMERS: Final = b"c"
_QUEUE_ID: Final = struct.Struct(">Q")
_BUCKET: Final = struct.Struct(">QQ")


def dead_letter_producer(queue_id: int) -> bytes:
    """The name under which a queue publishes its dead letters. Clients' names must not begin with a zero byte."""
    return DEAD_LETTERS + _QUEUE_ID.pack(queue_id)


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

    __slots__ = ("_named", "_ring")

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._named = dict.fromkeys(name for name in ring.producers if name[:1] == b"p")  # the longest silent first

    def knows(self, producer: bytes, number: int) -> bool:
        """Whether this publish is in the queue, or was."""
        if is_dead_letter(producer):
            name, bit = _bucket(producer, number)
            return bool(self._ring.producers.get(name, 0) >> bit & 1)
        return number < self._ring.producers.get(b"p" + producer, 0)

    def note(self, producer: bytes, number: int) -> None:
        """A publish that is not known is appended in this turn."""
        assert not self.knows(producer, number), "a publish is noted once"
        if is_dead_letter(producer):
            self._note_dead(producer, number)
            return
        name = b"p" + producer
        self._named.pop(name, None)
        self._named[name] = None
        self._ring.produced(name, number + 1)
        if len(self._named) > NAMED_MAX:
            oldest = next(iter(self._named))
            del self._named[oldest]
            self._ring.produced(oldest, 0)

    def _note_dead(self, producer: bytes, number: int) -> None:
        name, bit = _bucket(producer, number)
        self._ring.produced(name, self._ring.producers.get(name, 0) | 1 << bit)
        if number >= DEAD_BUCKETS * BUCKET_BITS:
            forgotten, _ = _bucket(producer, number - DEAD_BUCKETS * BUCKET_BITS)
            if forgotten in self._ring.producers:
                self._ring.produced(forgotten, 0)


def is_dead_letter(producer: bytes) -> bool:
    """Whether it is a queue that publishes its dead letters."""
    return producer.startswith(DEAD_LETTERS) and len(producer) == len(DEAD_LETTERS) + _QUEUE_ID.size


def _bucket(producer: bytes, number: int) -> tuple[bytes, int]:
    """The name of a dead letter's bucket, and its bit there."""
    (queue_id,) = _QUEUE_ID.unpack_from(producer, len(DEAD_LETTERS))
    bucket, bit = divmod(number, BUCKET_BITS)
    return b"d" + _BUCKET.pack(queue_id, bucket), bit
