"""A ring in a cluster: the owner of a replicated queue, its replicas, the proxies of its consumers."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.queues.states import (
    HEAD_NONE,
    HEAD_NOT_COMMITTED,
    HEAD_NOT_LOADED,
    HEAD_NOT_RESERVED,
    HEAD_OK,
    NO_CREDIT,
)
from clusterbroker.journal.layout import ATTR, DEAD, ENQ, EPO, REDELIVERED_BIT, REQ, RSV, SET
from clusterbroker.journal.queue_state import LAST_DEAD
from tests.model.record import DamagedRecord, scan_span
from tests.model.ring import RESERVE_FIRST


class Group:
    """One group of an owner: its bytes, what `write` returned, and its records."""

    def __init__(self, half: Any, ring: Any, segment: int = 3, offset: int = 0) -> None:
        writer = half.record.GroupWriter(segment, offset)
        start = writer.size
        self.upto = ring.write(writer)
        self.span = writer.span(start, writer.size)
        group = writer.finish(1, 0)
        half.record.seal(group)
        self.records = half.record.scan_group(bytes(group), 0, offset)[2]
        self.kinds = [record.kind for record in self.records]


def owner(half: Any, count: int = 0, **more: Any) -> Any:
    ring = half.ring(journaled=True, **more)
    ring.replicated = True
    ring.begin_epoch(1)
    ring.append(half.messages(count))
    return ring


def flush(half: Any, ring: Any, *replicas: Any) -> Group:
    group = Group(half, ring)
    for replica in replicas:
        replica.fold(group.span, 9, 64)
    ring.commit(group.upto)
    return group


def replica(half: Any, **more: Any) -> Any:
    return half.module.Ring(7, True, 0, half.record.SegmentUse(), [], "me", replica=True, **more)


def proxy(half: Any) -> Any:
    return half.module.Ring(7, agenda=[], owner="me", proxy=True)


def taker(half: Any, ring: Any, holder: int = 1, limit: int = 1000) -> Any:
    made = half.module.RemoteConsumer(ring, holder)
    made.limit = limit
    return made


def seqs(half: Any, data: bytes) -> list[int]:
    return [seq for seq, *_ in half.record.read_records(data)]


def told(ring: Any) -> tuple[Any, ...]:
    return (
        ring.emitted_end(),
        ring.emitted_reserved(),
        ring.emitted_attributes(),
        [
            (number, digest, ring.emitted_live(number), ring.emitted_counts(number), ring.emitted_dead(number))
            for number, digest in ring.emitted_buckets()
        ],
    )


# -- the owner ------------------------------------------------------------------------------------------------------


def test_every_message_is_written_and_handed_out_only_when_all_have_it(half: Any) -> None:
    ring = owner(half)
    ring.append(half.messages(3, transient=True))
    near = taker(half, ring)
    assert half.module.dispatch(ring, [near], 0) == (0, HEAD_NOT_COMMITTED)
    group = flush(half, ring)
    assert group.kinds == [EPO, RSV, ENQ, ENQ, ENQ], "who waits for the commit has asked for the reservation"
    assert half.module.dispatch(ring, [near], 0) == (3, HEAD_NONE)
    assert seqs(half, near.out.take()) == [1, 2, 3]


def test_nothing_is_handed_out_beyond_the_durable_reservation(half: Any) -> None:
    ring = owner(half, 3)
    flush(half, ring)
    assert ring.head(0) == HEAD_NOT_RESERVED
    ring.reserve()
    group = Group(half, ring)
    assert (group.kinds, ring.head(0)) == ([RSV], HEAD_NOT_RESERVED)
    ring.commit(group.upto)
    assert ring.head(0) == HEAD_OK
    assert ring.reserved == 1 + RESERVE_FIRST


def test_a_hand_out_in_full_flow_asks_early(half: Any) -> None:
    ring = owner(half, 60)
    ring.reserve()
    flush(half, ring)
    assert not ring.needs_write
    assert half.module.dispatch(ring, [taker(half, ring)], 0, 2)[0] == 2
    assert ring.reserved > 1 + RESERVE_FIRST
    assert ring.urgent


def test_a_paused_ring_hands_out_and_expires_nothing(half: Any) -> None:
    ring = owner(half)
    ring.append([half.message(ttl_ms=1)])
    ring.paused = True
    assert ring.head(1000) == HEAD_NOT_COMMITTED
    assert half.module.dispatch(ring, [taker(half, ring)], 1000) == (0, HEAD_NOT_COMMITTED)
    assert ring.reserved == 0


def test_a_remote_consumer_has_credit_up_to_its_limit_and_its_room(half: Any) -> None:
    ring = owner(half, 9)
    ring.reserve()
    flush(half, ring)
    far = taker(half, ring, limit=2)
    assert half.module.dispatch(ring, [far], 0) == (2, NO_CREDIT)
    assert (far.delivered, far.unacked, far.out.count, far.has_credit) == (2, 2, 2, False)
    far.limit = 100
    far.out.size_max = far.out.size
    assert not far.has_credit
    far.out.take()
    far.active = False
    assert not far.has_credit
    far.active = True
    assert half.module.dispatch(ring, [far], 0) == (2, NO_CREDIT), "full after two"
    with pytest.raises(ValueError, match="1 to 253"):
        half.module.RemoteConsumer(ring, 255)


def test_takers_of_both_kinds_take_turns(half: Any) -> None:
    ring = owner(half, 6)
    ring.reserve()
    flush(half, ring)
    ledger = half.ledger()
    near, far = half.consumer(ring, ledger), taker(half, ring)
    assert half.module.dispatch(ring, [near, far], 0) == (6, HEAD_NONE)
    assert seqs(half, far.out.take()) == [2, 4, 6]
    assert (ring.held_by(1), ledger.unacked) == (3, 3)


def test_a_record_on_its_way_says_redelivered_and_is_annotated(half: Any) -> None:
    ring = owner(half, 2)
    ring.annotate = lambda message, seq, count, *_: half.message(b"%d.%d" % (seq, count))
    ring.annotates_redelivered = True
    ring.reserve()
    flush(half, ring)
    far = taker(half, ring)
    half.module.dispatch(ring, [far], 0)
    far.out.take()
    assert ring.requeue_held(2, 2, 1, True) == 1
    half.module.dispatch(ring, [far], 0)
    data = far.out.take()
    ((seq, message, count, again),) = half.record.read_records(data)
    assert (seq, message.body, count, again) == (2, b"2.1", 1, True)
    assert data[9] & REDELIVERED_BIT


def test_only_what_a_node_holds_is_settled_or_returned_for_it(half: Any) -> None:
    ring = owner(half, 600)
    ring.reserve()
    flush(half, ring)
    flush(half, ring) if ring.needs_write else None
    one, two = taker(half, ring, 1, 20), taker(half, ring, 253, 20)
    half.module.dispatch(ring, [one, two], 0)
    assert (ring.held_by(1), ring.held_by(253), ring.held_by(9)) == (20, 20, 0)
    assert ring.settle_held(0, 2**64 - 1, 9) == 0
    assert ring.settle_held(1, 4, 1) == 2
    assert ring.settle_held(1, 4, 1) == 0, "a late answer changes nothing"
    assert ring.requeue_held(1, 6, 253, False) == 3
    assert ring.take_held(7, 9, 1) == [7, 9]
    assert (ring.held_by(1), ring.held_by(253)) == (16, 17)
    assert ring.settle_held(7, 9, 1) == 0, "it is the caller's"
    ring.requeue(7, True)
    ring.settle(9)
    assert ring.requeue_all_held(253) == 17
    assert (ring.held_by(253), ring.unacked) == (0, 16)


def test_publishes_of_another_node_are_appended_with_the_time_of_this_one(half: Any) -> None:
    ring = owner(half)
    out = half.record.RecordBuffer()
    for number in (900, 901):
        out.enqueue(7, 0, number, half.message(b"%d" % number, time_ms=44, transient=True), 0, True)
    data = out.take()
    assert ring.append_records(memoryview(data), 55) == (3, 2)
    assert [(ring.message(seq).body, ring.message(seq).time_ms, ring.message(seq).flags) for seq in (1, 2)] == [
        (b"900", 55, 0),
        (b"901", 55, 0),
    ]
    for wrong in (data[:-8], data.replace(b"901", b"902"), flush(half, ring).span):
        with pytest.raises(DamagedRecord):
            half.record.verify_records(wrong, 7, 1, True)
    with pytest.raises(DamagedRecord, match="not of queue 8"):
        half.record.verify_records(data, 8, 0, True)


def test_what_a_producer_was_told_stands_in_the_group_of_its_messages(half: Any) -> None:
    ring = owner(half, 2)
    ring.set_attribute(b"node/1", 5)
    assert (ring.attributes, ring.emitted_attributes()) == ({b"node/1": 5}, {})
    bound = ring.unwritten_bytes
    group = Group(half, ring)
    assert group.kinds == [EPO, ENQ, ENQ, ATTR]
    assert len(group.span) <= bound
    assert ring.emitted_attributes() == {b"node/1": 5}
    ring.commit(group.upto)
    ring.set_attribute(b"node/1", 0)
    assert ring.urgent
    assert (ring.attributes, ring.emitted_attributes()) == ({}, {b"node/1": 5})
    ring.marked = False
    ring.set_attribute(b"node/1", 0, False)
    assert not ring.marked, "who writes it at once needs no turn of the queue"
    group = flush(half, ring)
    assert [(record.name, record.value) for record in group.records] == [(b"node/1", 0)]


def test_a_replicated_ring_leaves_nothing_for_a_later_group(half: Any) -> None:
    ring = owner(half, 3)
    writer = half.record.GroupWriter(1, 0)
    assert ring.write(writer, 2) == 4


def test_the_dead_are_numbered_and_held_until_they_are_settled(half: Any) -> None:
    ring, copy = owner(half, 4), replica(half)
    ring.reserve()
    flush(half, ring, copy)
    half.module.dispatch(ring, [taker(half, ring)], 0)
    assert ring.hold_dead(3, 2) == 1
    assert ring.hold_dead(1, 0) == 2
    assert (ring.ready, ring.unacked, ring.held_by(1)) == (0, 2, 2)
    assert ring.dead() == [(3, 1, 2), (1, 2, 0)]
    assert ring.emitted_dead(0) == []
    group = flush(half, ring, copy)
    assert [(record.kind, record.seq, record.value) for record in group.records if record.kind == DEAD] == [
        (DEAD, 3, 1 << 8 | 2),
        (DEAD, 1, 2 << 8),
    ]
    assert copy.dead() == ring.dead()
    assert (copy.ready, told(copy)) == (2, told(ring))
    ring.settle(3)
    assert ring.emitted_dead(0) == [(1, 2 << 8), (3, 1 << 8 | 2)], "the log does not know yet"
    flush(half, ring, copy)
    assert told(copy) == told(ring)
    assert copy.emitted_dead(0) == [(1, 2 << 8)]
    ring.settle(1)
    flush(half, ring, copy)
    assert ring.attributes[LAST_DEAD] == copy.attributes[LAST_DEAD] == 2
    with pytest.raises(AssertionError, match="only an unacknowledged message dies"):
        owner(half, 1).hold_dead(1, 0)


def test_a_message_dies_before_it_is_written(half: Any) -> None:
    ring, copy = owner(half, 2), replica(half)
    seq, _, _ = ring.pop_head()
    ring.hold_dead(seq, 1)
    group = flush(half, ring, copy)
    assert group.kinds == [EPO, ENQ, ENQ, DEAD]
    assert copy.dead() == [(1, 1, 1)]
    assert ring.message(1) is not None


def test_a_number_that_no_dead_record_told_is_free_again(half: Any) -> None:
    ring, copy = owner(half, 4), replica(half)
    flush(half, ring, copy)
    one, other = ring.pop_head()[0], ring.pop_head()[0]
    assert (ring.hold_dead(one, 1), ring.hold_dead(other, 1)) == (1, 2)
    ring.settle(other)
    assert flush(half, ring, copy).kinds == [DEAD, SET]
    assert told(copy) == told(ring)
    assert ring.emitted_attributes() == copy.emitted_attributes() == {LAST_DEAD: 1}
    assert ring.hold_dead(ring.pop_head()[0], 1) == 2
    flush(half, ring, copy)
    assert told(copy) == told(ring)


def test_epochs_are_begun_once_and_told(half: Any) -> None:
    ring = half.ring(2, journaled=True)
    half.commit(ring)
    ring.replicated = True
    ring.begin_epoch(4)
    ring.begin_epoch(4)
    assert ring.epochs == [(1, 1), (4, 3)]
    assert [ring.epoch_of(seq) for seq in (1, 2, 3, 99)] == [1, 1, 4, 4]
    ring.append(half.messages(1))
    group = flush(half, ring)
    assert [(r.kind, r.epoch, r.seq) for r in group.records] == [(EPO, 1, 1), (EPO, 4, 3), (ENQ, 4, 3)]
    ring.begin_epoch(4)
    assert not ring.needs_write


def test_a_copy_forward_keeps_the_epoch_of_the_message(half: Any) -> None:
    ring = owner(half, 1)
    flush(half, ring)
    ring.begin_epoch(2)
    ring.append(half.messages(1))
    flush(half, ring)
    seq, segment, offset, _ = ring.location(1)
    assert ring.rewrite(seq, segment, offset, half.message(b"0"))
    assert [(record.seq, record.epoch) for record in flush(half, ring).records] == [(1, 1)]


def test_a_volatile_ring_keeps_its_bodies_and_no_place_on_the_disk(half: Any) -> None:
    ring = half.module.Ring(7, False, 0, half.record.SegmentUse(), [], "me")
    ring.volatile = True
    ring.replicated = True
    ring.resident_bytes_max = 0
    ring.begin_epoch(1)
    ring.append(half.messages(3))
    ring.reserve()
    copy = half.module.Ring(7, False, 0, None, [], "me", replica=True)
    copy.volatile = True
    flush(half, ring, copy)
    assert ring.head(0) == HEAD_OK
    assert (ring.use, ring.dirty_runs(), copy.dirty_runs()) == (None, [], [])
    assert copy.resident_bytes == ring.resident_bytes == 9
    copy.take_over(2)
    flush(half, copy)
    copy.paused = False
    assert copy.take()[0] == 1
    assert copy.message(2).body == b"1"
    with pytest.raises(AssertionError, match="from its beginning"):
        copy.volatile = False


def test_a_copy_is_sent_what_still_lives_of_the_seqs_it_lacks(half: Any) -> None:
    ring = owner(half, 30)
    ring.reserve()
    flush(half, ring)
    flush(half, ring)
    size = sum(ring.location(seq)[3] for seq in (2, 3, 4, 10, 11))
    wanted, absent = ring.copies_of([(2, 4), (10, 30)], size)
    assert (wanted, absent) == ([2, 3, 4, 10, 11], [])
    assert ring.copies_of([(7, 9)], 0) == ([7], []), "one at least"
    half.module.dispatch(ring, [taker(half, ring, limit=3)], 0)
    ring.requeue_held(2, 2, 1, True)
    ring.settle_held(3, 3, 1)
    flush(half, ring)
    records = ring.encode_emitted(wanted, {})
    counts = [(seq, count) for seq, _, count, _ in half.record.read_records(records)]
    assert counts == [(2, 1), (4, 0), (10, 0), (11, 0)]
    assert half.record.verify_records(records, ring.queue_id, ring.epoch) == 4
    assert half.record.enqueued(records) == ([(2, 2), (4, 4), (10, 11)], 4)


def test_each_record_of_a_copy_carries_the_epoch_that_gave_its_seq(half: Any) -> None:
    """In whatever order they are asked for; also when no epoch was ever begun."""
    ring = owner(half)
    for epoch in (1, 3, 4, 9):
        ring.begin_epoch(epoch)
        ring.append(half.messages(2))
        flush(half, ring)
    epochs = {1: 1, 2: 1, 3: 3, 4: 3, 5: 4, 6: 4, 7: 9, 8: 9}
    for wanted in ([1, 2, 3, 4, 5, 6, 7, 8], [8, 1, 6, 2, 3, 7, 5, 4], [4]):
        records = scan_span(ring.encode_emitted(wanted, {}))
        assert [(record.seq, record.epoch) for record in records] == [(seq, epochs[seq]) for seq in wanted]
    plain = half.ring(2, journaled=True)
    half.commit(plain)
    records = scan_span(plain.encode_emitted([1, 2], {}))
    assert [(record.seq, record.epoch) for record in records] == [(1, plain.epoch), (2, plain.epoch)]


def test_bodies_that_are_on_disk_only_are_asked_for(half: Any) -> None:
    ring = owner(half, 5)
    copy = replica(half)
    ring.reserve()
    flush(half, ring, copy)
    wanted, absent = copy.copies_of([(1, 5)], 1 << 20)
    assert (wanted, absent) == ([1, 2, 3, 4, 5], [copy.location(seq) for seq in wanted])
    found = dict(zip(wanted, half.messages(5)[:4], strict=False))
    assert seqs(half, copy.encode_emitted(wanted, found)) == [1, 2, 3, 4]


# -- replicas -------------------------------------------------------------------------------------------------------


def test_a_replica_holds_what_its_owner_has_emitted(half: Any) -> None:
    ring, copy = owner(half, 700), replica(half)
    ring.reserve()
    flush(half, ring, copy)
    flush(half, ring, copy)
    half.module.dispatch(ring, [taker(half, ring, limit=50)], 0)
    ring.requeue_held(2, 3, 1, True)
    ring.settle_held(5, 20, 1)
    assert copy.live(0) == ring.emitted_live(0) == [(1, 700)], "nothing of it is in a group"
    assert ring.emitted_counts(0) == []
    group = flush(half, ring, copy)
    assert {SET, REQ} <= set(group.kinds)
    assert told(copy) == told(ring)
    assert copy.live(0) == [(1, 4), (21, 700)]
    assert copy.emitted_counts(0) == [(2, 1), (3, 1)]
    assert copy.use.live(9) == sum(r.length for r in Group(half, owner(half, 700)).records if r.kind == ENQ) - sum(
        len(b"%d" % (seq - 1)) + 56 + 7 + 2 for seq in range(5, 21)
    )
    assert copy.head(0) == HEAD_NOT_COMMITTED
    assert (copy.ready, copy.unacked, copy.needs_write) == (684, 0, False)


def test_a_replica_is_not_written_by_anybody_else(half: Any) -> None:
    ring = owner(half, 1)
    group = Group(half, ring)
    with pytest.raises(AssertionError, match="not a replica"):
        ring.fold(group.span, 1, 0)
    with pytest.raises(AssertionError, match="not a replica"):
        ring.drop([(1, 1)])
    with pytest.raises(DamagedRecord, match="not of 8"):
        half.module.Ring(8, replica=True).fold(group.span, 1, 0)


def test_a_cut_takes_back_seqs(half: Any) -> None:
    ring, copy = owner(half, 300), replica(half)
    flush(half, ring, copy)
    copy.cut(200)
    assert (copy.live(0), copy.emitted_end(), copy.ready) == ([(1, 199)], 200, 199)
    copy.drop([(1, 50), (90, 10_000)])
    assert copy.live(0) == [(51, 89)]
    copy.cut(1)
    assert (copy.emitted_buckets(), copy.use.live(9), copy.epochs) == ([], 0, [])


def test_digests_tell_buckets_apart(half: Any) -> None:
    ring, copy = owner(half), replica(half)
    ring.append(half.messages(5000))
    flush(half, ring, copy)
    assert [number for number, _ in ring.emitted_buckets()] == [0, 1]
    copy.drop([(4500, 4500)])
    mine, theirs = dict(copy.emitted_buckets()), dict(ring.emitted_buckets())
    assert mine[0] == theirs[0]
    assert mine[1] != theirs[1]
    assert copy.live(1) == [(4096, 4499), (4501, 5000)]
    expected = sum(half.module.digest_of(seq, 0, 0) for seq in range(1, 4096)) % 2**64
    assert theirs[0] == expected


def test_a_new_owner_that_cannot_know_what_was_handed_out_flags_all_and_says_so_at_once(half: Any) -> None:
    ring, copy, third = owner(half, 100), replica(half), replica(half)
    flush(half, ring, copy)
    copy.take_over(2, True)
    assert copy.epochs == [(1, 1), (2, 101)]
    assert (copy.emitted_reserved(), copy.reserved) == (0, 100)
    copy.paused = False
    copy.fill(list(copy.missing()), [half.message(b"%d" % (place[0] - 1)) for place in copy.missing()])
    assert copy.head(0) == HEAD_NOT_COMMITTED
    group = flush(half, copy, third)
    assert group.kinds[:2] == [EPO, RSV]
    assert third.emitted_reserved() == 100
    assert [copy.take()[2] for _ in range(100)] == [True] * 100


def test_a_new_owner_flags_what_was_reserved_and_waits(half: Any) -> None:
    ring, copy = owner(half, 100), replica(half)
    ring.reserve()
    flush(half, ring, copy)
    flush(half, ring, copy)
    copy.take_over(2)
    assert (copy.paused, copy.epoch, copy.epochs, copy.committed) == (True, 2, [(1, 1), (2, 101)], 1)
    assert copy.head(0) == HEAD_NOT_COMMITTED
    assert copy.adopt(3, 5, 1) == 3
    assert copy.adopt(3, 5, 2) == 0, "it is at the first"
    copy.paused = False
    assert copy.head(0) == HEAD_NOT_LOADED
    copy.fill(list(copy.missing()), [half.message(b"%d" % (place[0] - 1)) for place in copy.missing()])
    assert copy.head(0) == HEAD_NOT_COMMITTED
    group = flush(half, copy)
    assert (group.kinds[0], group.upto, copy.committed) == (EPO, 101, 101)
    far = taker(half, copy, 2)
    half.module.dispatch(copy, [far], 0)
    flush(half, copy)
    half.module.dispatch(copy, [far], 0)
    found = half.record.read_records(far.out.take())
    assert [seq for seq, *_ in found] == [seq for seq in range(1, 101) if not 3 <= seq <= 5]
    assert [seq for seq, _, _, again in found if not again] == list(range(66, 101))
    assert copy.settle_held(3, 4, 1) == 2


@pytest.mark.parametrize("loaded", [False, True])
def test_what_returns_to_a_new_owner_takes_its_old_place(half: Any, loaded: bool) -> None:
    ring, copy = owner(half, 6), replica(half)
    ring.reserve()
    flush(half, ring, copy)
    copy.take_over(2)
    copy.adopt(3, 4, 1)
    copy.paused = False
    flush(half, copy)
    bodies = dict(enumerate(half.messages(6), 1))
    if loaded:  # those before it and behind it are in memory, what is held is not
        places = list(copy.missing())
        assert [seq for seq, *_ in places] == [1, 2, 5, 6]
        copy.fill(places, [bodies[seq] for seq, *_ in places])
    assert copy.requeue_held(3, 3, 1, False) == 1
    places = list(copy.missing())
    assert [seq for seq, *_ in places] == ([3] if loaded else [1, 2, 3, 5, 6]), "each once, in their order"
    copy.fill(places, [bodies[seq] for seq, *_ in places])
    far = taker(half, copy, 2)
    half.module.dispatch(copy, [far], 0)
    flush(half, copy)
    half.module.dispatch(copy, [far], 0)
    assert seqs(half, far.out.take()) == [1, 2, 3, 5, 6]
    copy.requeue_held(4, 4, 1, False)
    assert [seq for seq, *_ in copy.missing()] == [4]


def test_an_owner_that_loses_its_queue_goes_back_to_what_it_has_emitted(half: Any) -> None:
    ring, copy = owner(half, 400), replica(half)
    ring.reserve()
    flush(half, ring, copy)
    half.module.dispatch(ring, [taker(half, ring)], 0)
    ring.settle_held(1, 10, 1)
    Group(half, ring)  # in flight: said, not answered
    copy.drop([(1, 10)])
    before = copy.ready
    ring.append(half.messages(3))
    ring.set_attribute(b"x", 3)
    ring.settle_held(11, 20, 1)
    ring.requeue_held(21, 25, 1, True)
    for seq in ring.take_held(26, 30, 1):
        ring.hold_dead(seq, 1)
    ring.begin_epoch(2)
    copy_reserved = ring.emitted_reserved()
    ring.step_down()
    assert (ring.replica, ring.ready, ring.unacked, ring.needs_write) == (True, before, 0, False)
    assert ring.live(0) == copy.live(0) == [(11, 400)]
    assert ring.emitted_buckets() == copy.emitted_buckets()
    assert (ring.emitted_attributes(), ring.dead(), ring.epochs) == ({}, [], [(1, 1)])
    assert ring.emitted_reserved() == copy_reserved
    assert ring.held_by(1) == 0
    ring.step_down()
    ring.take_over(3)
    assert ring.epochs[-1][0] == 3


def test_a_checkpoint_has_what_was_written_although_not_all_have_it(half: Any) -> None:
    """The group is durable here before it is committed; a later group's position must not lose it."""
    ring = owner(half, 3)
    group = Group(half, ring)
    ((first, run),) = ring.dirty_runs()
    assert (first, len(run)) == (0, 60)
    ring.commit(group.upto)
    ring.reserve()
    flush(half, ring)
    half.module.dispatch(ring, [taker(half, ring)], 0)
    ring.settle_held(1, 1, 1)
    Group(half, ring)  # the SET is in a group, the group in no answer
    ((_, run),) = ring.dirty_runs()
    assert [run[at] for at in range(0, len(run), 20)] == [2, 3]
    meta = ring.checkpoint_meta()
    assert (meta["next_seq"], meta["epochs"]) == (4, [[1, 1]])
    assert meta["reserved"] == ring.emitted_reserved()


