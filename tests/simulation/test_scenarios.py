"""Every failure that the simulation has found, by name: the story without chance where it is short, else the seed.

A seed means what it meant only as long as nothing draws from its chance in another order. Those whose story is told
elsewhere: a copy that came back with its past (seed 30) and a rotating queue without a consumer at a replica (seed 80)
in tests/unit/broker/node, and so is a stream's copy that took what its files had for committed (seed 2 with streams);
one queue that looked first at a peer that was quick again, so that the peer's other queues never took it back (seed
277768354), and a sync that ended before what had waited behind it was folded, and lowered its producers' numbers (seed
288443043), in tests/unit/replication.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring.entities import Queue
from clusterbroker.journal.record import GroupWriter, Message, SegmentUse
from tests.simulation.faults import Faults
from tests.simulation.publishers import Publisher
from tests.simulation.run import conclude, run
from tests.simulation.site import Site
from tests.simulation.world import World
from tests.unit.broker.node.node_cluster import Cluster

SEEDS = (2, 9, 12, 17, 30, 80, 277768354)
"""They failed once: what was wrong is in the history, and the cases below say it."""


FORGETFUL = (880000017, 880000018, 880000039, 880000046, 880000065)
"""With all that pipelines use. Simulated clients dropped a word that might have been carried out, and went on with what
they knew before it; and what an owner had written and not committed counted as gone for ever."""


@pytest.mark.campaign
@pytest.mark.matrix
@pytest.mark.parametrize("seed", FORGETFUL)
def test_false_alarms(seed: int) -> None:
    assert run(seed, pipeline=("batches", "stream", "leases")).counts["leases"] > 0


@pytest.mark.campaign
@pytest.mark.parametrize("seed", SEEDS)
def test_old_failures(seed: int) -> None:
    report = run(seed, pipeline=())
    assert report.counts["publishes"] > 0


def test_a_queue_that_stepped_down_is_not_woken() -> None:
    """Seed 2: its timer was still set, its ring was a replica's, and the node died of it."""
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q", x_message_ttl=500)
    owner = cluster.queue("q").owner
    writer = cluster[owner].client()
    writer.ask(m.ConfirmSelect())
    writer.publish("", "q", b"x")
    to = next(name for name in "abc" if name != owner)
    assert cluster[owner].node.role.hand_over(cluster.queue("q").queue_id, to)
    cluster.turn()
    cluster.wait(2000)
    assert cluster.queue("q").owner == to
    assert cluster[owner].client().ask(m.QueueDeclare(queue="q", passive=True)).message_count == 0


def test_a_recovered_replica_counts_what_is_ready_once() -> None:
    """Seed 9: DEAD and CUT in the log's tail were taken off a count that had not begun."""
    ring = Ring(7, True, 0, SegmentUse(), [], replica=True)
    for seq in (1, 2, 3):
        ring.restore(seq, 1, seq * 128, 64, 10, 0, 0)
    ring.restore_dead(2, 1 << 8 | 1)
    ring.cut(3)
    ring.restore_end(4, 0)
    assert (ring.ready, ring.ready_bytes) == (1, 10)


def test_a_settled_message_in_memory_is_offered_to_nobody() -> None:
    """Seed 2 with durability "memory": its body was gone, and a sync asked the journal for it."""
    ring = Ring(7, True, 0, SegmentUse(), [])
    ring.volatile = ring.replicated = True
    ring.append((Message(b"\0\1q", b"\0\0body", 2),))
    ring.commit(ring.write(GroupWriter(0, 0)))
    ring.reserve()
    ring.commit(ring.write(GroupWriter(0, 0)))
    seq, *_ = ring.take()
    assert ring.emitted_live(0) == [(seq, seq)]
    ring.settle(seq)
    assert ring.emitted_live(0) == []
    assert list(ring.emitted_buckets()) == []


