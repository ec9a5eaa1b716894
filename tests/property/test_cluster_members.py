"""The map of a cluster over random lives of its members: what replication builds on holds after every command.

Steps are drawn as numbers and become commands by looking at the map as it is then, so that most proposals are of the
present (an owner's own epoch and version) and some are of the past or of nobody.
"""

import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clusterbroker.cluster.errors import WiringError
from clusterbroker.cluster.ids import Epoch, Incarnation, LogIndex, NodeId, QueueId
from clusterbroker.cluster.wiring import changes as told
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring import snapshot
from clusterbroker.cluster.wiring.balance import rebalance, reconfigurations
from clusterbroker.cluster.wiring.entities import Queue
from clusterbroker.cluster.wiring.levels import FIRST, LEVEL
from clusterbroker.cluster.wiring.map import Applied, ClusterMap
from tests.budget import examples

NAMES = [NodeId(f"n{number}") for number in range(1, 6)]
ARGUMENTS: list[dict[str, Any]] = [
    {},
    {},
    {"x-replicas": 5},
    {"x-replicas": 1},
    {"x-replicas": 2, "x-min-in-sync": 2},
    {"x-durability": "memory"},
    {"x-queue-leader-locator": "client-local"},
]
DEFINITIONS: list[dict[str, Any]] = [{"replicas": 1}, {"replicas": 5}, {"min-in-sync": 1}, {"min-in-sync": 3}]

STEPS = st.lists(st.tuples(st.integers(0, 16), st.integers(0, 9999), st.integers(0, 9999)), max_size=60)


def command_of(map_: ClusterMap, step: tuple[int, int, int]) -> c.AnyCommand:
    """The command that a step means now."""
    kind, a, b = step
    name = NAMES[a % len(NAMES)]
    known = map_.member(name)
    incarnation = known.incarnation if known else Incarnation(0)
    disk = (known.disk_id if known else "") or f"disk of {name} {map_.applied}"
    queues = [queue for queue in map_.queues() if not queue.transient]
    queue = queues[a % len(queues)] if queues else None
    queue_id = queue.queue_id if queue else QueueId(a)
    match kind:
        case 0:
            return c.AddMember(name=name, address=f"{name}:1", witness=b % 7 == 0)
        case 1 | 2:
            return c.RegisterNode(
                node=name,
                disk_id=f"disk of {name} {map_.applied}" if b % 5 == 0 else disk,
                incarnation=Incarnation(incarnation + (0 if b % 11 == 0 else 1)),
                address=f"{name}:{b % 3}",
                damaged=(queue_id,) if b % 4 == 0 else (),
                level=FIRST if b % 13 == 0 else LEVEL,
            )
        case 3 | 4:
            return c.FailNode(node=name, incarnation=Incarnation(incarnation - (b % 11 == 0)))
        case 5:
            return c.DrainNode(node=name, draining=b % 2 == 0, leaving=b % 4 == 0)
        case 6:
            return c.ForgetNode(node=name, accept_loss=b % 2 == 0, leaves=b % 3 == 0, accept_fewer=b % 5 == 0)
        case 7:
            return c.SetVoters(voters=tuple(member.name for member in map_.members()[: b % 4]))
        case 8 | 9:
            return c.DeclareQueue(
                vhost="/",
                name=f"q{b % 12}",
                durable=b % 9 != 0,
                owner=name,
                incarnation=incarnation,
                arguments=ARGUMENTS[b % len(ARGUMENTS)],
            )
        case 10 | 11:
            return change_in_sync(map_, queue, b)
        case 12:
            owner = queue.owner if queue and queue.owner else name
            member = map_.member(owner)
            if b % 3 == 1:
                holder = map_.member(name)
                return c.GiveUpCopy(
                    node=name,
                    incarnation=holder.incarnation if holder else Incarnation(1),
                    queue_id=queue_id,
                    epoch=queue.epoch if queue else Epoch(1),
                    heir=NAMES[b % len(NAMES)] if b % 2 else None,
                    damaged=b % 5 == 0,
                    doubted=b % 7 == 0,
                )
            return c.TransferOwner(
                node=owner,
                incarnation=member.incarnation if member else Incarnation(1),
                queue_id=queue_id,
                epoch=queue.epoch if queue else Epoch(1),
                version=(queue.version if queue else 1) - (b % 7 == 0),
                to=NAMES[b % len(NAMES)],
            )
        case 13:
            return c.ForceOwner(queue_id=queue_id, node=NAMES[b % len(NAMES)])
        case 14:
            moves = reconfigurations(map_)
            if moves and b % 2:
                return moves[b % len(moves)]
            return c.MoveReplica(
                queue_id=queue_id,
                add=tuple(NAMES[: b % 3]),
                remove=tuple(NAMES[b % 5 : b % 5 + 1]),
            )
        case 15:
            members = tuple((member.name, member.incarnation) for member in map_.members())
            return c.RaiseLevel(level=a % (LEVEL + 1), members=members[: -1 if b % 7 == 0 else None])
        case _:
            if b % 3 == 0:
                return c.DeletePolicy(vhost="/", name="p")
            if b % 15 == 4 and queue:
                return c.PauseQueue(vhost="/", name=queue.name, paused=not queue.paused)
            if b % 3 == 1 and queue:
                return c.DeleteQueue(vhost="/", name=queue.name, queue_id=queue_id)
            return c.PutPolicy(vhost="/", name="p", pattern="^q[0-5]", definition=DEFINITIONS[b % len(DEFINITIONS)])


