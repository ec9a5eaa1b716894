"""A pool is deleted while requests wait for their time: each is answered once, and nothing of the pool is left."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.pools.ending import AGAIN_MS
from clusterbroker.broker.pools.later_queue import LaterQueue
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.pool_entities import PoolSettings
from tests.unit.broker.fronts.amqp091.harness import Content, World, bodies
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.test_pool_delayed import LATER_MS, WAITS, put_off, said

ROUNDS = 16
DELETE = c.DeletePool(vhost="/", name="core", force=True, delayed=True)


@pytest.fixture
def world() -> World:
    made = World()
    made.command(c.DeclarePool(vhost="/", name="core"))
    made.turn()
    made.client().declare("answers")
    return made


def answers(world: World) -> list[tuple[str | None, bytes]]:
    return sorted(said(world.client().consume("answers", no_ack=True)), key=str)


def left(world: World) -> list[str]:
    """Of the pool."""
    vhost = world.node.vhosts["/"]
    queues = [queue.name for queue in world.node.map.queues() if "core" in queue.name]
    return [name for name in (*queues, *vhost.exchanges, *vhost.queues) if "core" in name]


def deleted(*ids: str) -> list[tuple[str | None, bytes]]:
    return [(each, b"pool_deleted") for each in ids]


def test_what_waits_for_its_time_is_answered(world: World) -> None:
    client = world.client()
    put_off(client, "1", "2", "3", delivery_mode=2)
    client.publish("core", "42", b"4", correlation_id="4", reply_to="answers")
    world.command(DELETE)
    world.wait(100)
    assert answers(world) == deleted("1", "2", "3", "4")
    assert left(world) == []
    world.command(c.DeclarePool(vhost="/", name="core"))
    world.wait(LATER_MS + 1000)
    assert answers(world) == []


def test_nobody_puts_off_anything_any_more(world: World) -> None:
    client = world.client()
    put_off(client, "1", delivery_mode=2)
    world.disk_waits = True  # so its queue is still there
    world.command(DELETE)
    assert world.queue(WAITS).ring.living(1, 10, 10)
    heard = client.publish("core-delayed", "42", b"2", headers={"x-delay": LATER_MS}, reply_to="answers")
    assert [one.reply_code for one in heard if isinstance(one, m.ChannelClose)] == [404]
    world.disk_waits = False
    world.commit()
    world.wait(100)
    assert answers(world) == deleted("1")
    assert left(world) == []


def test_more_than_a_turn_may_answer(world: World) -> None:
    ids = [f"{at:05}" for at in range(5_000)]
    put_off(world.client(), *ids, delivery_mode=2)
    world.command(DELETE)
    world.wait(2_000)
    assert answers(world) == deleted(*ids)
    assert left(world) == []


def test_one_that_stands_on_the_disk_alone(world: World) -> None:
    client = world.client()
    client.ask(m.ConfirmSelect())
    put_off(client, "1", "2", delivery_mode=2)
    world.crash()
    world.command(DELETE)
    world.wait(100)
    assert answers(world) == deleted("1", "2")
    assert left(world) == []


def test_a_node_that_ends_meanwhile_answers_when_it_is_back(world: World) -> None:
    client = world.client()
    client.ask(m.ConfirmSelect())
    put_off(client, "1", delivery_mode=2)
    world.disk_waits = True
    world.command(DELETE)
    world.turn()
    world.commit()  # it is given up, and nothing of its answer is written
    world.crash()
    world.disk_waits = False
    world.wait(2_000)
    assert answers(world) == deleted("1")
    assert left(world) == []


def test_members_below_the_level_drop_it(world: World) -> None:
    put_off(world.client(), "1", delivery_mode=2)
    world.command(c.DeletePool(vhost="/", name="core", force=True))
    world.wait(100)
    assert answers(world) == []
    assert left(world) == []


def test_one_that_was_due_and_finds_its_target_gone(world: World) -> None:
    """The disk keeps it on its way to the orphans until the pool is deleted."""
    client = world.client()
    put_off(client, "1", "2", delivery_mode=2)
    world.wait(LATER_MS - 10)
    world.disk_waits = True
    world.wait(20)
    assert len(world.queue(WAITS).letters) == 2  # type: ignore[attr-defined]
    world.command(DELETE)
    world.disk_waits = False
    world.commit()
    world.wait(5_000)
    assert answers(world) == deleted("1", "2")
    assert left(world) == []


def test_the_next_owner_finds_one_that_was_due(world: World) -> None:
    client = world.client()
    put_off(client, "1", "2", delivery_mode=2)
    world.wait(LATER_MS - 10)
    world.disk_waits = True
    world.wait(20)
    world.command(DELETE)
    world.commit()  # both are on their way, and to nobody any more
    world.crash()
    world.disk_waits = False
    world.wait(5_000)
    assert answers(world) == deleted("1", "2")
    assert left(world) == []


def test_one_that_is_read_from_the_disk_when_the_pool_is_deleted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client = world.client()
    client.ask(m.ConfirmSelect())
    put_off(client, "1", "2", delivery_mode=2)
    world.crash()
    loads: list[Any] = []
    load = world.node.load
    monkeypatch.setattr(world.node, "load", lambda *about: loads.append(about))
    world.wait(LATER_MS + 100)
    assert len(loads) == 1
    monkeypatch.undo()
    world.command(DELETE)
    load(*loads[0])
    world.wait(5_000)
    assert answers(world) == deleted("1", "2")
    assert left(world) == []


def test_a_queue_whose_end_is_ordered_takes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a node that is behind sends now is refused: it would be confirmed, and end with the queue."""
    queue, proposed = world.queue(WAITS), list[tuple[Any, Any]]()
    assert isinstance(queue, LaterQueue)
    monkeypatch.setattr(world.node, "propose", lambda command, done: proposed.append((command, done)))
    world.command(DELETE)
    world.wait(100)
    of_it = [(command, done) for command, done in proposed if command.queue_id == queue.entity.queue_id]
    assert len(of_it) == 1
    assert queue.rejects
    assert not queue.takes((), world.now_ms)
    of_it[0][1](Applied(LogIndex(1), of_it[0][0], Unavailable("no majority"), None, ()))
    assert queue.rejects, "it may come true all the same"
    world.wait(AGAIN_MS + 100)
    of_it = [(command, done) for command, done in proposed if command.queue_id == queue.entity.queue_id]
    assert len(of_it) == 2, "once more"
    of_it[1][1](Applied(LogIndex(2), of_it[1][0], None, False, ()))
    assert not queue.rejects, "now it is known that it has not ended"