# -- proxies --------------------------------------------------------------------------------------------------------


def deliver(half: Any, *numbers: int, again: bool = False) -> bytes:
    out = half.record.RecordBuffer()
    for seq in numbers:
        out.enqueue(7, 1, seq, half.message(b"%d" % seq), 0, again)
    data: bytes = out.take()
    return data


def test_a_proxy_hands_over_settles_and_forgets(half: Any) -> None:
    ring = proxy(half)
    ledger = half.ledger()
    consumer = half.consumer(ring, ledger)
    assert ring.receive(consumer, deliver(half, 5, 6, 7, 900, again=True), 10) == (4, [], [], [])
    data = bytes(ledger.out.take())
    assert [data.count(b"%d\xce" % seq) for seq in (5, 6, 7, 900)] == [1, 1, 1, 1]
    assert (ring.unacked, ring.outstanding(), consumer.unacked, consumer.delivered) == (4, [(5, 7), (900, 900)], 4, 4)
    assert ring.receive(consumer, deliver(half, 6, 8), 10) == (2, [], [], [])
    assert bytes(ledger.out.take()).count(b"6\xce") == 0, "what is outstanding comes once"
    assert ring.passed_over == 1
    assert ledger.ack([2 << 1 | 1, 4 << 1]) == 0
    assert ring.take_settled() == [(5, 6), (900, 900)]
    assert ring.take_settled() == []
    assert ring.outstanding() == [(7, 8)]
    assert ring.receive(consumer, deliver(half, 5), 10) == (1, [], [], [(5, 5)]), "settled, and not answered"
    assert ring.passed_over == 1
    ring.forget([(5, 6), (900, 2**63)])
    assert ring.receive(consumer, deliver(half, 5), 10) == (1, [], [], [])
    ((_, _, seq),) = ledger.collect(3, False)
    assert (seq, ring.release(7), ring.release(7), ring.unacked) == (7, 0, -1, 2)
    assert ring.marked


