"""A queue's ring in a cluster: what the specification of the ring says of queues that several nodes deal with.

Theory. What all groups until now say, the *emitted state*, is what a replica has to hold: messages whose ENQ was
written and whose SET was not, with the delivery counts and marks that were written. It differs from what the owner
does only by what the next group will say. So a fold of the emitted bytes is a replica; a comparison of emitted states,
bucket by bucket, brings any replica there; and an owner that loses its queue goes back to its own emitted state
(`step_down`) and is a replica.

    owner    replicated: hands out what is committed and reserved; knows which node holds what it handed out
    replica  all its messages are READY or DEAD, on disk only (in memory when volatile); nobody is handed anything
    proxy    messages without content that are outstanding at this node: UNACKED until a consumer decides, then
             SETTLED until the owner has answered
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from clusterbroker.broker.queues.states import BUCKET_SEQS, DEAD, HOLDER_MAX, READY, UNACKED
from clusterbroker.broker.queues.stumble import Stumble, Unfit
from clusterbroker.journal.layout import ATTR, CUT, ENQ, EPO, REQ, RSV, RUN_LENGTH, SET, Location, Record
from clusterbroker.journal.layout import DEAD as DEAD_RECORD
from clusterbroker.journal.queue_state import LAST_DEAD, QueueState
from clusterbroker.journal.ranges import Range, merged, ranges_of, seqs_of
from tests.model.record import (
    DamagedRecord,
    Message,
    RecordBuffer,
    read_records,
    scan_span,
    verify_records,
)
from tests.model.ring_links import LinkedRing
from tests.model.ring_local import LIVE, RESERVE_FIRST, SETTLED, _Slot

if TYPE_CHECKING:
    from tests.model.ring_taker import Taker

    Bytes: TypeAlias = bytes | bytearray | memoryview

WORD: Final = (1 << 64) - 1


def digest_of(seq: int, delivery_count: int, mark: int) -> int:
    """What one live message adds to its bucket's digest, modulo 2**64."""
    mixed = (seq * 0x9E3779B97F4A7C15 + delivery_count * 0xC2B2AE3D27D4EB4F + mark * 0x165667B19E3779F9) & WORD
    mixed ^= mixed >> 32
    mixed = mixed * 0xD6E8FEB86659FD93 & WORD
    return mixed ^ mixed >> 32


