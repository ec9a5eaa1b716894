"""A stream at its owner: a log that is read from any place, and that nobody takes from.

Theory. Its newest messages are in the ring, as any queue's; a checkpoint moves what is written to files, the ring's
`past` (`broker.streams.past`). Nothing is handed out: who consumes asks for records from a seq on, and is answered when
there are any that are committed (`READ`), with as many as fit. A question is looked at once, and again only when the
stream's end, its lowest message or its being halted has changed since: very many may wait. The answer is of one source,
the files, what is on its way there, or the ring, and holds neighbouring messages; the next question goes on behind it.
So an answer may be late or come twice, and an owner that dies takes nothing with it. Nothing is passed over that there
is when the answer goes, and none goes while the queue is paused (its owner has no lease, or gives it up): what a read
has found then is asked again.

Retention drops whole files from the oldest on, never the newest: by bytes, and by the age of their latest message. It
is a SET of (1, last) in the log, so every copy drops the same. A stream without files (in memory) drops single
messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, NoReturn

from clusterbroker.broker.content.selector.filters import Filter
from clusterbroker.broker.queues.browse import Browse, Browsed
from clusterbroker.broker.queues.handle import Taken as OneTaken
from clusterbroker.broker.queues.lease import LeaseAnswer, LeaseRequest
from clusterbroker.broker.queues.link_held import NO_LINK, HeldMessages, LinkAttach
from clusterbroker.broker.queues.local_queue import Host, LocalQueue
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.subscription import LocalConsumer
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.queues.watch import Watch
from clusterbroker.broker.stats.totals import StoredOffset
from clusterbroker.broker.streams.bookmarks import Bookmarks
from clusterbroker.broker.streams.judging import JUDGED_MAX, WORK_AT_ONCE, filter_asked, judged
from clusterbroker.broker.streams.messages import FIND, LEAVE, STORE, STORED, StreamAsk, StreamTold
from clusterbroker.broker.streams.past import Part
from clusterbroker.broker.streams.strip_bcc import unblinded
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.journal.record import Message, RecordBuffer
from clusterbroker.journal.stream_catalogue import StreamFile, Taken, Wish
from clusterbroker.journal.walk import take_records

Tell = Callable[[StreamTold, bytes], None]
UNTAKEN: Final = "is a stream, which is read by offsets"
SEQ_END: Final = 2**62
PIECE_BYTES: Final = 1 << 20
RETAIN_MS_MIN: Final = 1000
"""How long retention by age may be late."""
READERS_AT_ONCE: Final = 1000
"""Of those who wait for messages, in a turn; the others are looked at in the next ones."""
RETAIN_AGAIN_MS: Final = 60_000
"""While the log's calendar is behind the node's time it may gain: so often age is judged again then."""


class Asked(NamedTuple):
    """A question that waits for an answer."""

    node: str
    ask: StreamAsk
    tell: Tell


class Seat:
    """A reader, as one of the queue's consumers (`broker.queues.subscription.Member`)."""

    __slots__ = ("active", "node", "number", "order", "priority", "wanted")
    exclusive = holds = has_credit = False
    held = held_most = 0
    link = worker = ""
    filter = selection = None

    def __init__(self, node: str, number: int) -> None:
        self.node = node
        self.number = number
        self.order = (0, node, number)
        self.priority = 0
        self.active = True
        self.wanted: Filter | None = None

    @property
    def credit(self) -> Seat:
        """It is handed nothing."""
        return self

    def flush(self) -> None:
        """It has no buffer."""

    def activated(self, active: bool) -> None:
        """A stream has no single active consumer."""

    def ended(self) -> None:
        """Its node hears of the deletion by itself."""