def change_in_sync(map_: ClusterMap, queue: Queue | None, chance: int) -> c.AnyCommand:
    owner = queue.owner if queue is not None else None
    if queue is None or owner is None:
        return c.ChangeInSync(node=NAMES[0], incarnation=Incarnation(1), changes=())
    in_sync = tuple(
        node for place, node in enumerate(queue.replicas) if node == owner or chance >> place & 1 or chance % 13 == 0
    )
    lives = {member.name: member.incarnation for member in map_.members()}
    return c.ChangeInSync(
        node=owner,
        incarnation=queue.incarnation,
        changes=(
            c.InSyncProposal(
                queue.queue_id,
                queue.epoch,
                queue.version - (chance % 17 == 0),
                in_sync,
                tuple(Incarnation(lives.get(node, 1) - (chance % 19 == 0)) for node in in_sync),
            ),
        ),
    )


def run(steps: list[tuple[int, int, int]], map_: ClusterMap | None = None) -> tuple[ClusterMap, list[c.AnyCommand]]:
    map_ = map_ if map_ is not None else ClusterMap()
    log = []
    for step in steps:
        log.append(command_of(map_, step))
        map_.apply(LogIndex(map_.applied + 1), log[-1])
    return map_, log


def fold(map_: ClusterMap, log: list[c.AnyCommand]) -> list[Applied]:
    return [map_.apply(LogIndex(map_.applied + 1), c.decode(c.encode(command))) for command in log]


def through_bytes(map_: ClusterMap) -> ClusterMap:
    taken = map_.snapshot()
    return ClusterMap.restored(snapshot.decode(taken.index, list(snapshot.encode(taken))))


FOUNDED: list[c.AnyCommand] = [
    *(c.AddMember(name=name, address=f"{name}:1") for name in NAMES[:3]),
    *(
        c.RegisterNode(node=name, disk_id=f"disk of {name}", incarnation=Incarnation(1), address=f"{name}:1")
        for name in NAMES[:3]
    ),
]


@given(st.booleans(), STEPS)
@example(True, [(8, 0, 1), (12, 1, 805)])
@settings(max_examples=examples(400), deadline=None)
def test_what_replication_builds_on_holds_after_every_command(founded: bool, steps: list[tuple[int, int, int]]) -> None:
    map_ = ClusterMap()
    if founded:
        fold(map_, FOUNDED)
    digest = map_.digest()
    before = {queue.queue_id: queue for queue in map_.queues()}
    level = lowest_of(map_)
    for step in steps:
        applied = map_.apply(LogIndex(map_.applied + 1), command_of(map_, step))
        now = map_.digest()
        assert lowest_of(map_) >= level, "the level never falls"
        if isinstance(applied.command, c.RegisterNode) and applied.ok:
            assert applied.command.level >= level, "who registers can read what the others write"
        level = lowest_of(map_)
        assert applied.ok or isinstance(applied.error, WiringError)
        # that a copy which does not count is damaged is told to its owner, and changes nothing in the map
        changes = [change for change in applied.changes if not isinstance(change, told.CopyLost)]
        assert (now != digest) is bool(changes), "told exactly when something changed"
        after = {queue.queue_id: queue for queue in map_.queues()}
        assert_queues(map_, after)
        assert_progress(applied, before, after)
        assert_index(map_)
        digest, before = now, after
    for queue_id, to in rebalance(map_):
        queue = map_.queue_by_id(queue_id)
        assert queue is not None
        assert to in queue.in_sync
        assert to != queue.owner
        assert to in [member.name for member in map_.alive_members()]


