"""Single records, complete with their checksums, as a backup puts them into its own journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clusterbroker.journal.record import GroupWriter

from .messages import Range


def _record(write: Callable[[GroupWriter], object]) -> bytes:
    writer = GroupWriter(0, 0)
    start = writer.size
    write(writer)
    return bytes(writer.span(start, writer.size))


class Records:
    """`ports.RecordMaker` by way of the journal's own writer."""

    def cut(self, queue_id: int, epoch: int, from_seq: int) -> bytes:
        return _record(lambda writer: writer.cut(queue_id, epoch, from_seq))

    def settle(self, queue_id: int, epoch: int, ranges: Sequence[Range]) -> bytes:
        return _record(lambda writer: writer.settle(queue_id, epoch, list(ranges)))

    def reserve(self, queue_id: int, epoch: int, upto: int) -> bytes:
        return _record(lambda writer: writer.reserve(queue_id, epoch, upto))

    def count(self, queue_id: int, epoch: int, seq: int, delivery_count: int) -> bytes:
        return _record(lambda writer: writer.count_delivery(queue_id, epoch, seq, delivery_count))

    def dead(self, queue_id: int, epoch: int, seq: int, reason: int) -> bytes:
        return _record(lambda writer: writer.dead(queue_id, epoch, seq, reason))

    def set_attribute(self, queue_id: int, epoch: int, name: bytes, upto: int) -> bytes:
        return _record(lambda writer: writer.set_attribute(queue_id, epoch, name, upto))
