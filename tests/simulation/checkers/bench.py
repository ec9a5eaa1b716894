"""Where sites and sockets tell what happens, and where it is handed to the checkers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clusterbroker.broker.streams.store import store_of
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.journal.layout import ENQ, SET
from tests.simulation.checkers import batches, delaying, ending, handing, leasing, linking, logs, reading
from tests.simulation.checkers.history import Checker, History, Violation
from tests.simulation.sim_journal import Written
from tests.unit.broker.fronts.amqp091.harness import Content

if TYPE_CHECKING:
    from clusterbroker.broker.queues.ring import Ring
    from clusterbroker.cluster.wiring.map import Applied
    from tests.simulation.leases import LeaseReader, Range
    from tests.simulation.links import LinkReceiver
    from tests.simulation.site import Site
    from tests.simulation.sockets import Socket
    from tests.simulation.streams import StreamReader
    from tests.simulation.world import World

EVENTS = (
    "began", "submitted", "committed", "taken_over", "ordered", "applied", "confirmed", "delivered", "wrote", "wakes",
    "gap", "behind_gap",
    "batch_answered", "read", "read_to_the_end", "ended_early", "offsets_told", "lease_told", "lease_read",
    "lease_was_read", "lease_done", "link_heard", "link_decided", "delayed",
    "ended",
)  # fmt: skip


class Checkers:
    """All of them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.history = History(world)
        found: list[Checker] = []
        for module in (logs, handing, batches, reading, leasing, linking, delaying, ending):
            for name, kind in vars(module).items():
                if name[0] == "I" and isinstance(kind, type) and issubclass(kind, Checker):
                    found.append(kind(self.history))
        self.all = found
        self.convergence = next(one for one in found if isinstance(one, ending.I18Convergence))
        self._hooks: dict[str, list[Any]] = {
            event: [getattr(checker, event) for checker in found if hasattr(checker, event)] for event in EVENTS
        }
        self._groups: dict[tuple[str, int, int], list[Written]] = {}
        """Records of own queues that were submitted and not committed: by node, life and queue."""
        self._shown: Counter[str] = Counter()

    def _tell(self, event: str, *facts: Any) -> None:
        for hook in self._hooks[event]:
            hook(*facts)

    # -- the wiring

    def ordered(self, applied: Applied) -> None:
        """A command is in the log, before any node has heard of it."""
        for change in applied.changes:
            queue: Any = getattr(change, "queue", None)
            gap_epoch = getattr(queue, "gap_epoch", 0)
            if gap_epoch and gap_epoch > self.history.gaps[queue.queue_id] and not self.world.volatile(queue.name):
                self._tell("gap", applied, queue)
                self.history.gaps[queue.queue_id] = gap_epoch
        self._tell("ordered", applied)
        self.world.reviewed(applied)

    def applied(self, site: Site, applied: Applied) -> None:
        self._tell("applied", site, applied)

    def began(self, site: Site, queue_id: int, epoch: int) -> None:
        self._groups.pop((site.name, site.life, queue_id), None)
        self._tell("began", site, queue_id, epoch)

    def wakes(self, site: Site, at_ms: int) -> None:
        """After a turn in which it did all it could, the node asks to be woken."""
        self._tell("wakes", site, at_ms)

    # -- logs

    def submitted(self, site: Site, group: int, records: list[Written]) -> None:
        assert site.node is not None, "a node that runs writes"
        self._tell("submitted", site, group, records)
        own: dict[int, list[Written]] = {}
        for record in records:
            if record.queue_id in site.node.queues:
                own.setdefault(record.queue_id, []).append(record)
                self._note(record)
        for queue_id, mine in own.items():
            self._groups[site.name, site.life, queue_id] = mine

    def _note(self, record: Written) -> None:
        """What an owner writes of messages that leave, and of seqs that are given anew. An owner whose time is over
        and who does not know it may write what it likes: it is of an older epoch."""
        committed = self.history.committed[record.queue_id]
        gone = self.history.settle_written[record.queue_id]
        if record.epoch < self.history.gaps[record.queue_id] <= self.history.owned[record.queue_id]:
            return
        if record.kind == SET:
            left = {seq for seq in _seqs(record) if committed.get(seq, (0, b""))[0] <= record.epoch}
            gone.update(left)
            if record.epoch >= self.history.owned[record.queue_id]:
                self.history.left[record.queue_id].update(dict.fromkeys(left, record.epoch))
            self.history.settled_ever[record.queue_id].update(left)
        elif record.kind == ENQ and record.seq in gone and committed.get(record.seq, (0, b""))[0] < record.epoch:
            gone.discard(record.seq)
            self.history.left[record.queue_id].pop(record.seq, None)
            committed.pop(record.seq, None)

    def committed(self, site: Site, queue_id: int) -> None:
        """The owner calls its group of this queue committed."""
        records = self._groups.pop((site.name, site.life, queue_id), [])
        queue = site.node.queues.get(queue_id) if site.node is not None else None
        if queue is not None and queue.ring.epoch < self.history.gaps[queue_id]:  # it has not heard of its end
            places, name = self.history.places[queue_id], self.history.queue_name(queue_id)
            self.history.given_up[name].update(r.body for r in records if r.kind == ENQ and r.body not in places)
            return
        self._commit(site, queue_id, records)

    def taken_over(self, site: Site, queue_id: int, epoch: int) -> None:
        """Everything that the owner has is committed."""
        if self.world.volatile(self.history.queue_name(queue_id)):
            return
        if epoch < self.history.gaps[queue_id]:
            return  # it has not heard of its end: what it knows is not the queue's any more
        live = site.journal.live.get(queue_id, {})
        if self.history.in_gap(queue_id):
            self._tell("behind_gap", site, queue_id)
            self.history.begin_behind_gap(queue_id, live)
        self._tell("taken_over", site, queue_id, epoch)
        known = self.history.committed[queue_id]
        self._decide(queue_id, epoch, live)
        records = [
            Written(ENQ, queue_id, seq, record_epoch, body, ())
            for seq, (record_epoch, body) in sorted(live.items())
            if seq not in known
        ]
        self._commit(site, queue_id, records)

    def _decide(self, queue_id: int, epoch: int, live: Mapping[int, Any]) -> None:
        """What owners before wrote of messages that leave has happened where this one has not got them, and nowhere
        else."""
        if epoch <= self.history.owned[queue_id]:
            return
        self.history.owned[queue_id] = epoch
        left = self.history.left[queue_id]
        self.history.left[queue_id] = {seq: epoch for seq in left if seq not in live}

    def _commit(self, site: Site, queue_id: int, records: list[Written]) -> None:
        self._tell("committed", site, queue_id, records)
        committed, places = self.history.committed[queue_id], self.history.places[queue_id]
        settled = self.history.settled[queue_id]
        given_up = self.history.given_up[self.history.queue_name(queue_id)]
        for record in records:
            if record.kind == ENQ:
                committed[record.seq] = (record.epoch, record.body)
                places[record.body] = record.seq
                given_up.discard(record.body)
                settled.discard(record.seq)
                self.world.schedule.counts["committed"] += 1
            elif record.kind == SET:
                settled.update(_seqs(record))

    def recovered(self, site: Site, rings: dict[int, Ring]) -> None:
        """What a node finds on its disk is what was durable when it went down."""
        for queue_id, ring in rings.items():
            live, store = site.journal.live.get(queue_id, {}), store_of(ring)
            found = {
                seq
                for bucket, _ in store.emitted_buckets()
                for first, last in store.emitted_live(bucket)
                for seq in range(first, last + 1)
            }
            if found != set(live):
                more, less = sorted(found - set(live))[:5], sorted(set(live) - found)[:5]
                raise Violation(f"recovery: {site.name} finds {more} too much of {queue_id} and lacks {less}")

    # -- clients

    def written(self, socket: Socket, heard: list[tuple[int, Any]]) -> None:
        self._tell("wrote", socket)
        for channel, said in heard:
            if isinstance(said, Content):
                queue = socket.actor.queue_of(said.method)
                if queue is not None:
                    consumer = getattr(said.method, "consumer_tag", "")
                    self._handed(socket, queue, said.body, said.method.redelivered, consumer)
                socket.actor.handed(socket, channel, said)
            elif isinstance(said, m.BasicAck):
                for body, queues in socket.actor.confirms(channel, said.delivery_tag, said.multiple):
                    if socket.site.owes() or all(map(socket.site.knows, queues)):
                        self.confirmed(body, queues)
                    else:  # it went by the wiring as that was before the pause
                        self.world.schedule.counts["confirmed in doubt"] += 1
            elif isinstance(said, m.BasicNack):
                socket.actor.refused(channel, said.delivery_tag, said.multiple)

    def _handed(self, socket: Socket, queue: str, body: bytes, redelivered: bool, consumer: str) -> None:
        if socket.site.owes():
            self._delivered(socket, queue, body, redelivered, consumer)
        else:
            self.history.doubtful[queue].add(body)
            self.world.schedule.counts["handed over in doubt"] += 1

    def _delivered(self, socket: Socket, queue: str, body: bytes, redelivered: bool, consumer: str) -> None:
        if body in self.history.given_up[queue]:  # its node has not heard that this is gone
            return
        self._tell("delivered", socket, queue, body, redelivered, consumer)
        history = self.history
        history.delivered[queue][body] = history.delivered[queue].get(body, 0) + 1
        self.world.schedule.counts["deliveries"] += 1
        self.world.schedule.counts["redeliveries"] += redelivered
        if self.world.acknowledged(queue):
            history.holders[queue][body].append(socket)

    def confirmed(self, body: bytes, queues: tuple[str, ...]) -> None:
        self._tell("confirmed", body, queues)
        self.history.confirmed[body] = queues
        self.world.schedule.counts["confirms"] += 1

    def released(self, socket: Socket, queue: str, body: bytes, acknowledged: bool) -> None:
        """The client gives the message back, or is done with it."""
        holders = self.history.holders[queue][body]
        if socket in holders:
            holders.remove(socket)
        if acknowledged:
            self.history.acknowledged[queue].add(body)

    def batch_answered(self, producer: str, epoch: int, names: tuple[str, ...], outcome: str) -> None:
        """A producer is told that this epoch is committed."""
        self._tell("batch_answered", producer, epoch, names, outcome)

    # -- streams

    def read(self, reader: StreamReader, offset: int, body: bytes) -> None:
        """A message is written to the reader's socket."""
        self._tell("read", reader, offset, body)
        self._shown[reader.queue] = max(self._shown[reader.queue], offset + 1)

    def read_to_the_end(self, reader: StreamReader) -> None:
        """The broker has cancelled it."""
        self._tell("read_to_the_end", reader)

    def ended_early(self, reader: StreamReader, why: str) -> None:
        """What it reads is not there, it was told."""
        self._tell("ended_early", reader, why)

    def offsets_told(self, queue: str, first: int, end: int, shown: int) -> None:
        """Where a stream begins and ends; `shown` is of the time when that was asked."""
        self._tell("offsets_told", queue, first, end, shown)

    def shown(self, queue: str) -> int:
        """One past the last offset that anybody was shown."""
        return self._shown[queue]

    def last_offset(self, queue: str) -> int:
        """The last one that is committed; -1: there is none."""
        committed = self.history.committed[self.history.queue_id(queue) or 0]
        return max(committed, default=0) - 1

    def is_gone(self, queue: str, first: int, end: int) -> bool:
        """Whether retention took all of these offsets."""
        gone = self.history.settle_written[self.history.queue_id(queue) or 0]
        return all(offset + 1 in gone for offset in range(first, end))

    # -- leases

    def lease_told(self, reader: LeaseReader, now: Range, word: dict[str, Any]) -> None:
        """The reader is told what it has, before it forgets what it had."""
        self._tell("lease_told", reader, now, word)

    def lease_read(self, reader: LeaseReader, seq: int, body: bytes) -> None:
        """A leased message is written to the reader's socket."""
        self._tell("lease_read", reader, seq, body)

    def lease_was_read(self, reader: LeaseReader, first: int, end: int, seqs: list[int]) -> None:
        """The broker says that this was all."""
        self._tell("lease_was_read", reader, first, end, seqs)

    def lease_done(self, queue: str, upto: int) -> None:
        """The reader is about to settle all below."""
        self._tell("lease_done", queue, upto)

    # -- recoverable links

    def link_delivered(self, socket: Socket, queue: str, link: str, body: bytes, redelivered: bool) -> None:
        """A delivery that is new on its link is written to the client's socket."""
        self._handed(socket, queue, body, redelivered, link)

    def link_heard(self, receiver: LinkReceiver, body: bytes) -> None:
        """The client's program has it."""
        self._tell("link_heard", receiver, body)

    def link_decided(self, receiver: LinkReceiver, body: bytes, accepted: bool) -> None:
        """The program has an outcome for it, which the peer is about to be told: now, or on the next attach."""
        holders = self.history.holders[receiver.queue][body]
        holders[:] = [socket for socket in holders if socket.actor is not receiver]
        if accepted:
            self.history.acknowledged[receiver.queue].add(body)
        self._tell("link_decided", receiver, body, accepted)

    # -- delays

    def delayed(self, body: bytes, due_ms: int, targets: tuple[str, ...], *, exact: bool) -> None:
        """It is published, perhaps once more: not due before `due_ms`; `exact`: due at that time."""
        self._tell("delayed", body, due_ms, targets, exact)

    def ended(self) -> None:
        self._tell("ended")


def _seqs(record: Written) -> set[int]:
    return {seq for first, last in record.ranges for seq in range(first, last + 1)}
