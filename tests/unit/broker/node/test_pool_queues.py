"""Worker pools at one node whose clock the test moves: orphans, answers, lives of groups, restarts."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.pools.group_queue import GroupQueue
from clusterbroker.broker.pools.orphan_queue import OrphanQueue
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.pool_entities import PoolSettings
from clusterbroker.cluster.wiring_log import unlogged
from tests.unit.broker.fronts.amqp091.harness import Client, Content, World, bodies

MINUTE_MS = 60_000


def declare(world: World, name: str = "core", **settings: Any) -> None:
    world.command(c.DeclarePool(vhost="/", name=name, settings=PoolSettings(**settings)))
    world.turn()


@pytest.fixture
def world() -> World:
    made = World()
    declare(made, request_ttl_ms=5 * MINUTE_MS, unbind_delay_s=60, stop_delay_s=120)
    return made


def groups(world: World) -> dict[str, tuple[str, bool]]:
    pools = world.node.map.pools
    (pool,) = pools.all()
    return {group.key: (group.state, group.moving) for group in pools.groups(pool.pool_id)}


def confirming(world: World) -> Client:
    client = world.client()
    client.ask(m.ConfirmSelect())
    return client


def contents(heard: list[Any]) -> list[Content]:
    return [one for one in heard if isinstance(one, Content)]


def call(client: Client, key: str, body: bytes = b"x", exchange: str = "core", **properties: Any) -> None:
    client.publish(exchange, key, body, **properties)


def test_a_request_of_a_new_key_makes_its_group_and_waits_there(world: World) -> None:
    client = confirming(world)
    call(client, "42", b"1")
    assert groups(world) == {"42": ("active", False)}
    assert isinstance(world.queue("core-req-42"), GroupQueue)
    assert isinstance(world.queue("core-orphan"), OrphanQueue)
    assert world.queue("core-orphan").ready == 0
    call(client, "42", b"2", "core-req-xchg")
    assert bodies(world.client().consume("core-req-42")) == [b"1", b"2"]


def test_it_comes_as_it_was_published(world: World) -> None:
    client = confirming(world)
    about = {
        "correlation_id": "c", "reply_to": "q", "expiration": "600000", "priority": 3, "headers": {"a": 1},
        "delivery_mode": 2, "type": "t",
    }  # fmt: skip
    call(client, "42", b"1", **about)
    (got,) = contents(world.client().consume("core-req-42"))
    assert got.properties == Properties(**about)
    assert (got.method.exchange, got.method.routing_key, got.method.redelivered) == ("core", "42", False)


def test_its_time_to_live_counts_from_the_first_queue(world: World) -> None:
    world.command(c.PausePool(vhost="/", name="core"))
    client = confirming(world)
    client.declare("answers")
    call(client, "42", expiration="10000", reply_to="answers")
    call(client, "42", reply_to="answers")
    world.wait(6000)
    assert groups(world) == {}
    world.command(c.PausePool(vhost="/", name="core", paused=False))
    world.turn()
    assert groups(world) == {"42": ("active", False)}
    world.wait(3900)
    assert bodies(client.consume("answers", no_ack=True)) == []
    world.wait(200)
    (answer,) = contents(client.hear())
    assert answer.properties.headers is not None
    assert answer.properties.headers["x-status"] == b"expired"
    world.wait(5 * MINUTE_MS - 10_200)
    assert contents(client.hear()) == []
    world.wait(200)
    assert len(contents(client.hear())) == 1


def test_requests_of_a_paused_pool_are_answered_at_their_time(world: World) -> None:
    world.command(c.PausePool(vhost="/", name="core"))
    client = confirming(world)
    client.declare("answers")
    call(client, "42", expiration="1000", reply_to="answers", correlation_id="7")
    world.wait(1100)
    (answer,) = contents(client.consume("answers"))
    assert answer.properties.correlation_id == "7"
    assert answer.properties.type == "error"
    assert answer.body == b""
    assert answer.properties.headers == {
        "x-status": b"expired", "x-pool": "core", "x-key": "42",
        "x-detail": "nobody took the request within its time", "x-delivery-count": 0,
    }  # fmt: skip
    assert groups(world) == {}


@pytest.mark.parametrize("commits", range(4))
def test_a_pool_goes_on_while_a_request_leaves_whose_time_is_over(world: World, commits: int) -> None:
    """At each step of its way out: its key's group is there with the commit after so many."""
    world.command(c.PausePool(vhost="/", name="core"))
    client = confirming(world)
    client.declare("answers")
    call(client, "42", expiration="1000", reply_to="answers")
    world.disk_waits = world.wiring_waits = True
    world.wait(1100)
    world.command(c.PausePool(vhost="/", name="core", paused=False))
    world.turn()
    for _ in range(commits):
        world.commit()
    world.complete()
    world.answer_proposals()
    world.disk_waits = world.wiring_waits = False
    world.wait(100)
    (answer,) = contents(client.consume("answers"))
    assert answer.properties.headers is not None
    assert answer.properties.headers["x-status"] == b"expired"
    call(client, "42", b"next")
    assert not world.queue("core-orphan").broken
    assert bodies(world.client().consume("core-req-42")) == [b"next"]


