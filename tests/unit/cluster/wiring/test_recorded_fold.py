"""The fold of a long log, byte for byte as it was recorded: stored commands, results, changes in order, snapshots.

Members of different releases fold the same log, so a difference here splits a cluster during a rolling upgrade. The
log is drawn from a fixed seed, and most of its commands fit to the map as it is at their turn. After each stage the map
goes through its stored bytes.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pytest

from clusterbroker.cluster.ids import Epoch, Incarnation, LogIndex, NodeId, QueueId
from clusterbroker.cluster.wiring import cascade, snapshot
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.arguments import ENCODER
from clusterbroker.cluster.wiring.entities import UserLimits
from clusterbroker.cluster.wiring.map import ClusterMap

STAGE = 400
STAGES = 10
RECORDED = [
    "783c477961715e0941c517b74a7ceec5",
    "ceaf78901ec89a6a831a764bc441f8a9",
    "e5263b4acbf3c3e4166ba1aa638f5a8d",
    "b3fd290bfca15fe7fa8766c918ee55d4",
    "9d6f35e5bc3d2484674bc4708c661ed7",
    "c5e1d546bc69e2aa4a7bb241071fe7f4",
    "e7591aa596eb5b1c798fd493e93c0e8d",
    "374d8417536b5d3c01eb01a0594b48a8",
    "897ac1d72c4614cb79ef6791de77a7ae",
    "2e244362ded51c0a1fc37309856241e3",
]
"""Hash of each stage: of its commands and what came of them, then of the snapshot behind it."""

SINCE: dict[type, tuple[str, ...]] = {c.RegisterNode: ("level",)}
"""Fields that commands have got since the recording."""
LATER = {
    c.RaiseLevel, c.DeclareChoosingExchange, c.DeclareDelayedExchange, c.DeclareHistoryExchange,
    c.DeclareDeduplicatingExchange, c.AttachLink,
    c.SuspendLink, c.ExpireLink, c.ForgetLink, c.HoldContainer, c.ReleaseContainer, c.DeclarePool, c.SetPool,
    c.KeepDelays, c.EndDelays,
    c.PausePool, c.DirectGroup, c.DeletePool,
    c.RequireGroups, c.UnbindGroup, c.BindGroup, c.DropGroup, c.SettleGroups, c.EndPoolQueue, c.LaunchWorkers,
    c.RetireWorkers, c.RevokeWorkers, c.WorkersGone, c.AssignWorkers, c.RetireKeys, c.RevokeKeys,
}  # fmt: skip
"""Commands that there are since the recording. A new one needs a feature level (levels.py)."""

T = TypeVar("T")
VHOSTS = ("/", "/", "/", "v", "w")
QUEUES = tuple(f"q{number}" for number in range(30))
EXCHANGES = ("x1", "x2", "x3", "amq.topic", "amq.direct", "amq.new")
CONNECTIONS = ("c1", "c2")
USERS = ("u1", "u2", "u3")
PATTERNS = ("", ".*", "^q", "(", r"^(?!amq\.).*")
MEMBERS = tuple(NodeId(name) for name in ("a", "b", "c", "d"))
SEGMENTS = tuple(f"txn.{number}" for number in range(12))
PRODUCERS = ("p1", "p2")
RUNS = ("r1", "r2", "r3")
QUEUE_ARGUMENTS: tuple[dict[str, Any], ...] = (
    {}, {}, {"x-max-length": 3}, {"x-queue-type": "quorum"}, {"x-replicas": 2, "x-min-in-sync": 1}, {"x-replicas": 1},
    {"x-durability": "memory"}, {"x-queue-leader-locator": "client-local"}, {"x-expires": "soon"},
)  # fmt: skip
DEFINITIONS: tuple[dict[str, Any], ...] = (
    {"max-length": 3}, {"expires": 5, "overflow": "drop-head"}, {"replicas": 1}, {"min-in-sync": 2}, {"replicas": 4},
    {"alternate-exchange": "x2"}, {}, {"no": 1},
)  # fmt: skip


def as_recorded(command: c.AnyCommand) -> bytes:
    """As the release of the recording stored it: without the fields that came since, which are the last ones."""
    stored = c.encode(command)
    if since := SINCE.get(type(command)):
        fields = msgspec.msgpack.decode(stored[1:])
        assert command.__struct_fields__[-len(since) :] == since, "new fields go to the end"
        stored = stored[:1] + msgspec.msgpack.encode(fields[: -len(since)])
    return stored


class Log:
    """Draws the next command of the log, looks at the map for most of its fields, and folds it."""

    def __init__(self) -> None:
        self.map = ClusterMap()
        self.carried_out: Counter[type] = Counter()
        self._random = random.Random(14).random  # the one method of which the sequence is the same in every release
        self._import = 0
        kinds: list[tuple[int, Callable[[], c.AnyCommand]]] = [
            (6, self.vhost), (16, self.declare_queue), (6, self.declare_exchange), (16, self.bind), (5, self.unbind),
            (4, self.end_queue), (3, self.pause), (3, self.end_exchange), (2, self.end_connection), (6, self.user),
            (6, self.permission), (6, self.policy), (4, self.parameter), (5, self.limits), (10, self.member),
            (16, self.copies), (8, self.imports), (10, self.stage), (8, self.transaction), (3, self.time),
        ]  # fmt: skip
        self._kinds = [kind for weight, kind in kinds for _ in range(weight)]

    def run(self) -> str:
        """One stage, and its hash."""
        whole = hashlib.blake2b(digest_size=16)
        for _ in range(STAGE):
            stored = as_recorded(self.of(self._kinds)())
            command = c.decode(stored)
            applied = self.map.apply(LogIndex(self.map.applied + 1), command)
            self.carried_out[type(command)] += applied.ok and bool(applied.changes)
            whole.update(stored)
            error = str(applied.error).partition(" pattern")[0]  # the rest is the words of RE2
            whole.update(ENCODER.encode((applied.index, error, applied.result, applied.changes)))
        chunks = list(snapshot.encode(self.map.snapshot()))
        for chunk in chunks:
            whole.update(chunk)
        self.map = ClusterMap.restored(snapshot.decode(self.map.applied, chunks))
        return whole.hexdigest()

    # ---- chance ----

    def below(self, end: int) -> int:
        return int(self._random() * end)

    def of(self, options: list[T] | tuple[T, ...]) -> T:
        return options[self.below(len(options))]

    def once_in(self, times: int) -> bool:
        return self.below(times) == 0

    def queue(self) -> Any:
        queues = (*self.map.lasting_queues(), *self.map.queues("/"))
        return self.of(queues) if queues else None

    def node(self) -> tuple[NodeId, Incarnation]:
        """A member in its present incarnation, or in one of the past."""
        members = self.map.members()
        if not members:
            return NodeId("local"), Incarnation(1)
        member = self.of(members)
        return member.name, Incarnation(member.incarnation - self.once_in(12))

    # ---- one vhost and its wiring ----

    def vhost(self) -> c.AnyCommand:
        name = self.of(VHOSTS)
        match self.below(12):
            case 0:
                return c.DeleteVhost(name=name) if self.once_in(3) else c.Loosen(ending=c.DeleteVhost(name=name))
            case 1:
                return c.AddVhost(name=name, description=self.of(("", "d")), only=("description",))
            case _:
                kind = self.of((None, None, "quorum", "nope"))
                return c.AddVhost(name=name, default_queue_type=kind, tracing=self.of((None, True, False)))

    def declare_queue(self) -> c.DeclareQueue:
        owner, incarnation = self.node()
        durable = not self.once_in(4)
        return c.DeclareQueue(
            at_ms=self.below(1000),
            vhost=self.of(VHOSTS),
            name=self.of(QUEUES),
            durable=durable,
            auto_delete=self.once_in(5),
            exclusive=not durable and self.once_in(2),
            arguments=self.of(QUEUE_ARGUMENTS),
            connection=self.of(CONNECTIONS),
            owner=owner,
            incarnation=incarnation,
        )

    def declare_exchange(self) -> c.DeclareExchange:
        return c.DeclareExchange(
            vhost=self.of(VHOSTS),
            name=self.of(EXCHANGES),
            type=self.of(("direct", "topic", "headers", "fanout", "nope")),
            durable=not self.once_in(3),
            auto_delete=self.once_in(2),
            internal=self.once_in(9),
        )

    def bind(self) -> c.Bind:
        vhost = self.of(VHOSTS)
        to_queue = not self.once_in(4)
        there = [queue.name for queue in self.map.queues(vhost)] or list(QUEUES)
        return c.Bind(
            vhost=vhost,
            source=self.of(EXCHANGES),
            destination=self.of(there) if to_queue else self.of(EXCHANGES),
            destination_kind="queue" if to_queue else "exchange",
            routing_key=self.of(("", "a", "a.#")),
            arguments=self.of(({}, {}, {"x-match": "all", "n": 1})),
            connection=self.of(CONNECTIONS),
        )

    def unbind(self) -> c.AnyCommand:
        vhost = self.of(VHOSTS)
        bindings = self.map.bindings(vhost)
        if not bindings:
            return c.Unbind(vhost=vhost, source="x1", destination="q1")
        one = self.of(bindings)
        ending = c.Unbind(
            vhost=vhost,
            source=one.source,
            destination=one.destination,
            destination_kind=one.destination_kind,
            routing_key=one.routing_key,
            arguments=one.arguments,
            connection=self.of(CONNECTIONS),
        )
        return c.Loosen(ending=ending) if self.once_in(4) else ending

    def end_queue(self) -> c.AnyCommand:
        queue = self.queue()
        if queue is None or self.once_in(8):
            return c.ForgetTransient(node=self.node()[0], alone=self.once_in(2))
        epoch = self.of((Epoch(0), queue.epoch, Epoch(99)))
        return c.DeleteQueue(vhost=queue.vhost, name=queue.name, queue_id=queue.queue_id, epoch=epoch)

    def pause(self) -> c.PauseQueue:
        queue = self.queue()
        vhost, name, staging = (queue.vhost, queue.name, queue.staging) if queue else ("/", "q1", False)
        return c.PauseQueue(vhost=vhost, name=name, staging=staging, paused=self.once_in(2), why=self.of(("", "w")))

    def end_exchange(self) -> c.DeleteExchange:
        name = self.of((*EXCHANGES, *SEGMENTS))
        return c.DeleteExchange(vhost=self.of(VHOSTS), name=name, if_unused=self.once_in(3))

    def end_connection(self) -> c.RemoveConnection:
        return c.RemoveConnection(connection=self.of(CONNECTIONS))

    # ---- users, policies, parameters ----

    def user(self) -> c.AnyCommand:
        name = self.of(USERS)
        match self.below(6):
            case 0:
                return c.DeleteUser(name=name)
            case 1:
                limits = UserLimits(self.of((None, -1, 2)), self.of((None, 3)))
                return c.SetUserLimits(name=name, limits=limits, only=self.of(((), ("channels_max",))))
            case 2:
                return c.PutUser(name=name, tags=("monitoring",), limits=None, only=self.of((("tags",), ("nonsense",))))
            case _:
                hashed = self.of(("", "h"))
                return c.PutUser(name=name, password_hash=hashed, only_if_hash=self.of((None, None, "", "h")))

    def permission(self) -> c.AnyCommand:
        user, vhost, one, other = self.of(USERS), self.of(VHOSTS), self.of(PATTERNS), self.of(PATTERNS)
        match self.below(6):
            case 0:
                return c.ClearPermission(user=user, vhost=vhost)
            case 1:
                return c.ClearTopicPermission(user=user, vhost=vhost, exchange=self.of((None, "x1")))
            case 2 | 3:
                exchange = self.of(("x1", "x2"))
                return c.SetTopicPermission(user=user, vhost=vhost, exchange=exchange, write=one, read=other)
            case _:
                return c.SetPermission(user=user, vhost=vhost, configure=one, write=other, read=one)

    def policy(self) -> c.AnyCommand:
        vhost, name = self.of(VHOSTS), self.of(USERS)
        pattern, definition = self.of(("^q", "^q1", "x", "(")), self.of(DEFINITIONS)
        match self.below(8):
            case 0:
                return c.DeletePolicy(vhost=vhost, name=name)
            case 1:
                return c.DeleteOperatorPolicy(vhost=vhost, name=name)
            case 2 | 3:
                return c.PutOperatorPolicy(vhost=vhost, name=name, pattern=pattern, definition=definition)
            case _:
                priority = self.below(3)
                return c.PutPolicy(vhost=vhost, name=name, pattern=pattern, definition=definition, priority=priority)

    def parameter(self) -> c.AnyCommand:
        vhost, name = self.of((*VHOSTS, "")), self.of(USERS)
        if self.once_in(4):
            return c.DeleteParameter(vhost=vhost, component="c", name=name)
        return c.PutParameter(vhost=vhost, component="c", name=name, value=self.of((1, True, {"a": [1]})))

    def limits(self) -> c.AnyCommand:
        vhost = self.of(VHOSTS)
        if self.once_in(3):
            return c.ClearVhostLimits(vhost=vhost)
        return c.SetVhostLimits(
            vhost=vhost,
            queues_max=self.of((None, -1, 25)),
            bindings_max=self.of((None, 30)),
            exchange_bindings_max=self.of((None, 9)),
            policies_max=self.of((None, 2)),
            parameters_max=self.of((None, 2)),
            only=self.of(((), (), ("queues_max",))),
        )

    # ---- members and copies; a single node's log in the first two stages ----

    def member(self) -> c.AnyCommand:
        if self.map.applied < 2 * STAGE:
            return self.declare_queue()
        name = self.of(MEMBERS)
        known = self.map.member(name)
        incarnation = known.incarnation if known else Incarnation(0)
        queue = self.queue()
        match self.below(16):
            case 0 | 1:
                return c.FailNode(node=name, incarnation=Incarnation(incarnation - self.once_in(9)))
            case 2:
                return c.DrainNode(node=name, draining=not self.once_in(2), leaving=self.once_in(2))
            case 3:
                leaves = self.once_in(2)
                return c.ForgetNode(node=name, accept_loss=self.once_in(2), leaves=leaves, accept_fewer=self.once_in(2))
            case 4:
                return c.SetVoters(voters=tuple(member.name for member in self.map.members()[: self.below(4)]))
            case _ if known is None:
                return c.AddMember(name=name, address=f"{name}:1", witness=self.once_in(9))
            case _ if known.alive and not self.once_in(3):
                return self.declare_queue()
            case _:
                disk = f"disk {self.map.applied}" if not known.disk_id or self.once_in(9) else known.disk_id
                return c.RegisterNode(
                    node=name,
                    disk_id=disk,
                    incarnation=Incarnation(incarnation + (not self.once_in(9))),
                    address=f"{name}:{self.below(3)}",
                    damaged=(queue.queue_id,) if queue and self.once_in(3) else (),
                    all_damaged=self.once_in(12),
                    spare_last=self.once_in(12),
                    given_up_as=Incarnation(self.below(3)),
                )

    def copies(self) -> c.AnyCommand:
        queue = self.queue()
        if not self.map.is_cluster or queue is None or queue.transient:
            return self.bind()
        node, incarnation = self.node()
        version = queue.version - self.once_in(12)
        match self.below(10):
            case 0:
                owner, life = queue.owner or node, queue.incarnation
                to = self.of((*queue.in_sync, node))
                return c.TransferOwner(
                    node=owner, incarnation=life, queue_id=queue.queue_id, epoch=queue.epoch, version=version, to=to
                )
            case 1:
                heir = self.of((None, *queue.in_sync, *queue.eligible))
                damaged, doubted = self.once_in(2), self.once_in(3)
                return c.GiveUpCopy(
                    node=node, incarnation=incarnation, queue_id=queue.queue_id, epoch=queue.epoch, heir=heir,
                    damaged=damaged, doubted=doubted,
                )  # fmt: skip
            case 2:
                return c.ForceOwner(queue_id=queue.queue_id, node=self.of((*queue.replicas, node)))
            case 3 | 4:
                add, remove = (node,) if self.once_in(2) else (), self.of(((), queue.replicas[:1], queue.replicas[-1:]))
                return c.MoveReplica(queue_id=queue.queue_id, add=add, remove=remove)
            case _:
                lives = {member.name: member.incarnation for member in self.map.members()}
                in_sync = tuple(name for name in queue.replicas if name == queue.owner or not self.once_in(3))
                proposal = c.InSyncProposal(
                    queue.queue_id, queue.epoch, version, in_sync, tuple(lives[name] for name in in_sync)
                )
                owner, life = queue.owner or node, queue.incarnation
                return c.ChangeInSync(node=owner, incarnation=life, changes=(proposal,))

    # ---- imports ----

    def imports(self) -> c.AnyCommand:
        held = self.map.importing
        if held is not None and held.accepted and not self.once_in(6):
            return c.ApplyImport(import_id=held.import_id, start=held.done, count=1 + self.below(6))
        if held is not None and self.once_in(5):
            return c.DropImport(import_id=held.import_id)
        if held is None:
            self._import += 1
        number = held.parts if held is not None else 0
        return c.ImportDefinitions(
            import_id=f"i{self._import}",
            number=number,
            commands=tuple(self.defining() for _ in range(self.below(12))),
            last=not self.once_in(3),
            apply=self.below(8),
        )

    def defining(self) -> Any:
        """What definitions are made of; of a random command too many would refuse the whole."""
        vhost, name = self.of(VHOSTS), self.of(QUEUES)
        match self.below(9):
            case 0:
                return c.AddVhost(name=vhost)
            case 1:
                return c.PutUser(name=self.of(USERS), password_hash="i")
            case 2:
                return c.PutPolicy(vhost="/", name=self.of(USERS), pattern="^q", definition={"max-length": 4})
            case 3:
                return c.PutOperatorPolicy(vhost="/", name=self.of(USERS), pattern="^q", definition={"max-length": 5})
            case 4:
                return c.PutParameter(vhost="/", component="c", name=self.of(USERS), value=2)
            case 5:
                return c.SetVhostLimits(vhost="/", queues_max=self.of((None, 200)))
            case 6:
                return c.DeclareExchange(vhost="/", name=f"i{self.below(5)}", type="topic", durable=True)
            case 7:
                return c.Bind(vhost="/", source="amq.topic", destination=name, routing_key="i")
            case _:
                return c.DeclareQueue(vhost="/", name=name, durable=True)

    # ---- transactions ----

    def stage(self) -> c.DeclareExchange:
        owner, incarnation = self.node()
        producer = self.map.producer("/", name := self.of(PRODUCERS))
        last = -1 if producer is None or producer.epoch is None else producer.epoch
        return c.DeclareExchange(
            at_ms=self.map.applied,
            vhost="/",
            name=self.of(SEGMENTS),
            type="x-staging",
            durable=not self.once_in(20),
            arguments={
                "x-producer": name,
                "x-epoch": max(0, last + 1 - self.once_in(5)),
                "x-run": self.of(RUNS) if producer is None or self.once_in(6) else producer.run or "r1",
                "x-target": self.of(("", "amq.topic", "x9")),
                "x-expires": 10_000,
            },
            owner=owner,
            incarnation=incarnation,
            user="u",
            is_administrator=self.once_in(2),
            lived_ms=self.map.time.lived_ms,
        )

    def transaction(self) -> c.AnyCommand:
        segments, lived_ms = self.map.segments("/"), self.map.time.lived_ms + self.below(2000)
        one = self.of(segments) if segments else None
        if one is None:
            return self.stage()
        run = (one.producer, one.epoch, one.run)
        alike = tuple(other.name for other in segments if (other.producer, other.epoch, other.run) == run)
        fields: dict[str, Any] = dict(zip(("producer", "epoch", "run"), run, strict=True)) | {"vhost": "/", "user": "u"}
        match self.below(8):
            case 0:
                return c.AbortTransaction(**fields, transactions=alike[:2])
            case 1:
                return c.ExpireTransactions(vhost="/", names=SEGMENTS, lived_ms=lived_ms)
            case 2:
                return c.ForgetProducers(vhost="/", names=PRODUCERS, lived_ms=lived_ms * self.of((1, 9000)))
            case 3 | 4 | 5:
                queue = self.map.queue_by_id(one.queue_id)
                owner = (queue.owner if queue else None) or NodeId("local")
                life, epoch = (queue.incarnation, queue.epoch) if queue else (Incarnation(1), Epoch(1))
                seen = ((one.queue_id, epoch, self.below(2)), (QueueId(1), Epoch(1), 0), (one.queue_id, epoch, 0))
                return c.FinishSegments(node=owner, incarnation=life, segments=seen)
            case _:
                rows, ttl_ms = self.below(9), self.of((None, 3_600_000))
                return c.CommitTransaction(
                    **fields, transactions=alike, at_ms=self.map.applied, rows=rows, ttl_ms=ttl_ms, lived_ms=lived_ms
                )

    def time(self) -> c.PassTime:
        lived_ms = self.map.time.lived_ms
        after_ms, passed_ms = lived_ms - self.once_in(5), self.of((700, 3000, 3000, 1_800_000))
        return c.PassTime(after_ms=after_ms, lived_ms=lived_ms + passed_ms, wall_ms=1000 * self.map.applied)


def test_the_fold_of_a_long_log_is_as_it_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cascade, "PIECE", 40)
    log = Log()
    assert [log.run() for _ in range(STAGES)] == RECORDED
    kinds = set(c.AnyCommand.__args__) - LATER
    idle = sorted(kind.__name__ for kind in kinds if not log.carried_out[kind])
    assert not idle, f"nothing came of any {', '.join(idle)}: the recording says too little"
