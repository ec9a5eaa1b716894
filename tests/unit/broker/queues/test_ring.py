"""A queue's ring: states, order, what the journal hears and when, paging, checkpoint and recovery."""

from __future__ import annotations

import gc
import struct
import sys
from typing import Any

import pytest

from clusterbroker.broker.queues.ring import Ring, block_pieces
from clusterbroker.broker.queues.states import HEAD_EXPIRED, HEAD_NONE, HEAD_NOT_LOADED, HEAD_NOT_RESERVED, HEAD_OK
from clusterbroker.journal.layout import ATTR, ENQ, REQ, RSV, RUN_ENTRY, SET
from tests.model.ring import LOAD_AHEAD, RESERVE_FIRST, RESERVE_MAX


def kinds(records: list[Any]) -> list[int]:
    return [record.kind for record in records]


def drained(ring: Any) -> list[int]:
    seqs = []
    while ring.head(0) not in (HEAD_NONE, HEAD_NOT_LOADED):
        seqs.append(ring.take()[0])
    return seqs


# -- states and order --------------------------------------------------------------------------------------------


def test_seqs_are_given_in_order_and_counted(half: Any) -> None:
    ring = half.ring()
    assert ring.append(half.messages(3)) == 4
    assert ring.append([]) == 4
    assert (ring.ready, ring.unacked, ring.ready_bytes, ring.resident_bytes) == (3, 0, 3, 9)
    seq, message, redelivered, count = ring.take()
    assert (seq, message.body, redelivered, count) == (1, b"0", False, 0)
    assert (ring.ready, ring.unacked, ring.ready_bytes, ring.resident_bytes) == (2, 1, 2, 9)
    ring.settle(1)
    assert (ring.ready, ring.unacked, ring.resident_bytes) == (2, 0, 6)
    assert drained(ring) == [2, 3]
    assert ring.head(0) == HEAD_NONE


def test_any_sequence_of_messages_is_taken(half: Any) -> None:
    ring = half.ring()
    assert ring.append(tuple(half.messages(2))) == 3
    assert [ring.message(seq).body for seq in (1, 2)] == [b"0", b"1"]


def test_which_messages_come_to_the_log(half: Any) -> None:
    lasting, fleeting = half.message(), half.message(transient=True)
    journaled, alone = half.ring(journaled=True), half.ring()
    assert [journaled.persists(message) for message in (lasting, fleeting)] == [True, False]
    assert [alone.persists(message) for message in (lasting, fleeting)] == [False, False]
    journaled.keeps = False
    assert not journaled.persists(lasting)
    journaled.append([lasting, fleeting])
    journaled.keeps = True
    journaled.append([lasting, fleeting])
    assert [record.seq for record in half.commit(journaled) if record.kind == ENQ] == [3]


def test_a_returned_message_stands_at_its_old_place(half: Any) -> None:
    ring = half.ring(5)
    for _ in range(3):
        ring.take()
    assert ring.requeue(2, counted=False) == 0
    assert ring.requeue(1, counted=True) == 1
    seq, _, *flags = ring.take()
    assert (seq, flags) == (1, [True, 1])
    assert drained(ring) == [2, 4, 5]


def test_redelivered_and_the_delivery_count_stay_with_the_message(half: Any) -> None:
    ring = half.ring(1)
    for count in (1, 2, 3):
        ring.take()
        assert ring.requeue(1, counted=True) == count
    ring.take()
    assert ring.requeue(1, counted=False) == 3
    assert ring.take()[2:] == (True, 3)
    assert ring.delivery_count(1) == 3


def test_priorities_are_cut_and_ordered(half: Any) -> None:
    ring = half.ring(max_priority=2)
    ring.append([half.message(priority=priority) for priority in (0, 1, 9, 2, 0)])
    assert [half.take(ring) for _ in range(3)] == [3, 4, 2]
    ring.requeue(4, counted=False)
    assert drained(ring) == [4, 1, 5]


