"""The index over the queues of all vhosts: every question is answered as a scan would answer it."""

import pytest
from msgspec.structs import replace

from clusterbroker.cluster.ids import LogIndex, NodeId, QueueId
from clusterbroker.cluster.wiring import queue_index
from clusterbroker.cluster.wiring.entities import Queue
from clusterbroker.cluster.wiring.members import Members
from clusterbroker.cluster.wiring.queue_index import QueueIndex
from clusterbroker.cluster.wiring.snapshot import Snapshot

A, B = NodeId("a"), NodeId("b")


def queue(queue_id: int, owner: NodeId = A, connection: str | None = None, durable: bool = True) -> Queue:
    return Queue(
        "/",
        f"q{queue_id}",
        QueueId(queue_id),
        durable,
        False,
        connection,
        {},
        owner,
        replicas=(owner,),
        in_sync=(owner,),
    )


def test_a_queue_is_found_by_id_owner_and_connection() -> None:
    index = QueueIndex(Members())
    lasting, mine, other = queue(1), queue(5, connection="c"), queue(3, connection="c")
    for entity in (lasting, mine, other):
        index.put(None, entity)
    assert index.by_id[QueueId(5)] is mine
    assert list(index.owned_by(A)) == [lasting, other, mine]
    assert list(index.held_by(A)) == [lasting]
    assert list(index.transient_of(A)) == [other, mine]
    assert index.exclusive_to("c") == (other, mine)
    assert index.lasting() == (lasting,)


def test_a_change_takes_the_place_of_what_was() -> None:
    index = QueueIndex(Members())
    before, mine = queue(1), queue(2, connection="c")
    moved, paused = replace(before, owner=B, replicas=(B,), in_sync=(B,)), replace(mine, paused=True)
    index.put(None, before)
    index.put(None, mine)
    index.put(before, moved)
    index.put(mine, paused)
    assert list(index.held_by(A)) == []
    assert list(index.owned_by(B)) == [moved]
    assert index.exclusive_to("c") == (paused,)


def test_what_was_deleted_is_remembered_unless_it_was_transient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_index, "DELETED_KEPT", 2)
    index = QueueIndex(Members())
    for entity in (queue(1), queue(2), queue(3), queue(4, durable=False)):
        index.put(None, entity)
        index.remove(entity)
    assert [queue_id for queue_id in range(1, 5) if index.was_deleted(QueueId(queue_id))] == [2, 3]
    assert not index.by_id
    taken = Snapshot(LogIndex(9))
    index.save(taken)
    again = QueueIndex(Members())
    again.restore(taken)
    assert again.was_deleted(QueueId(3))


def test_a_connection_ends_with_so_many_queues_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_index, "QUEUES_AT_ONCE", 2)
    index = QueueIndex(Members())
    entities = [queue(number, connection="c") for number in range(1, 4)]
    for entity in entities:
        index.put(None, entity)
    assert list(index.ending_with("c")) == entities[:2]
    assert index.ending_with("other") == ()
