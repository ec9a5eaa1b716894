"""One queue's messages at their owner: the part of the specification that every ring needs.

`ring` explains the states; `ring_cluster` adds what a replicated queue's owner, its replicas and the proxies
of its consumers need.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Final

from clusterbroker.broker.queues.states import (
    DEAD,
    HEAD_EXPIRED,
    HEAD_NONE,
    HEAD_NOT_COMMITTED,
    HEAD_NOT_LOADED,
    HEAD_NOT_RESERVED,
    HEAD_OK,
    READY,
    UNACKED,
)
from clusterbroker.journal.layout import (
    ENQ_OVERHEAD_BYTES,
    PERSISTENT,
    REDELIVERED,
    RUN_ENTRY,
    RUN_LENGTH,
    TTL_MS_MAX,
    Location,
)
from clusterbroker.journal.queue_state import LAST_DEAD, QueueState
from clusterbroker.journal.ranges import Range, merged, seqs_of
from tests.model.record import GroupWriter, Message, SegmentUse

EMPTY: Final = 0
SETTLED: Final = 3
HELD: Final = 4

RESERVE_FIRST: Final = 64
RESERVE_MAX: Final = 32768
LOAD_AHEAD: Final = 4096
LOAD_BYTES: Final = 8 << 20

LIVE: Final = (READY, UNACKED, DEAD)

LINK_PREFIX: Final = b"k"
LINK_BITS: Final = 62


class _Slot:
    __slots__ = (
        "body_length", "delivery_count", "holder", "length", "link", "message", "offset", "persist", "priority",
        "redelivered", "segment", "state", "written",
    )  # fmt: skip

    def __init__(self, message: Message | None, priority: int, body_length: int, persist: bool) -> None:
        self.link = 0  # which one, if the holder is LINK
        self.message = message
        self.priority = priority
        self.body_length = body_length
        self.persist = persist
        self.state = READY
        self.redelivered = False
        self.written = False
        self.delivery_count = 0
        self.segment = self.offset = self.length = 0
        self.holder = 0  # the node that has it, as its owner numbers them


class LocalRing:
    """The messages of one queue.

    queue_id      the declaration's id, as it stands in every record
    journaled     persistent messages are written to the journal
    max_priority  0 for a FIFO ring; otherwise message priorities are cut to it
    use           the journal's live bytes per segment; None when not journaled
    agenda        `mark` puts `owner` onto this list once: the queues to look at when the turn ends

    resident      messages in memory with their content, of `resident_bytes`
    fleeting      messages, ready and unacknowledged, that no group shall hold: transient ones

    `reserved_durable` is the reservation that a checkpoint may write down; `destroyed`: the queue is deleted.
    `replicated`: every message is written, and nothing is handed out before all replicas have it. `replica`: the ring
    follows another node's. `paused`: nothing is handed out.

    `past`: of a stream, its older part, which has left the ring for files of its own (`broker.streams.past`): it hears
    what is dropped and cut. Nobody takes a stream's messages, so all of them are READY, and all are written.

    Totals, for operators; they begin anew when a node takes the queue over:

    published      appended, by whatever way
    handed         handed to consumers, of them `handed_no_ack` to those that do not acknowledge
    redelivered    of all hand-outs those with the flag, basic.get among them
    acked          acknowledged by clients
    auto_acks      handed to other nodes for clients that do not acknowledge, until their nodes have settled as much,
                   which is not in `acked`
    got            found by basic.get to be acknowledged, `got_no_ack` without; `got_empty`: found nothing. These three
                   are counted by who serves the client
    disk_reads     brought back from the journal
    passed_over    of a proxy: deliveries that came while their messages were outstanding here
    disk_writes    messages written to it, copies not counted
    """

    __slots__ = (
        "_buried",
        "_counted_from",
        "_cursor",
        "_dirty_runs",
        "_dying",
        "_epochs_before",
        "_heap",
        "_held",
        "_inflight",
        "_link_dirty",
        "_link_places",
        "_link_presses",
        "_longest",
        "_moves",
        "_moving",
        "_requeued",
        "_reserve_from",
        "_reserve_step",
        "_reserved_written",
        "_rewrites",
        "_settled",
        "_slots",
        "_state",
        "_trimmed",
        "_unsaid",
        "_unwritten",
        "_volatile",
        "acked",
        "agenda",
        "annotate",
        "annotates_all",
        "annotates_redelivered",
        "auto_acks",
        "committed",
        "destroyed",
        "disk_reads",
        "disk_writes",
        "epoch",
        "fleeting",
        "got",
        "got_empty",
        "got_no_ack",
        "groups",
        "groups_committed",
        "handed",
        "handed_no_ack",
        "journaled",
        "keeps",
        "links_wait",
        "load_ahead",
        "loading",
        "marked",
        "max_priority",
        "next_seq",
        "owner",
        "passed_over",
        "past",
        "paused",
        "proxy",
        "published",
        "queue_id",
        "ready",
        "ready_bytes",
        "redelivered",
        "replica",
        "replicated",
        "reserved",
        "reserved_durable",
        "resident",
        "resident_bytes",
        "resident_bytes_max",
        "returned",
        "ttl_ms",
        "turn",
        "unacked",
        "use",
    )  # fmt: skip
    oldest_first = False

    def __init__(
        self,
        queue_id: int,
        journaled: bool = False,
        max_priority: int = 0,
        use: SegmentUse | None = None,
        agenda: list[Any] | None = None,
        owner: Any = None,
        proxy: bool = False,
        replica: bool = False,
    ) -> None:
        self.queue_id = queue_id
        self.proxy = proxy
        self.replica = self.replicated = replica
        self.past: Any = None
        self._trimmed = 0  # a stream: all up to it is gone, SET unlogged
        self.paused = False
        self.journaled = journaled
        self.max_priority = max_priority
        self.use = use
        self.agenda = agenda
        self.owner = owner
        self.epoch = 1
        self.marked = False
        self.ttl_ms = -1  # the queue's x-message-ttl
        self.annotate: Callable[[Message, int, int, Any, bool], Message] | None = None
        """(message, seq, delivery count, who consumes it, redelivered): what the consumer sees of it."""
        self.annotates_all = False  # whether `annotate` is asked about each message, not only about those with BCC
        self.annotates_redelivered = False  # whether it is asked about redeliveries
        self.turn = 0
        self.ready = self.unacked = self.ready_bytes = 0
        self.resident_bytes = self.resident = self.fleeting = 0
        self.resident_bytes_max = 8 << 20
        self.next_seq = 1
        self.committed = 1
        self.keeps = True  # persistent messages go to the journal; False: durability "memory", from now on
        self.loading = False
        self.load_ahead = LOAD_AHEAD  # so many messages from the head on should be in memory
        self.destroyed = False
        self.reserved = 0
        self._reserved_written = 0  # the newest RSV in a submitted group
        self.reserved_durable = 0
        self._reserve_from = 1  # first seq whose ENQ stands after the newest written RSV
        self._reserve_step = RESERVE_FIRST
        self._slots: OrderedDict[int, _Slot] = OrderedDict()
        self._heap: list[tuple[int, int]] = []  # (-priority, seq) of ready messages that the cursor will not meet
        self._cursor = 1
        self._unwritten = 1  # first seq that no group has passed
        self._longest = 0  # address and payload of those, or more
        self._settled: list[list[int]] = []  # ranges of written seqs whose SET is unlogged
        self._requeued: dict[int, int] = {}  # seq -> delivery count, REQ unlogged
        self._rewrites: dict[int, None] = {}
        self._moves: list[Location] = []  # copies in the group in flight
        self._moving: set[int] = set()  # their seqs: what is in memory is not what their old places have
        self.returned: int | None = None  # the lowest seq that has returned since a selecting dispatch looked
        self._inflight: list[Range] = []  # SET ranges of the group in flight
        self._dirty_runs: dict[int, None] = {}
        self._volatile = False
        self._state: QueueState | None = None
        self._epochs_before: list[tuple[int, int]] | None = None  # as the log knows them, while it has to hear more
        self._unsaid: dict[bytes, int] = {}  # the values that the log knows of attributes whose ATTR is unlogged
        self._counted_from: dict[int, int] = {}  # the delivery counts that the log knows, where a REQ is unlogged
        self._dying: dict[int, None] = {}  # DEAD unlogged
        self._buried: dict[int, int] = {}  # seq -> mark of the dead whose SET is unlogged
        self._held: dict[int, int] = {}  # holder -> how many
        self._link_places: dict[int, int] = {}  # link -> the node where it is attached
        self._link_dirty: list[tuple[int, int]] = []  # (link, bucket) of which the log has to hear
        self._link_presses = False  # somebody waits for that
        self.links_wait = False  # what they had returns with a group to come: they are handed nothing before it
        self.groups = self.groups_committed = 0  # so many were written, and so many of them are committed
        self._begin_totals()

    def _begin_totals(self) -> None:
        self.published = self.handed = self.handed_no_ack = self.redelivered = self.acked = self.auto_acks = 0
        self.got = self.got_no_ack = self.got_empty = self.disk_reads = self.disk_writes = 0
        self.passed_over = 0

    @property
    def counted_at_rest(self) -> int:
        """1 and all that was counted, while no message is ready, unacknowledged or in memory; else 0."""
        if self.ready or self.unacked or self.resident:
            return 0
        served = self.got + self.got_no_ack + self.got_empty + self.disk_reads + self.disk_writes
        handed = self.handed + self.handed_no_ack + self.redelivered + self.acked
        return 1 + self.next_seq + self.published + handed + served

    # -- joining ----------------------------------------------------------------------------------------------

    def persists(self, message: Message) -> bool:
        """Whether a message that is appended now goes to the log."""
        lasts = bool(message.flags & PERSISTENT) or self.past is not None
        return self.replicated or (self.journaled and self.keeps and lasts)

    def persists_all(self, messages: Sequence[Message]) -> bool:
        """As `persists`, of each of them."""
        return all(map(self.persists, messages))

    def append(self, messages: Sequence[Message]) -> int:
        """Gives the messages the next seqs; returns `next_seq` after them."""
        for message in messages:
            persist = self.persists(message)
            priority = min(message.priority, self.max_priority)
            slot = _Slot(message, priority, message.body_length, persist)
            self._slots[self.next_seq] = slot
            if self.max_priority:
                heapq.heappush(self._heap, (-priority, self.next_seq))
            length = len(message.address) + len(message.payload)
            self._longest = length if self._unwritten == self.next_seq else max(self._longest, length)
            self.next_seq += 1
            self.ready += 1
            self.ready_bytes += slot.body_length
            self._came(message)
            self.fleeting += not persist
        self.published += len(messages)
        if self.max_priority:
            self._cursor = self.next_seq
        self.mark()
        return self.next_seq

    def mark(self) -> None:
        if not self.marked and self.agenda is not None:
            self.marked = True
            self.agenda.append(self.owner)

    # -- the head ---------------------------------------------------------------------------------------------

    def _head(self) -> int:
        """The seq of the next ready message, 0 when there is none."""
        while self._heap:
            slot = self._slots.get(self._heap[0][1])
            if slot is not None and slot.state == READY:
                break
            heapq.heappop(self._heap)
        while self._cursor < self.next_seq:
            slot = self._slots.get(self._cursor)
            if slot is not None and slot.state == READY:
                break
            self._cursor += 1
        if self._heap:  # returned messages stand before the cursor
            return self._heap[0][1]
        return self._cursor if self._cursor < self.next_seq else 0

    def head(self, now_ms: int) -> int:
        """What stands at the head: HEAD_OK, HEAD_NONE, HEAD_NOT_LOADED, HEAD_NOT_RESERVED, HEAD_EXPIRED or
        HEAD_NOT_COMMITTED, which also stands for all that is ready while the ring is paused."""
        if self.paused or self.replica:
            return HEAD_NOT_COMMITTED if self.ready else HEAD_NONE
        seq = self._head()
        return self.head_at(seq, now_ms) if seq else HEAD_NONE

    def head_seq(self) -> int:
        """The next ready message, 0 without."""
        return self._head()

    def head_place(self) -> int:
        """As `head_seq`, for Python."""
        return self._head()

    def head_at(self, seq: int, now_ms: int) -> int:
        """What `head` says when this ready message is the head."""
        slot = self._slots[seq]
        if slot.message is None:
            return HEAD_NOT_LOADED
        if self._expired(slot.message, now_ms):
            return HEAD_EXPIRED
        if self.replicated:
            if seq >= self.committed:
                return HEAD_NOT_COMMITTED
            if seq > self.reserved_durable:
                return HEAD_NOT_RESERVED
        elif slot.written and not self._may_hand_out(seq):
            return HEAD_NOT_RESERVED
        return HEAD_OK

    def _expired(self, message: Message, now_ms: int) -> bool:
        expiry = self._expiry(message)
        return expiry >= 0 and expiry <= now_ms

    def _expiry(self, message: Message) -> int:
        """amqp-rules 5.6: the effective TTL is the lower of the queue's and the message's."""
        ttl = message.ttl_ms
        if self.ttl_ms >= 0 and (ttl < 0 or self.ttl_ms < ttl):
            ttl = self.ttl_ms
        if ttl < 0 or ttl > TTL_MS_MAX - message.time_ms:
            return -1  # beyond what a clock can say
        return message.time_ms + ttl

    def head_message(self) -> Message | None:
        """What stands at the head, if it is in memory."""
        seq = self._head()
        return self._slots[seq].message if seq else None

    def head_expiry_ms(self) -> int:
        """Wall clock at which the head expires; -1 when it does not, or is not in memory."""
        seq = self._head()
        message = self._slots[seq].message if seq else None
        return -1 if message is None else self._expiry(message)

    def expiry_ms(self, message: Message) -> int:
        """Wall clock at which the message expires in this queue; -1: it does not."""
        return self._expiry(message)

    def _may_hand_out(self, seq: int) -> bool:
        return seq <= self.reserved_durable or self._reserve_from <= seq <= self._reserved_written

    def reserve(self) -> None:
        """Asks for the right to hand out more; the next group carries it."""
        if not self.logged or self.destroyed:
            return
        seq = self._head() or self.next_seq
        if not self.replicated and not self.keeps and (seq == self.next_seq or not self._slots[seq].written):
            return  # what is not kept needs no reservation
        if seq + self._reserve_step // 2 > self.reserved:
            self._reserve_past(seq)
            self.mark()

    def reserve_ahead(self, seq: int) -> None:
        """Asks early, so that a hand-out in full flow does not wait for a reservation."""
        if seq + self._reserve_step // 2 > self.reserved:
            self._reserve_past(seq)
            self.mark()

    def _reserve_past(self, seq: int) -> None:
        self.reserved = max(seq, self.reserved) + self._reserve_step
        self._reserve_step = min(self._reserve_step * 2, RESERVE_MAX)

    def take(self) -> tuple[int, Message, bool, int]:
        """Hands out the head (`head` said HEAD_OK): seq, message, redelivered, delivery count."""
        return self.take_at(self._head())

    def take_at(self, seq: int) -> tuple[int, Message, bool, int]:
        """Hands out this ready message, which need not be the head."""
        slot = self._slots[seq]
        message = slot.message
        assert slot.state == READY, "only a ready message is handed out"
        assert message is not None, "a message is loaded before it is handed out"
        self._leave_head(seq, slot)
        slot.state = UNACKED
        self.unacked += 1
        if self.replicated:
            self.reserve_ahead(seq)
        elif slot.persist and not slot.written and seq > self.reserved:
            self._reserve_past(seq)
        self.relieve(seq)
        self.redelivered += slot.redelivered
        return seq, message, slot.redelivered, slot.delivery_count

    def relieve(self, seq: int) -> None:
        """A message that is wanted by nobody here may leave memory."""
        slot = self._slots.get(seq)
        written = slot is not None and slot.written and slot.message is not None and seq < self.committed
        if slot is not None and written and self.resident_bytes > self.resident_bytes_max:
            self._page_out(seq, slot)

    def next_ready(self, seq: int, priority: int | None = None) -> int:
        """The first ready message of that priority, or of any, from `seq` on; 0 without."""
        found = (
            at for at, slot in self._slots.items()
            if at >= seq and slot.state == READY and priority in (None, slot.priority)
        )  # fmt: skip
        return min(found, default=0)

    def missing_from(self, seq: int, count_max: int, bytes_max: int) -> list[Location]:
        """Places of the next ready messages from `seq` on that are on disk only, without one in memory between them."""
        found: list[Location] = []
        size = 0
        while len(found) < count_max and size < bytes_max and (seq := self.next_ready(seq)):
            slot = self._slots[seq]
            if slot.message is not None:
                break
            found.append((seq, slot.segment, slot.offset, slot.length))
            size += slot.length
            seq += 1
        return found

    def _leave_head(self, seq: int, slot: _Slot) -> None:
        if self._heap and self._heap[0][1] == seq:
            heapq.heappop(self._heap)
        elif seq == self._cursor:
            self._cursor += 1
        self.ready -= 1
        self.ready_bytes -= slot.body_length

    # -- leaving ----------------------------------------------------------------------------------------------

    def settle(self, seq: int, held: bool = False) -> None:
        """The message leaves the queue; `held`: as one half of something atomic (see HELD)."""
        if self.destroyed:
            return
        slot = self._slots[seq]
        if slot.state == READY:
            self.ready -= 1
            self.ready_bytes -= slot.body_length
        elif slot.state == DEAD:
            self._bury(seq)
        else:
            assert slot.state == UNACKED, f"message {seq} of queue {self.queue_id} is settled once"
            self.unacked -= 1
            self._let_go(slot)
        self.fleeting -= not slot.persist
        if slot.message is not None:
            self._went(slot.message)
            slot.message = None
        self._requeued.pop(seq, None)
        self._rewrites.pop(seq, None)
        if slot.written:
            slot.state = SETTLED
            if self._settled and self._settled[-1][1] + 1 == seq:
                self._settled[-1][1] = seq
            else:
                self._settled.append([seq, seq])
        elif held and slot.persist:
            slot.state = HELD
        else:
            self._forget(seq)

    def _forget(self, seq: int) -> None:
        del self._slots[seq]

    def _let_go(self, slot: _Slot) -> None:
        if slot.holder:
            self._held[slot.holder] -= 1
            if slot.link:
                self._touch_bucket(slot.link, next(seq for seq, one in self._slots.items() if one is slot))
            slot.holder = slot.link = 0

    def _touch_bucket(self, link: int, seq: int) -> None:
        """What the log says of the bucket of seq is not so any more."""
        key = link, seq // LINK_BITS
        if not self._link_dirty or self._link_dirty[-1] != key:
            self._link_dirty.append(key)

    def _bury(self, seq: int) -> None:
        """A dead message leaves; the log learns of it with the SET."""
        mark = self.state.dead.pop(seq)
        if seq in self._dying:
            del self._dying[seq]
        else:
            self._buried[seq] = mark

    # -- what the log says besides messages -------------------------------------------------------------------

    @property
    def state(self) -> QueueState:
        if self._state is None:
            self._state = QueueState()
        return self._state

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """(epoch, its first seq), ascending. May be replaced as a whole on a replica (`restore_state`)."""
        return self.state.epochs

    @property
    def has_attributes(self) -> bool:
        return bool(self.state.attributes)

    @property
    def attributes(self) -> dict[bytes, int]:
        return self.state.attributes

    @property
    def volatile(self) -> bool:
        """Durability "memory" of a replicated queue: records go to other nodes only, bodies stay in memory."""
        return self._volatile

    @volatile.setter
    def volatile(self, volatile: bool) -> None:
        assert not self._slots, "a ring is volatile from its beginning"
        self._volatile = volatile
        if volatile:
            self.use = None

    @property
    def logged(self) -> bool:
        """Records are written, to the journal or to other nodes."""
        return self.journaled or self.replicated

    def epoch_of(self, seq: int) -> int:
        """The epoch of a message's record; the ring's own where no epoch was begun."""
        if self._state is not None:
            for epoch, first_seq in reversed(self._state.epochs):
                if first_seq <= seq:
                    return epoch
        return self.epoch

    def requeue(self, seq: int, counted: bool) -> int:
        """An unacknowledged message returns to its old place; returns its delivery count."""
        if self.destroyed:
            return 0
        slot = self._slots[seq]
        assert slot.state == UNACKED, f"only an unacknowledged message returns, {seq} of {self.queue_id} is not"
        assert not self.proxy, "what a proxy holds returns at its owner"
        self._let_go(slot)
        slot.state = READY
        slot.redelivered = True
        if counted:
            if slot.written:
                self._counted_from.setdefault(seq, slot.delivery_count)
            slot.delivery_count = min(slot.delivery_count + 1, 0xFFFF)
            if slot.written:
                self._requeued[seq] = slot.delivery_count
                self._dirty_runs[seq // RUN_LENGTH] = None
        self.unacked -= 1
        self.ready += 1
        self.ready_bytes += slot.body_length
        self.returned = seq if self.returned is None else min(self.returned, seq)
        if seq < self._cursor:  # else the cursor will meet it: after a failover it stands before what was held
            heapq.heappush(self._heap, (-slot.priority, seq))
        self.mark()
        return slot.delivery_count

    def pop_head(self) -> tuple[int, Message | None, int]:
        """Takes the head out without handing it out (expired, dropped): seq, message if in memory, delivery count.

        The message is then UNACKED without a ledger; the caller settles it.
        """
        seq = self._head()
        assert seq, "there is a head"
        slot = self._slots[seq]
        self._leave_head(seq, slot)
        slot.state = UNACKED
        self.unacked += 1
        return seq, slot.message, slot.delivery_count

    def purge(self) -> int:
        """Settles all that is ready; returns how many."""
        count = 0
        while self._head():
            seq, _, _ = self.pop_head()
            self.settle(seq)
            count += 1
        if count:
            self.mark()
        return count

    def message(self, seq: int) -> Message | None:
        """The message, None when it is on disk only."""
        return self._slots[seq].message

    def location(self, seq: int) -> Location:
        slot = self._slots[seq]
        assert slot.written, f"message {seq} of queue {self.queue_id} is on disk"
        return seq, slot.segment, slot.offset, slot.length

    def delivery_count(self, seq: int) -> int:
        return self._slots[seq].delivery_count

    # -- the journal ------------------------------------------------------------------------------------------

    @property
    def needs_write(self) -> bool:
        return self.logged and bool(self._settled or self._requeued or self._trimmed or self._link_dirty or self.urgent)

    @property
    def urgent(self) -> bool:
        """Somebody waits for what `write` would add: a publisher for its confirm, a consumer for its messages."""
        return self.logged and bool(
            self._unwritten < self.next_seq
            or self._rewrites
            or self.reserved > self._reserved_written
            or self._dying
            or self._unsaid
            or self._epochs_before is not None
            or self._link_presses
        )

    @property
    def unwritten_bytes(self) -> int:
        """At most so many bytes `write` will add to a group. An estimate far too high would give every group a
        segment of its own."""
        slots = self._slots
        records = 0
        for seq in chain(range(self._unwritten, self.next_seq), self._rewrites):
            slot = slots.get(seq)
            if slot is not None and slot.persist and slot.state in LIVE and slot.message is not None:
                records += slot.message.size
        names = sum(48 + len(name) for name in self._unsaid)
        epochs = 0 if self._epochs_before is None else 32 * len(self.epochs)
        links = 72 * len(self._link_dirty)
        changes = len(self._settled) + len(self._requeued) + len(self._dying)
        return 192 + records + 56 * changes + names + epochs + links

    @property
    def unwritten_most(self) -> int:
        """A bound of `unwritten_bytes`, found without a look at each message: higher where sizes differ, or where
        messages have gone unwritten."""
        if self._rewrites or self._unsaid or self._epochs_before is not None:
            return self.unwritten_bytes
        records = min(self.next_seq - self._unwritten, self.resident) * (ENQ_OVERHEAD_BYTES + self._longest + 7)
        changes = len(self._settled) + len(self._requeued) + len(self._dying)
        return 192 + records + 56 * changes + 72 * len(self._link_dirty)

    def write(self, writer: GroupWriter, upto: int = 0) -> int:
        """Puts what the journal has not heard into the group; returns the `committed` that it will reach.

        Messages from seq `upto` on are left for a later group (0: none is): who is about to be acknowledged need not
        be written. Nothing is left by a replicated ring, nor beside what the group says of attributes: it must not
        count a message that a crash may take.
        """
        assert not self.proxy, "a proxy has no log"
        if self.replicated or self._unsaid or self._link_presses:
            upto = 0
        self.groups += 1
        if self._epochs_before is not None:
            for epoch, first_seq in self.epochs:
                if (epoch, first_seq) not in self._epochs_before:
                    writer.begin_epoch(self.queue_id, epoch, first_seq)
            self._epochs_before = None
        if self.reserved > self._reserved_written:
            writer.reserve(self.queue_id, self.epoch, self.reserved)
            self._reserved_written = self.reserved
            self._reserve_from = self._unwritten
        for seq in self._rewrites:
            slot = self._slots[seq]  # a message that leaves is struck off
            assert slot.message is not None, "a message to be written again stays in memory"
            offset = writer.enqueue(self.queue_id, self.epoch_of(seq), seq, slot.message, slot.delivery_count)
            length = ENQ_OVERHEAD_BYTES + len(slot.message.address) + len(slot.message.payload)
            self._moves.append((seq, writer.segment, offset, length))
            self._moving.add(seq)
        self._rewrites.clear()
        self._write_new(writer, min(upto, self.next_seq) if upto else self.next_seq)
        if LAST_DEAD in self._unsaid:
            self._write_dead(writer)
        if self._settled:
            # consumers that take turns acknowledge in turns too
            settled = merged((first, last) for first, last in self._settled)
            writer.settle(self.queue_id, self.epoch, settled)
            self._inflight.extend(settled)
            if self.replicated:  # a checkpoint before the commit leaves them out
                for first, last in settled:
                    self._dirty_runs.update(dict.fromkeys(range(first // RUN_LENGTH, last // RUN_LENGTH + 1)))
            self._settled = []
        if self._trimmed:
            writer.settle(self.queue_id, self.epoch, [(1, self._trimmed)])
            self.past.drop(1, self._trimmed)
            self._trimmed = 0
        for seq, count in self._requeued.items():
            writer.count_delivery(self.queue_id, self.epoch, seq, count)
        self._requeued = {}
        self._counted_from = {}
        self._buried = {}
        for name in self._unsaid:
            writer.set_attribute(self.queue_id, self.epoch, name, self.attributes.get(name, 0))
        self._unsaid = {}
        self._write_links(writer)
        return self._unwritten

    def _write_links(self, writer: GroupWriter) -> None:
        """The names of all buckets in which something has changed since the last group."""
        for link, bucket in self._link_dirty:
            slots = [self._slots.get(bucket * LINK_BITS + i) for i in range(LINK_BITS)]
            bits = sum(1 << i for i, slot in enumerate(slots) if slot is not None and slot.link == link)
            name = LINK_PREFIX + link.to_bytes(8) + bucket.to_bytes(8)
            if self.attributes.get(name, 0) != bits:
                self.state.set_attribute(name, bits)
                writer.set_attribute(self.queue_id, self.epoch, name, bits)
        self._link_dirty = []
        self._link_presses = False

    def _write_dead(self, writer: GroupWriter) -> None:
        """DEAD records tell the numbers of the dead: one whose message has left before is told by none, and is free."""
        number = self._unsaid.pop(LAST_DEAD)
        for seq in self._dying:
            mark = self.state.dead[seq]
            writer.dead(self.queue_id, self.epoch, seq, mark)
            number = mark >> 8
        self._dying = {}
        self.state.set_attribute(LAST_DEAD, number)

    def _write_new(self, writer: GroupWriter, end: int) -> None:
        for seq in range(self._unwritten, end):
            slot = self._slots.get(seq)
            if slot is None or not slot.persist or slot.state not in LIVE:
                continue
            assert slot.message is not None, "an unwritten message is in memory"
            slot.offset = writer.enqueue(self.queue_id, self.epoch, seq, slot.message, slot.delivery_count)
            slot.segment = writer.segment
            slot.length = ENQ_OVERHEAD_BYTES + len(slot.message.address) + len(slot.message.payload)
            slot.written = True
            self.disk_writes += self.journaled
            self._dirty_runs[seq // RUN_LENGTH] = None
            if self.use is not None:
                self.use.add(slot.segment, slot.length)
        self._unwritten = max(self._unwritten, end)

    def commit(self, upto: int) -> None:
        """The group that `write` returned `upto` for is durable. At most one group of a ring is in flight.

        A replica hears of its copies only; of a ring that stepped down after the write nobody says it any more.
        """
        if self.replica:
            self._commit_moves()
            return
        assert upto <= self._unwritten, "only what was written becomes durable"
        self.groups_committed = self.groups
        for seq in range(self.committed, upto):
            slot = self._slots.get(seq)
            if slot is None:
                continue
            if slot.state == HELD:
                self._forget(seq)
            elif slot.written and slot.message is not None and self.resident_bytes > self.resident_bytes_max:
                self._page_out(seq, slot)
        self.committed = max(self.committed, upto)
        self.reserved_durable = self._reserved_written
        self._commit_moves()
        for seq in seqs_of(self._inflight):
            slot = self._slots[seq]
            assert slot.state == SETTLED, "a SET record names settled messages"
            self._dirty_runs[seq // RUN_LENGTH] = None
            if self.use is not None:
                self.use.release(slot.segment, slot.length)
            self._forget(seq)
        self._inflight = []
        self.advance()

    def moved(self) -> None:
        """The group that `write` returned from is durable here: what it holds of messages that were written before
        counts from now on, whenever copies elsewhere have it. The next checkpoint may let go of the old places, and
        must not let go of the new ones."""
        self._commit_moves()

    def _commit_moves(self) -> None:
        self._moving.clear()
        for seq, segment, offset, length in self._moves:
            slot = self._slots.get(seq)
            if slot is None:
                continue
            if self.use is not None:
                self.use.add(segment, length)
                self.use.release(slot.segment, slot.length)
            slot.segment, slot.offset, slot.length = segment, offset, length
            self._dirty_runs[seq // RUN_LENGTH] = None
            if slot.message is not None and self.resident_bytes > self.resident_bytes_max:
                self._page_out(seq, slot)
        self._moves = []

    def advance(self) -> int:
        """Moves `committed` over what needs no disk: transient messages, and those acknowledged unwritten."""
        if not self.logged:
            self.committed = self._unwritten = self.next_seq
            return self.committed
        while self.committed < self.next_seq:
            slot = self._slots.get(self.committed)
            if slot is not None and slot.persist:
                break
            self.committed += 1
        return self.committed

    def rewrite(self, seq: int, segment: int, offset: int, message: Message) -> bool:
        """Copy forward: writes the message again if it still lives at (segment, offset); False when it does not."""
        slot = self._slots.get(seq)
        if slot is None or slot.state not in LIVE or not slot.written or self.past is not None:
            return False
        if (slot.segment, slot.offset) != (segment, offset):
            return False
        if seq not in self._rewrites:
            self._page_in(slot, message)
            self._rewrites[seq] = None
            self.mark()
        return True

    def replace(self, seq: int, message: Message) -> bool:
        """An unacknowledged message gets another header; it is written again under its seq, and every copy of the queue
        takes that in its place. False: it is not unacknowledged."""
        assert not any((self.proxy, self.replica, self.past)), "the owner of a queue changes its messages"
        slot = self._slots.get(seq)
        if slot is None or slot.state != UNACKED:
            return False
        assert message.body_length == slot.body_length, "a message keeps its body"
        if slot.message is not None:
            self._went(slot.message)
        slot.message = message
        self._came(message)
        self._longest = max(self._longest, len(message.address) + len(message.payload))
        if slot.written:
            self._rewrites[seq] = None
        self.mark()
        return True

    # -- paging -----------------------------------------------------------------------------------------------

    def _came(self, message: Message) -> None:
        """It is in memory from now on."""
        self.resident_bytes += len(message.payload)
        self.resident += 1

    def _went(self, message: Message) -> None:
        self.resident_bytes -= len(message.payload)
        self.resident -= 1

    def _page_out(self, seq: int, slot: _Slot) -> None:
        assert slot.written, "only a message on disk leaves memory"
        assert slot.message is not None, "it is in memory"
        if seq in self._rewrites or seq in self._moving or self._volatile:
            return
        self._went(slot.message)
        slot.message = None

    def _page_in(self, slot: _Slot, message: Message) -> None:
        if slot.message is None:
            assert message.body_length == slot.body_length, "a message comes back as it left"
            slot.message = message
            self._came(message)

    @property
    def wants_load(self) -> bool:
        """The messages in memory ahead of the head run low while more stand on disk."""
        if self.loading or not self.journaled:
            return False
        return bool(self._missing(1, 1, self.load_ahead // 2))

    def missing(self) -> list[Location]:
        """Places of the next ready messages that are on disk only: at most `load_ahead`, about LOAD_BYTES.

        It looks no further than `load_ahead` messages from the head.
        """
        return self._missing(self.load_ahead, LOAD_BYTES, self.load_ahead)

    def _missing(self, count_max: int, bytes_max: int, look_max: int) -> list[Location]:
        found: list[Location] = []
        size = 0
        self._head()
        ahead = heapq.nsmallest(look_max, (entry for entry in self._heap if self._is_ready(entry[1])))
        end = min(self.next_seq, self._cursor + look_max - len(ahead))
        for seq in (*(seq for _, seq in ahead), *range(self._cursor, end)):
            slot = self._slots.get(seq)
            if slot is None or slot.state != READY or slot.message is not None:
                continue
            found.append((seq, slot.segment, slot.offset, slot.length))
            size += slot.length
            if len(found) >= count_max or size >= bytes_max:
                break
        return found

    def _is_ready(self, seq: int) -> bool:
        slot = self._slots.get(seq)
        return slot is not None and slot.state == READY

    def fill(self, locations: Iterable[Location], messages: Sequence[Message]) -> None:
        """Brings back messages that `missing` named; those that left meanwhile are passed over."""
        self.disk_reads += len(messages)
        for (seq, *_), message in zip(locations, messages, strict=True):
            slot = self._slots.get(seq)
            if slot is not None and slot.state in LIVE:
                self._page_in(slot, message)

    # -- streams ----------------------------------------------------------------------------------------------

    def trim(self, last: int) -> None:
        """All of the past up to `last` is gone; the next group says so."""
        assert self.past is not None, "only a stream has a past"
        self._trimmed = max(self._trimmed, last)
        self.mark()

    def move_out(self) -> list[tuple[int, int, list[tuple[int, int, int]]]]:
        """What is written leaves the ring, and is the past from now on: (first seq, end, places) of each part without
        a gap; a place is (segment, offset, bytes with padding) of records of neighbouring seqs that stand together.

        To be called when no group is under way. Of an owner's messages those that are committed.
        """
        parts: list[tuple[int, int, list[tuple[int, int, int]]]] = []
        for seq in sorted(self._slots):
            slot = self._slots[seq]
            if slot.state != READY or not slot.written or not (self.replica or seq < self.committed):
                continue
            padded = slot.length + 7 & ~7
            if not parts or parts[-1][1] != seq:
                parts.append((seq, seq, []))
            first, _, places = parts[-1]
            segment, offset, size = places[-1] if places else (-1, 0, 0)
            if (segment, offset + size) == (slot.segment, slot.offset):
                places[-1] = segment, offset, size + padded
            else:
                places.append((slot.segment, slot.offset, padded))
            parts[-1] = first, seq + 1, places
            self._move_out(seq, slot)
        return parts

    def _seqs(self, first: int, last: int) -> range:
        """Of first to last those that the ring may have: a stream's past may be long."""
        lowest = 0 if self.past is None else min(self._slots, default=self.next_seq)
        return range(max(first, lowest), min(last + 1, self.next_seq))

    def _cut_past(self, from_seq: int) -> None:
        if self.past is not None:
            self.past.cut(from_seq)

    def _move_out(self, seq: int, slot: _Slot) -> None:
        self._rewrites.pop(seq, None)
        if slot.message is not None:
            self._went(slot.message)
        if self.use is not None:
            self.use.release(slot.segment, slot.length)
        self.ready -= 1
        self.ready_bytes -= slot.body_length
        self._dirty_runs[seq // RUN_LENGTH] = None
        self._forget(seq)

    # -- checkpoint and recovery ------------------------------------------------------------------------------

    def dirty_runs(self) -> list[tuple[int, bytes]]:
        """(first seq, run bytes) of every run that changed since the last call; empty bytes: delete it.

        A run lists what a replay from the durable position could not rebuild: messages whose ENQ is durable and
        whose SET is not. A replicated ring's messages are committed later than they are durable here, so its runs go
        by what was written: the caller takes them in the breath in which it takes the journal's position.
        """
        if self._volatile:
            self._dirty_runs = {}
        gone = set(seqs_of(self._inflight)) if self.replicated else ()
        runs: list[tuple[int, bytes]] = []
        keep: dict[int, None] = {}
        for number in sorted(self._dirty_runs):
            first = number * RUN_LENGTH
            entries: list[bytes] = []
            for seq in range(first, first + RUN_LENGTH):
                slot = self._slots.get(seq)
                if slot is None or not slot.written:
                    continue
                if not self.replicated and seq >= self.committed:
                    keep[number] = None
                    continue
                if seq in gone:
                    keep[number] = None
                    continue
                flags = REDELIVERED if slot.redelivered else 0
                entries.append(
                    RUN_ENTRY.pack(
                        seq % RUN_LENGTH,
                        slot.priority,
                        flags,
                        min(slot.delivery_count, 255),
                        slot.segment,
                        slot.offset,
                        slot.length,
                        slot.body_length,
                    )
                )
                if slot.state == SETTLED:
                    keep[number] = None
            runs.append((first, b"".join(entries)))
        self._dirty_runs = keep
        return runs

    def restore_run(self, first_seq: int, run: bytes) -> None:
        for low, priority, flags, count, segment, offset, length, body_length in RUN_ENTRY.iter_unpack(run):
            self.restore(first_seq + low, segment, offset, length, body_length, priority, count)
            if flags & REDELIVERED:
                self._slots[first_seq + low].redelivered = True

    def restore(
        self, seq: int, segment: int, offset: int, length: int, body_length: int, priority: int, delivery_count: int
    ) -> None:
        """An ENQ from the index or the tail of the log. A later place of the same seq replaces the earlier."""
        old = self._slots.get(seq)
        if old is not None and self.use is not None:
            self.use.release(old.segment, old.length)
        slot = _Slot(None, min(priority, self.max_priority), body_length, True)
        slot.written = True
        slot.segment, slot.offset, slot.length = segment, offset, length
        slot.delivery_count = delivery_count
        slot.redelivered = old is not None and old.redelivered
        if self._state is not None and seq in self._state.dead:
            slot.state = DEAD
        if self.use is not None:
            self.use.add(segment, length)
        self._slots[seq] = slot
        self._dirty_runs[seq // RUN_LENGTH] = None
        self.next_seq = max(self.next_seq, seq + 1)

    def restore_settled(self, ranges: Iterable[tuple[int, int]]) -> None:
        for first, last in ranges:
            if self.past is not None:
                self.past.drop(first, last)
                first = max(first, min(self._slots, default=self.next_seq))
            if self._state is not None and self._state.dead:
                self._state.settled(first, last)
            for seq in range(first, min(last + 1, self.next_seq)):
                slot = self._slots.pop(seq, None)
                if slot is None:
                    continue
                if self.use is not None:
                    self.use.release(slot.segment, slot.length)
                self._dirty_runs[seq // RUN_LENGTH] = None

    def restore_count(self, seq: int, delivery_count: int) -> None:
        slot = self._slots.get(seq)
        if slot is not None:
            slot.delivery_count = delivery_count
            slot.redelivered = True
            self._dirty_runs[seq // RUN_LENGTH] = None

    def restore_end(self, next_seq: int, reserved: int) -> None:
        """The log is folded. All up to `reserved` (D_prev, replication.md 6.4) may have been handed out before."""
        self._slots = OrderedDict(sorted(self._slots.items()))
        self.next_seq = max(self.next_seq, next_seq, reserved + 1)
        self.committed = self._unwritten = self.next_seq
        self.reserved = self._reserved_written = self.reserved_durable = reserved
        self._cursor = next(iter(self._slots), self.next_seq)
        self.ready = self.ready_bytes = 0  # a replica's, which died or were cut, were taken off before
        for seq, slot in self._slots.items():
            if slot.state != READY:
                continue
            self.ready += 1
            self.ready_bytes += slot.body_length
            slot.redelivered = slot.redelivered or seq <= reserved
            if self.max_priority:
                self._heap.append((-slot.priority, seq))
        if self.max_priority:
            heapq.heapify(self._heap)
            self._cursor = self.next_seq

    def _forget_links(self) -> None:
        self._link_places, self._link_dirty, self._link_presses, self.links_wait = {}, [], False, False

    def destroy(self) -> None:
        """The queue is deleted: gives back its segments' bytes. What still returns to the spent ring is passed over."""
        if self.use is not None:
            for slot in self._slots.values():
                if slot.written:
                    self.use.release(slot.segment, slot.length)
        self._slots.clear()
        self._heap.clear()
        self._moves, self._inflight, self._settled = [], [], []
        self._rewrites, self._requeued, self._dirty_runs = {}, {}, {}
        self._counted_from, self._dying, self._buried, self._unsaid, self._held = {}, {}, {}, {}, {}
        self._forget_links()
        self._state = self._epochs_before = None
        self._unwritten, self._reserved_written = self.next_seq, self.reserved
        self._trimmed = 0
        self.destroyed = True
        self.ready = self.unacked = self.ready_bytes = self.resident_bytes = self.resident = self.fleeting = 0