def test_priorities_mean_nothing_to_a_fifo_ring(half: Any) -> None:
    ring = half.ring()
    ring.append([half.message(priority=priority) for priority in (0, 9, 5)])
    ring.take()
    ring.take()
    ring.requeue(2, counted=False)
    ring.requeue(1, counted=False)
    assert drained(ring) == [1, 2, 3]


def test_a_message_is_settled_once_and_only_when_known(half: Any) -> None:
    ring = half.ring(2, journaled=True)
    half.commit(ring)
    ring.settle(1)  # while ready
    assert ring.ready == 1
    with pytest.raises(AssertionError, match="message 1 of queue 7 is settled once"):
        ring.settle(1)
    with pytest.raises(AssertionError, match="only an unacknowledged message returns, 2 of 7 is not"):
        ring.requeue(2, counted=False)
    for refused in (ring.settle, ring.message, ring.location, ring.delivery_count):
        with pytest.raises(KeyError):
            refused(99)
    assert ring.pop_head()[0] == 2


def test_pop_head_leaves_the_message_to_the_caller(half: Any) -> None:
    ring = half.ring(2)
    seq, message, count = ring.pop_head()
    assert (seq, message.body, count) == (1, b"0", 0)
    assert (ring.ready, ring.unacked) == (1, 1)
    ring.settle(1)
    assert ring.pop_head()[0] == 2
    with pytest.raises(AssertionError, match="there is a head"):
        ring.pop_head()


def test_purge_takes_what_is_ready_only(half: Any) -> None:
    ring = half.ring(600, journaled=True)
    for _ in range(3):
        ring.take()
    ring.requeue(2, counted=False)
    assert ring.purge() == 598
    assert (ring.ready, ring.unacked, ring.ready_bytes) == (0, 2, 0)
    assert ring.purge() == 0


def test_a_mark_puts_the_owner_on_the_agenda_once(half: Any) -> None:
    ring = half.ring(1)
    assert ring.agenda == ["me"]
    ring.append(half.messages(1))
    ring.take()
    ring.requeue(1, counted=False)
    assert ring.agenda == ["me"]
    ring.marked = False
    ring.mark()
    assert ring.agenda == ["me", "me"]


# -- time to live ------------------------------------------------------------------------------------------------


def test_the_lower_ttl_counts_and_only_the_head_expires(half: Any) -> None:
    ring = half.ring()
    ring.append([half.message(time_ms=100, ttl_ms=50), half.message(time_ms=100, ttl_ms=5)])
    assert ring.head_expiry_ms() == 150
    assert ring.head(149) == HEAD_OK
    assert ring.head(150) == HEAD_EXPIRED
    ring.ttl_ms = 20
    assert ring.head_expiry_ms() == 120
    ring.pop_head()
    assert ring.head(104) == HEAD_OK
    assert ring.head(105) == HEAD_EXPIRED
    ring.pop_head()
    assert ring.head_expiry_ms() == -1


@pytest.mark.parametrize("of_queue", [False, True])
def test_what_no_clock_can_say_never_expires(half: Any, of_queue: bool) -> None:
    now_ms, end_ms = 1_800_000_000_000, 2**63 - 1
    for ttl_ms, expiry_ms in (
        (end_ms, -1),
        (end_ms - now_ms + 1, -1),
        (end_ms - now_ms, end_ms),
        (2**32, now_ms + 2**32),
    ):
        ring = half.ring()
        if of_queue:
            ring.ttl_ms = ttl_ms
        ring.append([half.message(time_ms=now_ms, ttl_ms=-1 if of_queue else ttl_ms)])
        assert ring.head_expiry_ms() == expiry_ms
        assert ring.head(now_ms + 2**31) == HEAD_OK


def test_ttl_zero_expires_at_once(half: Any) -> None:
    ring = half.ring()
    ring.append([half.message(time_ms=100, ttl_ms=0)])
    assert (ring.head(99), ring.head(100)) == (HEAD_OK, HEAD_EXPIRED)


