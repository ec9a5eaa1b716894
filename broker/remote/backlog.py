"""Publishes of a queue that its owner has not yet reported as committed, in order.

Each message has a number: 1, 2, 3 ... per queue and incarnation of this node, without gaps. The owner takes the next
number only, so a message is in the queue once however often it is sent. An entry is one publish; it is kept whole,
and its messages are kept, until `Published` reports all of it as committed.

    waiting -> sent -> gone         after each new attachment: sent -> waiting, except entries that the owner has

*Commits.* A transaction's part in the queue is one entry, and goes as one `Commit` frame: its settlements with its
messages. By the numbers of its messages it is taken once, settlements included.

*Holding back.* While a publish is on its way to the owner, later ones wait here until that one is committed, or until
HOLD_BYTES of them wait: the owner could not write them earlier either (a queue has one group in flight), and each
frame costs two nodes a turn. A busy queue's publishes thus go in step with its groups, without a timer.

*Refusals* (overflow reject-publish) are reported once, and no record holds them. An owner accepts nothing behind a
refusal before a new attach, so a refused number without a report here is sent again, and judged anew. Of a publish of
which some is refused, what is reported goes: it is not sent again with the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from clusterbroker.broker.queues.handle import HELD_BY_NOBODY, Decided, Moved
from clusterbroker.broker.queues.link_deliveries import Tagged
from clusterbroker.broker.queues.link_held import LinkAttach
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.remote.messages import (
    SETTLE_ACK,
    SETTLE_REJECT,
    SETTLE_REQUEUE,
    Commit,
    LinkRanges,
    NamedPublish,
    Range,
    TaggedPublish,
)
from clusterbroker.broker.remote.outbox import Outbox
from clusterbroker.journal.ranges import ranges_of
from clusterbroker.journal.record import Message, RecordBuffer, size_of

PART_BYTES_MAX: Final = 1 << 20
"""An entry that would make a part longer than this begins a new one."""

HOLD_BYTES: Final = 16 << 10
"""As much as one TLS record takes is worth a frame of its own."""

OUTCOMES: Final = {"ack": SETTLE_ACK, "reject": SETTLE_REJECT, "requeue": SETTLE_REQUEUE}
Named = tuple[bytes, int]  # producer, its number of the message
Numbered = tuple[bytes, Sequence[int]]  # producer, its number of each message
RUN_MAX: Final = 4096
"""Numbers in one frame, unless one publish has more."""


def held_by_links(staged: Iterable[Decided]) -> LinkRanges:
    """Which links have what a transaction settles."""
    links: dict[LinkAttach, list[int]] = {}
    for one in staged:
        if one.link.link:
            links.setdefault(one.link, []).append(one.seq)
    return tuple((link, tuple(ranges_of(seqs))) for link, seqs in links.items())


class Committing:
    """What belongs to a transaction's messages: settlements by outcome, those of them whose producers number their own
    by their place, and who must hear whether it was refused; whose rows they are, if they are rows of a segment; and
    annotations of the letters of what is rejected. `loses`: the messages do not come, and stand for their numbers.
    `left`: of `seqs`, those that the node has left to their link since, or returned. Whoever has them here now has them
    from the owner."""

    __slots__ = ("answered", "changes", "judged", "left", "links", "loses", "moved", "named", "seqs", "settlements")

    def __init__(
        self, staged: Sequence[Decided], named: dict[int, Named], answered: Callable[[bool], None],
        moved: Moved | None = None, judged: bool = False,
    ) -> None:  # fmt: skip
        """`staged`: settled with the messages; what returns is none of it."""
        seqs: dict[int, list[int]] = {}
        changes: dict[bytes, list[int]] = {}
        for one in staged:
            seqs.setdefault(OUTCOMES[one.outcome], []).append(one.seq)
            if one.change:
                changes.setdefault(one.change, []).append(one.seq)
        self.judged = judged
        self.seqs = tuple(one.seq for one in staged if one.seq != HELD_BY_NOBODY)
        self.loses = len(self.seqs) < len(staged)
        self.moved = moved
        self.settlements = tuple((outcome, tuple(ranges_of(some))) for outcome, some in seqs.items())
        self.changes = tuple((change, tuple(ranges_of(some))) for change, some in changes.items())
        self.links = held_by_links(staged)
        self.left: set[int] = set()
        self.named = named
        self.answered = answered


class Entry:
    """The messages of one publish, `first` to `last`. `begin`: the number of the first of all, with those that are
    decided and gone. `refused`: ranges of numbers."""

    __slots__ = ("begin", "commit", "first", "last", "messages", "named", "refused", "size", "tagged", "ticket")

    def __init__(
        self, first: int, messages: Sequence[Message], ticket: Ticket | None, named: Numbered | None,
        commit: Committing | None, tagged: Tagged | None = None,
    ) -> None:  # fmt: skip
        self.begin = self.first = first
        self.last = first + len(messages) - 1
        self.messages = messages
        self.ticket = ticket
        self.named = named
        self.commit = commit
        self.tagged = tagged
        self.size = size_of(messages)
        self.refused: tuple[Range, ...] = ()

    def refuse(self, first: int, last: int) -> None:
        """The owner has not taken these numbers, as far as they are of it."""
        first, last = max(first, self.first), min(last, self.last)
        if first <= last:
            self.refused += ((first, last),)

    def cut(self, upto: int) -> None:
        """What is decided goes, up to this number, which is not the last one."""
        count = upto + 1 - self.first
        self.first, self.messages = upto + 1, self.messages[count:]
        if self.named is not None:
            self.named = self.named[0], self.named[1][count:]
        self.size = size_of(self.messages)

    def answer(self, queue: str) -> None:
        if self.commit is not None:
            self.commit.answered(bool(self.refused))
        if self.ticket is not None:
            for first, last in self.refused:
                self.ticket.reject_some(queue, first - self.begin, last - self.begin)
            self.ticket.pass_()


_NOTHING: Final[dict[int, Committing]] = {}
"""Of a queue whose transactions settle nothing. It stays empty."""


class Backlog:
    """Publishes of one queue.

    size    bytes of all that is here
    sent    number of the last message that was ever sent to an owner
    """

    __slots__ = (
        "_accepted", "_again", "_queue", "_sent", "_settling", "_waiting", "_waiting_bytes", "next_number", "sent",
        "size",
    )  # fmt: skip

    def __init__(self, queue: str) -> None:
        """`queue`: its name."""
        self._queue = queue
        self.next_number = 1
        self.sent = 0
        self.size = 0
        self._accepted = 0  # the owner has all up to it
        self._sent: deque[Entry] | tuple[()] = ()  # an empty deque weighs 760 bytes, and most queues rest
        self._waiting: deque[Entry] | tuple[()] = ()
        self._waiting_bytes = 0
        self._settling: dict[int, Committing] = _NOTHING
        """Seq -> the last part that settles it."""
        self._again = False  # what waits was sent in an earlier attachment: it has waited for long enough

    def __bool__(self) -> bool:
        return bool(self._sent or self._waiting)

    @property
    def next_to_send(self) -> int:
        """All messages with lower numbers have been sent in this attachment."""
        return self._waiting[0].first if self._waiting else self.next_number

    @property
    def settles(self) -> bool:
        """Whether a transaction that is not answered settles something."""
        return bool(self._settling)

    def leave(self, seqs: Iterable[int]) -> None:
        """The node has left these to their link, or returned them: what becomes of a transaction that settles them has
        nothing to say about them."""
        for seq in seqs if self._settling else ():
            if (commit := self._settling.get(seq)) is not None:
                commit.left.add(seq)

    def _answer(self, entry: Entry) -> None:
        entry.answer(self._queue)
        if entry.commit is not None and self._settling:
            own = [seq for seq in entry.commit.seqs if self._settling.get(seq) is entry.commit]
            for seq in own:
                del self._settling[seq]
            if not self._settling:
                self._settling = _NOTHING

    @property
    def holds_back(self) -> bool:
        """What waits goes on when the owner calls committed what it has."""
        return bool(self._sent) and self._waiting_bytes < HOLD_BYTES and not self._again

    def publish(
        self, messages: Sequence[Message], ticket: Ticket | None, named: Numbered | None = None,
        commit: Committing | None = None, tagged: Tagged | None = None,
    ) -> int:  # fmt: skip
        """Takes the messages and holds the ticket; returns their size in bytes."""
        entry = Entry(self.next_number, messages, ticket, named, commit, tagged)
        if ticket is not None:
            ticket.hold()
        self.next_number = entry.last + 1
        if commit is not None and commit.seqs:
            self.leave(commit.seqs)  # an earlier part's: the client has had it anew since
            if self._settling is _NOTHING:
                self._settling = {}
            self._settling.update(dict.fromkeys(commit.seqs, commit))
        if isinstance(self._waiting, tuple):
            self._waiting = deque()
        self._waiting.append(entry)
        self._waiting_bytes += entry.size
        self.size += entry.size
        return entry.size

    # -- out

    def detached(self, outbox: Outbox | None) -> None:
        """What was sent may be lost."""
        if outbox is not None:
            outbox.in_flight_bytes -= sum(entry.size for entry in self._sent)
        if self._sent:
            self._sent.extend(self._waiting)
            self._waiting, self._sent = self._sent, ()
        self._waiting_bytes = self.size

    def attached(self, accepted: int, outbox: Outbox) -> None:
        """The owner has all up to number `accepted`; the rest is to be sent again."""
        self._accepted = accepted
        self._again = True
        while self._waiting and self._waiting[0].last <= accepted:
            self._departed(outbox)

    def send(self, outbox: Outbox, queue_id: int, epoch: int, gen: int) -> None:
        """Hands over as much as the owner's window allows, which all its queues share. One that has nothing under way
        may send one publish all the same: others may fill the window for as long as they cannot commit."""
        while self._waiting and not outbox.spent and (outbox.open or not (self._sent or outbox.shut)):
            if self._waiting[0].named is not None:
                self._send_named(outbox, queue_id, epoch, gen)
                continue
            if self._waiting[0].commit is not None:
                self._send_commit(outbox, queue_id, epoch, gen)
                continue
            if self._waiting[0].tagged is not None:
                self._send_tagged(outbox, queue_id, epoch, gen)
                continue
            buffer = RecordBuffer()
            first = number = max(self._waiting[0].first, self._accepted + 1)
            while self._waiting and (outbox.open or number == first) and buffer.size < PART_BYTES_MAX:
                entry = self._waiting[0]
                if entry.named is not None or entry.commit is not None or entry.tagged is not None:
                    break
                number += buffer.enqueue_all(queue_id, epoch, number, entry.messages, number - entry.first)
                self._departed(outbox)
            outbox.publish((queue_id, epoch, gen, first, number - first), buffer.take())
        self._again = self._again and bool(self._waiting)

    def _send_named(self, outbox: Outbox, queue_id: int, epoch: int, gen: int) -> None:
        """Numbered messages of one producer, in one frame with those behind them, if the owner reads that."""
        assert self._waiting, "it was looked at just now"
        entry = self._waiting[0]
        assert entry.named is not None, "only numbered messages go this way"
        producer, numbers = entry.named[0], list[int]()
        first = number = max(entry.first, self._accepted + 1)
        if not outbox.takes_runs:
            for place in range(first - entry.first, len(entry.messages)):
                buffer = RecordBuffer()
                buffer.enqueue(queue_id, epoch, entry.first + place, entry.messages[place], 0, False)
                head = NamedPublish(queue_id, epoch, gen, entry.first + place, producer, entry.named[1][place])
                outbox.publish_apart(head, buffer.take())
            self._departed(outbox)
            return
        buffer = RecordBuffer()
        while self._waiting and (outbox.open or number == first) and buffer.size < PART_BYTES_MAX:
            entry = self._waiting[0]
            if entry.named is None or entry.named[0] != producer or len(numbers) > RUN_MAX:
                break
            more = entry.named[1][number - entry.first :]
            if numbers and more[0] <= numbers[-1]:
                break
            numbers += more
            number += buffer.enqueue_all(queue_id, epoch, number, entry.messages, number - entry.first)
            self._departed(outbox)
        head = NamedPublish(queue_id, epoch, gen, first, producer, numbers[0], tuple(numbers[1:]))
        outbox.publish_apart(head, buffer.take())

    def _send_tagged(self, outbox: Outbox, queue_id: int, epoch: int, gen: int) -> None:
        assert self._waiting, "it was looked at just now"
        entry = self._waiting[0]
        assert entry.tagged is not None, "only deliveries of a recoverable link go this way"
        link, attach, number, tags, again = entry.tagged
        buffer = RecordBuffer()
        buffer.enqueue_all(queue_id, epoch, entry.first, entry.messages, 0)
        head = TaggedPublish(queue_id, epoch, gen, entry.first, link, attach, number, tags, tuple(again))
        outbox.publish_apart(head, buffer.take())
        self._departed(outbox)

    def _send_commit(self, outbox: Outbox, queue_id: int, epoch: int, gen: int) -> None:
        assert self._waiting, "it was looked at just now"
        entry = self._waiting[0]
        commit = entry.commit
        assert commit is not None, "only a transaction goes this way"
        buffer = RecordBuffer()
        buffer.enqueue_all(queue_id, epoch, entry.first, entry.messages, 0)
        named = tuple((entry.first + place, *name) for place, name in commit.named.items())
        count = len(entry.messages)
        moved = None if commit.moved is None else (commit.moved.segment, tuple(commit.moved.seqs))
        lost = commit.loses and outbox.takes_lost_numbers  # else the owner refuses a part that nobody holds
        settlements = () if lost else commit.settlements
        head = Commit(
            queue_id, epoch, gen, entry.first, count, settlements, named, moved, commit.changes, commit.judged, lost,
            () if lost else commit.links,
        )  # fmt: skip
        outbox.publish_apart(head, buffer.take())
        self._departed(outbox)

    def _departed(self, outbox: Outbox) -> None:
        assert self._waiting, "what departs has waited"
        entry = self._waiting.popleft()
        if isinstance(self._sent, tuple):
            self._sent = deque()
        self._sent.append(entry)
        self.sent = max(self.sent, entry.last)
        self._waiting_bytes -= entry.size
        outbox.in_flight_bytes += entry.size

    # -- answers

    def published(self, upto: int, refused: Sequence[Range], outbox: Outbox) -> int:
        """All up to number `upto` is committed, but for the refused; returns how many bytes that were."""
        for first, last in refused:
            for entry in self._sent:
                entry.refuse(first, last)
        before = self.size
        while self._sent and self._sent[0].last <= upto:
            entry = self._sent.popleft()
            self.size -= entry.size
            outbox.in_flight_bytes -= entry.size
            self._answer(entry)
        if refused and self._sent and self._sent[0].first <= upto:
            entry = self._sent[0]
            whole = entry.size
            entry.cut(upto)
            self.size -= whole - entry.size
            outbox.in_flight_bytes -= whole - entry.size
        return before - self.size

    def drop(self, outbox: Outbox | None, refused: bool) -> int:
        """Forgets everything, for a deleted queue takes what it gets; returns how many bytes were here. `refused`: one
        that has ended without that takes nothing."""
        self.detached(outbox)
        size, self.size = self.size, 0
        self._waiting_bytes = 0
        waiting, self._waiting = self._waiting, ()
        for entry in waiting:
            entry.refused = ((entry.first, entry.last),) if refused else ()
            self._answer(entry)
        return size
