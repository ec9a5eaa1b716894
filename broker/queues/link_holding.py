"""Messages of one queue that recoverable receiver links hold: they survive the connection, its node and the queue's
owner (`ring_links` in the ring's specification).

    ready --assigned--> held, on its way --its group is committed, sent--> held
    held --accepted, rejected--> gone, as from any consumer
    held --returned; the link ends, or is attached without being resumed--> nobody's --that is committed--> ready
    held --for longer than the consumer timeout, or the link was suspended for as long--> withdrawn: nobody's, as above

A delivery is sent when the group that says who holds it is committed: a message that comes while its link has credit is
assigned at once, and waits for no more than its own commit. What returns is handed to nobody before the log says that
the link has it no more: so whatever owner and client survive, the log and the client's map tell who has a message.
Until then links are handed nothing at all (`Ring.links_wait`): what is newer would come before it.

While its link is suspended a message stays where it is. It does not expire, and no purge takes it. A single active
consumer that is suspended stays active (`Subscriptions.suspend`).

What was withdrawn, of an attached link all that it holds, the log remembers until the client of the link has heard it:
else a client with an outcome for it would take it for settled. The client names it in its map, is answered with the
outcome *modified* and an incomplete map, so that it attaches once more, and what a complete map does not name is
forgotten. Until then the link gets nothing new, so no tag stands for two deliveries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from clusterbroker.broker.queues.attributes import LINK_ATTACH, LINK_WITHDRAWN
from clusterbroker.broker.queues.link_held import HeldMessages, LinkAttach
from clusterbroker.broker.queues.modification import Modification
from clusterbroker.broker.queues.ring import RemoteConsumer, Ring
from clusterbroker.broker.queues.stumble import Unfit
from clusterbroker.journal.ranges import ranges_of

if TYPE_CHECKING:
    from clusterbroker.broker.content.selector.filters import Filter
    from clusterbroker.broker.queues.dispatch import Dispatch
    from clusterbroker.broker.queues.log import MessageLog, Unfinished
    from clusterbroker.broker.queues.subscription import LocalConsumer, Member, Subscriptions
    from clusterbroker.journal.layout import Location
    from clusterbroker.journal.record import Message, RecordBuffer

HELD_MAX: Final = 65_536
"""Messages that a link holds at most."""
READ_BYTES: Final = 1 << 20
HERE: Final = 1
"""Number of a node that is alone."""
OUT_BYTES_MAX: Final = 256 << 10
SEQ_BYTES: Final = 8
BUCKET: Final = 62
"""Seqs of one name of LINK_WITHDRAWN."""
UNCHANGED: Final = Modification(False)
"""Of a message that returns as it was."""
FAILED: Final = Modification(True)
NOT_KEPT: Final = "is transient: no link can hold its messages over a connection"


class HeldQueue(Protocol):
    """The queue (`queue.Queue`)."""

    dispatch: Dispatch
    host: Any
    last_used_ms: int
    log: MessageLog
    ring: Ring
    subscriptions: Subscriptions


def committed_with(ring: Ring) -> int:
    """The group with which all that has happened is committed (`Ring.groups_committed`)."""
    return ring.groups + ring.needs_write


class Assigned:
    """Deliveries of one consumer that wait for their groups: a piece of records for each."""

    __slots__ = ("_pieces", "_ring")

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._pieces: deque[tuple[int, bytes]] = deque()

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def cut(self, out: RecordBuffer) -> None:
        """What was handed out since the last time goes with the next group."""
        if out.size:
            self.put(out.take())

    def put(self, records: bytes) -> None:
        self._pieces.append((committed_with(self._ring), records))

    @property
    def is_due(self) -> bool:
        """Whether some may be sent."""
        return bool(self._pieces) and self._pieces[0][0] <= self._ring.groups_committed

    def take(self) -> bytes:
        """What may be sent."""
        done, found = self._ring.groups_committed, []
        while self._pieces and self._pieces[0][0] <= done:
            found.append(self._pieces.popleft()[1])
        return found[0] if len(found) == 1 else b"".join(found)

    def clear(self) -> None:
        """They are not sent: their link holds them all the same."""
        self._pieces.clear()


class HoldingConsumer:
    """A consumer of this node as its queue sees it, in place of the `LocalConsumer`. What its client has room for is
    assigned to its link, and comes to the client when that is committed."""

    __slots__ = ("_poured", "assigned", "credit", "holding", "order", "ring", "subscription")

    def __init__(self, ring: Ring, subscription: LocalConsumer, holding: int, order: tuple[int, str, int]) -> None:
        self.ring = ring
        self.subscription = subscription
        self.holding = holding
        self.order = order
        self.assigned = Assigned(ring)
        self.credit = RemoteConsumer(ring, HERE, subscription.credit.priority, self, holding)
        self.credit.out.size_max = OUT_BYTES_MAX
        self._poured = 0

    @property
    def exclusive(self) -> bool:
        return self.subscription.exclusive

    @property
    def holds(self) -> bool:
        return self.holding in self.ring.links()

    @property
    def held(self) -> int:
        held: int = self.subscription.credit.unacked
        return held

    @property
    def node(self) -> str:
        return ""

    @property
    def link(self) -> str:
        return self.subscription.link

    @property
    def worker(self) -> str:
        return self.subscription.worker

    @property
    def held_most(self) -> int:
        return self.held

    @property
    def filter(self) -> Filter | None:
        return self.subscription.filter

    def activated(self, active: bool) -> None:
        self.subscription.activated(active)

    def flush(self) -> None:
        self.assigned.cut(self.credit.out)

    def ended(self) -> None:
        self.subscription.ended()

    def grant(self) -> None:
        """As much as its client has room for, less what is on its way."""
        taker, credit = self.subscription.credit, self.credit
        room = taker.room if taker.writable else 0
        credit.limit = credit.delivered + max(0, room - (credit.delivered - self._poured))

    def pour(self, now_ms: int) -> None:
        """Gives its client what is committed."""
        if self.assigned.is_due and self.subscription.credit.writable:
            count, there = self.ring.deliver_held(self.subscription.credit, self.assigned.take(), now_ms)
            self._poured += there
            if count:
                self.subscription.flush()


class Holding:
    """What links hold of one queue at its owner."""

    __slots__ = ("_asked", "_gives_way", "_queue", "_returning", "consumers")

    def __init__(self, queue: HeldQueue) -> None:
        self._queue = queue
        self._returning: deque[tuple[int, list[int], Modification, Unfinished | None]] = deque()
        self._asked: deque[tuple[int, int, Callable[[list[HeldMessages]], None]]] = deque()
        self._gives_way: list[int] = []
        self.consumers: dict[Member, HoldingConsumer] = {}
        """Of this node, if it is alone."""

    def __bool__(self) -> bool:
        absent = self._queue.subscriptions.absent
        return bool(self.consumers or self._returning or self._asked or self.links or absent)

    @property
    def links(self) -> list[int]:
        """Those of which the log knows something, or will."""
        ring = self._queue.ring
        return list({*ring.links(), *(link for link, _ in LINK_ATTACH.of(ring.attributes))})

    @property
    def waits(self) -> bool:
        """Whether a commit leaves something to do."""
        return bool(self._returning or self._asked) or any(one.assigned for one in self.consumers.values())

    # -- links

    def fence(self, link: int, since: int) -> None:
        """The link is attached anew, perhaps elsewhere: what its former place says does not count any more. If it was
        not resumed (`RecoverableLink.since`), it begins with nothing."""
        self._queue.ring.attach_link(link, 0)
        self.tidy(link, since)

    def tidy(self, link: int, since: int) -> None:
        """What it held before an attach that did not resume it returns."""
        ring, name = self._queue.ring, LINK_ATTACH.name(link)
        if 0 < ring.attributes.get(name, 0) < since:
            self._begin_anew(link)
            ring.set_attribute(name, 0)

    def attached(self, link: LinkAttach, since: int) -> None:
        """It holds, or asks, under this attach."""
        ring, name = self._queue.ring, LINK_ATTACH.name(link.link)
        known = ring.attributes.get(name, 0)
        if known < since:
            self._begin_anew(link.link)
        if known != link.attach:
            ring.set_attribute(name, link.attach)

    def end(self, link: int) -> None:
        """The link is no more."""
        ring, name = self._queue.ring, LINK_ATTACH.name(link)
        ring.attach_link(link, 0)
        self._begin_anew(link)
        if name in ring.attributes:
            ring.set_attribute(name, 0)
        self._give_way(link)
        ring.mark()

    def suspend(self, member: Member, link: int) -> None:
        """The consumer of the link is gone. Of one that has ended meanwhile nothing stays, and one that held a message
        for too long is not waited for as single active consumer."""
        queue = self._queue
        is_single, goes_on = queue.subscriptions.single_active, LINK_ATTACH.name(link) in queue.ring.attributes
        if goes_on or (is_single and self._returning):
            queue.subscriptions.suspend(member, link)
            if not goes_on or (is_single and self._withdrawn(link)):
                self._give_way(link)
        else:
            queue.subscriptions.remove(member)
        queue.last_used_ms = queue.host.now_ms
        queue.ring.mark()

    def _begin_anew(self, link: int) -> None:
        """All that it holds returns, uncounted, and nothing of it is known."""
        ring = self._queue.ring
        self.give_back(ring.release_link(link, 1, ring.next_seq), UNCHANGED)
        for (number, bucket), _ in LINK_WITHDRAWN.of(ring.attributes):
            if number == link:
                ring.set_attribute(LINK_WITHDRAWN.name((link, bucket)), 0)

    def withdraw(self, link: int, first: int = 1, last: int | None = None) -> int:
        """See `LinkHolding`."""
        ring = self._queue.ring
        seqs = ring.release_link(link, first, ring.next_seq if last is None else last)
        for bucket, bits in _buckets(seqs).items():
            name = LINK_WITHDRAWN.name((link, bucket))
            ring.set_attribute(name, ring.attributes.get(name, 0) | bits)
        self.give_back(seqs, FAILED)
        self._give_way(link)
        return len(seqs)

    def _give_way(self, link: int) -> None:
        """As single active consumer it has no more reason to be waited for; the next one begins with what returns."""
        if self._returning:
            self._gives_way.append(link)
        else:
            self._queue.subscriptions.forget(link)

    def forget(self, link: int, seqs: Iterable[int]) -> None:
        """The client of the link has heard that these were withdrawn."""
        ring = self._queue.ring
        for bucket, bits in _buckets(seqs).items():
            name = LINK_WITHDRAWN.name((link, bucket))
            if known := ring.attributes.get(name, 0):
                ring.set_attribute(name, known & ~bits)
        ring.mark()

    def _withdrawn(self, link: int) -> list[HeldMessages]:
        seqs = [
            bucket * BUCKET + i
            for (number, bucket), bits in LINK_WITHDRAWN.of(self._queue.ring.attributes)
            if number == link
            for i in range(BUCKET)
            if bits >> i & 1
        ]
        return [HeldMessages(first, last, 0, withdrawn=True) for first, last in ranges_of(sorted(seqs))]

    def give_back(self, seqs: list[int], modification: Modification) -> None:
        """These were taken from their links, and return when that is committed."""
        if seqs:
            if modification.link:
                self._queue.dispatch.exclude(seqs, modification.link, lasting=True)
            changes = modification.counted or modification.change  # nobody is told before that is committed as well
            begun = self._queue.log.begin() if changes else None
            self._returning.append((committed_with(self._queue.ring), seqs, modification, begun))
            self._queue.ring.links_wait = True
            self._queue.ring.mark()

    def held(self, link: int, then: Callable[[list[HeldMessages]], None]) -> None:
        """What the link holds, when that is committed."""
        self._asked.append((committed_with(self._queue.ring), link, then))
        self._queue.ring.mark()

    def _told(self, link: int) -> list[HeldMessages]:
        found: list[HeldMessages] = []
        for seq, count, _ in self._queue.ring.held_by_link(link, 1, HELD_MAX):
            if found and found[-1].last + 1 == seq and found[-1].delivery_count == count:
                found[-1] = found[-1]._replace(last=seq)
            else:
                found.append(HeldMessages(seq, seq, count))
        return found + self._withdrawn(link)

    def read(self, link: int, seqs: Sequence[int], then: Callable[[bytes, bool], bool]) -> None:
        """Records of these, if the link holds them, in pieces, and whether that was the last one; `then` says whether
        it wants the next."""
        self._read(link, seqs, then, {})

    def _read(
        self, link: int, seqs: Sequence[int], then: Callable[[bytes, bool], bool], found: dict[int, Message]
    ) -> None:
        queue = self._queue
        while seqs:
            data, count, absent = queue.ring.read_held(link, seqs, READ_BYTES, found)
            if absent:
                self._fetch(link, seqs, then, absent)
                return
            seqs = seqs[count:]
            if not then(data, not seqs):
                return

    def _fetch(
        self, link: int, seqs: Sequence[int], then: Callable[[bytes, bool], bool], absent: Sequence[Location]
    ) -> None:
        def loaded(messages: Sequence[Message]) -> None:
            self._read(link, seqs, then, {at[0]: message for at, message in zip(absent, messages, strict=True)})

        self._queue.host.fetch(self._queue, absent, loaded)

    # -- the turn

    def turn(self, now_ms: int) -> None:
        """What waited for a commit."""
        queue, done = self._queue, self._queue.ring.groups_committed
        while self._returning and self._returning[0][0] <= done:
            self._return(*self._returning.popleft()[1:])
        self._queue.ring.links_wait = bool(self._returning)
        if self._gives_way and not self._returning:
            gone, self._gives_way = self._gives_way, []
            for link in gone:
                queue.subscriptions.forget(link)
        while self._asked and self._asked[0][0] <= done:
            _, link, then = self._asked.popleft()
            then(self._told(link))
        for consumer in self.consumers.values():
            try:
                consumer.pour(now_ms)
            except Unfit as unfit:  # the link ends, and the others wait for its next attach
                self.give_back(queue.ring.release_link(consumer.holding, unfit.seq, unfit.seq), FAILED)
                queue.host.soon(unfit.end)
            consumer.grant()

    def _return(self, seqs: Sequence[int], modification: Modification, begun: Unfinished | None) -> None:
        dispatch, log = self._queue.dispatch, self._queue.log
        log.since = None if begun is None else begun.began
        try:
            for seq in seqs:
                dispatch.modify(seq, modification)
        finally:
            log.since = None
            if begun is not None:
                log.finish(begun)

    def drop(self) -> None:
        """The queue is deleted: nothing is held of it."""
        asked, self._asked = self._asked, deque()
        self._returning.clear()
        self._queue.ring.links_wait = False
        self._gives_way.clear()
        for _, _, then in asked:
            then([])


def _buckets(seqs: Iterable[int]) -> dict[int, int]:
    """Bits of seqs by bucket."""
    found: dict[int, int] = {}
    for seq in seqs:
        bucket, bit = divmod(seq, BUCKET)
        found[bucket] = found.get(bucket, 0) | 1 << bit
    return found


def unlisted(held: Iterable[tuple[int, int, bool]], ranges: Iterable[tuple[int, int]]) -> list[int]:
    """Seqs of what is held, without those in the ranges."""
    spans, found = deque(sorted(ranges)), []
    for seq, _, _ in held:
        while spans and spans[0][1] < seq:
            spans.popleft()
        if not spans or seq < spans[0][0]:
            found.append(seq)
    return found