# -- reservation -------------------------------------------------------------------------------------------------


def test_what_is_written_needs_a_reservation(half: Any) -> None:
    ring = half.ring(2, journaled=True)
    assert ring.head(0) == HEAD_OK  # unwritten: the reservation will stand before it
    half.commit(ring)
    assert ring.head(0) == HEAD_NOT_RESERVED
    ring.reserve()
    assert ring.reserved == 1 + RESERVE_FIRST
    upto, records = half.write(ring)
    assert [(record.kind, record.seq) for record in records] == [(RSV, 1 + RESERVE_FIRST)]
    assert ring.head(0) == HEAD_NOT_RESERVED, "written is not durable"
    ring.commit(upto)
    assert ring.reserved_durable == 1 + RESERVE_FIRST
    assert ring.head(0) == HEAD_OK


def test_a_reservation_that_stands_before_the_message_is_enough(half: Any) -> None:
    ring = half.ring(journaled=True)
    ring.reserve()
    ring.append(half.messages(1))
    _, records = half.write(ring)
    assert kinds(records) == [RSV, ENQ]
    assert ring.head(0) == HEAD_OK


def test_handing_out_an_unwritten_message_reserves_it(half: Any) -> None:
    """Otherwise a crash after the group would hand it out again as if for the first time."""
    ring = half.ring(100, journaled=True, max_priority=0)
    for _ in range(90):
        ring.take()
    assert ring.reserved >= 90
    _, records = half.write(ring)
    assert kinds(records) == [RSV] + [ENQ] * 100
    assert records[0].seq == ring.reserved


def test_reservations_double_up_to_a_limit(half: Any) -> None:
    ring = half.ring(journaled=True)
    for _ in range(12):
        before = ring.reserved
        ring.append(half.messages(1))
        while ring.reserved == before:
            ring.append(half.messages(200))
            ring.purge()
            ring.reserve()
    assert RESERVE_MAX <= ring.reserved - before <= RESERVE_MAX + 200
    plain = half.ring(5)
    plain.reserve()
    assert plain.reserved == 0


# -- the journal -------------------------------------------------------------------------------------------------


def test_records_stand_in_the_order_rsv_enq_set_req(half: Any) -> None:
    ring = half.ring(4, journaled=True)
    ring.reserve()
    half.commit(ring)
    for _ in range(3):
        ring.take()
    ring.settle(1)
    ring.requeue(2, counted=True)
    ring.requeue(3, counted=False)
    ring.reserve()
    ring.append(half.messages(1))
    records = half.commit(ring)
    assert kinds(records) in ([RSV, ENQ, SET, REQ], [ENQ, SET, REQ])
    by_kind = {record.kind: record for record in records}
    assert by_kind[ENQ].seq == 5
    assert by_kind[SET].ranges == ((1, 1),)
    assert (by_kind[REQ].seq, by_kind[REQ].delivery_count) == (2, 1)
    assert not ring.needs_write


def test_transient_messages_are_never_written(half: Any) -> None:
    ring = half.ring(journaled=True)
    ring.append(half.messages(3, transient=True))
    ring.append(half.messages(1))
    assert ring.advance() == 4
    assert kinds(half.commit(ring)) == [ENQ]
    assert ring.committed == 5
    plain = half.ring(2)
    assert (plain.needs_write, plain.advance()) == (False, 3)


def test_settled_before_written_is_never_written(half: Any) -> None:
    ring = half.ring(3, journaled=True)
    assert ring.advance() == 1
    for _ in range(2):
        ring.settle(half.take(ring))
    assert ring.advance() == 3
    assert [record.seq for record in half.commit(ring) if record.kind == ENQ] == [3]
    assert ring.use.live(3) == ring.location(3)[3]