class Ring(LinkedRing):
    """A queue's messages; see `ring`."""

    __slots__ = ()

    # -- owner: epochs, attributes, the dead -------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> None:
        """This node owns the queue in `epoch`: what is written from now on is of it. Known already: nothing."""
        epochs = self.state.epochs
        if epochs and epochs[-1][0] >= epoch:
            self.epoch = epochs[-1][0]
            return
        if self._epochs_before is None:
            self._epochs_before = list(epochs)
        if not epochs and self._unwritten > 1:  # records of a time when nobody counted epochs
            self.state.began(min(self.epoch, epoch), 1)
        if self.epoch < epoch or not epochs:
            self.state.began(epoch, self._unwritten)
        self.epoch = epoch
        self.mark()

    def set_attribute(self, name: bytes, upto: int, marks: bool = True) -> None:
        """An attribute of the log (`attributes`); 0 takes it out. It goes to the end: copies
        know by the order who was heard last."""
        self._unsaid[name] = self._unsaid.pop(name, self.attributes.get(name, 0))
        self.state.set_attribute(name, upto)
        if marks:
            self.mark()

    def note_deliveries(self, prefix: bytes, first: int, tags: list[bytes], index: dict[int, bytes]) -> int:
        """Sets the attributes prefix + tag to first, first + 1 ...; `index` has the tag of each value. Returns the
        bytes of the tags that are new."""
        added = 0
        for value, tag in enumerate(tags, first):
            added += 0 if prefix + tag in self.attributes else len(tag)
            index.pop(self.attributes.get(prefix + tag, 0), None)
            self.set_attribute(prefix + tag, value)
            index[value] = tag
        self.mark()
        return added

    def forget_deliveries(self, prefix: bytes, upto: int, tags: list[bytes], index: dict[int, bytes]) -> int:
        """Takes out those of the attributes prefix + tag whose value is not above `upto`, and their values. Returns the
        bytes of their tags."""
        taken = 0
        for tag in tags:
            if 0 < self.attributes.get(prefix + tag, 0) <= upto:
                index.pop(self.attributes[prefix + tag], None)
                self.set_attribute(prefix + tag, 0)
                taken += len(tag)
        self.mark()
        return taken

    def append_records(self, data: Bytes, now_ms: int) -> tuple[int, int]:
        """Appends the messages of ENQ records that `verify_records` has passed (`messages=True`); returns `next_seq`
        after them and how many they are.

        Their seqs mean nothing here, and their times are of another node's clock: they came now.
        """
        messages = [
            Message(m.address, m.payload, m.header_length, m.flags, m.priority, now_ms, m.ttl_ms, m.format)
            for _, m, _, _ in read_records(data)
        ]
        return self.append(messages), len(messages)

    def hold_dead(self, seq: int, reason: int) -> int:
        """An unacknowledged message is held for its dead-letter targets until it is settled; returns its number."""
        slot = self._slots[seq]
        assert slot.state == UNACKED, f"only an unacknowledged message dies, {seq} of {self.queue_id} does not"
        if not 0 <= reason <= 255:
            raise OverflowError("a reason is one byte")
        known = self.attributes.get(LAST_DEAD, 0)
        self._unsaid.setdefault(LAST_DEAD, known)
        self._let_go(slot)
        slot.state = DEAD
        self.unacked -= 1
        self.state.died(seq, known + 1 << 8 | reason)
        self._dying[seq] = None
        self.mark()
        return known + 1

    def hold_all_dead(self, seqs: list[int], reason: int) -> int:
        """As `hold_dead`, of several in this order; returns the number of the first."""
        first = self.attributes.get(LAST_DEAD, 0) + 1
        for seq in seqs:
            self.hold_dead(seq, reason)
        return first

    def settle_all(self, seqs: list[int]) -> None:
        """As `settle`, of several."""
        for seq in seqs:
            self.settle(seq)

    def dead(self) -> list[tuple[int, int, int]]:
        """(seq, number, reason) of what is held for dead-letter targets, in the order of the numbers, which the DEAD
        records have: 1, 2, 3 ... over the queue's life."""
        marks = [] if self._state is None else sorted((mark, seq) for seq, mark in self._state.dead.items())
        return [(seq, mark >> 8, mark & 255) for mark, seq in marks]

    # -- owner: who holds what --------------------------------------------------------------------------------

    def give(self, seq: int, holder: int) -> None:
        """An unacknowledged message is at that node from now on."""
        slot = self._slots[seq]
        assert slot.state == UNACKED, f"only a message that was handed out is held, {seq} of {self.queue_id} is not"
        assert 1 <= holder <= HOLDER_MAX, "holders are 1 to 253"
        self._let_go(slot)
        slot.holder = holder
        self._held[holder] = self._held.get(holder, 0) + 1

    def held_by(self, holder: int) -> int:
        return self._held.get(holder, 0)

    def _held_in(self, first: int, last: int, holder: int) -> list[int]:
        slots = self._slots
        return [
            seq for seq in range(first, min(last + 1, self.next_seq)) if seq in slots and slots[seq].holder == holder
        ]

    def _theirs_in(self, first: int, last: int, holder: int) -> list[int]:
        """Also what links hold that are attached there."""
        return [
            seq for seq in range(first, min(last + 1, self.next_seq))
            if (slot := self._slots.get(seq)) is not None
            and (slot.holder == holder or (slot.link and self.link_place(slot.link) == holder))
        ]  # fmt: skip

    def count_held(self, first: int, last: int, holder: int) -> int:
        """How many of first to last that node may settle."""
        return len(self._theirs_in(first, last, holder))

    def settle_held(self, first: int, last: int, holder: int) -> int:
        """Settles what that node holds of first to last, itself or as the place of a link; returns how many."""
        seqs = self._theirs_in(first, last, holder)
        for seq in seqs:
            self.settle(seq)
        if seqs:
            own = min(len(seqs), self.auto_acks)
            self.auto_acks, self.acked = self.auto_acks - own, self.acked + len(seqs) - own
            self.mark()
        return len(seqs)

    def requeue_held(self, first: int, last: int, holder: int, counted: bool) -> int:
        seqs = self._held_in(first, last, holder)
        for seq in seqs:
            self.requeue(seq, counted)
        return len(seqs)

    def requeue_all_held(self, holder: int) -> int:
        """The node is gone, or said that it has nothing."""
        return self.requeue_held(1, self.next_seq, holder, False) if self.held_by(holder) else 0

    def take_held(self, first: int, last: int, holder: int) -> list[int]:
        """The seqs that the node really held; they are the caller's now, unacknowledged and at no node. Also those of
        links that are attached there, which may leave the queue; what they give back `take_linked` takes."""
        seqs = self._theirs_in(first, last, holder)
        for seq in seqs:
            self._let_go(self._slots[seq])
        return seqs

    def adopt(self, first: int, last: int, holder: int) -> int:
        """After a take-over: ready messages that the node has been handed before are there again."""
        count = 0
        for seq in range(first, min(last + 1, self.next_seq)):
            slot = self._slots.get(seq)
            if slot is None or slot.state != READY:
                continue
            slot.state = UNACKED
            self.ready -= 1
            self.ready_bytes -= slot.body_length
            self.unacked += 1
            self.give(seq, holder)
            count += 1
        return count

    # -- owner: what an operator does with single messages ----------------------------------------------------

    def living(self, first: int, last: int, count_max: int) -> list[tuple[int, int, bool, int, int]]:
        """(seq, state, redelivered, delivery count, holder) of what is READY, UNACKED or DEAD of first to last: the
        first `count_max` of them."""
        found = []
        for seq in range(first, min(last + 1, self.next_seq)):
            slot = self._slots.get(seq)
            if slot is not None and slot.state in LIVE:
                found.append((seq, slot.state, slot.redelivered, slot.delivery_count, slot.holder))
                if len(found) >= count_max:
                    break
        return found

    def waiting(
        self, first: int, last: int, count_max: int, bytes_max: int
    ) -> tuple[int, list[int], list[Message], list[Location]]:
        """What is READY from `first` on: (where to go on; seqs and messages that are in memory; locations of others),
        at most `count_max`, and until the records of others are `bytes_max`."""
        end = min(last + 1, self.next_seq)
        seqs: list[int] = []
        here: list[Message] = []
        absent: list[Location] = []
        size = 0
        for seq in range(first, end):
            if len(seqs) + len(absent) >= count_max or size >= bytes_max:
                return seq, seqs, here, absent
            slot = self._slots.get(seq)
            if slot is None or slot.state != READY:
                continue
            if slot.message is not None:
                seqs.append(seq)
                here.append(slot.message)
            else:
                absent.append(self.location(seq))
                size += slot.length
        return end, seqs, here, absent

    def all_ready(self, seqs: list[int]) -> bool:
        """Whether each of these messages is READY."""
        return all((slot := self._slots.get(seq)) is not None and slot.state == READY for seq in seqs)

    def set_aside(self, seq: int) -> bool:
        """A ready message becomes unacknowledged, at no node and in no ledger, wherever it stands; False: it is not
        ready."""
        slot = self._slots.get(seq)
        if slot is None or slot.state != READY:
            return False
        slot.state = UNACKED
        self.ready -= 1
        self.ready_bytes -= slot.body_length
        self.unacked += 1
        return True

    def set_all_aside(self, seqs: list[int]) -> tuple[list[int], list[Message | None], list[int]]:
        """As `set_aside`, of several: seqs and messages of those that were ready; the seqs of others."""
        aside = [seq for seq in seqs if self.set_aside(seq)]
        return aside, [self.message(seq) for seq in aside], [seq for seq in seqs if seq not in aside]

    def put_back(self, seq: int) -> None:
        """What was set aside returns to its place as it was: nobody has seen it."""
        seen = self._slots[seq].redelivered
        self.requeue(seq, False)
        self._slots[seq].redelivered = seen

    # -- the emitted state ------------------------------------------------------------------------------------

    def emitted_end(self) -> int:
        """The first seq that no group has passed."""
        return self._unwritten

    def emitted_reserved(self) -> int:
        return self._reserved_written

    def emitted_attributes(self) -> dict[bytes, int]:
        return self._emitted_state().attributes

    def _emitted_state(self) -> QueueState:
        state = QueueState()
        if self._state is not None:
            state.epochs = list(self._state.epochs if self._epochs_before is None else self._epochs_before)
            state.attributes = dict(self._state.attributes)
            state.dead = {seq: mark for seq, mark in self._state.dead.items() if seq not in self._dying}
            state.dead.update(self._buried)
        for name, upto in self._unsaid.items():
            state.set_attribute(name, upto)
        return state

    def _emitted(self) -> list[tuple[int, int, int]]:
        """(seq, delivery count, mark) of every live message."""
        gone = set(seqs_of(self._inflight))
        dead = self._emitted_state().dead
        found = []
        for seq, slot in self._slots.items():
            # a settled body in memory is gone: a copy that lacks it lacks nothing, and its SET finds nothing there
            settled = slot.state == SETTLED and seq not in gone and not self._volatile
            if slot.written and (slot.state in LIVE or settled):
                found.append((seq, self._counted_from.get(seq, slot.delivery_count), dead.get(seq, 0)))
        return sorted(found)

    def emitted_buckets(self) -> list[tuple[int, int]]:
        """(number, digest) of every bucket in which something lives, ascending."""
        sums: dict[int, int] = {}
        for seq, count, mark in self._emitted():
            number = seq // BUCKET_SEQS
            sums[number] = (sums.get(number, 0) + digest_of(seq, count, mark)) & WORD
        return list(sums.items())

    def _emitted_of(self, bucket: int) -> list[tuple[int, int, int]]:
        return [entry for entry in self._emitted() if entry[0] // BUCKET_SEQS == bucket]

    def emitted_live(self, bucket: int) -> list[Range]:
        return ranges_of(seq for seq, _, _ in self._emitted_of(bucket))

    def copies_of(self, ranges: Iterable[Range], bytes_max: int) -> tuple[list[int], list[Location]]:
        """Seqs out of `ranges` until `bytes_max` is reached, at least one; and the locations of those on disk only."""
        seqs: list[int] = []
        absent: list[Location] = []
        size = 0
        for seq in seqs_of(ranges):
            location = self.location(seq)
            size += location[3]
            if seqs and size > bytes_max:
                break
            seqs.append(seq)
            if self.message(seq) is None:
                absent.append(location)
        return seqs, absent

    def encode_emitted(self, seqs: Iterable[int], found: dict[int, Message]) -> bytes:
        """ENQ records of those seqs that live in the emitted state, out of memory or `found`; each with the epoch that
        gave its seq. What left meanwhile is left out."""
        live = {seq for seq, _, _ in self._emitted()}
        buffer = RecordBuffer()
        for seq in seqs:
            message = (self.message(seq) or found.get(seq)) if seq in live else None
            if message is not None:
                buffer.enqueue(self.queue_id, self.epoch_of(seq), seq, message, self.delivery_count(seq), False)
        return buffer.take()

    def emitted_counts(self, bucket: int) -> list[tuple[int, int]]:
        """(seq, delivery count) where it is not 0."""
        return [(seq, count) for seq, count, _ in self._emitted_of(bucket) if count]

    def emitted_dead(self, bucket: int) -> list[tuple[int, int]]:
        """(seq, mark): what `GroupWriter.dead` writes and `restore_dead` takes."""
        return [(seq, mark) for seq, _, mark in self._emitted_of(bucket) if mark]

    def checkpoint_meta(self) -> dict[str, Any]:
        """What a checkpoint writes down besides the runs."""
        if self.replicated:
            meta = {"next_seq": self._unwritten, "reserved": self._reserved_written, "epoch": self.epoch}
        else:
            meta = {"next_seq": self.next_seq, "reserved": self.reserved_durable, "epoch": self.epoch}
        if self.replicated or self._state is not None:
            self._emitted_state().into(meta)
        return meta

    # -- from owner to replica and back -----------------------------------------------------------------------

    def step_down(self) -> None:
        """The queue is another node's: back to the emitted state, as a replica. Safe in any state.

        Nobody may call `commit` any more for a group of the time before.
        """
        if self.replica or self.destroyed:
            return
        self._commit_moves()
        state = self._emitted_state()
        gone = set(seqs_of(self._inflight))
        slots: OrderedDict[int, _Slot] = OrderedDict()
        self.resident_bytes = self.resident = self.fleeting = self.ready = self.ready_bytes = 0
        for seq, slot in self._slots.items():
            settled = slot.state == SETTLED
            if not slot.written or (settled and (seq in gone or self._volatile)):
                if slot.written and self.use is not None:
                    self.use.release(slot.segment, slot.length)
                if slot.written:
                    self._dirty_runs[seq // RUN_LENGTH] = None
                continue
            slots[seq] = slot
            slot.holder = slot.link = 0
            slot.delivery_count = self._counted_from.get(seq, slot.delivery_count)
            slot.state = DEAD if seq in state.dead else READY
            if not self._volatile:
                slot.message = None
            elif slot.message is not None:
                self._came(slot.message)
            if slot.state == READY:
                self.ready += 1
                self.ready_bytes += slot.body_length
        state.dead = {seq: mark for seq, mark in state.dead.items() if seq in slots}
        self._slots = slots
        self._state = state
        self._heap, self._settled, self._inflight = [], [], []
        self._requeued, self._counted_from, self._rewrites = {}, {}, {}
        self._dying, self._buried, self._unsaid, self._held = {}, {}, {}, {}
        self._forget_links()
        self._epochs_before, self._trimmed = None, 0
        self.next_seq = self._unwritten
        self.reserved = self.reserved_durable = self._reserved_written
        self.unacked = 0
        self.paused = False
        self.replica = self.replicated = True
        self._follow()

    def _follow(self) -> None:
        self.committed = self._unwritten = self._cursor = self.next_seq

    def take_over(self, epoch: int, seen: bool = False) -> None:
        """The queue is this node's from `epoch` on. Nothing counts as committed, all that was reserved counts as
        delivered before, and nothing is handed out before the caller ends `paused` (and marks the ring).

        `seen`: of all that is here nobody knows whether it was delivered before, so it counts as reserved, and the
        first group says so."""
        self.step_down()
        self._begin_totals()
        self.replica = False
        self.paused = True
        if seen:
            self.reserved = max(self.reserved, self.next_seq - 1)
        self.next_seq = max(self.next_seq, self.reserved + 1)
        self._slots = OrderedDict(sorted(self._slots.items()))
        self._unwritten = self.next_seq
        self.committed = next(iter(self._slots), self.next_seq)
        self._reserve_step = RESERVE_FIRST
        self._cursor = self.next_seq if self.max_priority else self.committed
        for seq, slot in self._slots.items():
            slot.redelivered = slot.redelivered or seq <= self.reserved
            if self.max_priority and slot.state == READY:
                self._heap.append((-slot.priority, seq))
        heapq.heapify(self._heap)
        self.begin_epoch(epoch)
        self.mark()

    # -- replica ----------------------------------------------------------------------------------------------

    def fold(self, data: Bytes, segment: int, offset: int) -> None:
        """Takes over what the owner wrote: records that `verify_records` has passed, and that stand in the own journal
        at (segment, offset), in a group that is submitted in the same breath."""
        assert self.replica, f"queue {self.queue_id} is not a replica here"
        for record in scan_span(data):
            if record.queue_id != self.queue_id:
                raise DamagedRecord(record.offset, f"a record of queue {record.queue_id}, not of {self.queue_id}")
            if record.kind == ENQ:
                self._fold_message(record, data, segment, offset)
            elif record.kind == SET:
                self.drop(record.ranges)
            elif record.kind == RSV:
                self._reserved_written = max(self._reserved_written, record.seq)
                self.reserved = self.reserved_durable = self._reserved_written
            elif record.kind == REQ:
                self.restore_count(record.seq, record.delivery_count)
            elif record.kind == DEAD_RECORD:
                self.restore_dead(record.seq, record.value)
            elif record.kind == CUT:
                self.cut(record.seq)
            elif record.kind == ATTR:
                self.restore_attribute(record.name, record.value)
            elif record.kind == EPO:
                self.restore_epoch(record.epoch, record.seq)
        self._follow()

    def _fold_message(self, record: Record, data: Bytes, segment: int, offset: int) -> None:
        before = self._slots.get(record.seq)
        if before is not None:  # it moved
            self._rewrites.pop(record.seq, None)
            self._moves = [move for move in self._moves if move[0] != record.seq]
            if before.message is not None:
                self._went(before.message)
        place = segment, offset + record.offset, record.length
        self.restore(record.seq, *place, record.body_length, record.priority, record.delivery_count)
        slot = self._slots[record.seq]
        if self._volatile:
            ((_, slot.message, _, _),) = read_records(data[record.offset : record.offset + (record.length + 7 & ~7)])
            assert slot.message is not None, "it was just read"
            self._came(slot.message)
        if before is None and slot.state == READY:
            self.ready += 1
            self.ready_bytes += slot.body_length

    def drop(self, ranges: Iterable[Range]) -> None:
        """These are gone; the caller has the SET record written."""
        assert self.replica, f"queue {self.queue_id} is not a replica here"
        ranges = list(ranges)
        for seq in [seq for first, last in ranges for seq in self._seqs(first, last)]:
            self._uncount(seq)
        self.restore_settled(ranges)

    def _uncount(self, seq: int) -> None:
        """A message of a replica is about to leave."""
        slot = self._slots.get(seq)
        if slot is None:
            return
        self._rewrites.pop(seq, None)
        if slot.message is not None:
            self._went(slot.message)
        if slot.state == READY and self.replica:
            self.ready -= 1
            self.ready_bytes -= slot.body_length

    def cut(self, from_seq: int) -> None:
        """Everything from there on is gone, and the seqs will be used anew; the caller has the CUT record written.
        Also while the log is folded at the start (before `restore_end`)."""
        self._cut_past(from_seq)
        for seq in [seq for seq in self._slots if seq >= from_seq]:
            self._uncount(seq)
            slot = self._slots.pop(seq)
            if self.use is not None:
                self.use.release(slot.segment, slot.length)
            self._dirty_runs[seq // RUN_LENGTH] = None
        self._moves = [move for move in self._moves if move[0] < from_seq]
        self.next_seq = min(self.next_seq, from_seq)
        self.state.cut(from_seq)
        if self.replica:
            self._follow()

    def live(self, bucket: int) -> list[Range]:
        return self.emitted_live(bucket)

    # -- replica and recovery: what the log says besides messages ---------------------------------------------

    def restore_state(self, state: QueueState) -> None:
        """Replaces epochs, attributes and the dead set, before the runs (recovery) or at the offer of a sync."""
        for seq in [seq for seq in self.state.dead if seq in self._slots and seq not in state.dead]:
            self._revive(seq)
        self._state = QueueState()
        self._state.epochs, self._state.attributes = list(state.epochs), dict(state.attributes)
        for seq, mark in state.dead.items():
            self._state.dead[seq] = mark
            if seq in self._slots:
                self._die(seq)
        if state.epochs:
            self.epoch = state.epochs[-1][0]

    def _revive(self, seq: int) -> None:
        slot = self._slots[seq]
        slot.state = READY
        if self.replica:
            self.ready += 1
            self.ready_bytes += slot.body_length

    def _die(self, seq: int) -> None:
        slot = self._slots[seq]
        if slot.state == READY:
            slot.state = DEAD
            if self.replica:
                self.ready -= 1
                self.ready_bytes -= slot.body_length

    def restore_dead(self, seq: int, mark: int) -> None:
        """A DEAD record. Of a message that is not here its number is remembered all the same."""
        self.state.died(seq, mark)
        if seq in self._slots:
            self._die(seq)
        else:
            del self.state.dead[seq]

    def restore_attribute(self, name: bytes, upto: int) -> None:
        self.state.set_attribute(name, upto)

    def restore_epoch(self, epoch: int, first_seq: int) -> None:
        self.state.began(epoch, first_seq)
        self.epoch = epoch
        self.next_seq = max(self.next_seq, first_seq)

    # -- proxy ------------------------------------------------------------------------------------------------

    def receive(
        self, taker: Taker, data: Bytes, now_ms: int
    ) -> tuple[int, list[Range], list[Stumble | Unfit], list[Range]]:
        """Hands the records of a Deliver to a consumer of this node; returns how many records there were, ranges of
        seqs that it may not get any more (cancelled, channel closing), the first that it cannot be handed, held here,
        and ranges of what was settled here before, and is not forgotten. What is outstanding here already is passed
        over, and counted.

        Raises DamagedRecord before anything is taken.
        """
        assert self.proxy, "only a proxy receives"
        verify_records(data, self.queue_id, 0xFFFFFFFF, True)
        flows = taker.flows
        refused: list[int] = []
        before: list[int] = []
        stumbles: list[Stumble | Unfit] = []
        count = handed = 0
        for seq, message, delivery_count, redelivered in read_records(data):
            count += 1
            if seq in self._slots:
                if self._slots[seq].state == SETTLED:
                    before.append(seq)
                else:
                    self.passed_over += 1
                continue
            if not flows:
                refused.append(seq)
                continue
            self.hold(seq, delivery_count)
            try:
                if taker.hand(seq, message, redelivered, delivery_count, now_ms):
                    self.settle(seq)
            except (Stumble, Unfit) as error:
                stumbles.append(error)
                flows = False
                continue
            taker.delivered += 1
            handed += 1
        if handed:
            self.mark()
        return count, ranges_of(refused), stumbles, ranges_of(before)

    def hold(self, seq: int, delivery_count: int = 0) -> bool:
        """The message is outstanding here (basic.get), with that delivery count; False when it was before."""
        assert self.proxy, "only a proxy holds without content"
        if seq in self._slots:
            return False
        slot = _Slot(None, 0, 0, True)
        slot.state = UNACKED
        slot.written = True
        slot.delivery_count = delivery_count
        self._slots[seq] = slot
        self.unacked += 1
        return True

    def take_settled(self) -> list[Range]:
        """What consumers have settled since the last call. `forget` it when the owner has answered."""
        assert self.proxy, "an owner writes what is settled"
        taken, self._settled = merged((first, last) for first, last in self._settled), []
        return taken

    def forget(self, ranges: Iterable[Range]) -> None:
        """The owner knows that these are settled."""
        assert self.proxy, "only a proxy forgets"
        for first, last in ranges:
            for seq in [seq for seq in self._slots if first <= seq <= last]:
                if self._slots[seq].state == SETTLED:
                    self._forget(seq)

    def release(self, seq: int) -> int:
        """An unacknowledged message is no more outstanding here; returns the delivery count that it came with, -1 when
        it was not here."""
        assert self.proxy, "only a proxy releases"
        slot = self._slots.get(seq)
        if slot is None or slot.state != UNACKED:
            return -1
        self._forget(seq)
        self.unacked -= 1
        return slot.delivery_count

    def outstanding(self) -> list[Range]:
        assert self.proxy, "what is outstanding elsewhere is held"
        return ranges_of(seq for seq, slot in self._slots.items() if slot.state == UNACKED)


__all__ = ["BUCKET_SEQS", "HOLDER_MAX", "Ring", "digest_of"]