@pytest.mark.parametrize(("key", "word"), [("a\0b", b"invalid_key"), ("nope", b"key_refused"), ("k3", b"no_capacity")])
def test_what_cannot_be_served_is_answered_at_once(key: str, word: bytes) -> None:
    world = World()
    declare(world, keys="^k[0-9]$|^a", max_groups=2)
    client = confirming(world)
    client.declare("answers")
    for each in ("k1", "k2", key):
        call(client, each, reply_to="answers")
    assert set(groups(world)) == {"k1", "k2"}
    (answer,) = contents(client.consume("answers"))
    assert answer.properties.headers is not None
    assert answer.properties.headers["x-status"] == word


def test_status_as_text(world: World) -> None:
    world.command(c.SetPool(vhost="/", name="core", settings=PoolSettings(status_type="text"), only=("status_type",)))
    client = confirming(world)
    client.declare("answers")
    call(client, "a\0", reply_to="answers")
    (answer,) = contents(client.consume("answers"))
    assert answer.properties.headers is not None
    assert answer.properties.headers["x-status"] == "invalid_key"


def test_an_idle_group_is_unbound_then_ends(world: World) -> None:
    client = confirming(world)
    call(client, "42")
    worker = world.client()
    (got,) = contents(worker.consume("core-req-42"))
    world.wait(20 * MINUTE_MS)
    assert groups(world) == {"42": ("active", False)}, "a request is held: that is no idleness"
    worker.say(m.BasicAck(got.method.delivery_tag))
    world.wait(59_900)
    assert groups(world) == {"42": ("active", False)}
    world.wait(200)
    assert groups(world) == {"42": ("unbound", False)}
    world.wait(10 * MINUTE_MS)
    assert groups(world) == {"42": ("unbound", False)}, "its worker is still there"
    worker.say(m.BasicCancel("ctag"))
    world.wait(100)
    assert groups(world) == {}
    assert "core-req-42" not in world.node.vhosts["/"].queues


def test_a_pinned_group_is_never_unbound_until_it_is_unpinned(world: World) -> None:
    world.command(c.DirectGroup(vhost="/", name="core", key="42", word="pin"))
    assert groups(world) == {"42": ("active", False)}
    before = world.node.map.applied
    world.wait(20 * MINUTE_MS)
    world.command(c.SetPool(vhost="/", name="core", settings=PoolSettings(max=3), only=("max",)))  # its queue looks
    world.wait(1000)
    assert groups(world) == {"42": ("active", False)}
    assert world.node.map.applied == before + 1, "nothing was ordered about it"
    world.command(c.DirectGroup(vhost="/", name="core", key="42", word="unpin"))
    world.wait(59_900)
    assert groups(world) == {"42": ("active", False)}, "its idleness begins anew"
    world.wait(200)
    assert groups(world) == {"42": ("unbound", False)}
    world.wait(3 * MINUTE_MS)
    assert groups(world) == {}