def lowest_of(map_: ClusterMap) -> int:
    """The level below which no release is a member."""
    return map_.level if map_.is_cluster else FIRST


def assert_queues(map_: ClusterMap, queues: dict[QueueId, Queue]) -> None:
    if not map_.is_cluster:
        return
    members = {member.name: member for member in map_.members()}
    for queue in queues.values():
        assert queue.replicas, "somebody shall hold it"
        assert all(node in members and not members[node].witness for node in queue.replicas)
        assert set(queue.in_sync) <= set(queue.replicas)
        assert set(queue.eligible) <= set(queue.replicas) - set(queue.in_sync)
        if queue.owner is not None:
            assert queue.owner in queue.in_sync
            assert members[queue.owner].alive
            assert queue.incarnation == members[queue.owner].incarnation, "the owner's present life"
            assert not queue.eligible or len(queue.in_sync) < map_.min_in_sync(queue), "nothing is committed meanwhile"
        else:
            assert not queue.transient
            assert not any(members[node].alive for node in queue.in_sync + queue.eligible), "somebody could own it"
        if len(queue.in_sync) > 1:
            assert all(members[node].alive for node in queue.in_sync), "who fails is dropped"


def assert_progress(applied: Applied, before: dict[QueueId, Queue], after: dict[QueueId, Queue]) -> None:
    changes = {
        kind: {change.queue.queue_id: change for change in applied.changes if isinstance(change, kind)}
        for kind in (told.OwnerChanged, told.InSyncChanged, told.ReplicasChanged)
    }
    owner, in_sync, replicas = changes.values()
    for queue_id, now in after.items():
        was = before.get(queue_id)
        if was is None:
            continue
        assert now.epoch >= was.epoch, "an epoch never falls"
        assert now.version >= was.version, "a version never falls"
        if now.owner != was.owner or now.incarnation != was.incarnation:
            assert now.epoch == was.epoch + 1
        sets_changed = (now.in_sync, now.eligible) != (was.in_sync, was.eligible)
        moved = now.replicas != was.replicas
        if now.epoch != was.epoch or sets_changed or moved:
            assert now.version == was.version + 1
        assert (queue_id in owner) is (now.epoch != was.epoch)
        anew = now.version != was.version and not moved
        assert (queue_id in in_sync) is (now.epoch == was.epoch and (sets_changed or anew))
        assert (queue_id in replicas) is moved
        if queue_id in owner:
            change: Any = owner[queue_id]
            assert (change.previous, change.previous_epoch, change.queue) == (was.owner, was.epoch, now)
    for kind in changes.values():
        ids = list(kind)
        assert ids == sorted(ids), "in ascending queue_id"


def assert_index(map_: ClusterMap) -> None:
    queues = sorted(map_.queues(), key=lambda queue: queue.queue_id)
    lasting = [queue for queue in queues if not queue.transient]
    for node in [*NAMES, NodeId("local")]:
        assert list(map_.queues_of(node)) == [queue for queue in queues if queue.owner == node]
        assert list(map_.replicas_of(node)) == [queue for queue in lasting if node in queue.replicas]
        assert map_.owned(node) == sum(queue.owner == node for queue in lasting)
        assert map_.held(node) == sum(node in queue.replicas for queue in lasting)


@given(STEPS, STEPS)
@settings(max_examples=examples(150), deadline=None)
def test_snapshot_and_tail_are_the_whole_log(
    head: list[tuple[int, int, int]], tail: list[tuple[int, int, int]]
) -> None:
    whole, log = ClusterMap(), list(FOUNDED)
    fold(whole, FOUNDED)
    _, commands = run(head, whole)
    log += commands
    restored = through_bytes(whole)
    assert restored.digest() == whole.digest()
    _, commands = run(tail, whole)
    log += commands
    fold(restored, commands)
    assert restored.digest() == whole.digest()
    assert_index(restored)
    again = ClusterMap()
    fold(again, log)
    assert again.digest() == whole.digest(), "the same log, the same map"