@pytest.mark.parametrize("due", [False, True])
@pytest.mark.parametrize("rounds", range(ROUNDS))
def test_the_next_owner_goes_on_at_any_step(rounds: int, due: bool) -> None:
    cluster = Cluster("a", "b", "c")
    cluster.order(c.DeclarePool(vhost="/", name="core"))
    cluster.wait(200)
    owner = cluster.queue(WAITS).owner
    client = next(site for site in cluster.running if site.name != owner).client()
    client.declare("answers")
    client.ask(m.ConfirmSelect())
    put_off(client, "1", "2", "3")
    cluster.wait(200)
    if due:
        cluster.wait(LATER_MS - 200, step_ms=200)
        cluster.begin(rounds)
        cluster.order(DELETE)
    else:
        cluster.order(DELETE)
        cluster.begin(rounds)
    cluster.kill(owner)
    cluster.wait(30_000, step_ms=200)
    heard = client.consume("answers", no_ack=True)
    cluster.wait(500)
    assert sorted(said(heard + client.hear()), key=str) == deleted("1", "2", "3"), "each, and once"
    assert not [queue.name for queue in cluster.running[0].map.queues() if "core" in queue.name]


def test_one_that_was_due_when_its_group_ended_starts_it_anew() -> None:
    """No pool is deleted here: the disk keeps a request on its way until the group of its key has ended."""
    world = World()
    world.command(c.DeclarePool(vhost="/", name="core", settings=PoolSettings(unbind_delay_s=0, stop_delay_s=0)))
    world.turn()
    client = world.client()
    client.declare("answers")
    put_off(client, "1", delivery_mode=2)
    world.wait(LATER_MS - 300)
    client.publish("core", "42", b"0")
    world.wait(100)
    worker = world.client()
    (taken,) = [one for one in worker.consume("core-req-42") if isinstance(one, Content)]
    worker.say(m.BasicAck(taken.method.delivery_tag))
    worker.leave()
    world.disk_waits = True
    world.wait(300)
    assert [one.targets for one in world.queue(WAITS).letters._open.values()] == [(world.queue("core-req-42"),)]  # type: ignore[attr-defined]
    world.wait(5_000)
    assert "core-req-42" not in world.node.vhosts["/"].queues
    world.disk_waits = False
    world.commit()
    world.wait(5_000)
    assert bodies(world.client().consume("core-req-42")) == [b"1"]


def test_a_transaction_that_comes_too_late_is_refused(world: World) -> None:
    """Its queue has ended by itself, and would take what it gets for gone with it."""
    client = world.client()
    client.ask(m.TxSelect())
    client.publish("core-delayed", "42", b"1", headers={"x-delay": LATER_MS}, reply_to="answers", delivery_mode=2)
    world.command(DELETE)
    world.wait(1000)
    assert left(world) == []
    heard = client.say(m.TxCommit())
    world.wait(1000)
    heard += client.hear()
    assert not any(isinstance(one, m.TxCommitOk) for one in heard)


def test_who_consumes_by_itself_keeps_no_pool_that_is_deleted(world: World) -> None:
    client, worker = world.client(), world.client()
    client.publish("core", "42", b"1", delivery_mode=2)
    world.wait(100)
    (taken,) = [one for one in worker.consume("core-req-42") if isinstance(one, Content)]
    world.command(DELETE)
    world.wait(5_000)
    assert "core-req-42" in world.node.vhosts["/"].queues, "a request is held"
    worker.say(m.BasicAck(taken.method.delivery_tag))
    world.wait(5_000)
    assert left(world) == []