def test_a_stopped_group_stays_unbound_until_something_comes(world: World) -> None:
    client = confirming(world)
    world.command(c.DirectGroup(vhost="/", name="core", key="42", word="start"))
    world.wait(1000)
    world.command(c.DirectGroup(vhost="/", name="core", key="42", word="stop"))
    world.wait(1000)
    assert groups(world) == {"42": ("unbound", False)}
    world.command(c.DirectGroup(vhost="/", name="core", key="42", word="start"))
    world.wait(59_000)
    assert groups(world) == {"42": ("active", False)}, "its idleness begins anew"
    world.command(c.DirectGroup(vhost="/", name="core", key="42", word="stop"))
    world.wait(1000)
    assert groups(world) == {"42": ("unbound", False)}
    call(client, "42", b"1")
    assert groups(world) == {"42": ("active", False)}
    world.command(c.DirectGroup(vhost="/", name="core", key="42", word="stop"))
    world.wait(1000)
    assert groups(world) == {"42": ("active", False)}, "a request waits"


def test_a_request_of_an_unbound_key_goes_to_the_worker_that_runs(world: World) -> None:
    client, worker = confirming(world), world.client()
    call(client, "42", b"1")
    worker.consume("core-req-42", no_ack=False)
    worker.say(m.BasicAck(1))
    world.wait(61_000)
    assert groups(world) == {"42": ("unbound", False)}
    call(client, "42", b"2")
    assert groups(world) == {"42": ("active", False)}
    assert bodies(worker.hear()) == [b"2"]


def test_what_is_published_to_the_queue_of_an_unbound_group_brings_it_back(world: World) -> None:
    client = confirming(world)
    call(client, "42", b"1")
    worker = world.client()
    worker.consume("core-req-42")
    worker.say(m.BasicAck(1))
    worker.say(m.BasicCancel("ctag"))
    world.wait(61_000)
    assert groups(world) == {"42": ("unbound", False)}
    call(client, "core-req-42", b"2", exchange="")
    assert groups(world) == {"42": ("active", False)}
    world.wait(4 * MINUTE_MS)
    assert bodies(world.client().consume("core-req-42")) == [b"2"]


def test_reports_prolong_a_life_and_others_do_nothing(world: World) -> None:
    client, worker = confirming(world), world.client()
    call(client, "42")
    worker.consume("core-req-42")
    worker.say(m.BasicAck(1))
    for event in ("request-received", b"progress"):
        world.wait(50_000)
        call(client, "42", b"", "core-activity-xchg", headers={"x-event": event})
    world.wait(50_000)
    assert groups(world) == {"42": ("active", False)}
    call(client, "42", b"", "core-activity-xchg", headers={"x-event": "unknown"})
    call(client, "none", b"", "core-activity-xchg", headers={"x-event": "started"})
    call(client, "42", b"", "core-activity-xchg")
    world.wait(11_000)
    assert groups(world) == {"42": ("unbound", False)}


def test_what_is_published_while_a_queue_closes_goes_to_the_orphans(world: World) -> None:
    client = confirming(world)
    call(client, "42", b"1")
    worker = world.client()
    worker.consume("core-req-42")
    worker.say(m.BasicAck(1))
    worker.say(m.BasicCancel("ctag"))
    world.wait(61_000)
    world.wiring_waits = True
    world.wait(3 * MINUTE_MS)
    queue = world.queue("core-req-42")
    assert isinstance(queue, GroupQueue)
    assert queue.limits.closed
    call(client, "core-req-42", b"2", exchange="")
    assert queue.ring.ready == 0
    world.wiring_waits = False
    world.answer_proposals()
    world.turn()
    world.wait(100)
    assert groups(world) == {"42": ("active", False)}, "it keeps its key"
    assert bodies(world.client().consume("core-req-42")) == [b"2"]


def closing(world: World) -> GroupQueue:
    """The queue of key 42, whose end is ordered and not answered."""
    client = confirming(world)
    call(client, "42", b"1")
    worker = world.client()
    worker.consume("core-req-42")
    worker.say(m.BasicAck(1))
    worker.say(m.BasicCancel("ctag"))
    world.wait(61_000)
    world.wiring_waits = True
    world.wait(3 * MINUTE_MS)
    queue = world.queue("core-req-42")
    assert isinstance(queue, GroupQueue)
    assert queue.limits.closed
    return queue


