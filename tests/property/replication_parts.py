"""What the simulated cluster of `replication_world` is made of: rings, the wiring log, the links. All of it is a model;
only the cores under test are real.

Records are JSON lines, so that a payload can be cut, joined and sent like the real ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

import msgspec

from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.wiring import ownership
from clusterbroker.cluster.wiring.commands import InSyncProposal
from clusterbroker.cluster.wiring.entities import Member, Queue
from clusterbroker.cluster.wiring.ownership import Terms, ordered
from clusterbroker.journal import ranges
from clusterbroker.replication import sync
from clusterbroker.replication.messages import Range
from clusterbroker.replication.places import PLACE

Record = tuple[Any, ...]
CONTROL = "control"


class Violation(Exception):
    """An invariant does not hold; the text names it."""


class Events:
    """A heap of things to come, by simulated ms."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, delay_ms: float, do: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heappush(self._heap, (self.now + max(0, int(delay_ms)), self._count, do, args))

    def step(self) -> bool:
        if not self._heap:
            return False
        self.now, _, do, args = heappop(self._heap)
        do(*args)
        return True


class Records:
    """`replication.records.Records` of the model."""

    def cut(self, queue_id: int, epoch: int, from_seq: int) -> bytes:
        return pack(("CUT", from_seq))

    def settle(self, queue_id: int, epoch: int, ranges: Sequence[Range]) -> bytes:
        return pack(("SET", list(ranges)))

    def reserve(self, queue_id: int, epoch: int, upto: int) -> bytes:
        return pack(("RSV", upto))

    def count(self, queue_id: int, epoch: int, seq: int, delivery_count: int) -> bytes:
        return pack(("REQ", seq, delivery_count))

    def dead(self, queue_id: int, epoch: int, seq: int, reason: int) -> bytes:
        return pack(("DEAD", seq, reason))

    def set_attribute(self, queue_id: int, epoch: int, producer: bytes, upto: int) -> bytes:
        return pack(("ATTR", producer.decode(), upto))


def pack(*records: Record) -> bytes:
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)


def unpack(data: bytes | memoryview) -> list[Record]:
    return [tuple(msgspec.json.decode(line)) for line in bytes(data).splitlines()]


