"""The owner's side of syncs: turns of queues at each peer, offers, and requested buckets.

A peer has at most ACTIVE_MAX syncs in progress and one large one. Queues that cannot commit without the copy come
first, and have a quarter of the room to themselves: the others may stand still during an operator's pause (pacing.py).
The backup requests few buckets at a time, at the pace of pacing.py. An answer holds about BODIES_BYTES_MAX, and the
backup requests the rest again, so little is in flight to one peer. Answers are short because both sides compose and
check them in their loops, while live records wait. Offers name all attributes of their queue, possibly 10,000, and the
backup remembers them to the end of the sync: those of the syncs in progress are together at most 8 MiB and one offer.

A bucket's answer is composed when it is sent, after its bodies were read. Link order then makes it exact, because
every later change of the bucket is in an Append behind it. Bodies are needed only for seqs before the offer's end
that the backup lacks; later ones came with Appends.
"""

from __future__ import annotations

from bisect import insort
from functools import partial
from typing import Final

from clusterbroker.journal.ranges import below, merged, subtract

from .copies import Copy, Owned, Peer, State
from .messages import Compare, SyncBucket, SyncOffer, SyncWant
from .ports import OwnerHost

ACTIVE_MAX: Final = 128
OFFERED_BYTES_MAX: Final = 8 << 20
"""With larger offers among the syncs under way, no other one begins."""
IDLE_SHARE: Final = 0.75
"""Of both may be under way for queues that can commit without the copy."""
LARGE_BUCKETS: Final = 16
"""A sync of more buckets than this is a large one."""
BODIES_BYTES_MAX: Final = 128 << 10
AGAIN_MS: Final = 1000
"""A refused sync is offered again after so long."""
APART_MS: Final = 10_000
"""So is one that a copy refuses which is kept apart."""
OWED_BYTES_MAX: Final = 64 << 20
"""With more Append bytes unacknowledged, a copy that nobody waits for is dropped and synced later."""
OWED_BYTES_LOW: Final = 8 << 20
"""With more than this, no sync begins that nobody waits for."""


class Offers:
    """Syncs under way. Queues and peers belong to the Primary, which moves copies back when a link or node goes."""

    def __init__(self, host: OwnerHost, owned: dict[int, Owned], peers: dict[str, Peer]) -> None:
        self._host = host
        self._owned = owned
        self._peers = peers
        self._number = 0
        self.group = 0
        """The newest group that was cut."""

    # -- whose turn it is

    def enqueue(self, peer: Peer, queue: Owned) -> None:
        """The queue's copy at the peer is WAITING."""
        (peer.urgent if peer.name in queue.waits_for() else peer.idle).append(queue.queue_id)

    def hurry(self, peer: Peer, queue: Owned, now_ms: int) -> None:
        """Its copy is WAITING in `urgent`, behind thousands perhaps. Where it stood it is passed over later."""
        peer.urgent.appendleft(queue.queue_id)
        self.pump(peer, now_ms)

    def ended(self, peer: Peer, queue_id: int) -> None:
        """A sync of the queue is over, well or badly."""
        peer.offered_bytes -= peer.offered.pop(queue_id, 0)
        if peer.active.pop(queue_id, False):
            peer.idle.extendleft(reversed(peer.large))
            peer.large.clear()

    def later(self, peer: Peer, queue_id: int, now_ms: int, after_ms: int = AGAIN_MS) -> None:
        """The copy is WAITING, but offering at once would be refused again."""
        insort(peer.later, (now_ms + after_ms, queue_id))

    def pump(self, peer: Peer, now_ms: int) -> None:
        """Begins as many syncs as the peer may have."""
        while peer.later and peer.later[0][0] <= now_ms:
            _, queue_id = peer.later.popleft()
            if queue_id in self._owned:
                self.enqueue(peer, self._owned[queue_id])
        while peer.linked:
            full = max(len(peer.active) / ACTIVE_MAX, peer.offered_bytes / OFFERED_BYTES_MAX)
            if peer.urgent and full < 1:
                queue_id = peer.urgent.popleft()
            elif peer.idle and not peer.urgent and full < IDLE_SHARE and peer.owed_bytes <= OWED_BYTES_LOW:
                queue_id = peer.idle.popleft()
            else:
                return
            queue = self._owned.get(queue_id)
            copy = peer.queues.get(queue_id)
            if queue is None or copy is None or copy.state is not State.WAITING:
                continue
            self._offer(peer, queue, copy, now_ms)

    def _offer(self, peer: Peer, queue: Owned, copy: Copy, now_ms: int) -> None:
        store = queue.store
        buckets = tuple(store.emitted_buckets())
        large = len(buckets) > LARGE_BUCKETS
        urgent = peer.name in queue.waits_for()
        if large and not urgent and any(peer.active.values()):
            peer.large.append(queue.queue_id)
            return
        self._number += 1
        copy.move(State.SYNCING)
        copy.sync = self._number
        copy.since_group = self.group
        copy.next_seq = store.emitted_end()
        copy.owed_first = copy.owed_last = 0
        copy.progress_ms = now_ms
        offer = SyncOffer(
            queue.queue_id, queue.epoch, copy.sync, copy.next_seq, store.emitted_reserved(), tuple(store.epochs),
            tuple(store.emitted_attributes().items()), buckets, queue.unproven, copy.behind,
        )  # fmt: skip
        peer.active[queue.queue_id] = large
        peer.offered[queue.queue_id] = size = _size(offer)
        peer.offered_bytes += size
        self._host.send(peer.name, offer)

    def compare(self, queue_id: int) -> int:
        """Sends the digests of a queue to its synced copies: so many there are."""
        queue = self._owned.get(queue_id)
        synced = [] if queue is None or queue.first else [c for c in queue.copies.values() if c.state is State.SYNCED]
        if queue is not None and synced:
            buckets = tuple(queue.store.emitted_buckets())
            for copy in synced:
                self._host.send(copy.node, Compare(queue_id, queue.epoch, copy.sync, buckets))
        return len(synced)

    # -- buckets

    def wanted(self, peer: Peer, copy: Copy, want: SyncWant, now_ms: int) -> None:
        """The backup asks for a bucket of the sync that is under way."""
        copy.progress_ms = now_ms
        queue = self._owned[want.queue_id]
        missing = subtract(below(queue.store.emitted_live(want.bucket), copy.next_seq), merged(want.have))
        if not missing:
            self._answer(peer.name, want, b"")
            return
        self._host.load(want.queue_id, missing, BODIES_BYTES_MAX, partial(self._loaded, peer.name, want))

    def _loaded(self, node: str, want: SyncWant, records: bytes) -> None:
        queue = self._owned.get(want.queue_id)
        copy = None if queue is None else queue.copies.get(node)
        if copy is None or copy.state is not State.SYNCING or copy.sync != want.sync:
            return  # superseded while the disk was reading
        self._answer(node, want, records)

    def _answer(self, node: str, want: SyncWant, records: bytes) -> None:
        store = self._owned[want.queue_id].store
        self._host.send(
            node,
            SyncBucket(
                want.queue_id,
                want.epoch,
                want.sync,
                want.bucket,
                tuple(store.emitted_live(want.bucket)),
                tuple(store.emitted_counts(want.bucket)),
                tuple(store.emitted_dead(want.bucket)),
            ),
            [records],
        )


def _size(offer: SyncOffer) -> int:
    """About how many bytes its frame has."""
    names = sum(len(name) for name, _ in offer.attributes)
    return names + 16 * (len(offer.attributes) + len(offer.buckets) + len(offer.epochs) + 4)