def test_a_proxy_settles_at_once_for_a_consumer_without_acknowledgements(half: Any) -> None:
    ring = proxy(half)
    consumer = half.consumer(ring, half.ledger(), no_ack=True)
    assert ring.receive(consumer, deliver(half, 1, 2, 4), 0) == (3, [], [], [])
    assert (ring.outstanding(), ring.take_settled(), ring.unacked) == ([], [(1, 2), (4, 4)], 0)


def test_a_proxy_shows_each_messages_number_to_a_consumer_that_asks(half: Any) -> None:
    ring = proxy(half)
    consumer = half.consumer(ring, half.ledger())
    consumer.numbered = b"\x01n"
    assert ring.receive(consumer, deliver(half, 5, 2**40), 0) == (2, [], [], [])
    data = bytes(consumer.ledger.out.take())
    found = [data[at + 3 : at + 11] for at in range(len(data)) if data[at : at + 3] == b"\x01nl"]
    assert [int.from_bytes(number, "big") for number in found] == [5, 2**40]
    consumer.numbered = b""
    assert ring.receive(consumer, deliver(half, 6), 0) == (1, [], [], [])
    assert b"\x01nl" not in consumer.ledger.out.take()


def test_a_proxy_refuses_for_a_consumer_that_went(half: Any) -> None:
    ring = proxy(half)
    consumer = half.consumer(ring, half.ledger())
    consumer.active = False
    assert ring.receive(consumer, deliver(half, 1, 2, 4), 0) == (3, [(1, 2), (4, 4)], [], [])
    consumer.active = True
    consumer.ledger.flowing = False
    assert ring.receive(consumer, deliver(half, 1), 0) == (1, [(1, 1)], [], [])
    assert (ring.outstanding(), consumer.ledger.out.size) == ([], 0)