def test_settled_in_flight_waits_for_its_own_group(half: Any) -> None:
    ring = half.ring(2, journaled=True)
    upto, records = half.write(ring)
    ring.settle(half.take(ring))
    assert ring.advance() == 1, "in flight is not durable"
    ring.commit(upto)
    assert ring.committed == 3
    live = ring.use.live(3)
    assert live == sum(record.length for record in records)
    records = half.commit(ring, offset=4096)
    assert [record.ranges for record in records if record.kind == SET] == [((1, 1),)]
    assert ring.use.live(3) == live // 2


def test_held_is_passed_with_the_group_only(half: Any) -> None:
    ring = half.ring(2, journaled=True)
    for _ in range(2):
        ring.pop_head()
    ring.settle(1, held=True)
    ring.settle(2)
    assert ring.advance() == 1
    assert ring.message(1) is None
    upto, records = half.write(ring)
    assert records == []
    assert ring.advance() == 1
    ring.commit(upto)
    assert ring.committed == 3
    with pytest.raises(KeyError):
        ring.message(1)


def test_settled_ranges_are_joined_whoever_acknowledged_them(half: Any) -> None:
    ring = half.ring(1000, journaled=True)
    for _ in range(1000):
        ring.take()
    half.commit(ring)
    for start in (0, 2, 1):  # three consumers that got every third message
        for seq in range(1 + start, 1001, 3):
            if seq not in (500, 501):
                ring.settle(seq)
    records = half.commit(ring, offset=1 << 20)
    assert [record.ranges for record in records] == [((1, 499), (502, 1000))]
    assert ring.use.live(3) == ring.location(500)[3] + ring.location(501)[3]


def test_a_group_may_leave_the_newest_for_the_next(half: Any) -> None:
    ring = half.ring(5, journaled=True)
    upto, records = half.write(ring, upto=3)
    assert ([record.seq for record in records], upto) == ([1, 2], 3)
    ring.commit(upto)
    assert (ring.committed, ring.needs_write) == (3, True)
    assert [record.seq for record in half.commit(ring)] == [3, 4, 5]


def test_a_group_that_counts_a_producers_messages_holds_them(half: Any) -> None:
    """A message that waits for its acknowledgement would be counted and, after a crash, not there."""
    ring = half.ring(4, journaled=True)
    ring.set_attribute(b"px", 5)
    _, records = half.write(ring, upto=3)
    assert kinds(records) == [ENQ, ENQ, ENQ, ENQ, ATTR]


def test_a_checkpoint_knows_of_producers_what_the_log_does(half: Any) -> None:
    """Also in a node that is alone: it had forgotten them with the log's older part."""
    ring = half.ring(1, journaled=True)
    assert "producers" not in ring.checkpoint_meta()
    ring.set_attribute(b"px", 5)
    assert "producers" not in ring.checkpoint_meta()
    half.commit(ring)
    ring.set_attribute(b"px", 6)
    assert ring.checkpoint_meta()["producers"] == [(b"px", 5)]


def test_the_newest_delivery_count_is_told_once(half: Any) -> None:
    ring = half.ring(2, journaled=True)
    ring.reserve()
    half.commit(ring)
    for _ in range(3):
        ring.take()
        ring.requeue(1, counted=True)
    ring.take()
    ring.take()
    ring.requeue(2, counted=True)
    records = half.commit(ring)
    assert [(record.seq, record.delivery_count) for record in records] == [(1, 3), (2, 1)]
    ring.take()
    ring.requeue(2, counted=True)
    ring.settle(2)
    assert kinds(half.commit(ring)) == [SET], "who left is not counted any more"


def test_a_count_from_before_the_write_stands_in_the_message(half: Any) -> None:
    ring = half.ring(1, journaled=True)
    ring.take()
    ring.requeue(1, counted=True)
    records = half.commit(ring)
    assert [(record.kind, record.delivery_count) for record in records if record.kind != RSV] == [(ENQ, 1)]