def test_a_copy_does_not_leave_before_the_next_one_is_in_sync() -> None:
    """Seed 2100834: of two in sync one left, and the disk of the other one was lost before anybody knew."""
    world = World(1, 4, raft=False, pipeline=())
    faults = Faults(world, ("none of them",))

    def until(reached: Callable[[], object]) -> None:
        deadline_s = world.schedule.now_s + 20
        while not reached():
            assert world.schedule.now_s < deadline_s
            world.schedule.run_until(world.schedule.now_s + 0.05)

    def queue() -> Queue:
        found = world.newest_map.queue("/", "q2")
        assert found is not None
        return found

    until(lambda: world.started)
    faults.active = True
    world.schedule.run_until(world.schedule.now_s + 3)
    away, leaver, _ = queue().replicas
    world.sites[away].kill()
    until(lambda: len(queue().in_sync) == 2)

    def handed_over() -> bool:
        faults._hand_over_all(world.sites[leaver])  # again: the heir may be the one that is away
        return not world.newest_map.owned(leaver)

    until(handed_over)
    last = world.sites[str(queue().owner)]
    assert queue().in_sync == tuple(sorted((leaver, last.name)))
    assert faults.may_lose(last), "the leaver has everything too"
    last.kill()
    last.lose_disk()
    faults.begin_leave(world.sites[leaver], 20)
    world.schedule.after(1, last.start)
    world.schedule.after(4, world.sites[away].start)
    until(lambda: world.newest_map.member(leaver) is None)
    faults.active = False
    conclude(world)
    assert len(queue().in_sync) == 3


def test_nobody_is_forgotten_while_the_other_copy_is_on_a_disk_that_was_lost() -> None:
    """Seed 990000 of 45a92a9: of two in sync one lost its disk, and before it had registered the other one failed and
    was forgotten for good. Two of two copies gone are no loss of the broker's, which refuses the empty disk's node and
    names the queue; the run could not end."""
    world = World(1, 4, raft=False, pipeline=())
    faults = Faults(world, ("in_between",))
    assert faults.edges is not None
    while not world.started:
        world.schedule.run_until(world.schedule.now_s + 0.2)
    faults.active = True
    lost, forgotten = world.sites["c"], world.sites["d"]
    lost.kill()
    lost.lose_disk()
    forgotten.kill()
    faults.edges._forget(forgotten)
    assert world.newest_map.member(NodeId("d")) is not None
    assert forgotten.up
    world.schedule.after(1, lost.start)
    faults.active = False
    conclude(world)
    assert world.newest_map.member(NodeId("c")).disk_id == lost.disk_id  # type: ignore[union-attr]


def test_a_confirm_of_all_until_a_number_does_not_mean_what_was_refused_before_it() -> None:
    """Seed 4000205: both stood in one write, and the checkers took the refused one for confirmed."""
    world = World(1, pipeline=())
    publisher = Publisher(world, "p", [])
    publisher._open = {1: (b"p:1", ("q0",)), 2: (b"p:2", ("q0",))}
    socket = SimpleNamespace(actor=publisher, site=SimpleNamespace(owes=lambda: True))
    world.checkers._hooks["wrote"] = world.checkers._hooks["confirmed"] = []
    world.checkers.written(socket, [(1, m.BasicNack(1)), (1, m.BasicAck(2, True))])  # type: ignore[arg-type]
    assert list(world.checkers.history.confirmed) == [b"p:2"]


def test_who_takes_the_name_of_one_that_left_gets_none_of_its_answers() -> None:
    """Seed 7500029: its first proposal had the number of the other's first one, and was taken for that."""
    world = World(1, 3, raft=False, pipeline=())
    world.schedule.run_until(3)
    former = world.sites["c"]
    former.kill()
    assert Site(world, "c").life > former.life + 1000


@pytest.mark.campaign
@pytest.mark.parametrize("seed", [109, 7001])
def test_on_the_real_journal(seed: int) -> None:
    """With pages of the index that are lost. 109: an older page is an older checkpoint, and the same comes of it; 7001:
    a value of another database stood under a queue's key."""
    counts = run(seed, seconds=10.0, only=("lose_page", "kill", "heal"), journal=True).counts
    assert counts["damaged journals"] > 0
