"""Publishes of remote queues at the queue's owner: in their order, each once.

Publishes are known by their numbers: the next one is taken, a known one is answered when it is committed, a gap asks
for a new attach. A transaction's part (`Commit`) has settlements too (`settling`): it goes by its publishes' numbers,
and is refused if its node does not hold what it settles. Everything from one frame stands in one group of the log.

A queue that may refuse judges nothing before it is open: until every node has attached, messages held by their
clients look ready, and would take the room of publishes. Publishes are passed over meanwhile, and sent again then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from clusterbroker.broker.content.message import taken_at
from clusterbroker.broker.queues.handle import CommitPart, Moved
from clusterbroker.broker.queues.link_deliveries import Tagged
from clusterbroker.broker.queues.local_queue import LocalQueue, Row
from clusterbroker.broker.queues.producers import is_dead_letter
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.remote.attachment import Attachment
from clusterbroker.broker.remote.host import OwnedQueueHost
from clusterbroker.broker.remote.messages import (
    SETTLE_ACK,
    SETTLE_REJECT,
    Commit,
    NamedPublish,
    Settlement,
    TaggedPublish,
)
from clusterbroker.broker.remote.settling import Settling
from clusterbroker.journal.ranges import subtract
from clusterbroker.journal.record import Message, bodies_but_last, read_records
from clusterbroker.replication.errors import BadMessage

_NONE: Final[frozenset[int]] = frozenset()


class IngestedQueue(Protocol):
    """What ingest needs of the owned queue."""

    queue: LocalQueue
    host: OwnedQueueHost
    settling: Settling

    @property
    def open(self) -> bool:
        """Whether the queue hands out, and so knows its room."""

    @property
    def has_gap(self) -> bool:
        """Whether clients may hold messages of which the queue knows nothing."""

    def touch(self) -> None:
        """Asks for a turn of the owned queue."""

    def detach(self, attachment: Attachment, why: str) -> None:
        """Voids the attachment and asks for a new attach."""

    def pass_over(self, attachment: Attachment) -> None:
        """The attachment's publishes are dropped until the queue is open, and then sent again."""

    def passes_over(self, attachment: Attachment) -> bool: ...

    def hear_again(self) -> None:
        """Those say all of it again."""