def test_only_what_was_written_becomes_durable(half: Any) -> None:
    ring = half.ring(2, journaled=True)
    with pytest.raises(AssertionError, match="only what was written becomes durable"):
        ring.commit(2)


def test_unwritten_bytes_is_a_bound_for_the_longest_names(half: Any) -> None:
    ring = half.ring(journaled=True)
    name = b"\xff" + bytes(255)
    ring.append([half.record.Message(name + name, b"\x00\x00" + bytes(n), 2, 1) for n in range(9)])
    bound = ring.unwritten_bytes
    writer = half.record.GroupWriter(1, 0)
    ring.write(writer)
    assert writer.size <= bound


# -- copy forward ------------------------------------------------------------------------------------------------


def test_a_copy_moves_the_message_when_durable(half: Any) -> None:
    ring = half.ring(2, journaled=True)
    half.commit(ring, segment=3)
    seq, segment, offset, length = ring.location(1)
    message = half.message(b"0")
    assert not ring.rewrite(1, segment, offset + 8, message)
    assert not ring.rewrite(9, segment, offset, message)
    assert ring.rewrite(1, segment, offset, message)
    assert ring.rewrite(1, segment, offset, message)
    upto, records = half.write(ring, segment=5, offset=64)
    assert [record.seq for record in records] == [1]
    assert ring.location(1) == (seq, segment, offset, length)
    ring.commit(upto)
    assert ring.location(1) == (1, 5, records[0].offset, length)
    assert (ring.use.live(3), ring.use.live(5)) == (length, length)


def test_a_message_to_be_copied_stays_in_memory_until_then(half: Any) -> None:
    ring = half.ring(2, journaled=True)
    ring.resident_bytes_max = 0
    ring.reserve()
    half.commit(ring)
    assert ring.message(1) is None
    _, segment, offset, _ = ring.location(1)
    ring.rewrite(1, segment, offset, half.message(b"0"))
    ring.take()
    assert ring.message(1) is not None
    assert kinds(half.commit(ring, segment=5)) in ([ENQ], [RSV, ENQ])
    assert ring.message(1) is None, "and leaves it afterwards"
    assert ring.resident_bytes == 0


def test_a_message_that_left_is_not_copied(half: Any) -> None:
    ring = half.ring(1, journaled=True)
    half.commit(ring)
    _, segment, offset, _ = ring.location(1)
    ring.rewrite(1, segment, offset, half.message(b"0"))
    ring.purge()
    assert kinds(half.commit(ring)) == [SET]
    assert not ring.rewrite(1, segment, offset, half.message(b"0"))


# -- paging ------------------------------------------------------------------------------------------------------


def test_bodies_of_a_deep_queue_leave_memory_and_come_back(half: Any) -> None:
    ring = half.ring(300, journaled=True)
    ring.resident_bytes_max = 300
    ring.reserve()
    half.commit(ring)
    assert ring.resident_bytes <= 300
    assert ring.ready_bytes == sum(len(b"%d" % n) for n in range(300))
    assert ring.head(0) == HEAD_NOT_LOADED
    assert ring.head_expiry_ms() == -1
    assert ring.wants_load
    places = ring.missing()
    assert places[0] == ring.location(1)
    gone = ring.pop_head()
    assert gone == (1, None, 0)
    ring.settle(1)
    ring.loading = True
    assert not ring.wants_load
    ring.fill(places, half.messages(300)[: len(places)])
    assert ring.message(1) is None, "it left meanwhile"
    assert ring.message(2).body == b"1"
    ring.loading = False
    assert not ring.wants_load
    assert ring.missing() == []


def test_a_handed_out_message_leaves_memory_too(half: Any) -> None:
    ring = half.ring(1, journaled=True)
    ring.reserve()
    half.commit(ring)
    ring.resident_bytes_max = 0
    seq, message, _, _ = ring.take()
    assert (seq, message.body) == (1, b"0")
    assert ring.message(1) is None
    ring.requeue(1, counted=False)
    assert ring.head(0) == HEAD_NOT_LOADED
    assert ring.missing() == [ring.location(1)]
    with pytest.raises(AssertionError, match="a message is loaded before it is handed out"):
        ring.take()


