"""The rows of one committed segment, on their way to its target: pure, at the owner of the segment's queue.

    look at the next group      up to ROWS_MAX rows or BYTES_MAX of what is committed in the segment, in order of seqs
    give each target its part   one publish per queue, all of it or nothing, that says which seqs it holds
    all of them are answered    the group is settled, and the next one is looked at
    nothing is left             the segment is finished

Nothing of this is remembered by an owner: the next one begins at the lowest seq that is not settled, and targets pass
over what they have (`broker.queues.log`). That is right because of three things. A segment that is committed takes
no rows; parts of one segment reach a queue in ascending order of seqs, one after the other, since a group is begun when
the one before is answered; and a part is taken as a whole, so what a queue knows of a segment is always a beginning.

*A target that refuses* (overflow reject-publish) gets the same rows again: half as many until there is room for them,
and a single one after 1 s, 2 s, 4 s ... 60 s. The rest of the segment waits. One that was deleted is none any more; if
it has ended by itself its rows are routed anew.
A row without a route goes to the target's alternate exchange, as any publish; without that it is counted, and gone.
While everybody waits for room nothing is kept in memory: the group is looked at again.

*A row that cannot be read* is held back (`broker.node.damages`), and with it all behind it, for rows keep their order.
When an operator has deleted it the others go on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from clusterbroker.broker.content.numbers import named_in
from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.queues.handle import CommitPart, Moved, QueueHandle
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.routing.choosing import numbered
from clusterbroker.broker.routing.labour import STEPS_MAX
from clusterbroker.broker.routing.router import Router
from clusterbroker.broker.transactions.onward import route_of
from clusterbroker.broker.transactions.rows import divide, next_rows, settle_rows
from clusterbroker.cluster.wiring.entities import Segment
from clusterbroker.journal.layout import Location
from clusterbroker.journal.record import Message, size_of

ROWS_MAX: Final = 8192
BYTES_MAX: Final = 1 << 21
"""Of a group; one row may be longer."""
RETRY_FIRST_MS: Final = 1000
RETRY_MAX_MS: Final = 60_000
DAMAGED_MS: Final = 2000
"""Between two looks at rows that cannot be read."""
Named = tuple[bytes, int]
Way = tuple[bytes, "list[Part]"]
"""The address of rows from now on, and the parts that they go into."""


class Host(Protocol):
    """The node, as a mover sees it."""

    @property
    def now_ms(self) -> int: ...

    def fetch(
        self,
        queue: LocalQueue,
        locations: Sequence[Location],
        then: Callable[[Sequence[Message]], None],
        otherwise: Callable[[], None] = ...,
    ) -> None:
        """Reads messages; `then` is called unless the queue goes away, `otherwise` when some cannot be read."""

    def wake(self, queue: LocalQueue, at_ms: int) -> None:
        """Gives the queue a turn at this time."""

    def published(self, size: int) -> None:
        """So many bytes were put into journaled queues."""

    def routed(self, vhost: str, exchange: str, rows: int, copies: int, lost: int) -> None:
        """So many rows were published to the exchange, and into so many queues; some found none."""


class Part:
    """What one target gets of a group: rows with their seqs, and their producers' numbers of those that have them."""

    __slots__ = ("again_ms", "at", "limit", "messages", "named", "seqs", "target", "tries", "waits")

    def __init__(self, target: QueueHandle) -> None:
        self.target = target
        self.messages: list[Message] = []
        self.seqs: list[int] = []
        self.named: dict[int, Named] = {}
        self.at = 0  # so many are taken
        self.limit = ROWS_MAX
        self.tries = 0
        self.again_ms = 0
        self.waits = False  # for the target's answer

    def next(self, segment: int) -> CommitPart:
        """The next rows, at most as many as the target may have room for."""
        end = min(self.at + self.limit, len(self.messages))
        part = CommitPart()
        part.moved = Moved(segment, self.seqs[self.at : end])
        first = self.at
        for place in sorted(place for place in self.named if self.at <= place < end):
            if first < place:
                part.publishes.append((self.messages[first:place], None))
            part.publishes.append((self.messages[place : place + 1], self.named[place]))
            first = place + 1
        if first < end:
            part.publishes.append((self.messages[first:end], None))
        return part

    def answered(self, count: int, refused: bool, now_ms: int) -> None:
        """The target has taken the next `count` rows, or none of them."""
        self.waits = False
        if not refused:
            self.at += count
            self.limit = min(ROWS_MAX, 2 * self.limit)
            self.tries = self.again_ms = 0
        elif count > 1:
            self.limit = count // 2
        else:
            self.again_ms = now_ms + min(RETRY_FIRST_MS << min(self.tries, 16), RETRY_MAX_MS)
            self.tries += 1

    @property
    def is_astray(self) -> bool:
        """Its target has ended, and nobody has deleted it: the rows go another way."""
        return self.target.deleted and self.target.entity.ends_unasked

    @property
    def is_over(self) -> bool:
        return self.at == len(self.messages) or (self.target.deleted and not self.is_astray)


