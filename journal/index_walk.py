"""A slow look at all values of the index, beside the checkpoints that go on changing it (waits).

Two things are proved of each queue: its values have the checksums that they were written with, and they are those that
the index says it has (journal.sums). The values of a queue are too many for one look, so their sum is taken up to a
key; what a checkpoint changes up to there changes the sum as well. At the queue's last value the sum is the one that
is stored, or pages were lost.

Invariant: `_sum` is that of the present values of `_queue` with keys up to `_at`. Looks and checkpoints share a thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from clusterbroker.journal.errors import DamagedJournal
from clusterbroker.journal.index import Change, Index
from clusterbroker.journal.sums import Sums

STEP_BYTES: Final = 256 << 10
STEP_KEYS: Final = 1000
KEY_BYTES: Final = 8


class Looked(NamedTuple):
    """What came of one step."""

    bytes_read: int
    over: bool
    hurt: tuple[DamagedJournal, ...] = ()


class IndexWalk:
    """One pass. It begins with the first key, and ends when `step` says so."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._at = b""
        self._queue = b""
        self._sum = Sums()
        self._unproved = False  # a value of the queue has been told already
        self._sums_at: bytes | None = None  # after the values: the queues that have a sum

    def changed(self, forgotten: Iterable[int], changes: Iterable[Change]) -> None:
        """A checkpoint did this, in this order."""
        if int.from_bytes(self._queue, "big") in forgotten:
            self._sum = Sums()
        for key, before, after in changes:
            if key[:KEY_BYTES] == self._queue and key <= self._at:
                if before is not None:
                    self._sum.remove(key, before)
                if after is not None:
                    self._sum.add(key, after)

    def step(self) -> Looked:
        """The next values. Raises DamagedJournal for what is no queue's."""
        return self._values() if self._sums_at is None else self._queues(self._sums_at)

    def _values(self) -> Looked:
        index, read = self._index, 0
        hurt: list[DamagedJournal] = []
        with index.values() as (txn, cursor):
            more = cursor.set_range(self._at + b"\0") if self._at else cursor.first()
            while more and read < STEP_BYTES:
                key, value = cursor.item()
                if key[:KEY_BYTES] != self._queue:
                    self._end(txn, hurt)
                    self._queue = key[:KEY_BYTES]
                self._take(key, value, hurt)
                read += len(key) + len(value)
                self._at = key
                more = cursor.next()
            if not more:
                self._end(txn, hurt)
                self._queue, self._sums_at = b"", b""
        return Looked(read, not index.summed and self._sums_at is not None, tuple(hurt))

    def _take(self, key: bytes, value: bytes, hurt: list[DamagedJournal]) -> None:
        try:
            self._index.verified(key, value)
        except DamagedJournal as damage:
            if damage.queue_id is None:
                raise
            self._unproved = True
            hurt.append(damage)
        else:
            self._sum.add(key, value)

    def _end(self, txn: Any, hurt: list[DamagedJournal]) -> None:
        """All values of the queue were seen."""
        if self._queue and not self._unproved:
            try:
                self._index.prove_one(txn, int.from_bytes(self._queue, "big"), self._sum)
            except DamagedJournal as damage:
                hurt.append(damage)
        self._sum, self._unproved = Sums(), False

    def _queues(self, at: bytes) -> Looked:
        """Queues that have a sum and no value at all."""
        with self._index.values() as (txn, cursor):
            keys = self._index.summed_queues(txn, at, STEP_KEYS)
            gone = [key for key in keys if not cursor.set_range(key) or cursor.key()[:KEY_BYTES] != key]
        if keys:
            self._sums_at = keys[-1] + b"\0"
        hurt = [self._index.damaged("none of its values is there", int.from_bytes(key, "big")) for key in gone]
        return Looked(KEY_BYTES * len(keys), len(keys) < STEP_KEYS, tuple(hurt))