class Stream(LocalQueue):
    """See the module."""

    __slots__ = (
        "_bookmarks", "_due", "_judged", "_later", "_left", "_looked_at", "_seats", "_told_late", "_trimmed",
        "_waiting",
    )  # fmt: skip

    def __init__(self, entity: QueueEntity, settings: QueueSettings, ring: Ring, host: Host, now_ms: int) -> None:
        super().__init__(entity, settings, ring, host, now_ms)
        self._due: deque[Asked] = deque()  # questions to be looked at
        self._waiting: deque[Asked] = deque()  # questions that nothing answered in the state `_looked_at`
        self._looked_at: tuple[object, ...] = ()  # (end, lowest, halted); empty: all are looked at again
        self._left = 0  # readers that went, since waiting questions were last looked at
        self._later: deque[Callable[[], None]] = deque()  # searches that go on in the next turn
        self._bookmarks: Bookmarks | None = None
        self._told_late = False
        self._judged = 0  # work for readers with filters, in this turn
        self._trimmed = 0  # what retention has let go, and the log may not have heard of yet
        self._seats: dict[tuple[str, int], Seat] = {}
        ring.past.filed_more = self._look_again
        self.adopt(settings)

    def adopt(self, settings: QueueSettings) -> None:
        super().adopt(settings)
        self.ring.keeps = True  # also with durability "memory": what a reader was shown is not lost alone
        self.ring.past.segment_bytes = settings.segment_bytes

    # -- what a log is asked

    @property
    def ready(self) -> int:
        count: int = self.ring.ready + self.ring.past.count
        return count

    @property
    def ready_bytes(self) -> int:
        size: int = self.ring.ready_bytes + self.ring.past.bytes
        return size

    def message_count(self, _: int) -> int:
        return self.ready

    rejects = kills = False
    leased = ""

    def _takes_all(self, *_: Any, **__: Any) -> Literal[True]:
        """It has no limit: retention drops the oldest instead."""
        return True

    accepts = takes = has_room = has_room_for = _takes_all

    def publish(self, messages: Sequence[Message], ticket: Ticket | None, _: int) -> None:
        self.ring.append(unblinded(messages))
        if ticket is not None:
            self.log.promise(ticket)

    def publish_records(self, records: bytes | memoryview, ticket: Ticket, now_ms: int) -> int:
        _, count = self.ring.append_records(records, now_ms)
        self.log.promise(ticket)
        return count

    def accept_dead_letter(self, message: Message) -> None:
        self.ring.append((message,))

    def subscribe(self, _: LocalConsumer, __: int, then: Callable[[str], None]) -> None:
        then(UNTAKEN)

    def subscribe_link(self, _: LocalConsumer, __: LinkAttach, ___: int, then: Callable[[str], None]) -> None:
        then(UNTAKEN)

    def held_by(self, _: LinkAttach, then: Callable[[Sequence[HeldMessages] | str], None]) -> None:
        then(UNTAKEN)

    def leave_to_link(self, _: Sequence[int], __: LinkAttach = NO_LINK) -> None:
        """A reader holds nothing."""

    def withdraw(self, _: Sequence[int], __: LinkAttach) -> None:
        """Likewise."""

    def get(
        self, now_ms: int, then: Callable[[OneTaken | str | None], None], credit: Any = None, **_: Any  # noqa: ARG002
    ) -> None:  # fmt: skip
        then(UNTAKEN)

    def lease(self, _: LeaseRequest, then: Callable[[LeaseAnswer, bytes], None], __: int) -> None:
        then(LeaseAnswer(406, f"{self.place} {UNTAKEN}"), b"")

    def browse(self, browse: Browse, then: Browsed, _: int) -> None:
        then(browse.seq, b"")

    def shown(self, _: int, message: Message, *__: Any) -> Message:
        return message

    def watch(self, _: Watch | None) -> None:
        """A reader's node shows what it reads."""

    def _never(self, *_: Any, **__: Any) -> NoReturn:
        raise AssertionError("a stream refuses nothing and hands nothing out, so nothing dies or comes back")

    kill = reject = requeue = modify = preload = reread = _return = _never

    def _advance(self, upto: int) -> None:
        self.ring.commit(upto)

    def ripe(self, _: int) -> int:
        return 0

    def _wants_turn(self, _: bool) -> bool:
        return self._bookmarks is not None and self._bookmarks.waits

    # -- reading

    def ask(self, node: str, ask: StreamAsk, tell: Tell) -> None:
        """A question of a node; `tell` is called now or later, or never when the epoch or the queue ends."""
        if ask.what == LEAVE:
            self.leave(node, ask.reader)
            return
        if ask.reader and (node, ask.reader) not in self._seats:
            seat = self._seats[node, ask.reader] = Seat(node, ask.reader)
            self.add_consumer(seat, self.host.now_ms)
        self._await(Asked(node, ask, tell))

    def _await(self, asked: Asked) -> None:
        """It is looked at in the next turn, behind those that are due already."""
        self._due.append(asked)
        self.ring.mark()

    def _look_again(self) -> None:
        """All that wait are due in the next turn."""
        self._looked_at = ()
        self.ring.mark()

    def leave(self, node: str, reader: int | None = None) -> None:
        """One reader of a node is gone, or all of them. What a reader has asked goes at the next look at it, for very
        many may go at once; this comes when half of those that wait may be gone."""
        if reader is not None:
            seat = self._seats.pop((node, reader), None)
            if seat is not None:
                self.remove_consumer(seat, self.host.now_ms)
                self._left += 1
                if self._left * 2 > len(self._waiting):
                    self._look_again()
            return
        for key in [key for key in self._seats if key[0] == node]:
            self.remove_consumer(self._seats.pop(key), self.host.now_ms)
        self._due = deque(asked for asked in self._due if asked.node != node)
        self._waiting = deque(asked for asked in self._waiting if asked.node != node)

    def _serve(self, _: int) -> None:
        """Looks at what is due, which may take some turns. Questions that wait become due, behind the others, when
        the stream is no longer as it was when they were looked at."""
        if self.paused:
            return
        now = self._end, self._lowest, self.halted
        if self._looked_at != now:
            self._due += self._waiting
            self._waiting.clear()
            self._looked_at, self._left = now, 0
        self._judged = 0
        for _due in range(min(len(self._due), READERS_AT_ONCE)):
            if self._judged > WORK_AT_ONCE:
                break
            self._answer_one(self._due.popleft())
        if self._due:
            self.host.later(self)
        for _later in range(len(self._later)):
            self._later.popleft()()
        if self._bookmarks is not None:
            self._bookmarks.turn()
        self._retain()

    def _answer_one(self, asked: Asked) -> None:
        ask = asked.ask
        if ask.what == FIND:
            self._find(asked)
        elif ask.what == STORE:
            self._store(asked)
        elif ask.what == STORED:
            self._tell(asked, self._end, self._end, readers=tuple(self.bookmarks.seqs.items()))
        elif (asked.node, ask.reader) in self._seats and (self.halted or not self._read(asked)):
            self._waiting.append(asked)

    @property
    def _end(self) -> int:
        """One past the last message that readers may see."""
        return self.ring.advance() if not self.ring.replicated else self.ring.committed

    def _read(self, asked: Asked) -> bool:
        """Whether the question is answered, or will be without being looked at again."""
        ask = asked.ask

        def took(taken: Taken) -> None:
            if taken.records and not self.paused and not self._has(ask.seq, taken.first):
                handed = taken.next_seq - taken.first
                if ask.filter:
                    taken, handed = self._judge(asked, taken)
                self.ring.handed += handed
                self._tell(asked, taken.first, taken.next_seq, records=taken.records)
            else:
                self._again(asked)  # retention, or a cut, was there first

        size = max(1, min(ask.bytes_max, PIECE_BYTES))
        count = JUDGED_MAX if ask.filter else ask.count_max
        if self._take(Wish(ask.seq, min(ask.end, self._end), count, size), took):
            return True
        if ask.end > self._end or not ask.seq < ask.end <= self._lowest:
            return False
        self._tell(asked, self._lowest, self._lowest)  # retention took all of it
        return True

    def _judge(self, asked: Asked, taken: Taken) -> tuple[Taken, int]:
        """What its filter takes, and how many messages that is."""
        ask, seat = asked.ask, self._seats.get((asked.node, asked.ask.reader))
        wanted = filter_asked(ask.filter, None if seat is None else seat.wanted)
        if seat is not None:
            seat.wanted = wanted
        taken, work, found = judged(taken, wanted, self.ring.queue_id, self.ring.epoch, ask.count_max)
        self._judged += work
        return taken, found

    def _again(self, asked: Asked) -> None:
        """The question waits for the next turn in which anything is answered."""
        if not self.deleted:
            self._await(asked)

    def _has(self, seq: int, end: int) -> bool:
        """Whether there is a message from `seq` on before `end`."""
        return seq < end and self._source(seq, end)[0] > 0

    def _tell(self, asked: Asked, seq: int, end: int, records: bytes = b"", **more: Any) -> None:
        ask = asked.ask
        if not self.deleted:
            told = StreamTold(
                ask.queue_id, ask.epoch, ask.request, seq, end, self._lowest, incarnation=ask.incarnation,
                asked=ask.seq, **more,
            )  # fmt: skip
            asked.tell(told, records)

    def _source(self, seq: int, end: int) -> tuple[int, int, Part | None]:
        """(seq, end, part) of the next messages from `seq` on: of a part of the past, or of the ring; (0, 0, None)."""
        past = self.ring.past
        part = past.part_at(seq)
        begin = max(seq, part.first, past.first) if part is not None else SEQ_END
        found = self.ring.living(seq, end - 1, 1) if seq < end else []
        first = found[0][0] if found else SEQ_END
        if part is not None and begin < min(first, end):
            return begin, min(part.end, first, end), part
        return (first, end, None) if first < end else (0, 0, None)

    def _take(self, wish: Wish, then: Callable[[Taken], None]) -> bool:
        """Calls `then`, now or later, with what the next source has; False: there is nothing."""
        seq, end, part = self._source(wish.seq, wish.end)
        if not seq:
            return False
        if part is None:
            self._take_of_ring(wish._replace(seq=seq, end=end), then)
        else:
            self.host.read_stream(self, wish._replace(seq=seq, end=end), then)
        return True

    def copy(self, seqs: Sequence[tuple[int, int]], bytes_max: int, then: Callable[[bytes], None]) -> None:
        """As a queue, without a gap."""
        for first, last in seqs:
            if self._take(Wish(first, last + 1, SEQ_END, bytes_max), lambda taken: then(taken.records)):
                return
        then(b"")

    def _take_of_ring(self, wish: Wish, then: Callable[[Taken], None]) -> None:
        ring = self.ring
        living = ring.living(wish.seq, wish.end - 1, min(wish.count_max, 4096))
        last = wish.seq
        for seq, *_ in living[1:]:
            if seq != last + 1:
                break
            last = seq
        if not (ring.journaled or ring.replicated):
            then(self._encoded(wish, last))
            return
        seqs, absent = ring.copies_of([(wish.seq, last)], wish.bytes_max)

        def loaded(messages: Sequence[Message]) -> None:
            found = {location[0]: message for location, message in zip(absent, messages, strict=True)}
            records = ring.encode_emitted(seqs, found)
            first, next_seq = (
                take_records(records, ring.queue_id, 0, SEQ_END, SEQ_END, SEQ_END)[2:] if records else (0, 0)
            )
            then(Taken(first, next_seq, records if next_seq - first == len(seqs) else b""))

        if absent:
            self.host.fetch(self, absent, loaded)
        else:
            loaded(())

    def _encoded(self, wish: Wish, last: int) -> Taken:
        """Of a ring without a log, where nothing is in the form of records."""
        buffer = RecordBuffer()
        seq = wish.seq
        while seq <= last and (seq == wish.seq or buffer.size < wish.bytes_max):
            message = self.ring.message(seq)
            assert message is not None, "what no log has is in memory"
            buffer.enqueue(self.ring.queue_id, self.ring.epoch, seq, message, 0, False)
            seq += 1
        return Taken(wish.seq, seq, buffer.take())

    # -- where it begins and ends

    @property
    def _lowest(self) -> int:
        """The first message that there is; one past the last when there is none."""
        seq, _, _ = self._source(1, self._end)
        return seq or self._end

    @property
    def bounds(self) -> tuple[int, int]:
        """Offsets of the first message that there is and of the next one that will be committed."""
        return self._lowest - 1, self._end - 1

    def _find(self, asked: Asked) -> None:
        def answer(at: int, first_ms: int) -> None:
            if self.paused:
                self._again(asked)
            else:
                self._wonder()
                self._tell(asked, at, self._end, first_ms=first_ms, bytes=max(0, self.ready_bytes))

        def began(taken: Taken) -> None:
            first_ms = _time_of(taken)
            if asked.ask.since_ms < 0:
                answer(self._end, first_ms)
            else:
                self._seek(asked.ask.since_ms, 1, lambda at: answer(at, first_ms))

        if not self._take(Wish(1, self._end, 1, PIECE_BYTES), began):
            answer(self._end, -1)

    def _wonder(self) -> None:
        """What keeps everything begins at 0. Else a line of the log, once in an epoch, for whoever misses the rest."""
        keeps = self.settings.max_length_bytes is None and self.settings.max_age_ms is None
        if keeps and self._lowest > 1 and not self._told_late:
            self._told_late = True
            self.host.begins_late(self, self._lowest - 1)

    def _seek(self, since_ms: int, seq: int, then: Callable[[int], None]) -> None:
        """The first message from `seq` on that is not older. A long stream is searched in many turns."""
        while True:
            begin, end, part = self._source(seq, self._end)
            if not begin or not isinstance(part, StreamFile) or part.last_ms >= since_ms:
                break
            seq = end

        def took(taken: Taken) -> None:
            if part is None and taken.records:
                _, _, first, _ = take_records(taken.records, self.ring.queue_id, 0, SEQ_END, 1, 1, since_ms)
                taken = taken._replace(first=first) if first else Taken(0, taken.next_seq, b"")
            if taken.records:
                then(taken.first)
            else:
                self._later.append(lambda: self._seek(since_ms, taken.next_seq or end, then))
                self.host.wake(self, self.host.now_ms + 1)  # others have their turns in between

        if not begin:
            then(self._end)
        elif part is None:
            self._take_of_ring(Wish(begin, end, 4096, PIECE_BYTES), took)
        else:
            self.host.read_stream(self, Wish(begin, end, 1, PIECE_BYTES, since_ms), took)

    # -- how far readers are

    @property
    def bookmarks(self) -> Bookmarks:
        """What they have told. At the owner, and not while it takes the queue over."""
        self._bookmarks = self._bookmarks or Bookmarks(self)
        return self._bookmarks

    def readers(self) -> tuple[StoredOffset, ...]:
        """What they have told, by name, with how far that is from the end."""
        end = self._end
        return tuple(
            StoredOffset(name, seq - 1, max(0, end - seq)) for name, seq in sorted(self.bookmarks.seqs.items())
        )

    def _store(self, asked: Asked) -> None:
        end = self._end

        def kept(refused: str) -> None:
            self._tell(asked, end, end, refused=refused)

        self.bookmarks.keep(asked.ask.name, asked.ask.place, end, kept)

    # -- retention

    def _retain(self) -> None:
        past, settings = self.ring.past, self.settings
        size_max, age_ms = settings.max_length_bytes, settings.max_age_ms
        if size_max is None and age_ms is None:
            return
        last, size, old_ms = 0, past.bytes, self._old_ms
        for part in past.files[:-1]:
            too_much = size_max is not None and size > size_max
            too_old = part.last_ms < old_ms
            if part.end > self._end or not (too_much or too_old):
                break
            last, size = part.end - 1, size - part.size
        if last > self._trimmed and last >= past.first:
            self._trimmed = last
            self.ring.trim(last)
        if self.ring.use is None:
            self._retain_in_memory(old_ms)

    @property
    def _old_ms(self) -> int:
        """What was published before is too old; 0: nothing is."""
        age_ms, now_ms = self.settings.max_age_ms, self.host.ages_by_ms
        return 0 if age_ms is None or now_ms is None else max(0, now_ms - age_ms)

    def _retain_in_memory(self, old_ms: int) -> None:
        ring, size_max = self.ring, self.settings.max_length_bytes
        while ring.ready > 1:
            oldest = ring.head_message()
            too_much = size_max is not None and ring.ready_bytes > size_max
            too_old = oldest is not None and oldest.time_ms < old_ms
            if not (too_much or too_old) or not ring.living(1, self._end - 1, 1):
                return
            seq, _, _ = ring.pop_head()
            ring.settle(seq)

    def _follow(self, now_ms: int) -> None:
        files, oldest_ms = self.ring.past.files, None
        if self.settings.max_age_ms is None:
            return
        if len(files) > 1 and not self.paused:
            oldest_ms = files[0].last_ms
        elif self.ring.use is None and self.ring.ready > 1:
            head: Any = self.ring.head_message()
            oldest_ms = head.time_ms
        if oldest_ms is None:
            return
        by_ms = self.host.ages_by_ms
        wait_ms = RETAIN_AGAIN_MS if by_ms is None else max(0, oldest_ms + self.settings.max_age_ms - by_ms)
        if by_ms != now_ms:
            wait_ms = min(wait_ms, RETAIN_AGAIN_MS)
        self.host.wake(self, now_ms + wait_ms + RETAIN_MS_MIN)

    # -- ownership, and the end

    def begin_epoch(self, now_ms: int) -> None:
        super().begin_epoch(now_ms)
        self.log.synced = False  # a copy's checkpoint takes what no owner calls committed yet
        self._told_late = False

    def end_epoch(self) -> None:
        super().end_epoch()
        self._forget()

    def survived(self) -> None:
        """Its deletion is an operator's; it asks for none itself."""

    def _release(self) -> None:
        self.log.release()
        self._forget()

    def _forget(self) -> None:
        self.ring.past.filed_more = _nobody
        self._due.clear()
        self._waiting.clear()
        self._later.clear()
        self._seats.clear()
        self._bookmarks = None


def _nobody() -> None:
    """More files concern nobody here."""


def _time_of(taken: Taken) -> int:
    return int.from_bytes(taken.records[32:40], "little") if taken.records else -1
