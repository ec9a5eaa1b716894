"""One queue's messages, who has them, and what the journal still has to hear: the specification of the ring.

Theory. A message's identity in its queue is `seq`, given by `append` in order. Its slot walks through

    READY -> UNACKED -> (SETTLED | HELD) -> EMPTY            requeue: UNACKED -> READY, at its old place

The queue's log is written lazily: `write` puts into a group commit all that the journal has not heard, in the
order EPO, RSV, ENQ, DEAD, SET, REQ, ATTR. A message that was settled before its group was written is never written.

    committed    all below it is decided: durable, or not to be kept, or settled by an acknowledgement before it
                 was written. Publisher confirms follow it.
    reserved     (RSV) every seq up to it may be handed out. After a crash exactly these count as redelivered, so a
                 hand-out needs the reservation durable, or standing in the log before the message itself. Hence
                 handing out an unwritten message raises `reserved`: the group that writes it starts with the RSV.
    SETTLED      settled, the SET record not yet durable: the slot keeps its place on disk until it is, so that
                 neither a checkpoint nor reclaim forgets a message whose settlement a crash could still undo.
    HELD         settled unwritten, but as one half of something atomic (a transaction, a dead letter): no ENQ is
                 written, yet `committed` passes it only with the group that holds the other half.

Order of the ready messages is (-priority, seq). A FIFO ring walks a cursor and keeps only returned messages in a
heap; a priority ring keeps all in the heap. Bodies of a deep queue leave memory once durable (`page out`) and come
back in chunks ahead of the cursor (`missing`, `fill`).

In a cluster a ring is the owner's, a replica's or a proxy's (`ring_cluster`); two states more:

    DEAD         held for its dead-letter targets: neither ready nor unacknowledged, until it is settled
    UNACKED      of a replicated queue: with the number of the node that holds it

`dispatch` hands ready messages to consumers with credit, highest consumer priority first, round robin among
equals. What a consumer is, and what becomes of what it is handed, is its protocol's affair (`ring_taker`). A queue with
a consumer that passes messages over is handed out by `dispatch_selected` (`ring_selection`).
"""

from __future__ import annotations

from tests.model.ring_cluster import Ring, digest_of
from tests.model.ring_dispatch import RemoteConsumer, dispatch
from tests.model.ring_local import LOAD_AHEAD, LOAD_BYTES, RESERVE_FIRST, RESERVE_MAX
from tests.model.ring_selection import Selection, dispatch_selected, sweep
from tests.model.ring_taker import Taker

__all__ = [
    "LOAD_AHEAD",
    "LOAD_BYTES",
    "RESERVE_FIRST",
    "RESERVE_MAX",
    "RemoteConsumer",
    "Ring",
    "Selection",
    "Taker",
    "digest_of",
    "dispatch",
    "dispatch_selected",
    "sweep",
]