def test_a_wrong_message_does_not_come_back(half: Any) -> None:
    ring = half.ring(1, journaled=True)
    ring.resident_bytes_max = 0
    half.commit(ring)
    with pytest.raises(AssertionError, match="a message comes back as it left"):
        ring.fill(ring.missing(), [half.message(b"another length")])
    with pytest.raises(ValueError):
        ring.fill(ring.missing(), [])


@pytest.mark.parametrize("max_priority", [0, 5])
def test_loading_ahead_is_bounded_and_in_order(half: Any, max_priority: int) -> None:
    """A deep priority queue is not loaded whole: nobody looks further than a chunk ahead."""
    ring = half.ring(journaled=True, max_priority=max_priority)
    count = LOAD_AHEAD + 900
    for seq in range(1, count + 1):
        ring.restore(seq, 1, 64 * seq, 59, 1, seq % 2, 0)
    ring.restore_end(1, 0)
    places = ring.missing()
    assert len(places) == LOAD_AHEAD
    expected = sorted(range(1, count + 1), key=lambda seq: (-(seq % 2) if max_priority else 0, seq))
    assert [place[0] for place in places] == expected[:LOAD_AHEAD]
    ring.fill(places, [half.message(b"x")] * len(places))
    assert not ring.wants_load
    assert ring.missing() == []
    for _ in range(3000):
        ring.settle(ring.pop_head()[0])
    assert ring.wants_load
    assert [place[0] for place in ring.missing()] == expected[LOAD_AHEAD:]


def test_a_load_is_bounded_in_bytes(half: Any) -> None:
    ring = half.ring(journaled=True)
    for seq in range(1, 10):
        ring.restore(seq, 1, 64 * seq, 3 << 20, 1, 0, 0)
    ring.restore_end(1, 0)
    assert [place[0] for place in ring.missing()] == [1, 2, 3]


# -- checkpoint and recovery -------------------------------------------------------------------------------------


def test_a_run_lists_what_a_replay_could_not_rebuild(half: Any) -> None:
    ring = half.ring(3, journaled=True)
    ring.reserve()
    upto, records = half.write(ring)
    assert ring.dirty_runs() == [(0, b"")], "not durable yet"
    ring.commit(upto)
    runs = ring.dirty_runs()
    assert len(runs) == 1
    entries = list(RUN_ENTRY.iter_unpack(runs[0][1]))
    assert [entry[0] for entry in entries] == [1, 2, 3]
    assert [entry[4:7] for entry in entries] == [
        (3, record.offset, record.length) for record in records if record.kind == ENQ
    ]
    assert ring.dirty_runs() == []
    ring.take()
    ring.requeue(1, counted=True)
    _, run = ring.dirty_runs()[0]
    assert RUN_ENTRY.unpack_from(run)[2:4] == (1, 1), "redelivered, once"
    ring.purge()
    half.write(ring)
    assert ring.dirty_runs() == [], "a settlement that is not durable changes nothing"


