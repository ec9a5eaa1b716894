"""Messages that are changed in their places: at the owner, at replicas, and after a crash."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.journal.layout import ENQ, REQ, SET
from tests.unit.broker.queues.test_ring_cluster import flush, owner, replica


def change(half: Any, ring: Any, seq: int, header: bytes = b"\x00\x00annotated", body: bytes = b"0") -> bool:
    changed = half.record.Message(b"\x02ex\x03key", header + body, len(header), 1)
    answer: bool = ring.replace(seq, changed)
    return answer


def taken(half: Any, count: int = 1) -> tuple[Any, Any]:
    """An owner whose first message was handed out, and a replica."""
    ring, copy = owner(half, count), replica(half)
    ring.reserve()
    flush(half, ring, copy)
    ring.paused = False
    assert ring.take()[0] == 1
    return ring, copy


def test_a_changed_message_is_written_again_and_replicas_take_it(half: Any) -> None:
    ring, copy = taken(half, 2)
    before = copy.use.live(9)
    assert change(half, ring, 1)
    ring.requeue(1, True)
    group = flush(half, ring, copy)
    assert [(record.kind, record.seq) for record in group.records if record.kind in (ENQ, REQ)] == [(ENQ, 1), (REQ, 1)]
    _, _, _, length = copy.location(1)
    assert length == ring.location(1)[3] == group.records[0].length
    assert copy.use.live(9) - before == len(b"annotated")
    assert (copy.ready, copy.ready_bytes, copy.delivery_count(1)) == (2, 2, 1)
    written = half.record.read_records(group.span[:80])[0]
    assert (written[0], written[1].header) == (1, b"\x00\x00annotated")


def test_places_and_use_follow_a_change(half: Any) -> None:
    ring, _ = taken(half)
    live = ring.use.live(3)
    assert change(half, ring, 1)
    assert ring.needs_write
    half.commit(ring, segment=4, offset=640)
    assert ring.use.live(3) == 0
    assert ring.use.live(4) == live + len(b"annotated")
    assert ring.location(1)[1] == 4


def test_what_is_settled_after_a_change_is_gone_at_the_replica(half: Any) -> None:
    ring, copy = taken(half)
    assert change(half, ring, 1)
    ring.settle(1)
    group = flush(half, ring, copy)
    assert [record.kind for record in group.records if record.kind in (ENQ, SET)] == [SET]
    assert copy.ready == 0


def test_a_message_that_no_group_has_is_written_once_and_as_it_is(half: Any) -> None:
    ring = half.ring(1, journaled=True)
    assert ring.take()[0] == 1
    assert change(half, ring, 1)
    ring.requeue(1, False)
    records = half.commit(ring)
    assert [record.length for record in records if record.kind == ENQ] == [ring.location(1)[3]]
    assert ring.message(1).header == b"\x00\x00annotated"


def test_only_what_is_out_is_changed_and_bodies_stay(half: Any) -> None:
    ring = half.ring(2, journaled=True)
    assert not change(half, ring, 1)
    assert not change(half, ring, 9)
    ring.take()
    with pytest.raises(AssertionError, match="keeps its body"):
        change(half, ring, 1, body=b"other")
    with pytest.raises(AssertionError, match="owner"):
        change(half, replica(half), 1)


def test_a_copy_forward_of_a_replica_does_not_undo_a_later_change(half: Any) -> None:
    """The replica's own copy is in flight when the owner's change comes."""
    ring, copy = taken(half)
    seq, segment, offset, _ = copy.location(1)
    assert copy.rewrite(seq, segment, offset, half.message(b"0"))
    writer = half.record.GroupWriter(11, 0)
    copy.write(writer)
    assert change(half, ring, 1)
    flush(half, ring, copy)
    place = copy.location(1)
    copy.moved()
    assert copy.location(1) == place
    assert copy.use.live(11) == 0


def test_a_change_in_flight_stays_in_memory(half: Any) -> None:
    """Its old place has what it was before."""
    ring, _ = taken(half)
    ring.resident_bytes_max = 0
    assert change(half, ring, 1)
    writer = half.record.GroupWriter(3, 4096)
    upto = ring.write(writer)
    ring.requeue(1, False)
    ring.paused = False
    ring.take()
    assert ring.message(1) is not None
    ring.commit(upto)
    assert ring.message(1) is None, "now it may go"


def test_keys_of_messages_that_come_and_go_do_not_pile_up(half: Any) -> None:
    """A consumer takes a message from the queue's midst and releases it, again and again."""
    ring = half.ring(3)
    blocker = half.consumer(ring, half.ledger(), prefetch=1)
    half.module.dispatch(ring, [blocker], 0, 3)
    for _, _, seq in blocker.ledger.drain():
        ring.requeue(seq, False)
    assert ring.take()[0] == 1
    ring.requeue(1, False)
    consumer = half.consumer(ring, half.ledger())
    consumer.selection = half.module.Selection(lambda seq, _: seq == 3)
    for _ in range(3 * 4096):
        assert half.module.dispatch_selected(ring, [consumer], 0, 100)[0] == 1
        ((_, _, seq),) = consumer.ledger.drain()
        ring.requeue(seq, False)
    assert [ring.take()[0] for _ in range(3)] == [1, 2, 3]
