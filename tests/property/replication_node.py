"""One node of the simulated cluster: the two cores under test, and a small honest shell around them.

It does what the real node does, in the same order: frames wait for the wiring index of their sender; copies are
handed to `write` and folded when the next group is cut; one group is on its way to the disk at a time; a crash loses
it, or its answer; what was adopted from an owner and never stood in a record is not there after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from clusterbroker.cluster.wiring.commands import InSyncProposal
from clusterbroker.cluster.wiring.entities import Queue
from clusterbroker.journal import ranges
from clusterbroker.replication.messages import AppendAck, Range, SyncDone, SyncRefused, SyncWant
from clusterbroker.replication.ports import Replica
from tests.property.replication_parts import CONTROL, Records, Ring, pack, unpack

if TYPE_CHECKING:
    from tests.property.replication_world import World

TO_OWNER = (AppendAck, SyncWant, SyncDone, SyncRefused)
LOAD_BYTES = 200
"""So little that a bucket takes several answers."""
ROUND_BYTES = 300
"""So little that a sync takes several rounds."""


class Node:
    """One node: the two cores, its rings, its journal, its view of the map. Also both cores' Host."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.up = False
        self.incarnation = self.disk = 0
        self.durable: dict[int, Ring] = {}
        self.disk_ms = (1, 4)
        self.saved: dict[int, Ring] | None = None
        """The disk as it was at some moment, as to the queues that counted on it then: in the middle of a sync a place
        says nothing."""
        self.before: dict[int, Ring] = {}
        """The same without its newest group: the queues of that."""

    # -- life

    def start(self) -> None:
        if self.up:
            return
        self.up = True
        self.incarnation += 1
        self.applied = 0
        self.queues: dict[int, Queue] = {}
        self.members: dict[str, tuple[int, bool]] = {}
        self.rings = {queue_id: ring.copy() for queue_id, ring in self.durable.items()}
        self.from_disk = dict.fromkeys(self.rings)
        self.primary = self.world.primary(self, self.name)
        self.backup = self.world.backup(self, self.name, Records(), ROUND_BYTES)
        self.held: dict[str, list[tuple[int, Any, bytes]]] = {}
        self.pending: list[tuple[int, bytes, Any]] = []
        self.group = 0
        self.flying: list[tuple[int, bytes, Any]] | None = None
        self.owned: dict[int, int] = {}  # queue -> epoch
        self.open: dict[int, bool] = {}  # queue -> may be handed out
        self.tasks: list[Callable[[], None]] = []
        for peer in (*self.world.names, CONTROL):
            if peer != self.name:
                self.world.links.dial(self.name, peer)
        self._ticking(self.incarnation)

    def crash(self, wipe: bool = False) -> None:
        if not self.up:
            return
        self.up = False
        if self.flying is not None and self.world.random.random() < 0.5:  # the disk had it, nobody heard
            self._harden(self.flying)
        self.flying = None
        if wipe:
            self.durable, self.saved, self.before = {}, None, {}
            self.disk += 1
            if self.world.control.alive(self.name):  # else losing this disk and its addition would be two faults in one
                self.world.control.fail(self.name)
        for peer in (*self.world.names, CONTROL):
            if peer != self.name:
                self.world.links.reset(self.name, peer)
        self.world.check_copies("crash")

    def _ticking(self, incarnation: int) -> None:
        if self.up and self.incarnation == incarnation:
            if self.members.get(self.name, (0, False))[0] < self.incarnation:
                self.world.to_control(self, lambda: self.world.control.register(self.name, incarnation, self.disk))
            self.primary.tick(self.world.now)
            if self.backup.due_ms is not None and self.backup.due_ms <= self.world.now:
                self.backup.tick(self.world.now)
            self.turn()
            self.world.events.after(self.world.random.randint(4, 8), self._ticking, incarnation)

    def held_queues(self) -> list[int]:
        """Those that count on this disk."""
        queues = self.world.control.queues.values()
        return [int(q.queue_id) for q in queues if self.name in (*q.in_sync, *q.eligible)]

    # -- the map

    def log_came(self, upto: int) -> None:
        log = self.world.control.log
        while self.applied < upto and self.up:
            queues, members = log[self.applied]
            lost = self.world.control.lost.get(self.applied)
            self.applied += 1
            self._apply(queues, members)
            if lost is not None and self.up:
                self._lost(*lost)
        for peer in sorted(self.held):
            held = self.held[peer]
            while self.up and held and held[0][0] <= self.applied:
                _, message, payload = held.pop(0)
                self._handle(peer, message, payload)
        self.turn()

    def _apply(self, queues: dict[int, Queue], members: dict[str, tuple[int, bool]]) -> None:
        old, self.queues, self.members = self.queues, queues, members
        if members[self.name] == (self.incarnation, False):
            self.crash()  # it learns that it was declared dead: another life
            self.world.events.after(10, self.start)
            return
        self.primary.members_changed(members, self.world.now)
        for queue_id, queue in queues.items():
            if queue == old.get(queue_id):
                continue
            mine = queue.owner == self.name and queue.incarnation == self.incarnation
            if mine and self.owned.get(queue_id) != queue.epoch:
                self._take_over(queue)
            elif mine:
                self.primary.entity_changed(queue, self.world.control.min_in_sync, self.world.now)
            elif queue_id in self.owned:
                del self.owned[queue_id]
                self.open.pop(queue_id, None)
                self.primary.give_up(queue_id)
                self.backup.stepped_down(queue_id, self.group)
                self.ring(queue_id).unwritten.clear()

    def _lost(self, queue_id: int, node: str) -> None:
        """A copy is damaged, and begins anew."""
        if node != self.name:
            self.primary.copy_lost(queue_id, node, self.world.now)
        elif queue_id not in self.owned and self.members[self.name] == (self.incarnation, True):  # not of a life before
            self.world.copy_ends(self, queue_id, self.applied - 1)
            self.backup.stop(queue_id)
            self.pending = [write for write in self.pending if write[0] != queue_id]
            self.rings[queue_id] = Ring()
            self.from_disk.pop(queue_id, None)
            self.pending.append((queue_id, pack(("CUT", 1)), None))
            self.backup.stepped_down(queue_id, self.group + 1)

    def _take_over(self, queue: Queue) -> None:
        queue_id = int(queue.queue_id)
        self.backup.stop(queue_id)
        self.pending = [write for write in self.pending if write[0] != queue_id]
        self.owned[queue_id] = queue.epoch
        self.open[queue_id] = False
        ring = self.ring(queue_id)
        ring.take_over(queue.epoch)
        self.world.took_over(self, queue_id, queue.epoch)
        self.primary.take_over(
            queue, ring, self.world.control.min_in_sync, self.world.now, self.group, unproven=queue_id in self.from_disk
        )

    def ring(self, queue_id: int) -> Ring:
        return self.rings.setdefault(queue_id, Ring())

    # -- frames

    def link(self, peer: str, linked: bool) -> None:
        self.held.pop(peer, None)
        if linked:
            self.held[peer] = []
            self.backup.linked(peer)
            self.primary.linked(peer, self.world.now)
        else:
            self.backup.unlinked(peer)
            self.primary.unlinked(peer, self.world.now)
        self.turn()

    def receive(self, peer: str, frame: tuple[int, Any, bytes]) -> None:
        held = self.held.get(peer)
        if held is None:
            return
        if held or frame[0] > self.applied:
            held.append(frame)
        else:
            self._handle(peer, frame[1], frame[2])
        self.turn()

    def _handle(self, peer: str, message: Any, payload: bytes) -> None:
        if isinstance(message, TO_OWNER):
            self.primary.received(peer, message, memoryview(payload), self.world.now)
        else:
            self.backup.received(peer, message, memoryview(payload), self.world.now)

    # -- groups

    def turn(self) -> None:
        """What the node does after each event: one group when there is something to write and none on its way."""
        if not self.up or self.flying is not None:
            return
        own = [q for q in self.owned if self.primary.may_write(q) and self.wants_write(q)]
        if not own and not self.pending:
            return
        self.group += 1
        group, self.pending = self.pending, []
        for queue_id, data, epochs in group:
            self.world.guard_cut(self, queue_id, data)
            self.ring(queue_id).fold(data, epochs)
            self.world.check_identity(self, queue_id)
        self.backup.folded(self.group)
        parts = []
        for queue_id in own:
            data = self.rings[queue_id].write()
            parts.append((queue_id, data))
            self.world.check_identity(self, queue_id)
        self.flying = [*group, *((queue_id, data, None) for queue_id, data in parts)]
        self.world.events.after(self.world.random.randint(*self.disk_ms), self._durable, self.incarnation, self.group)
        if parts:
            self.primary.group_cut(self.group, [(q, memoryview(data)) for q, data in parts], self.world.now)
        self._work()

    def wants_write(self, queue_id: int) -> bool:
        ring = self.rings[queue_id]
        return bool(ring.unwritten) or ring.accepted != ring.attributes

    def _durable(self, incarnation: int, group: int) -> None:
        if not self.up or self.incarnation != incarnation:
            return
        assert self.flying is not None
        flying, self.flying = self.flying, None
        self._harden(flying)
        self.primary.group_durable(group, self.world.now)
        self.backup.durable(group, self.world.now)
        self._work()
        self.turn()

    def _harden(self, group: Sequence[tuple[int, bytes, Any]]) -> None:
        if self.world.past is not None:
            counted = self.held_queues()
            written = sorted({queue_id for queue_id, _, _ in group if queue_id in self.durable})
            self.before = {queue_id: self.durable[queue_id].copy() for queue_id in written if queue_id in counted}
        for queue_id, data, _ in group:  # adopted epochs are not on the disk: the records must teach them
            self.durable.setdefault(queue_id, Ring()).fold(data)
        for queue_id, _, _ in group:
            self.world.check_producers(self, queue_id)

    def _work(self) -> None:
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            task()

    # -- Host of both cores

    def send(self, peer: str, head: Any, payload: Sequence[bytes | memoryview] = ()) -> None:
        if isinstance(head, SyncDone):
            self.from_disk.pop(head.queue_id, None)
        self.world.stats[type(head).__name__] += 1
        self.world.links.send(self.name, peer, (self.applied, head, b"".join(payload)))

    def load(self, queue_id: int, seqs: Sequence[Range], bytes_max: int, then: Callable[[Any], None]) -> None:
        incarnation = self.incarnation

        def read() -> None:
            if not self.up or self.incarnation != incarnation:
                return
            ring = self.ring(queue_id)
            bodies, size = [], 0
            for seq in ranges.seqs_of(seqs):
                if seq in ring.live and size < LOAD_BYTES:
                    token, epoch, _, _ = ring.live[seq]
                    bodies.append(pack(("ENQ", seq, epoch, token, 0)))
                    size += len(bodies[-1])
            then(b"".join(bodies))
            self.turn()

        if self.world.random.random() < 0.3:
            read()
        else:
            self.world.events.after(self.world.random.randint(0, 8), read)

    def change_in_sync(self, changes: tuple[InSyncProposal, ...], done: Callable[[], None]) -> None:
        self.world.propose_in_sync(self, changes, done)

    def transfer_owner(self, queue_id: int, epoch: int, version: int, to: str, done: Callable[[bool], None]) -> None:
        incarnation = self.incarnation

        def order() -> None:
            taken = self.world.control.transfer(self.name, incarnation, queue_id, epoch, version, to)
            self.world.stats["transfers"] += taken
            self.world.answer(self, incarnation, lambda: done(taken))

        self.world.to_control(self, order)

    def yield_to(self, queue_id: int, epoch: int, to: str, lacks: bool, done: Callable[[bool], None]) -> None:
        incarnation = self.incarnation

        def order() -> None:
            taken = self.world.control.give_up(self.name, incarnation, queue_id, epoch, to, lacks)
            self.world.stats["given up"] += taken
            self.world.answer(self, incarnation, lambda: answered(taken))

        def answered(taken: bool) -> None:
            if not decided:
                decided.append(taken)
                done(taken)

        def ask() -> None:  # what the link to the wiring log lost is asked again
            if self.up and self.incarnation == incarnation and not decided and self.owned.get(queue_id) == epoch:
                self.world.to_control(self, order)
                self.world.events.after(500, ask)

        decided: list[bool] = []
        ask()

    def committed(self, queue_id: int, group: int) -> None:
        self.world.committed(self, queue_id)

    def first_sync_complete(self, queue_id: int) -> None:
        self.open[queue_id] = True
        self.from_disk.pop(queue_id, None)
        self.world.committed(self, queue_id)

    def freeze(self, queue_id: int) -> None:
        self.open[queue_id] = False

    def thaw(self, queue_id: int) -> None:
        self.open[queue_id] = True

    def stumbled(self, _queue_id: int, error: Exception) -> None:
        raise error

    def link_stumbled(self, _peer: str, error: Exception) -> None:
        raise error

    def replication_event(self, event: str, queue_id: int, node: str, detail: str) -> None:
        self.world.stats[event] += 1
        self.world.told(self.name, event, queue_id, node, detail)

    def queue(self, queue_id: int) -> Replica | None:
        queue = self.queues.get(queue_id)
        if queue is None or self.members[self.name][0] != self.incarnation:
            return None
        store = self.ring(queue_id) if self.name in queue.replicas else None
        electable = self.name in (*queue.in_sync, *queue.eligible)
        return Replica(queue.owner, queue.epoch, store, electable, queue.gap_epoch)

    def waited_for(self, queue_id: int) -> bool:
        return True  # no operator bounds anything here

    def spare(self, queue_id: int) -> bool:
        in_sync = self.queues[queue_id].in_sync
        return self.name not in in_sync and len(in_sync) >= max(2, self.world.control.min_in_sync)

    def sound(self, queue_id: int, records: memoryview) -> bool:
        return self.verify(queue_id, records) is not None

    def attributes_named(self, records: memoryview) -> set[bytes]:
        return {record[1].encode() for record in unpack(records) if record[0] == "ATTR"}

    def verify(self, queue_id: int, records: memoryview) -> list[Range] | None:
        if self.world.faulty and self.world.random.random() < 0.002:
            return None  # as if a bit had fallen over
        return ranges.ranges_of(record[1] for record in unpack(records) if record[0] == "ENQ")

    def write(self, queue_id: int, records: bytes | memoryview, epochs: Any) -> int:
        self.pending.append((queue_id, bytes(records), epochs))
        return self.group + 1
