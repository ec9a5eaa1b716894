"""A stream's messages that have left its ring for files of their own: which they are, and where each is read.

Theory. A stream's ring holds what the shared log holds of it since the last checkpoint; all before is the *past*. A
checkpoint takes what is written out of the ring (`begin`); from then on it is `moving`: it stands in the shared log
and is being copied to files by another thread. When the copy and its catalogue are durable (`filed`) it is in `files`.
The ring tells what is dropped (a SET: retention, or what a sync took back) and cut (a CUT); what happens while a
checkpoint is under way is done again to its result.

Invariants
    1. files, and then what is moving, do not overlap; both ascend.
    2. All below `first` is gone, whatever a file still holds. It falls by a cut, or when a sync brings what this copy
       alone had dropped.
    3. A file whose end was cut off is never added to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from clusterbroker.journal.ranges import Range, merged, subtract
from clusterbroker.journal.stream_catalogue import Filing, Moved, StreamFile

Part = StreamFile | Moved


class Past:
    """Of one stream, at its owner or at a replica.

    segment_bytes  a new file begins when one has so many
    filed_more     called when a checkpoint has made more files
    """

    __slots__ = (
        "_closed", "_cut", "_gone", "_since", "filed_more", "files", "first", "moving", "queue_id", "segment_bytes",
    )  # fmt: skip

    def __init__(self, queue_id: int, segment_bytes: int) -> None:
        self.queue_id = queue_id
        self.segment_bytes = segment_bytes
        self.filed_more: Callable[[], object] = lambda: None
        self.files: list[StreamFile] = []
        self.moving: list[Moved] = []
        self.first = 1
        self._closed: set[int] = set()  # names of files to which nothing is added
        self._cut: set[int] = set()  # of them those whose counted bytes are to be found
        self._gone: list[int] = []  # names of files that nothing counts on any more
        self._since: list[Callable[[], None]] | None = None  # what happened since the checkpoint under way began

    def restore(self, meta: Mapping[str, Any]) -> None:
        """What a checkpoint wrote down."""
        self.first = meta.get("first", 1)
        self.files = [StreamFile.of_entry(entry) for entry in meta.get("files", ())]

    def close(self) -> None:
        """Nothing is added to the files that it has."""
        self._closed = {part.name for part in self.files}

    # -- what it has

    @property
    def parts(self) -> list[Part]:
        """All of it that counts, ascending."""
        parts: list[Part] = [*self.files, *self.moving]
        return [part for part in parts if part.end > self.first]

    @property
    def ranges(self) -> list[Range]:
        """The seqs that it has, merged."""
        return merged((max(part.first, self.first), part.end - 1) for part in self.parts)

    @property
    def count(self) -> int:
        """How many messages it has."""
        return sum(part.end - max(part.first, self.first) for part in self.parts)

    @property
    def bytes(self) -> int:
        """About so many bytes of records."""
        moving = sum(size for moved in self.moving for _, _, size in moved.places)
        return sum(part.size for part in self.files) + moving

    @property
    def lowest(self) -> int:
        """Its first seq; 0: it has nothing."""
        return min((max(part.first, self.first) for part in self.parts), default=0)

    def part_at(self, seq: int) -> Part | None:
        """The part that has `seq`, or the first one behind it."""
        behind = [part for part in self.parts if part.end > seq]
        return min(behind, key=_first, default=None)

    # -- what the ring tells

    def drop(self, first: int, last: int) -> None:
        """Messages `first` to `last` are gone."""
        if self._since is not None:
            self._since.append(partial(self.drop, first, last))
        lowest = self.lowest
        if not lowest or last < lowest:
            self.first = max(self.first, last + 1) if first <= self.first else self.first
            return
        if first <= lowest:
            self.first = max(self.first, last + 1)
            self._keep([part for part in self.files if part.end > self.first])
            self.moving = [part for part in self.moving if part.end > self.first]
            return
        self._keep([left for part in self.files for left in self._without(part, first, last)])
        self.moving = [
            part._replace(first=begin, end=end) for part in self.moving for begin, end in _left(part, first, last)
        ]

    def _without(self, part: StreamFile, first: int, last: int) -> list[StreamFile]:
        """What is left of a file; its last part keeps the bytes of the whole."""
        left = _left(part, first, last)
        if left != [(part.first, part.end)]:
            self._closed.add(part.name)
            self._cut.update([part.name] if left and left[-1][1] < part.end else ())
        return [part._replace(first=begin, end=end) for begin, end in left]

    def cut(self, from_seq: int) -> None:
        """All from that seq on is gone, and the seqs will be used anew."""
        if self._since is not None:
            self._since.append(partial(self.cut, from_seq))
        kept: list[StreamFile] = []
        for part in self.files:
            if part.first < from_seq < part.end:
                self._closed.add(part.name)
                self._cut.add(part.name)
                kept.append(part._replace(end=from_seq))
            elif part.first < from_seq:
                kept.append(part)
        self._keep(kept)
        self.moving = [part._replace(end=min(part.end, from_seq)) for part in self.moving if part.first < from_seq]
        self.first = min(self.first, from_seq)

    def _keep(self, files: list[StreamFile]) -> None:
        names = {part.name for part in files}
        self._gone += sorted({part.name for part in self.files} - names)
        self.files = files

    # -- checkpoints

    def begin(self, parts: Sequence[tuple[int, int, Sequence[tuple[int, int, int]]]], meta: dict[str, Any]) -> Filing:
        """A checkpoint: what the ring gave up is to be copied; `meta` is the queue's."""
        assert self._since is None, "one checkpoint at a time"
        self._since = []
        known = self.ranges
        self.moving = [
            Moved(begin, last + 1, places)
            for first, end, places in parts
            for begin, last in subtract([(first, end - 1)], known)
        ]
        low = min((moved.first for moved in self.moving), default=self.first)
        if low < self.first:  # what a file still holds of before must not come back with it
            self.files = [part._replace(first=max(part.first, self.first)) for part in self.files]
            self.first = low
        gone, self._gone = self._gone, []
        cut, self._cut = self._cut, set()
        meta["first"] = self.first
        return Filing(
            self.queue_id, tuple(self.files), tuple(self.moving), frozenset(cut), frozenset(self._closed), tuple(gone),
            self.segment_bytes, meta, self.filed,
        )  # fmt: skip

    def filed(self, files: Sequence[StreamFile]) -> None:
        """It is durable: this is the catalogue, but for what happened since."""
        assert self._since is not None, "a checkpoint was begun"
        since, self._since = self._since, None
        self.files, self.moving = list(files), []
        self._gone, self._cut = [], set()  # a file that was gone may have been added to
        for again in since:
            again()
        self._keep([part for part in self.files if part.end > self.first])
        self._closed &= {part.name for part in self.files}
        self.filed_more()


def _first(part: Part) -> int:
    return part.first


def _left(part: Part, first: int, last: int) -> list[Range]:
    """(begin, end) of what is left of a part without `first` to `last`."""
    ends = ((part.first, min(part.end, first)), (max(part.first, last + 1), part.end))
    return [(begin, end) for begin, end in ends if begin < end]