def test_a_queue_that_closes_is_open_again_when_its_key_is_required(world: World) -> None:
    queue = closing(world)
    ended, world.node.proposals = world.node.proposals, []
    world.wiring_waits = False
    call(confirming(world), "42", b"2")
    assert (queue.limits.closed, queue.ring.ready) == (False, 1)
    world.propose(ended)
    world.turn()
    assert groups(world) == {"42": ("active", False)}, "the order of before is void"


def test_a_queue_whose_end_was_given_up_stays_closed_until_it_is_known(world: World) -> None:
    queue = closing(world)
    ((ended, done),) = world.node.proposals
    world.node.proposals = []
    done(unlogged(ended, Unavailable("no outcome in time: it may or may not be applied")))
    world.turn()
    call(confirming(world), "core-req-42", b"2", exchange="")
    assert (queue.limits.closed, queue.ring.ready) == (True, 0)
    world.wiring_waits = False
    world.command(ended)
    world.wait(2_000)
    assert groups(world) == {"42": ("active", False)}
    assert bodies(world.client().consume("core-req-42")) == [b"2"]


def test_restarts_lose_nothing_at_any_step(world: World) -> None:
    world.command(c.PausePool(vhost="/", name="core"))
    client = confirming(world)
    for number in range(20):
        call(client, f"k{number % 3}", b"%d" % number, delivery_mode=1 + number % 2)
    world.crash()
    world.command(c.PausePool(vhost="/", name="core", paused=False))
    world.wiring_waits = True
    world.turn()
    world.crash()
    world.wiring_waits = False
    world.turn()
    world.crash()
    world.wait(100)
    got = [body for key in range(3) for body in bodies(world.client().consume(f"core-req-k{key}"))]
    assert sorted(got, key=int) == [b"%d" % number for number in range(20)]
    assert groups(world) == {f"k{key}": ("active", False) for key in range(3)}


def test_very_many_keys_at_once(world: World) -> None:
    world.command(c.PausePool(vhost="/", name="core"))
    client = confirming(world)
    for number in range(1000):
        call(client, f"k{number}", b"x", delivery_mode=2)
    world.command(c.PausePool(vhost="/", name="core", paused=False))
    world.wait(100)
    assert groups(world) == {f"k{number}": ("active", False) for number in range(1000)}
    assert world.queue("core-orphan").ready == 0


def test_a_pool_that_is_deleted_answers_what_waits_and_leaves_nothing(world: World) -> None:
    client = confirming(world)
    client.declare("answers")
    call(client, "42", reply_to="answers", correlation_id="group")
    world.command(c.PausePool(vhost="/", name="core"))
    call(client, "43", reply_to="answers", correlation_id="orphan")
    world.command(c.DeletePool(vhost="/", name="core", force=True))
    world.wait(5000)
    got = {one.properties.correlation_id: one.properties.headers for one in contents(client.consume("answers"))}
    assert {name: (headers or {})["x-status"] for name, headers in got.items()} == {
        "group": b"pool_deleted", "orphan": b"pool_deleted",
    }  # fmt: skip
    assert world.node.map.pools.all() == ()
    assert set(world.node.vhosts["/"].queues) == {"answers"}


def test_one_too_many_of_a_key_is_nacked_and_answered() -> None:
    world = World()
    declare(world, max_length=2)
    client = confirming(world)
    client.declare("answers")
    for _ in range(2):
        call(client, "42")
    assert world.queue("core-req-42").ready == 2
    heard = client.publish("core", "42", b"late", reply_to="answers")
    assert any(isinstance(one, m.BasicNack) for one in heard)
    (answer,) = contents(client.consume("answers"))
    assert (answer.properties.headers or {})["x-status"] == b"maxlen"
    assert world.queue("core-req-42").ready == 2


def test_workers_that_fail_too_often_are_the_end_of_a_request() -> None:
    world = World()
    declare(world, delivery_limit=2)
    client, worker = confirming(world), world.client()
    client.declare("answers")
    call(client, "42", reply_to="answers")
    got = contents(worker.consume("core-req-42"))
    for _ in range(3):
        got = contents(worker.say(m.BasicReject(got[0].method.delivery_tag, requeue=True)))
    assert got == []
    (answer,) = contents(client.consume("answers"))
    assert (answer.properties.headers or {})["x-status"] == b"delivery_limit"
