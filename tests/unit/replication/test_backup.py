"""The side of the copies alone, told by hand what owners say and when its node's groups are cut and durable."""

from __future__ import annotations

from typing import Any

import pytest

from replication import sync
from replication.backup import Backup, Replica
from replication.messages import Append, AppendAck, Range, ReplicationMessage, SyncDone, SyncOffer
from tests.property.replication_parts import Record, Records, Ring, pack, unpack

DAMAGED: Record = ("DAMAGED",)


class Host:
    """A node that holds a copy of queue 1, which a owns at epoch 3; what it is given it folds with its next group."""

    def __init__(self, electable: bool) -> None:
        self.ring = Ring()
        self.electable = electable
        self.sent: list[ReplicationMessage] = []
        self.backup = Backup(self, "b", Records())
        self.backup.linked("a")
        self._pending: list[tuple[bytes, Any]] = []
        self._group = 0

    def send(self, peer: str, head: ReplicationMessage) -> None:
        self.sent.append(head)

    def queue(self, queue_id: int) -> Replica:
        return Replica("a", 3, self.ring, self.electable)

    def sound(self, queue_id: int, records: memoryview) -> bool:
        return unpack(records)[0] != DAMAGED

    def verify(self, queue_id: int, records: memoryview) -> list[Range] | None:
        return sync.ranges_of(record[1] for record in unpack(records))

    def write(self, queue_id: int, records: bytes | memoryview, epochs: Any) -> int:
        self._pending.append((bytes(records), epochs))
        return self._group + 1

    def replication_event(self, event: str, queue_id: int, node: str, detail: str) -> None:
        pass

    def group(self) -> None:
        """Cuts the node's next group, which is durable at once."""
        pending, self._pending = self._pending, []
        self._group += 1
        for records, epochs in pending:
            self.ring.fold(records, epochs)
        self.backup.durable(self._group)

    def hear(self, head: ReplicationMessage, *records: Record) -> None:
        self.backup.received("a", head, memoryview(pack(*records)))

    def append(self, group: int, *records: Record) -> None:
        self.hear(Append(group, ((1, 3, len(pack(*records))),)), *records)


def offer(producers: tuple[tuple[bytes, int], ...]) -> SyncOffer:
    """The owner has nothing that lives, and has heard of these."""
    return SyncOffer(1, 3, 7, 1, 0, ((3, 1),), producers, ())


@pytest.mark.parametrize("electable", [False, True])
@pytest.mark.parametrize("before", [{}, {b"p": 2}, {b"p": 9}])
def test_what_waited_behind_an_offer_says_the_newest_numbers(electable: bool, before: dict[bytes, int]) -> None:
    """Seed 288443043 of the simulation: the sync ended before what had waited behind its offer was folded, and wrote
    the offer's numbers behind the newer ones. The next owner took publishes that it had."""
    host = Host(electable)
    host.ring.producers = before
    host.backup.stepped_down(1, host.write(1, pack(("RSV", 1)), None))  # something to wait for
    host.hear(offer(((b"p", 5),)))
    host.append(1, ("ENQ", 1, 3, "p:6", 0), ("PRD", "p", 6))
    host.append(2, ("ENQ", 2, 3, "p:7", 0), ("PRD", "p", 7))
    assert host.sent == [], "nothing is durable yet"
    for _ in range(3):
        host.group()
    assert {type(head) for head in host.sent} == {SyncDone, AppendAck}
    assert host.ring.producers == {b"p": 7}
    assert sorted(host.ring.live) == [1, 2]


@pytest.mark.parametrize("electable", [False, True])
@pytest.mark.parametrize("before", [{}, {b"p": 2}, {b"p": 5}, {b"p": 9, b"q": 3}])
def test_a_copy_that_begins_anew_knows_of_producers_what_its_owner_does(
    electable: bool, before: dict[bytes, int]
) -> None:  # fmt: skip
    """What it had is cut off at its first message, and with that its producers' numbers."""
    host = Host(electable)
    host.ring.fold(pack(("ENQ", 1, 1, "p:1", 0), ("SET", [[1, 1]])))
    host.ring.producers = before
    host.hear(offer(((b"p", 5),)))
    for _ in range(3):
        host.group()
    assert isinstance(host.sent[-1], SyncDone)
    assert {name: upto for name, upto in host.ring.producers.items() if upto} == {b"p": 5}


@pytest.mark.parametrize("electable", [False, True])
def test_damage_behind_an_offer_is_refused_and_ends_the_sync(electable: bool) -> None:
    host = Host(electable)
    host.backup.stepped_down(1, host.write(1, pack(("RSV", 1)), None))
    host.hear(offer(()))
    host.append(1, DAMAGED)
    host.append(2, ("ENQ", 1, 3, "p:1", 0))
    for _ in range(3):
        host.group()
    assert AppendAck(2, ((1, 3),)) in host.sent
    assert host.ring.live == {}