def test_runs_come_in_order_and_an_empty_one_is_deleted(half: Any) -> None:
    ring = half.ring(700, journaled=True)
    half.commit(ring)
    assert [(first, len(run) // 20) for first, run in ring.dirty_runs()] == [(0, 255), (256, 256), (512, 189)]
    for seq in range(600, 300, -1):
        ring.settle(seq)
    half.commit(ring)
    assert [(first, len(run) // 20) for first, run in ring.dirty_runs()] == [(256, 45), (512, 100)]
    ring.purge()
    half.commit(ring)
    assert ring.dirty_runs() == [(0, b""), (256, b""), (512, b"")]
    assert ring.dirty_runs() == []


def test_a_run_that_empties_and_fills_again_is_told_once(half: Any) -> None:
    ring = half.ring(journaled=True)
    for _ in range(20):
        ring.append(half.messages(1))
        half.commit(ring)
        ring.purge()
        half.commit(ring)
    ring.append(half.messages(1))
    half.commit(ring)
    runs = ring.dirty_runs()
    assert [(first, len(run)) for first, run in runs] == [(0, RUN_ENTRY.size)]


def test_recovery_folds_runs_and_the_tail(half: Any) -> None:
    ring = half.ring(600, journaled=True)
    ring.reserve()
    half.commit(ring, segment=1)
    for _ in range(3):
        ring.take()
    ring.requeue(2, counted=True)
    half.commit(ring, segment=1, offset=1 << 20)
    again = half.ring(journaled=True)
    for first, run in ring.dirty_runs():
        again.restore_run(first, run)
    again.restore(601, 2, 64, 100, 42, 0, 0)
    again.restore(1, 2, 192, 80, 1, 0, 0)  # a copy forward: the later place counts
    again.restore_settled([(3, 5), (300, 10**12)])
    again.restore_settled([(7, 7)])
    again.restore_count(2, 9)
    again.restore_count(7, 9)
    again.restore_end(650, 10)
    assert (again.next_seq, again.committed, again.reserved, again.reserved_durable) == (650, 650, 10, 10)
    assert again.ready == 299 - 4
    assert again.location(1) == (1, 2, 192, 80)
    assert again.delivery_count(2) == 9
    assert again.use.live(2) == 80
    assert not again.needs_write
    again.fill(again.missing(), [half.message(b"%d" % (place[0] - 1)) for place in again.missing()])
    assert again.head(0) == HEAD_OK
    flags = {}
    while again.ready:
        seq, _, flags[seq], _ = again.take()
    assert list(flags) == [1, 2, 6, *range(8, 300)]
    assert [seq for seq, redelivered in flags.items() if redelivered] == [1, 2, 6, 8, 9, 10]


def test_recovery_keeps_priorities(half: Any) -> None:
    ring = half.ring(journaled=True, max_priority=3)
    for seq in range(1, 6):
        ring.restore(seq, 1, 64 * seq, 64, 4, seq, 0)
    ring.restore_end(1, 99)
    assert ring.next_seq == 100
    assert [place[0] for place in ring.missing()] == [3, 4, 5, 2, 1]
    ring.append([half.message(priority=9)])
    assert [ring.pop_head()[0] for _ in range(6)] == [3, 4, 5, 100, 2, 1]


def test_a_damaged_run_is_refused(half: Any) -> None:
    with pytest.raises(struct.error):
        half.ring(journaled=True).restore_run(0, b"x" * 21)


def test_seqs_far_apart(half: Any) -> None:
    """One old message and a new one, with nothing between: what is gone costs nothing."""
    ring = half.ring(journaled=True)
    far = 1 << 40
    for seq in (far, 5):  # in any order
        ring.restore(seq, 1, 64, 64, 4, 0, 0)
    ring.restore_end(1, 0)
    assert [place[0] for place in ring.missing()][:1] == [5]
    assert [ring.pop_head()[0] for _ in range(2)] == [5, far]
    ring.append(half.messages(1))
    assert half.take(ring) == far + 1


# -- the end -----------------------------------------------------------------------------------------------------


def test_a_deleted_queue_gives_its_segments_back_and_passes_late_answers_over(half: Any) -> None:
    ring = half.ring(4, journaled=True)
    upto, _ = half.write(ring)
    ring.take()
    ring.take()
    ring.settle(1)
    ring.destroy()
    assert ring.destroyed
    assert ring.use.live(3) == 0
    assert (ring.ready, ring.unacked, ring.ready_bytes, ring.resident_bytes) == (0, 0, 0, 0)
    ring.settle(2)
    assert ring.requeue(2, counted=True) == 0
    ring.commit(upto)
    ring.reserve()
    assert not ring.needs_write
    assert ring.dirty_runs() == []
    assert ring.head(0) == HEAD_NONE


@pytest.mark.long
def test_every_message_is_let_go(half: Any) -> None:
    """References balance on every way out of the ring, and when the ring itself goes."""
    messages = half.messages(200)
    before = [sys.getrefcount(message) for message in messages]
    for way in ("settle", "purge", "destroy", "drop", "page out", "held"):
        ring = half.ring(journaled=True)
        ring.append(messages)
        ring.reserve()
        if way in ("page out", "settle"):
            ring.resident_bytes_max = 0 if way == "page out" else 1 << 30
            half.commit(ring)
        if way == "page out":
            ring.fill(ring.missing(), messages)
            place = ring.location(5)
            ring.rewrite(5, *place[1:3], messages[4])
            while ring.head(0) == HEAD_OK:
                ring.take()
            half.commit(ring, segment=4)
        elif way in ("settle", "held"):
            while ring.ready:
                seq = ring.pop_head()[0]
                if seq % 3 == 0:
                    ring.requeue(seq, counted=True)
                    seq = ring.pop_head()[0]
                ring.settle(seq, held=way == "held")
            half.commit(ring)
        elif way == "purge":
            ring.purge()
        elif way == "destroy":
            ring.destroy()
        del ring
        gc.collect()
        assert [sys.getrefcount(message) for message in messages] == before, way


@pytest.mark.long
def test_memory_stays_flat(half: Any) -> None:
    def resident() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096

    def live() -> None:
        for _ in range(40):
            ring = half.ring(3000, journaled=True)
            ledger = half.ledger(size_max=1 << 30)
            half.module.dispatch(ring, [half.consumer(ring, ledger)], 0)
            half.commit(ring)
            ledger.ack([1001 << 1, 2000 << 1 | 1])
            for _, _, seq in ledger.collect(2500, True):
                ring.requeue(seq, counted=True)
            half.commit(ring)
            ring.dirty_runs()

    sizes = []
    for _ in range(10):
        live()
        gc.collect()
        sizes.append(resident())
    # the allocator takes some rounds to settle; what leaks grows with each
    assert min(sizes[8:]) - max(sizes[:4]) < 4 << 20


def test_one_old_message_costs_no_more_than_itself(half: Any) -> None:
    ring = half.ring(1)
    ring.take()
    batch = half.messages(256)
    with open("/proc/self/statm") as statm:
        before = int(statm.read().split()[1])
    for _ in range(8000):
        ring.append(batch)
        ring.purge()
    with open("/proc/self/statm") as statm:
        assert int(statm.read().split()[1]) - before < 100, "two million passed messages left pages behind"
    ring.requeue(1, counted=False)
    assert half.take(ring) == 1


def test_a_message_on_disk_costs_24_bytes(half: Any) -> None:
    ring = half.ring(journaled=True)
    gc.collect()
    with open("/proc/self/statm") as statm:
        before = int(statm.read().split()[1])
    count = 400_000
    for seq in range(1, count + 1):
        ring.restore(seq, 1, 64, 64, 4, 0, 0)
    with open("/proc/self/statm") as statm:
        assert (int(statm.read().split()[1]) - before) * 4096 / count < 25.5


def test_memory_of_blocks_goes_back_when_queues_are_empty(half: Any) -> None:
    pieces = block_pieces()
    rings = [half.ring() for _ in range(300)]
    for ring in rings:
        ring.append(half.messages(1))
    if type(rings[0]) is Ring:
        assert block_pieces() >= pieces + 4
    for ring in rings[::2] + rings[1::2]:
        ring.settle(ring.take()[0])
    assert block_pieces() <= max(pieces, 1)
    rings[0].append(half.messages(600))
    assert len(drained(rings[0])) == 600
