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
    """Encodes single records with their checksums, ready to stand in a group of the own journal."""

    def cut(self, queue_id: int, epoch: int, from_seq: int) -> bytes:
        """CUT: nothing from this seq on is in the log any more; from 1: nor any attribute."""
        return _record(lambda writer: writer.cut(queue_id, epoch, from_seq))

    def settle(self, queue_id: int, epoch: int, ranges: Sequence[Range]) -> bytes:
        """SET: the messages have left. Seqs that are not there are passed over by the fold."""
        return _record(lambda writer: writer.settle(queue_id, epoch, list(ranges)))

    def reserve(self, queue_id: int, epoch: int, upto: int) -> bytes:
        """RSV: messages up to this seq may have been handed out."""
        return _record(lambda writer: writer.reserve(queue_id, epoch, upto))

    def count(self, queue_id: int, epoch: int, seq: int, delivery_count: int) -> bytes:
        """REQ: the delivery count is now this, higher or lower."""
        return _record(lambda writer: writer.count_delivery(queue_id, epoch, seq, delivery_count))

    def dead(self, queue_id: int, epoch: int, seq: int, reason: int) -> bytes:
        """DEAD: held for its dead-letter targets."""
        return _record(lambda writer: writer.dead(queue_id, epoch, seq, reason))

    def set_attribute(self, queue_id: int, epoch: int, name: bytes, upto: int) -> bytes:
        """ATTR: the fold takes this number, higher or lower than before; 0 takes the name out."""
        return _record(lambda writer: writer.set_attribute(queue_id, epoch, name, upto))
