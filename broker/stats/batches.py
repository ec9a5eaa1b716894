"""What one node counts of its things, kept so that anybody can be told what is new to him.

Theory. Every change gets the next number: a row that differs from the last one told, and a key whose thing is gone. An
asker remembers the number up to which he was told, and gets what has a higher one. A row is kept once, under the number
of its last change, so memory is that of the things there are; of things that ended the keys are kept, KEPT_GONE of
them. Who is further behind than those, or speaks of another life, is told everything, and that it is everything.

A sample is a walk over the node's things, a slice at a time, since ten thousand queues at once would hold up the loop.
A thing whose row still holds is met by its key alone. What is not met on the walk is gone when the walk ends. So
between two samples rows may be of different moments; each row is of one moment.

Invariants: (1) numbers of rows and of gone keys are all different, and none is higher than `number`; (2) a key is among
the rows or among the gone, never both; (3) both are kept in the order of their numbers; (4) whoever was told up to
`number`, from whatever number he asked, has exactly the rows that are kept here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView, Sequence
from itertools import islice, takewhile
from typing import Final, TypeVar

from msgspec.structs import replace

from clusterbroker.broker.stats.rows import AnyRow, Batch, Key

T = TypeVar("T")

SLICE: Final = 500
"""So many things are looked at in one turn of the loop."""
KEPT_GONE: Final = 10_000
BATCH_ROWS: Final = 2_000
"""So many rows or keys are encoded at once: it takes a few milliseconds."""


class Census:
    """`begin` a sample, `step` until it is done; `since` at any time."""

    def __init__(self, node: str, life: int, kept_gone: int = KEPT_GONE) -> None:
        """`life`: of the process that counts, another one at each start."""
        self.node = node
        self.life = life
        self.number = 0
        """Of the last change."""
        self.sampled_at_ms = 0
        """When the last sample began; 0: there was none."""
        self._kept_gone = kept_gone
        self._rows: dict[Key, tuple[int, AnyRow]] = {}
        self._gone: dict[Key, int] = {}
        self._forgotten = 0  # number of the newest gone key that is not kept any more
        self._walk: Iterator[AnyRow | Key] | None = None
        self._met: set[Key] = set()

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self._rows)

    @property
    def keys(self) -> KeysView[Key]:
        """Of the rows that are kept."""
        return self._rows.keys()

    # -- sampling ---------------------------------------------------------------------------------------------

    @property
    def sampling(self) -> bool:
        """A sample has begun and is not done."""
        return self._walk is not None

    def begin(self, rows: Iterable[AnyRow | Key], now_ms: int) -> None:
        """A new sample. `rows` is walked by `step`, and makes each row when it is asked for it; a key is one of `keys`:
        its row holds."""
        assert self._walk is None, "one sample after the other"
        self._walk = iter(rows)
        self.sampled_at_ms = now_ms

    def step(self, count: int = SLICE) -> bool:
        """Looks at so many things more; True: the sample is done."""
        walk = self._walk
        assert walk is not None, "a sample has begun"
        looked = 0
        for row in islice(walk, count):
            looked += 1
            if isinstance(row, tuple):
                self._met.add(row)
            else:
                self._meet(row)
        if looked == count:
            return False
        for key in [key for key in self._rows if key not in self._met]:
            self._lose(key)
        self.abandon()
        return True

    def abandon(self) -> None:
        """The sample cannot be done: what was met is told, and nothing is gone."""
        self._walk = None
        self._met.clear()

    def _meet(self, row: AnyRow) -> None:
        key = row.key
        self._met.add(key)
        known = self._rows.get(key)
        if known is not None:
            if known[1] == row:
                return
            del self._rows[key]  # the order of the dictionary is that of the numbers
        self._gone.pop(key, None)
        self.number += 1
        self._rows[key] = self.number, row

    def _lose(self, key: Key) -> None:
        del self._rows[key]
        self.number += 1
        self._gone[key] = self.number
        if len(self._gone) > self._kept_gone:
            oldest = next(iter(self._gone))
            self._forgotten = self._gone.pop(oldest)

    # -- telling ----------------------------------------------------------------------------------------------

    def since(self, life: int, number: int, leased: bool = True) -> Batch:
        """What changed after the number, the oldest first."""
        whole = life != self.life or not self._forgotten <= number <= self.number or not number
        after = 0 if whole else number
        return Batch(
            node=self.node,
            life=self.life,
            number=self.number,
            sampled_at_ms=self.sampled_at_ms,
            leased=leased,
            whole=whole,
            rows=_after(((number, row) for number, row in reversed(self._rows.values())), after),
            gone=() if whole else _after(((number, key) for key, number in reversed(self._gone.items())), after),
        )


def split(batch: Batch, count: int = BATCH_ROWS) -> list[Batch]:
    """The batch in parts of at most so many rows and keys, to be encoded and sent one at a time."""
    told: list[tuple[tuple[AnyRow, ...], tuple[Key, ...]]] = [
        *((batch.rows[at : at + count], ()) for at in range(0, len(batch.rows), count)),
        *(((), batch.gone[at : at + count]) for at in range(0, len(batch.gone), count)),
    ]
    return [replace(batch, rows=rows, gone=gone) for rows, gone in told or [((), ())]]


def joined(parts: Sequence[Batch]) -> Batch:
    """The batch whose parts these are."""
    rows = tuple(row for part in parts for row in part.rows)
    return replace(parts[0], rows=rows, gone=tuple(key for part in parts for key in part.gone))


def _after(newest_first: Iterator[tuple[int, T]], number: int) -> tuple[T, ...]:
    found = [thing for _, thing in takewhile(lambda told: told[0] > number, newest_first)]
    found.reverse()
    return tuple(found)


__all__ = ["BATCH_ROWS", "KEPT_GONE", "SLICE", "Census", "joined", "split"]
