"""Messages that were handed out before, read again: a client resumes a link, and wants the rest of what it holds.

The ring has them as unacknowledged, in memory or on disk. A reading brings as many as READ_BYTES hold, at least one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clusterbroker.broker.queues.handle import Reread
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.states import UNACKED
from clusterbroker.journal.record import Message

READ_BYTES: Final = 1 << 20


def reread(queue: LocalQueue, seqs: Sequence[int], then: Reread) -> None:
    """See `QueueHandle.reread`."""
    ring = queue.ring
    counts = {} if queue.deleted else {seq: count for seq in seqs if (count := _count(queue, seq)) is not None}
    wanted, absent = ring.copies_of([(seq, seq) for seq in counts], READ_BYTES) if counts else ([], [])
    looked = len(seqs) if len(wanted) == len(counts) else seqs.index(wanted[-1]) + 1

    def loaded(messages: Sequence[Message]) -> None:
        read = {location[0]: message for location, message in zip(absent, messages, strict=True)} if messages else {}
        found = {}
        for seq in wanted:
            message = None if _count(queue, seq) is None else ring.message(seq) or read.get(seq)
            if message is not None:
                found[seq] = queue.shown(seq, message, True, counts[seq])
        then(found, looked)

    if absent:
        queue.host.fetch(queue, absent, loaded, lambda: loaded(()))
    else:
        loaded(())


def _count(queue: LocalQueue, seq: int) -> int | None:
    """Its delivery count; None: it is held by nobody."""
    places = queue.ring.living(seq, seq, 1)
    return places[0][3] if places and places[0][1] == UNACKED else None