class Ring:
    """One copy of a queue: the fold of its records. What is not written yet stands in `unwritten`."""

    oldest_first = False

    def __init__(self) -> None:
        self.live: dict[int, list[Any]] = {}  # seq -> [token, epoch, delivery count, reason of death or None]
        self.epochs: list[tuple[int, int]] = []
        self.next_seq = 1
        self.reserved = 0
        self.attributes: dict[bytes, int] = {}
        self.unwritten: list[Record] = []
        self.allocated = 1
        self.accepted: dict[bytes, int] = {}

    def copy(self) -> Ring:
        other = Ring()
        other.live = {seq: list(slot) for seq, slot in self.live.items()}
        other.epochs, other.next_seq, other.reserved = list(self.epochs), self.next_seq, self.reserved
        other.attributes = dict(self.attributes)
        return other

    def fold(self, data: bytes | memoryview, epochs: Sequence[tuple[int, int]] | None = None) -> None:
        for kind, *rest in unpack(data):
            if kind == "ENQ":
                seq, epoch, token, count = rest
                self.live[seq] = [token, epoch, count, None]
                self.next_seq = max(self.next_seq, seq + 1)
                known = dict(self.epochs)
                known[epoch] = min(known.get(epoch, seq), seq)  # a record says only that its epoch had begun
                self.epochs = sorted(known.items())
            elif kind == "SET":
                for first, last in rest[0]:
                    for seq in [seq for seq in self.live if first <= seq <= last]:
                        del self.live[seq]
            elif kind == "REQ" and rest[0] in self.live:
                self.live[rest[0]][2] = rest[1]
            elif kind == "DEAD" and rest[0] in self.live:
                self.live[rest[0]][3] = rest[1]
            elif kind == "CUT":
                for seq in [seq for seq in self.live if seq >= rest[0]]:
                    del self.live[seq]
                self.next_seq = min(self.next_seq, rest[0])
                if rest[0] <= 1:
                    self.attributes.clear()
                self.epochs = [(epoch, first) for epoch, first in self.epochs if first < rest[0]]
            elif kind == "ATTR":
                producer, upto = rest[0].encode(), rest[1]
                self.attributes.pop(producer, None)
                if upto:
                    self.attributes[producer] = upto
            elif kind == "RSV":
                self.reserved = max(self.reserved, rest[0])
        if epochs:  # as rings have it: no epoch begins behind the end of what is here
            self.epochs = list(epochs)
            self.next_seq = max(self.next_seq, epochs[-1][1])

    # the owner's

    def take_over(self, epoch: int) -> None:
        self.allocated = self.next_seq = max(self.next_seq, self.reserved + 1)
        self.epochs.append((epoch, self.next_seq))
        self.accepted = dict(self.attributes)
        self.unwritten = []

    def write(self) -> bytes:
        records, self.unwritten = self.unwritten, []
        self.accepted[PLACE] = self.attributes.get(PLACE, 0) + 1
        records += [
            ("ATTR", producer.decode(), upto)
            for producer, upto in self.accepted.items()
            if self.attributes.get(producer, 0) != upto
        ]
        data = pack(*records)
        epochs = list(self.epochs)
        self.fold(data)
        self.epochs = epochs
        self.next_seq = self.allocated
        return data

    # OwnerStore, ReplicaStore

    def emitted_end(self) -> int:
        return self.next_seq

    def emitted_reserved(self) -> int:
        return self.reserved

    def emitted_attributes(self) -> dict[bytes, int]:
        return self.attributes

    def _bucket(self, bucket: int) -> list[int]:
        return sorted(seq for seq in self.live if seq // sync.BUCKET_SEQS == bucket)

    def emitted_buckets(self) -> list[tuple[int, int]]:
        digests: dict[int, int] = {}
        for seq, (_, _, count, reason) in self.live.items():
            bucket = seq // sync.BUCKET_SEQS
            mixed = (seq * 1_000_003 + count) * 10_007 + (0 if reason is None else 1)
            digests[bucket] = digests.get(bucket, 0) ^ (mixed * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
        return sorted(digests.items())

    def emitted_live(self, bucket: int) -> list[Range]:
        return ranges.ranges_of(self._bucket(bucket))

    def emitted_counts(self, bucket: int) -> list[tuple[int, int]]:
        return [(seq, self.live[seq][2]) for seq in self._bucket(bucket) if self.live[seq][2]]

    def emitted_dead(self, bucket: int) -> list[tuple[int, int]]:
        return [(seq, self.live[seq][3]) for seq in self._bucket(bucket) if self.live[seq][3] is not None]

    def tokens(self) -> dict[str, int]:
        return {slot[0]: seq for seq, slot in self.live.items()}


class Control:
    """The wiring log as one atomic object: the commands of the map that concern ownership, with the map's own rules."""

    def __init__(self, names: Sequence[str], replicas: int, min_in_sync: int, queues: int, events: Events) -> None:
        self.min_in_sync = min_in_sync
        self.terms = Terms(replicas, min_in_sync)
        self.members: dict[str, tuple[int, bool]] = dict.fromkeys(names, (0, False))
        self.disks: dict[str, int] = {}
        self.check_incarnations = True
        self.queues: dict[int, Queue] = {}
        for number in range(1, queues + 1):
            holders = ordered(tuple(NodeId(names[(number + at) % len(names)]) for at in range(replicas)))
            self.queues[number] = Queue(
                vhost="/", name=f"q{number}", queue_id=number, durable=True, auto_delete=False, exclusive_owner=None,
                arguments={}, owner=None, replicas=holders, in_sync=holders,
            )  # type: ignore[arg-type]  # fmt: skip
        self.log: list[tuple[dict[int, Queue], dict[str, tuple[int, bool]]]] = []
        self.lost: dict[int, tuple[int, str]] = {}
        """By place in the log: a copy that began anew there, (queue, node)."""
        self._random = events.random
        self.committed: Callable[[], None] = lambda: None

    def _commit(self) -> None:
        self.log.append((dict(self.queues), dict(self.members)))
        self.committed()

    def noise(self) -> None:
        """A command that has nothing to do with any of this."""
        self._commit()

    def alive(self, node: str) -> bool:
        return self.members[node][1]

    def _member(self, node: str) -> Member:
        incarnation, alive = self.members[node]
        return Member(name=NodeId(node), address="", incarnation=Incarnation(incarnation), alive=alive)

    def _owned(self, node: str) -> int:
        """How many queues the member owns, as elections are told: by chance, so that every member is elected."""
        return self._random.randrange(1000)

    def _replace(self, after: Queue, anew: bool = False) -> None:
        before = self.queues[after.queue_id]
        after = ownership.settled(after, self.terms)
        if after != before or anew:
            self.queues[after.queue_id], _ = ownership.versioned(before, after, anew=anew)

    def _elected(self, queue: Queue) -> Queue:
        return ownership.elected(queue, self.terms, self._member, self._owned)

    def register(self, node: str, incarnation: int, disk: int) -> None:
        if incarnation <= self.members[node][0]:
            return
        self.members[node] = (incarnation, True)
        lost = self.disks.get(node, disk) != disk
        self.disks[node] = disk
        for before in tuple(self.queues.values()):
            queue = ownership.lost(before, NodeId(node)) if lost else before
            if node in queue.replicas and before.owner in (node, None):
                queue = self._elected(queue)
            self._replace(queue)
        self._commit()

    def fail(self, node: str) -> None:
        self.members[node] = (self.members[node][0], False)
        for before in tuple(self.queues.values()):
            queue = ownership.dropped(before, NodeId(node))
            self._replace(self._elected(queue) if before.owner == node else queue)
        self._commit()

    def change_in_sync(self, node: str, incarnation: int, changes: Sequence[InSyncProposal]) -> list[int]:
        if self.members[node] != (incarnation, True):
            return []
        changed = []
        for change in changes:
            queue = self.queues[change.queue_id]
            if queue.owner != node or (queue.epoch, queue.version) != (change.epoch, change.version):
                continue
            added = [(n, i) for n, i in zip(change.in_sync, change.incarnations, strict=True) if n not in queue.in_sync]
            if any(not self.alive(n) or (self.check_incarnations and self.members[n][0] != i) for n, i in added):
                continue
            self._replace(ownership.proposed(queue, change.in_sync), anew=True)
            changed.append(int(change.queue_id))
        self._commit()
        return changed

    def lose_copy(self, node: str, queue_id: int) -> bool:
        """Its copy is damaged and begins anew."""
        queue = self.queues[queue_id]
        others = [n for n in (*queue.in_sync, *queue.eligible) if n != node and self.alive(n)]
        if not self.alive(node) or node not in queue.in_sync or not others:
            return False
        self._replace(self._given_up(queue, node, None, lacks=True))
        self.lost[len(self.log)] = queue_id, node
        self._commit()
        return True

    def _given_up(self, queue: Queue, node: str, heir: str | None, lacks: bool) -> Queue:
        to = None if heir is None else self._member(heir)
        member, owned = self._member, self._owned
        return ownership.given_up(queue, NodeId(node), to, self.terms, member, owned, doubted=not lacks)

    def give_up(self, node: str, incarnation: int, queue_id: int, epoch: int, to: str, lacks: bool) -> bool:
        queue = self.queues[queue_id]
        able = self.alive(to) and to in (*queue.in_sync, *queue.eligible)
        if self.members[node] != (incarnation, True) or queue.epoch != epoch or not able:
            return False
        self._replace(self._given_up(queue, node, to, lacks))
        self._commit()
        return True

    def transfer(self, node: str, incarnation: int, queue_id: int, epoch: int, version: int, to: str) -> bool:
        queue = self.queues[queue_id]
        if self.members[node] != (incarnation, True) or (queue.owner, queue.epoch, queue.version) != (
            node, epoch, version,
        ) or to not in queue.in_sync or not self.alive(to):  # fmt: skip
            return False
        self._replace(ownership.transferred(queue, self._member(to)))
        self._commit()
        return True


class Links:
    """FIFO links with sessions between all nodes, and to the wiring log. A cut resets; frames under way are lost."""

    def __init__(self, events: Events, up: Callable[[str], bool]) -> None:
        self._events = events
        self._up = up
        self.blocked: dict[frozenset[str], None] = {}
        self.session: dict[frozenset[str], int] = {}
        self.open: dict[frozenset[str], bool] = {}
        self._last: dict[tuple[str, str, int], int] = {}
        self.calm = False
        self.told: Callable[[str, str, bool, int], None] = lambda at, peer, linked, session: None
        self.deliver: Callable[[str, str, Any], None] = lambda to, sender, frame: None

    def can(self, a: str, b: str) -> bool:
        return frozenset((a, b)) not in self.blocked and self._up(a) and self._up(b)

    def is_open(self, a: str, b: str) -> bool:
        return self.open.get(frozenset((a, b)), False)

    def send(self, sender: str, to: str, frame: Any) -> None:
        key = frozenset((sender, to))
        if not self.open.get(key):
            return
        session = self.session[key]
        rnd = self._events.random
        delay = rnd.randint(1, 4) + (rnd.randint(0, 400) if not self.calm and rnd.random() < 0.02 else 0)
        way = (sender, to, session)
        at = max(self._events.now + delay, self._last.get(way, 0))
        self._last[way] = at
        self._events.after(at - self._events.now, self._arrive, sender, to, session, frame)

    def _arrive(self, sender: str, to: str, session: int, frame: Any) -> None:
        key = frozenset((sender, to))
        if self.session.get(key) != session or not self.open.get(key):
            return
        if not self.can(sender, to):
            self.reset(sender, to)
            return
        self.deliver(to, sender, frame)

    def reset(self, a: str, b: str) -> None:
        key = frozenset((a, b))
        if self.open.get(key):
            self.open[key] = False
            for at, peer in ((a, b), (b, a)):
                self._events.after(self._events.random.randint(0, 150), self._down, at, peer, self.session[key])
        self._events.after(self._events.random.randint(20, 300), self.dial, a, b)

    def _down(self, at: str, peer: str, session: int) -> None:
        if self.session.get(frozenset((at, peer))) == session and self._up(at):
            self.told(at, peer, False, session)

    def dial(self, a: str, b: str) -> None:
        key = frozenset((a, b))
        if self.open.get(key):
            return
        if not self.can(a, b):
            if self._up(a) and self._up(b):
                self._events.after(200, self.dial, a, b)
            return
        self.session[key] = self.session.get(key, 0) + 1
        self.open[key] = True
        for at, peer in ((a, b), (b, a)):
            self.told(at, peer, True, self.session[key])

    def block(self, pairs: Sequence[tuple[str, str]]) -> None:
        for a, b in pairs:
            self.blocked[frozenset((a, b))] = None
            self.reset(a, b)

    def heal(self, names: Sequence[str]) -> None:
        self.blocked.clear()
        for at, a in enumerate(names):
            for b in names[at + 1 :]:
                self.dial(a, b)