def test_a_proxy_takes_only_whole_messages_of_its_queue(half: Any) -> None:
    ring = proxy(half)
    consumer = half.consumer(ring, half.ledger())
    data = deliver(half, 1, 2)
    other = half.module.Ring(8, proxy=True)
    for wrong in (data[:-8], data[:100] + b"?" + data[101:], Group(half, owner(half, 1)).span):
        with pytest.raises(DamagedRecord):
            ring.receive(consumer, wrong, 0)
    with pytest.raises(DamagedRecord):
        other.receive(half.consumer(other, half.ledger()), data, 0)
    assert (ring.outstanding(), consumer.delivered) == ([], 0)


def test_a_proxy_holds_what_was_fetched(half: Any) -> None:
    ring = proxy(half)
    assert (ring.hold(2**40), ring.hold(2**40)) == (True, False)
    ledger = half.ledger()
    ledger.add(half.consumer(ring, ledger), 2**40, 0)
    assert ledger.ack([3]) == 0
    assert ring.take_settled() == [(2**40, 2**40)]
    ring.hold(3)
    with pytest.raises(AssertionError, match="returns at its owner"):
        ring.requeue(3, False)
    with pytest.raises(AssertionError, match="no log"):
        ring.write(half.record.GroupWriter(1, 0))
    with pytest.raises(AssertionError, match="only a proxy"):
        half.ring().release(1)


def test_a_proxy_knows_the_delivery_count_that_a_message_came_with(half: Any) -> None:
    ring = proxy(half)
    out = half.record.RecordBuffer()
    out.enqueue(7, 1, 5, half.message(b"5"), 3, True)
    assert ring.receive(half.consumer(ring, half.ledger()), out.take(), 0) == (1, [], [], [])
    ring.hold(300, 0xFFFF)
    assert (ring.release(5), ring.release(300), ring.release(5), ring.unacked) == (3, 0xFFFF, -1, 0)


def test_a_deleted_queue_of_either_role_keeps_nothing(half: Any) -> None:
    ring, copy, far = owner(half, 300), replica(half), proxy(half)
    ring.reserve()
    flush(half, ring, copy)
    half.module.dispatch(ring, [taker(half, ring)], 0)
    far.hold(4)
    for one in (ring, copy, far):
        one.destroy()
        assert (one.ready, one.unacked, one.held_by(1), one.emitted_buckets(), one.dead()) == (0, 0, 0, [], [])
    assert (ring.use.live(3), copy.use.live(9)) == (0, 0)
    assert ring.settle_held(1, 400, 1) == 0
    far.settle(4)
