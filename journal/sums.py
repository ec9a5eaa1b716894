"""How many values the index has of each queue, and the sum of their checksums (pure).

A value's own checksum says that its bytes are what was written, not that it is the last that was, nor that none is
missing: a page that the disk has lost is as it was some checkpoints ago, with sound values. So a checkpoint keeps this
for each queue, on other pages than the values, and a start that reads them all compares.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

MASK: Final = 2**64 - 1
STORED: Final = struct.Struct("<QQ")
STORED_BYTES: Final = STORED.size
_CRC: Final = struct.Struct("<I")
_QUEUE: Final = struct.Struct(">Q")


class Sum(NamedTuple):
    """Of one queue."""

    values: int
    """Its meta, and its runs."""
    digest: int
    """The sum of their checksums, which cover the keys, modulo 2**64."""

    def plus(self, other: Sum) -> Sum:
        return Sum(self.values + other.values, (self.digest + other.digest) & MASK)

    def less(self, other: Sum) -> Sum:
        return Sum(self.values - other.values, (self.digest - other.digest) & MASK)


NONE: Final = Sum(0, 0)


class Sums:
    """By queue; also of changes, which may be negative."""

    __slots__ = ("by_queue",)

    def __init__(self) -> None:
        self.by_queue: dict[int, list[int]] = {}
        """To [values, digest], for a start adds millions of values to a few of them."""

    @property
    def total(self) -> Sum:
        """Of all queues."""
        total = NONE
        for one in self.by_queue.values():
            total = total.plus(Sum(*one))
        return total

    def add(self, key: bytes, value: bytes) -> None:
        """A value as it is stored, with its checksum in front."""
        self._change(key, 1, _CRC.unpack_from(value)[0])

    def remove(self, key: bytes, value: bytes) -> None:
        """A value that is no more."""
        self._change(key, -1, -_CRC.unpack_from(value)[0])

    def _change(self, key: bytes, values: int, digest: int) -> None:
        queue_id = _QUEUE.unpack_from(key)[0]
        known = self.by_queue.get(queue_id)
        if known is None:
            known = self.by_queue[queue_id] = [0, 0]
        known[0] += values
        known[1] += digest

    def of(self, queue_id: int) -> Sum:
        values, digest = self.by_queue.get(queue_id, NONE)
        return Sum(values, digest & MASK)


def packed(total: Sum) -> bytes:
    return STORED.pack(total.values, total.digest & MASK)


def unpacked(payload: bytes) -> Sum:
    """Raises struct.error."""
    return Sum(*STORED.unpack(payload))