class Copies:
    """What each member holds of each queue, as a count of records: the model of what the in-sync sets promise.

    After every command, queues commit: when the queue has an owner and enough are in sync, all in sync have one more.
    Who comes in sync has caught up. A lost disk, a damaged replica and the end of a process (of "memory" queues) hold
    nothing; of a damaged only copy the rest is all there is, and it counts. The promise: whoever is in sync or eligible
    holds all that was committed.
    """

    def __init__(self) -> None:
        self.held: dict[tuple[NodeId, QueueId], int] = {}
        self.committed: dict[QueueId, int] = {}

    def follow(
        self, map_: ClusterMap, applied: Applied, before: dict[QueueId, Queue], disks: dict[NodeId, str]
    ) -> None:
        command = applied.command
        if applied.ok and isinstance(command, c.RegisterNode):
            for (node, queue_id), _ in list(self.held.items()):
                queue = map_.queue_by_id(queue_id)
                memory = queue is not None and queue.volatile
                other_disk = disks.get(node, "") not in {"", command.disk_id}
                lost = any(isinstance(one, told.CopyLost) and one.queue.queue_id == queue_id for one in applied.changes)
                if node == command.node and (memory or other_disk or lost):
                    self.held[node, queue_id] = 0
                elif node == command.node and queue_id in command.damaged and (was := before.get(queue_id)) is not None:
                    others = {*was.in_sync, *was.eligible} - {node}
                    assert node not in was.replicas or not others, "only an only copy is spared"
        if applied.ok and isinstance(command, c.FailNode) and applied.result:
            for queue in map_.queues():
                if queue.volatile:
                    self.held[command.node, queue.queue_id] = 0
        for queue in map_.queues():
            was = before.get(queue.queue_id)
            for node in was.replicas if was else ():
                if node not in queue.replicas:
                    self.held[node, queue.queue_id] = 0
            if applied.ok and isinstance(command, c.ChangeInSync) and was is not None and queue.owner is not None:
                for node in queue.in_sync:
                    if node not in was.in_sync:
                        self.held[node, queue.queue_id] = self.held.get((queue.owner, queue.queue_id), 0)
            if self.may_lose(map_, applied, was, queue):
                self.committed[queue.queue_id] = self.held.get((queue.in_sync[0], queue.queue_id), 0)
            self.check(queue)
            if queue.owner is not None and len(queue.in_sync) >= map_.min_in_sync(queue):
                self.committed[queue.queue_id] = self.committed.get(queue.queue_id, 0) + 1
                for node in queue.in_sync:
                    self.held[node, queue.queue_id] = self.committed[queue.queue_id]
                self.check(queue)

    def may_lose(self, map_: ClusterMap, applied: Applied, was: Queue | None, queue: Queue) -> bool:
        """An operator's choice; or a "memory" queue of which nobody was left."""
        if was is None or not queue.in_sync or queue.version == was.version:
            return False
        command = applied.command
        if isinstance(command, c.ForceOwner) and command.queue_id == queue.queue_id:
            return True
        if isinstance(command, c.ForgetNode) and was.replicas == (command.node,):
            return command.accept_loss or queue.volatile
        nobody_left = all(self.held.get((node, queue.queue_id), 0) == 0 for node in was.in_sync + was.eligible)
        return queue.volatile and nobody_left

    def check(self, queue: Queue) -> None:
        for node in queue.in_sync + queue.eligible:
            held = self.held.get((node, queue.queue_id), 0)
            assert held == self.committed.get(queue.queue_id, 0), f"{node} lacks what was committed in {queue}"


@pytest.mark.parametrize("seed", range(60))
def test_whoever_is_in_sync_or_eligible_holds_all_that_was_committed(seed: int) -> None:
    walk(seed)


def walk(seed: int) -> None:
    """A long life of a cluster."""
    chance = random.Random(seed)
    map_ = ClusterMap()
    fold(map_, FOUNDED)
    copies = Copies()
    for _ in range(150):
        before = {queue.queue_id: queue for queue in map_.queues()}
        disks = {member.name: member.disk_id for member in map_.members()}
        kind = chance.choice(range(16)) if chance.random() < 0.5 else chance.choice([1, 2, 3, 8, 9, 10, 11])
        command = command_of(map_, (kind, chance.randrange(10_000), chance.randrange(10_000)))
        applied = map_.apply(LogIndex(map_.applied + 1), command)
        after = {queue.queue_id: queue for queue in map_.queues()}
        assert_queues(map_, after)
        assert_progress(applied, before, after)
        assert_index(map_)
        copies.follow(map_, applied, before, disks)
