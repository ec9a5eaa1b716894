"""Copies in a node's group commits: what waits for a group, and what must not overtake it."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.queues.ring import Ring
from clusterbroker.cluster.wiring.entities import Queue
from clusterbroker.journal.record import GroupWriter, Message, RecordBuffer
from clusterbroker.replication.copying import Copying
from clusterbroker.replication.records import Records

EPOCH = 3


class World:
    """Node and member: no wiring, no links; commits are noted."""

    name, incarnation, registered, now_ms, newest_group = "a", 1, True, 0, 0

    def __init__(self) -> None:
        self.queues: dict[int, Any] = {}
        self.touched: dict[Any, None] = {}
        self.completed: list[int] = []

    def owes(self, queue_id: int) -> bool:
        return False

    def synced(self, queue_id: int) -> None:
        self.completed.append(queue_id)

    def write(self, queue: Any) -> None:
        pass


class Log:
    """A queue that this node owns."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.entity = Queue(
            vhost="/", name="q", queue_id=ring.queue_id, durable=True, auto_delete=False, exclusive_owner=None,
            arguments={}, owner="a", epoch=EPOCH, replicas=("a",), in_sync=("a",),
        )  # type: ignore[arg-type]  # fmt: skip

    def committed(self, upto: int) -> None:
        pass


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def copying(world: World) -> Copying[Any, Ring]:
    return Copying(world, world, lambda ring: ring, group_bytes=1 << 20, rate_bytes=0)  # type: ignore[arg-type, return-value]


def group(world: World, copying: Copying[Any, Ring]) -> int:
    """A group is made; the bytes of copies in it."""
    world.newest_group += 1
    writer = GroupWriter(0, 0)
    start = writer.size
    copying.write_copies(writer, world.newest_group)
    return writer.size - start


def one_message(seq: int) -> bytes:
    buffer = RecordBuffer()
    buffer.enqueue(1, EPOCH, seq, MESSAGE, 0, False)
    return buffer.take()


MESSAGE = Message(b"\x00\x01q", b"\x10\x00\x02body", 3, 1)


def test_a_message_is_not_moved_over_its_settlement(world: World, copying: Copying[Any, Ring]) -> None:
    ring = copying.replicas[1] = Ring(1, True, replica=True)
    copying.write(1, one_message(1), None)
    group(world, copying)
    _, segment, offset, _ = ring.location(1)
    copying.write(1, Records().settle(1, EPOCH, [(1, 1)]), None)
    waits = copying.pending_bytes
    copying.move(1, 1, segment, offset, MESSAGE)
    assert copying.pending_bytes == waits, "it would live again"
    group(world, copying)
    copying.move(1, 1, segment, offset, MESSAGE)
    assert not copying.waits, "it has left"


def test_a_message_that_lives_is_moved_once(world: World, copying: Copying[Any, Ring]) -> None:
    ring = copying.replicas[1] = Ring(1, True, replica=True)
    copying.write(1, one_message(1), None)
    group(world, copying)
    _, segment, offset, _ = ring.location(1)
    copying.move(1, 1, segment, offset + 1, MESSAGE)
    assert not copying.waits, "it is elsewhere by now"
    copying.move(1, 1, segment, offset, MESSAGE)
    assert group(world, copying) > 0
    assert ring.ready == 1


def test_a_queue_is_not_written_before_the_beginning_of_its_copy(world: World, copying: Copying[Any, Ring]) -> None:
    """The end of what an earlier copy left would stand behind the first records, and take them out at a restart."""
    copying.primary.members_changed({"a": (1, True)}, 0)
    copying.begin(1, EPOCH)
    log = world.queues[1] = Log(Ring(1, True, replica=True))
    log.ring.take_over(EPOCH)
    copying.take_over(log, 1, world.newest_group)
    assert not world.completed
    assert not copying.primary.may_write(1)
    assert group(world, copying) > 0, "the beginning is written without a replica"
    assert not copying.primary.may_write(1), "nor before that is durable"
    copying.durable(world.newest_group, 1)
    assert world.completed == [1]
    assert copying.primary.may_write(1)


def test_records_that_do_not_fit_into_a_group_count_with_a_later_one(world: World) -> None:
    copying: Any = Copying(world, world, lambda ring: ring, group_bytes=1, rate_bytes=0)  # type: ignore[arg-type, return-value]
    copying.replicas[1] = Ring(1, True, replica=True)
    marks = [copying.write(1, one_message(seq), None) for seq in (1, 2, 3)]
    assert marks == [1, 2, 3]
    group(world, copying)
    assert copying.replicas[1].ready == 1
    copying.drop(1)
    assert [group(world, copying), group(world, copying)] == [0, 0], "portions keep their places"
    assert not copying.waits