class Enough(Exception):
    """The route of this row, and of those behind it, is found another time."""

    def __init__(self, message: Message) -> None:
        self.message = message


class Mover:
    """Of one segment, in one epoch of its owner.

    unroutable   rows that found no queue
    finished     nothing is left
    at_once      rows of its last turn that nobody had to answer for: without a queue, or in queues that commit at once
    since_ms     when it took the rows that it has in its hands
    """

    __slots__ = (
        "_again_ms", "_at", "_counted", "_group", "_have", "_loading", "_parts", "_prefix", "_refused", "at_once",
        "ended", "finished", "host", "queue", "router", "segment", "since_ms", "unroutable",
    )  # fmt: skip

    def __init__(self, queue: LocalQueue, segment: Segment, router: Router[QueueHandle], host: Host) -> None:
        assert segment.place is not None, "rows are moved when they are committed"
        self.queue = queue
        self.segment = segment
        self.router = router
        self.host = host
        self.unroutable = self.since_ms = self.at_once = 0
        self.finished = False
        self.ended = False
        target = segment.target.encode()
        self._prefix = bytes((len(target),)) + target
        self._at = 1
        self._group: list[int] = []
        self._parts: list[Part] = []
        self._loading = False
        self._counted = 0  # rows up to this seq were routed once
        self._again_ms = 0  # not before then it goes on: it rests, or tries again what was refused
        self._have: dict[QueueHandle, int] = {}  # of the group that is tried again: the last seq that a target has
        self._refused: dict[QueueHandle, tuple[int, int]] = {}  # targets that had no room: (rows at once, tries)

    @property
    def holds(self) -> bool:
        """Whether it has rows in its hands."""
        return bool(self._group) or self._loading

    def turn(self, now_ms: int) -> bool:
        """Does what can be done now; whatever it waits for gives its queue a turn. Whether nothing is left."""
        self.at_once = 0
        until = self.router.labour.done + STEPS_MAX
        queue = self.queue
        while not (self.ended or self._loading or queue.paused or queue.halted or queue.deleted):
            if now_ms < self._again_ms:
                self.host.wake(self.queue, self._again_ms)
                return False
            begins = not self._group
            if begins and not self._look():
                return self.finished
            if not self._give(now_ms):
                return False
            self.at_once += len(self._group) if begins else 0
            self._settle()
            if self.at_once >= ROWS_MAX or self.router.labour.done > until:
                self.rest(now_ms)
        return False

    def rest(self, now_ms: int) -> None:
        """Others have their turns."""
        self._again_ms = max(self._again_ms, now_ms + 1)

    # -- a group --------------------------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Finds the next group. False: there is none, or its content is on its way from the disk."""
        ring = self.queue.ring
        top = (ring.committed if ring.replicated else ring.next_seq) - 1
        self.since_ms = self.host.now_ms
        seqs, messages, absent = next_rows(ring, self._at, top, ROWS_MAX, BYTES_MAX)
        if not seqs:
            self.finished = top == ring.next_seq - 1
            return False
        if not absent:
            self._begin(seqs, messages)
            return True

        def loaded(found: Sequence[Message]) -> None:
            self._loading = False
            if not self.ended:
                read = iter(found)
                self._begin(seqs, [next(read) if message is None else message for message in messages])
                self.queue.ring.mark()

        def unread() -> None:
            """Some are damaged: the rows stay as they are, in their order, until an operator has deleted those."""
            self._loading = False
            self._again_ms = self.host.now_ms + DAMAGED_MS
            self.queue.ring.mark()

        self._loading = True
        self.host.fetch(self.queue, absent, loaded, unread)
        return False

    def _begin(self, seqs: list[int], messages: list[Any]) -> None:
        """Routes the rows of a group. Those whose routes are too much work for one turn are left for the next group."""
        parts: dict[QueueHandle, Part] = {}
        ways: dict[bytes, Way] = {}
        labour = self.router.labour
        until = labour.done + STEPS_MAX
        places: dict[int, int] = {}

        def way_of(message: Message, alone: bool) -> Way:
            if labour.done > until and message is not messages[0]:
                raise Enough(message)
            if not places:
                places.update((id(each), seq) for seq, each in zip(seqs, messages, strict=True))
            address, targets, named, of_key = self._route(message, alone, places[id(message)])
            into = [parts.get(target) or parts.setdefault(target, Part(target)) for target in targets]
            if named is not None:
                for part in into:
                    part.named[len(part.seqs)] = named
            if of_key and into:
                ways[message.address] = address, into
            return address, into

        try:
            lost = divide(seqs, messages, ways, way_of, self.host.now_ms)
        except Enough as enough:
            count = next(place for place, message in enumerate(messages) if message is enough.message)
            self._begin(seqs[:count], messages[:count])
            return
        if seqs[-1] > self._counted:
            self._counted = seqs[-1]
            self.unroutable += len(lost)
            copies = sum(len(part.seqs) for part in parts.values())
            self.host.routed(self.segment.vhost, self.segment.target, len(seqs), copies, len(lost))
        for part in parts.values():
            part.at = bisect_right(part.seqs, self._have.get(part.target, 0))
            part.limit, part.tries = self._refused.get(part.target, (ROWS_MAX, 0))
        self._group = seqs
        self._parts = list(parts.values())

    def _route(
        self, message: Message, alone: bool, seq: int
    ) -> tuple[bytes, Sequence[QueueHandle], Named | None, bool]:
        """The row's address from now on, its queues, and its number if its producer gave one; whether its key alone
        says so, and no header or property."""
        key = message.routing_key
        address = self._prefix + bytes((len(key),)) + key
        if not alone:
            route = self.router.reach(self.segment.target, key.decode("utf-8", "surrogateescape"), lambda: None)
            if not route.uncacheable:
                return address, route.targets, None, True
        properties = properties_of(message)
        named: Named | None = None
        with suppress(ValueError):  # such a row was refused, or an older release took it
            named = named_in(properties.headers)
        by = numbered(*(named or (self.segment.name.encode(), seq)))
        return address, route_of(self.router, self.segment.target, message, properties, by).targets, named, False

    # -- its targets ----------------------------------------------------------------------------------------------

    def _give(self, now_ms: int) -> bool:
        """Gives targets what they are due; whether all have everything."""
        for part in self._parts:
            while not (part.is_over or part.is_astray or part.waits or part.again_ms > now_ms):
                self._give_part(part)
        if any(part.waits for part in self._parts):
            return False
        full = [part for part in self._parts if not part.is_over]
        if full:
            self._again_ms = min(now_ms + 1 if part.is_astray else part.again_ms for part in full)
            self.host.wake(self.queue, self._again_ms)
            self._let_go()
        return not full

    def _let_go(self) -> None:
        """The group is looked at again when those that refused are tried again."""
        for part in self._parts:
            if part.at:
                self._have[part.target] = part.seqs[part.at - 1]
            if part.limit < ROWS_MAX or part.tries:
                self._refused[part.target] = part.limit, part.tries
        self._group, self._parts = [], []

    def _give_part(self, part: Part) -> None:
        some = part.next(self.segment.queue_id)
        assert some.moved is not None, "a part is rows of the segment"
        count = len(some.moved.seqs)

        def answered(ticket: Ticket) -> None:
            refused = ticket.rejected and (part.is_astray or not part.target.deleted)
            part.answered(count, refused, self.host.now_ms)
            if not self.ended:
                self.queue.ring.mark()

        ticket = Ticket(0, 0, answered)
        part.waits = True
        if part.target.ring.journaled:
            self.host.published(sum(size_of(messages) for messages, _ in some.publishes))
        part.target.commit(some, ticket, self.host.now_ms)
        ticket.pass_()

    def _settle(self) -> None:
        settle_rows(self.queue.ring, self._group)
        self.queue.ring.mark()
        self._at = self._group[-1] + 1
        self._refused = {part.target: (part.limit, 0) for part in self._parts if part.limit < ROWS_MAX}
        self._have.clear()
        self._group, self._parts = [], []