class Ingest:
    """Of one queue and epoch."""

    __slots__ = ("_brought", "_noted", "_owned")

    def __init__(self, owned: IngestedQueue) -> None:
        self._owned = owned
        self._brought = _NONE  # a damaged one is not waited for
        self._noted: int | None = None  # a mark (`durable`): when a refusal was last noted that is not committed

    # -- publishes ------------------------------------------------------------------------------------------------

    def publish(self, attachment: Attachment, first: int, count: int, records: memoryview) -> None:
        if self._too_early(attachment) or not self._next(attachment, first, first + count - 1):
            return
        queue = self._owned.queue
        last = first + count - 1
        self._owned.host.published(len(records))
        if queue.entity.staging and not queue.has_room(self._owned.host.now_ms, count, len(records)):
            attachment.refuse(first, last)
            self._owned.touch()
            return
        if first <= attachment.died or not self._takes_all(count, len(records)):
            for number, message in enumerate(self._came(records), first):
                if not self._take_one(attachment, number, message):
                    return
            return
        if attachment.refused is not None:
            return
        ticket = attachment.ticket(last)
        rests = not queue.ring.marked
        seq = queue.ring.next_seq
        taken = queue.publish_records(records, ticket, self._owned.host.now_ms)
        assert taken == count, f"a Publish of {count} messages holds {taken}"
        self._came_before(attachment, first, seq)
        self._accepted(attachment, last, ticket)
        if rests:
            queue.host.rest(queue)

    def _takes_all(self, count: int, size: int) -> bool:
        """Whether so many messages find room, whatever becomes of each: none of them has to be looked at."""
        queue = self._owned.queue
        return not queue.rejects or queue.entity.staging or queue.has_room(self._owned.host.now_ms, count, size)

    def publish_named(self, attachment: Attachment, named: NamedPublish, records: memoryview) -> None:
        first, numbers = named.number, (named.sequence, *named.more)
        last = first + len(named.more)
        if self._too_early(attachment) or not self._next(attachment, first, last):
            return
        queue, producer = self._owned.queue, named.producer
        self._owned.host.published(len(records))
        if named.more and queue.ring.replicated and not queue.rejects and first > attachment.died:
            self._take_run(attachment, first, producer, numbers, records)
            return
        messages = self._came(records, producer)
        for number, sequence, message in zip(range(first, last + 1), numbers, messages, strict=True):
            if not self._take_named(attachment, number, (producer, sequence), message):
                return

    def _take_run(
        self, attachment: Attachment, first: int, producer: bytes, numbers: Sequence[int], records: memoryview
    ) -> None:
        """Takes numbered messages of which none is refused; all of them come to the log."""
        if attachment.refused is not None:
            return
        queue, now_ms, last = self._owned.queue, self._owned.host.now_ms, first + len(numbers) - 1
        ticket = attachment.ticket(last)
        seq = queue.ring.next_seq
        new = queue.log.producers.note_new(producer, numbers)
        if len(new) == len(numbers) and not queue.keeps_times_of(producer):
            queue.publish_records(records, ticket, now_ms)
        elif new:
            each = self._came(records, producer)
            queue.publish([each[place] for place in new], ticket, now_ms)
        else:
            queue.log.promise(ticket)
        self._came_before(attachment, first + (new[0] if new else 0), seq)
        self._accepted(attachment, last, ticket)

    def _take_named(self, attachment: Attachment, number: int, named: tuple[bytes, int], message: Message) -> bool:
        """Takes a numbered message that the queue may refuse; False: those behind it wait for the next attach."""
        queue, (producer, sequence) = self._owned.queue, named
        known = queue.log.producers.knows(producer, sequence)
        letter = is_dead_letter(producer) and queue.kills
        if not known and not letter and not self._accepts(attachment, number, message):
            self._remember(attachment, [named])
            return True
        if attachment.refused is not None:
            return False
        ticket = attachment.ticket(number)
        seq = queue.ring.next_seq
        if letter and not known and queue.rejects and not queue.has_room(self._owned.host.now_ms):
            queue.kill_named(producer, sequence, message, ticket)
        else:
            queue.publish_numbered(producer, (sequence,), (message,), ticket, self._owned.host.now_ms)
        self._came_before(attachment, number, seq)
        self._accepted(attachment, number, ticket)
        return True

    def publish_tagged(self, attachment: Attachment, head: TaggedPublish, records: memoryview) -> None:
        """Deliveries of a recoverable link: those that are not here, or none of them."""
        first, count = head.first, len(head.tags)
        last = first + count - 1
        if self._too_early(attachment) or not self._next(attachment, first, last):
            return
        queue, now_ms = self._owned.queue, self._owned.host.now_ms
        self._owned.host.published(len(records))
        tagged = Tagged(head.link, head.attach, head.number, head.tags, frozenset(head.again))
        if queue.refuses_tagged(tagged):
            attachment.refuse(first, last)
            self._owned.touch()
            return
        places = queue.new_of(tagged)
        if places is None:
            fits = not queue.rejects or queue.has_room_for(count, bodies_but_last(records), now_ms)
        else:
            each = self._came(records)
            new = [each[place] for place in places]
            fits = queue.takes(new, now_ms)
        if last <= attachment.died or not fits:
            attachment.refuse(first, last)
            self._owned.touch()
            return
        if attachment.refused is not None:
            return
        ticket = attachment.ticket(last)
        seq = queue.ring.next_seq
        queue.log.deliveries.note(tagged, places)
        if places is None:
            taken = queue.publish_records(records, ticket, now_ms)
            assert taken == count, f"a TaggedPublish of {count} messages holds {taken}"
        elif new:
            queue.publish(new, ticket, now_ms)
        else:
            queue.log.promise(ticket)
        self._came_before(attachment, last + 1 - (queue.ring.next_seq - seq), seq)
        self._accepted(attachment, last, ticket)

    def commit(self, attachment: Attachment, commit: Commit, records: memoryview) -> None:
        """A transaction's part: everything in the next group, or nothing if one message finds no room."""
        last = commit.first + commit.count - 1
        if self._too_early(attachment) or not self._next(attachment, commit.first, last):
            return
        queue, now_ms = self._owned.queue, self._owned.host.now_ms
        self._owned.host.published(len(records))
        if commit.moved is not None:
            self._take_rows(attachment, commit, Moved(*commit.moved), records)
            return
        named = {number: (producer, sequence) for number, producer, sequence in commit.named}
        if commit.lost:
            self._lose(attachment, last, named.values())
            return
        # hundreds of thousands may come at once: they are looked at one by one only if somebody asks for that
        each = self._came(records) if named else []
        known = {name for name in named.values() if queue.log.producers.knows(*name)}
        if commit.judged and not queue.is_ending:
            fits = True
        elif known:
            fits = queue.takes(
                [m for number, m in enumerate(each, commit.first) if named.get(number) not in known], now_ms
            )
        else:
            fits = not queue.rejects or queue.has_room_for(commit.count, bodies_but_last(records), now_ms)
        fits = fits and (
            attachment.refused is not None
            or self._owned.settling.holds_all(attachment, commit.settlements, commit.links)
        )
        if last <= attachment.died or not fits:
            attachment.refuse(commit.first, last)
            self._remember(attachment, [name for name in named.values() if name not in known])
            self._owned.touch()
            return
        if attachment.refused is not None or self._brings(attachment, commit):
            return
        ticket = attachment.ticket(last)
        seq = queue.ring.next_seq
        queue.replacing(_leaving(commit))
        if named:
            for number, message in enumerate(each, commit.first):
                if number in named:
                    producer, sequence = named[number]
                    queue.publish_numbered(producer, (sequence,), (message,), ticket, now_ms)
                else:
                    queue.publish((message,), ticket, now_ms)
        else:
            taken = queue.publish_records(records, ticket, now_ms)
            assert taken == commit.count, f"a Commit of {commit.count} messages holds {taken}"
        queue.replacing()
        self._came_before(attachment, commit.first, seq)
        changed = self._owned.settling.commit(attachment, _parts(commit))
        if changed and (queue.ring.needs_write or queue.log.unfinished):
            attachment.until_durable(ticket)
        self._accepted(attachment, last, ticket)
        queue.ring.mark()

    def _lose(self, attachment: Attachment, last: int, named: Iterable[tuple[bytes, int]]) -> None:
        """Messages with these numbers do not come, unless they are sent once more."""
        if attachment.refused is not None:
            return
        queue = self._owned.queue
        ticket = attachment.ticket(last)
        for name in named:
            if not queue.log.producers.knows(*name):
                queue.log.producers.refuse(*name)
        queue.log.promise(ticket)
        attachment.until_durable(ticket)
        self._accepted(attachment, last, ticket)
        queue.ring.mark()

    def _brings(self, attachment: Attachment, commit: Commit) -> bool:
        """What dies in one group with the publishes is annotated in it: a message that is on the disk alone is brought
        first, once, and the part comes again with the next attach."""
        queue = self._owned.queue
        dying = [seq for _, ranges in commit.changes for first, last in ranges for seq in range(first, last + 1)]
        missing = [seq for seq in dying if seq not in self._brought and queue.ring.message(seq) is None]
        self._brought = self._brought.union(missing) if missing else _NONE
        if not missing or queue.settings.dead_letter_exchange is None:
            return False
        self._owned.pass_over(attachment)
        queue.preload(missing, self._owned.hear_again)
        return True

    def _take_rows(self, attachment: Attachment, commit: Commit, moved: Moved, records: memoryview) -> None:
        """Rows of a committed segment: those that are not here, or none if there is no room for them."""
        if len(moved.seqs) != commit.count or list(moved.seqs) != sorted(set(moved.seqs)):
            raise BadMessage(
                f"{commit.count} rows of segment {moved.segment} with seqs that are not as many and rising"
            )
        queue, now_ms = self._owned.queue, self._owned.host.now_ms
        last = commit.first + commit.count - 1
        rows: list[Row] = []
        whole = not commit.named and not queue.known_rows(moved)
        if not whole:
            named = {number: (producer, sequence) for number, producer, sequence in commit.named}
            part = CommitPart()
            part.moved = moved
            part.publishes = [((m,), named.get(number)) for number, m in enumerate(self._came(records), commit.first)]
            rows = queue.new_rows(part)
        count = commit.count if whole else len(rows)
        fits = not queue.rejects or queue.has_room_for(count, bodies_but_last(records), now_ms)
        if last <= attachment.died or not fits:
            attachment.refuse(commit.first, last)
            self._owned.touch()
            return
        if attachment.refused is not None:
            return
        ticket = attachment.ticket(last)
        seq = queue.ring.next_seq
        if whole:
            queue.note_moved(moved)
            queue.publish_records(records, ticket, now_ms)
        else:
            queue.put_rows(moved, rows, ticket, now_ms)
        self._came_before(attachment, last + 1 - count, seq)
        self._accepted(attachment, last, ticket)
        queue.ring.mark()

    def _remember(self, attachment: Attachment, refused: list[tuple[bytes, int]]) -> None:
        """Numbers of clients that the queue refused: the next owner too must know that they are not here, before their
        clients are told and go on."""
        queue = self._owned.queue
        news = [queue.log.producers.refuse(*name) for name in refused]
        if any(news) and queue.ring.needs_write:
            self._noted = queue.log.commits
        if self._noted is not None and queue.log.durable(self._noted):
            self._noted = None
        if refused and self._noted is not None:  # also what is no news: it may have been refused a moment ago
            attachment.remember()

    def _came(self, records: memoryview, producer: bytes = b"") -> list[Message]:
        """The messages of a frame. They live from now on, by the owner's clock: the sender's may show another time. A
        queue may keep times as they came."""
        queue, now_ms = self._owned.queue, self._owned.host.now_ms
        messages = [message for _, message, _, _ in read_records(records)]
        return messages if queue.keeps_times_of(producer) else [taken_at(message, now_ms) for message in messages]

    def _too_early(self, attachment: Attachment) -> bool:
        """Whether a message might be refused for want of room that nobody knows of yet, or get a seq that a client
        holds; or comes behind such a one."""
        if (self._owned.queue.rejects or self._owned.has_gap) and not self._owned.open:
            self._owned.pass_over(attachment)
        return self._owned.passes_over(attachment)

    def _came_before(self, attachment: Attachment, first: int, seq: int) -> None:
        """Messages from number `first` on have been taken, from `seq` on. Of those that were sent before to an owner
        whose memory is gone nobody knows whether it handed them out: they count as returned."""
        ring, holder = self._owned.queue.ring, attachment.holder
        last = min(ring.next_seq - 1, seq + attachment.came_before - first)
        if seq <= last:
            ring.adopt(seq, last, holder)
            ring.requeue_held(seq, last, holder, False)

    def _next(self, attachment: Attachment, first: int, last: int) -> bool:
        """Whether these numbers are to be taken. What is here already is answered by `Published` when it is due."""
        if last <= attachment.accepted:
            return False
        if attachment.refused is not None:
            return first == attachment.last + 1
        if not attachment.follows(first):
            self._owned.detach(attachment, "gap")
            return False
        return True

    def _take_one(self, attachment: Attachment, number: int, message: Message) -> bool:
        """Takes a message that the queue may refuse; False: those behind it wait for the next attach."""
        if not self._accepts(attachment, number, message):
            return True
        if attachment.refused is not None:
            return False
        queue = self._owned.queue
        ticket = attachment.ticket(number)
        seq = queue.ring.next_seq
        queue.publish((message,), ticket, self._owned.host.now_ms)
        self._came_before(attachment, number, seq)
        self._accepted(attachment, number, ticket)
        return True

    def _accepts(self, attachment: Attachment, number: int, message: Message) -> bool:
        """Whether there is room for the message; else it is refused."""
        queue = self._owned.queue
        if number > attachment.died:
            if not queue.rejects or queue.is_repeat(message) or queue.has_room(self._owned.host.now_ms):
                return True
            if queue.kills:
                attachment.kill(number, message)
        attachment.refuse(number, number)
        self._owned.touch()
        return False

    def _accepted(self, attachment: Attachment, last: int, ticket: Ticket) -> None:
        attachment.accepted = last
        self._owned.queue.ring.set_attribute(attachment.producer, last)
        ticket.pass_()


def _leaving(commit: Commit) -> Iterator[int]:
    """What a transaction settles, and does not give back."""
    for outcome, ranges in commit.settlements:
        if outcome in (SETTLE_ACK, SETTLE_REJECT):
            for first, last in ranges:
                yield from range(first, last + 1)


def _parts(commit: Commit) -> list[Settlement]:
    """What a transaction settles, as settlements: those with annotations of their letters apart."""
    changed = [range_ for _, ranges in commit.changes for range_ in ranges]
    parts = [
        Settlement(0, outcome, tuple(subtract(ranges, changed) if outcome == SETTLE_REJECT else ranges))
        for outcome, ranges in commit.settlements
    ]
    return parts + [Settlement(0, SETTLE_REJECT, ranges, change=change) for change, ranges in commit.changes]
