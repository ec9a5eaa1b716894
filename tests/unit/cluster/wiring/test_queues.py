"""Begins, pauses and ends of queues (amqp-rules.md 5.1, 5.3)."""

import pytest

from clusterbroker.cluster.errors import (
    AccessRefused,
    LimitReached,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)
from clusterbroker.cluster.ids import Epoch, LogIndex, NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import ClusterMap
from tests.unit.cluster.wiring.map_world import World


def test_declare_a_queue(world: World) -> None:
    queue = world.queue("q", arguments={"x-max-length": 5}, owner=NodeId("n1"))
    assert (queue.queue_id, queue.epoch, queue.owner, queue.in_sync) == (1, 1, "n1", ("n1",))
    assert world.told == ["QueueDeclared q"]
    assert world.map.queue("/", "q") is queue
    assert world.map.queue_by_id(queue.queue_id) is queue
    assert world.map.effective(queue).max_length == 5
    assert world.queue("q", arguments={"x-max-length": 5}) is queue
    assert world.told == []
    with pytest.raises(PreconditionFailed):
        world.queue("q", durable=False)


def test_a_pause_is_told_once_and_lasts_until_it_ends(world: World) -> None:
    queue = world.queue("q")
    world.do(c.PauseQueue(vhost="/", name="q"))
    paused = world.queue("q")
    world.do(c.PauseQueue(vhost="/", name="q", paused=False))
    world.do(c.PauseQueue(vhost="/", name="q"))
    assert (paused.paused, paused.queue_id, paused.version) == (True, queue.queue_id, queue.version)
    assert world.told == ["QueuePaused"]
    assert world.map.queue("/", "q") is world.map.queue_by_id(queue.queue_id)
    assert world.map.queue("/", "q") == paused
    world.do(c.PauseQueue(vhost="/", name="q"))
    assert world.told == []
    assert world.queue("q") == paused, "a declaration does not end it"
    assert ClusterMap.restored(world.map.snapshot()).queue("/", "q") == paused
    world.do(c.PauseQueue(vhost="/", name="q", paused=False))
    assert world.queue("q") == queue
    with pytest.raises(NotFound, match="no queue 'none'"):
        world.do(c.PauseQueue(vhost="/", name="none"))


def test_a_redeclared_queue_has_another_id_and_is_not_hit_by_an_old_delete(world: World) -> None:
    first = world.queue("q")
    assert world.do(c.DeleteQueue(vhost="/", name="q", queue_id=first.queue_id)) is True
    second = world.queue("q")
    assert second.queue_id != first.queue_id
    assert world.do(c.DeleteQueue(vhost="/", name="q", queue_id=first.queue_id)) is False
    assert world.map.queue("/", "q") is second


def test_a_deletion_that_an_owner_decided_is_void_in_another_epoch(world: World) -> None:
    queue = world.queue("q")
    for epoch in (queue.epoch + 1, queue.epoch - 1 or 99):
        late = c.DeleteQueue(vhost="/", name="q", queue_id=queue.queue_id, epoch=Epoch(epoch))
        assert world.do(late) is False
    assert world.told == []
    assert world.map.queue("/", "q") is queue
    assert world.do(c.DeleteQueue(vhost="/", name="q", queue_id=queue.queue_id, epoch=queue.epoch)) is True


def test_names_of_the_server(world: World) -> None:
    with pytest.raises(AccessRefused):
        world.queue("amq.mine")
    world.queue("amq.gen-1", server_named=True)
    world.queue("amq.gen-1")
    with pytest.raises(AccessRefused) as caught:
        world.exchange("amq.mine")
    assert caught.value.text == "exchange name 'amq.mine' contains reserved prefix 'amq.*'"
    world.exchange("amq.direct", "direct")
    assert world.told == []


def test_exclusive_queues_belong_to_a_connection(world: World) -> None:
    queue = world.queue("q", exclusive=True, connection="c1")
    assert (queue.exclusive_owner, queue.durable, queue.transient) == ("c1", False, True)
    assert world.queue("q", exclusive=True, connection="c1", durable=False) is queue
    with pytest.raises(ResourceLocked):
        world.queue("q", exclusive=True, connection="c2")
    with pytest.raises(ResourceLocked):
        world.bind("amq.direct", "q", connection="c2")
    world.bind("amq.direct", "q", connection="c1")
    with pytest.raises(ResourceLocked):
        world.unbind("amq.direct", "q", connection=None)
    world.queue("other", exclusive=True, connection="c2")
    assert world.map.exclusive_queues("c1") == (queue,)
    world.do(c.RemoveConnection(connection="c1"))
    assert world.told == ["Unbound amq.direct->q", "QueueDeleted q"]
    assert world.map.exclusive_queues("c1") == ()
    assert [q.name for q in world.map.queues("/")] == ["other"]
    assert world.do(c.RemoveConnection(connection="c1")) is False


def test_exclusive_queues_keep_their_order_through_a_snapshot(world: World) -> None:
    world.do(c.AddVhost(name="v"))
    for vhost in ("v", "/", "v"):
        name = f"q{world.map.applied}"
        world.do(c.DeclareQueue(vhost=vhost, name=name, exclusive=True, connection="c1"))
    end = c.RemoveConnection(connection="c1")
    restored = ClusterMap.restored(world.map.snapshot())
    assert restored.exclusive_queues("c1") == world.map.exclusive_queues("c1")
    index = LogIndex(restored.applied + 1)
    assert restored.apply(index, end).changes == world.map.apply(index, end).changes


def test_forget_transient(world: World) -> None:
    world.exchange("x", durable=False)
    world.exchange("auto", auto_delete=True)
    world.queue("kept")
    world.queue("t", durable=False)
    world.queue("e", exclusive=True, connection="c1")
    world.queue("far", durable=False, owner=NodeId("n2"))
    world.bind("auto", "t")
    world.bind("x", "kept")
    world.do(c.ForgetTransient(node=NodeId("n2"), alone=False))
    assert world.told == ["QueueDeleted far"]
    world.do(c.ForgetTransient(node=NodeId("local")))
    assert world.told == [
        "Unbound auto->t",
        "ExchangeDeleted auto",
        "QueueDeleted t",
        "QueueDeleted e",
        "Unbound x->kept",
        "ExchangeDeleted x",
    ]
    assert [q.name for q in world.map.queues()] == ["kept"]


def test_queue_limits(world: World) -> None:
    world.do(c.SetVhostLimits(vhost="/", queues_max=1))
    world.queue("a")
    with pytest.raises(LimitReached) as caught:
        world.queue("b")
    assert caught.value.text == "cannot declare queue 'b': queue limit in vhost '/' (1) is reached"
    world.queue("a")
    world.do(c.SetVhostLimits(vhost="/", queues_max=-1))
    world.queue("b")
    assert world.do(c.ClearVhostLimits(vhost="/")) is True
    assert world.do(c.ClearVhostLimits(vhost="/")) is False
    assert world.map.vhost_limits("/").queues_max is None
