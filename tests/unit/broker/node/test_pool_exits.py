"""What callers and the inventory of poison are told of a request's tries: how often it came back, how workers ended."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from clusterbroker.broker.content.message import new_message
from clusterbroker.broker.pools.dead_queue import EXIT_MS, DeadQueue
from clusterbroker.broker.pools.loss_headers import LAST, LOST, REASON
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.properties import Properties as Properties091
from clusterbroker.broker.wire.amqp10.performatives import Properties
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.pool_commands import Ended
from clusterbroker.cluster.wiring.pool_entities import Launch, PoolSettings
from tests.unit.broker.fronts.amqp091.harness import Content, World, bodies
from tests.unit.broker.fronts.amqp10.harness import Peer
from tests.unit.broker.node.test_pool_workers import Broker


@pytest.fixture(params=[1, 3], ids=["alone", "three"])
def broker(request: pytest.FixtureRequest) -> Broker:
    made = Broker(request.param)
    made.order(c.SetPool(vhost="/", name="core", settings=PoolSettings(delivery_limit=0), only=("delivery_limit",)))
    return made


def settle(broker: Broker, time_ms: int) -> None:
    """Its own `settle` moves no clock of one node."""
    (broker.alone or broker.cluster).wait(time_ms)  # type: ignore[union-attr]


def lose(broker: Broker) -> Launch:
    """The worker of key 42 is lost with its request, at the limit."""
    launch = broker.launch
    worker = broker.worker()
    heard = worker.consume("core-req-42")
    settle(broker, 200)
    assert bodies((*heard, *worker.hear())) == [b"1"]
    worker.leave()
    settle(broker, 200)
    return launch


def end(broker: Broker, launch: Launch, exit_status: int | None, out_of_memory: bool = False) -> None:
    node = broker.node
    incarnation = node.options.incarnation if broker.cluster is None else broker.cluster["a"].node.options.incarnation
    broker.order(
        c.WorkersGone(
            node=launch.place,  # type: ignore[arg-type]
            incarnation=incarnation,  # type: ignore[arg-type]
            ended=(Ended(launch.launch_id, exit_status, 0, out_of_memory),),
        )
    )


def contents(broker: Broker, queue: str) -> list[Content]:
    client = broker.sites[0].client()
    heard = client.consume(queue)
    settle(broker, 200)
    found = [one for one in (*heard, *client.hear()) if isinstance(one, Content)]
    client.leave()
    settle(broker, 100)
    return found


def poison(broker: Broker) -> dict[str, Any]:
    (kept,) = contents(broker, "core-poison")
    about: dict[str, Any] = (kept.properties.headers or {})["x-poison"]
    return about


def test_poison_says_how_its_worker_ended(broker: Broker) -> None:
    launch = lose(broker)
    assert contents(broker, "core-poison") == [], "its end is not told yet"
    end(broker, launch, 137)
    settle(broker, 100)
    about = poison(broker)
    assert about["exits"] == {launch.launch_id: 137}
    assert "out_of_memory" not in about
    assert list(about["workers"]) == [launch.launch_id]
    assert len(contents(broker, "answers")) == 1


@pytest.mark.parametrize("exit_status", [137, None])
def test_poison_says_whose_worker_was_out_of_memory(broker: Broker, exit_status: int | None) -> None:
    launch = lose(broker)
    end(broker, launch, exit_status, out_of_memory=True)
    settle(broker, 100)
    about = poison(broker)
    assert about["out_of_memory"] == [launch.launch_id]
    assert about.get("exits") == (None if exit_status is None else {launch.launch_id: exit_status})


@pytest.mark.parametrize("told", [False, True])
def test_poison_waits_for_it_a_while_and_holds_nobody_up(broker: Broker, told: bool) -> None:
    launch = lose(broker)
    broker.caller.publish("core", "7\0", b"", reply_to="answers", correlation_id="other")
    settle(broker, 100)
    (other,) = contents(broker, "answers")
    assert other.properties.correlation_id == "other"
    if told:
        end(broker, launch, None)  # it is gone, and nobody knows how
    else:
        settle(broker, EXIT_MS)
    settle(broker, 100)
    assert "exits" not in poison(broker)


def test_poison_waits_for_each_of_its_workers() -> None:
    broker = Broker(1)
    broker.order(c.SetPool(vhost="/", name="core", settings=PoolSettings(delivery_limit=1), only=("delivery_limit",)))
    launches = [lose(broker)]
    broker.launch = broker.launched("42")
    launches.append(lose(broker))
    for launch, status in zip(reversed(launches), (1, 2), strict=True):
        assert contents(broker, "core-poison") == []
        end(broker, launch, status)
        settle(broker, 50)
    assert poison(broker)["exits"] == {launches[0].launch_id: 2, launches[1].launch_id: 1}


def test_a_turn_looks_at_workers_however_much_poison_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, count, looks = Broker(1), 1000, Counter[str]()
    (pool,) = broker.node.map.pools.all()
    dead = broker.node.queues[pool.dead]
    assert isinstance(dead, DeadQueue)
    headers = {REASON: "delivery_limit", LAST: "lost", f"{LOST}{broker.launch.launch_id}": "a test"}
    request = new_message("core-dl-xchg", "42", Properties091(headers=headers), b"", broker.node.now_ms)
    dead.publish([request] * count, None, broker.node.now_ms)
    settle(broker, 100)
    runs = DeadQueue._runs

    def looked(queue: DeadQueue, worker: str) -> bool:
        looks[worker] += 1
        return runs(queue, worker)

    monkeypatch.setattr(DeadQueue, "_runs", looked)
    for _ in range(5):
        dead.ring.mark()
        settle(broker, 1)
    assert looks.total() <= 100
    for _ in range(10):
        settle(broker, EXIT_MS)
    assert broker.node.pools.poison[pool.pool_id] == count
    assert dead.ring.unacked + dead.ring.ready == 0


def test_a_pool_that_is_deleted_meanwhile_answers_first() -> None:
    broker = Broker(1)
    broker.order(c.SetPool(vhost="/", name="core", settings=PoolSettings(delivery_limit=0), only=("delivery_limit",)))
    lose(broker)
    broker.order(c.DeletePool(vhost="/", name="core", force=True))
    settle(broker, 5 * EXIT_MS)
    words = [(one.properties.headers or {})["x-status"] for one in contents(broker, "answers")]
    assert sorted(words) == [b"delivery_limit", b"pool_deleted"]
    assert broker.node.map.pools.all() == ()


def told(world: World, queue: str = "answers") -> list[tuple[bytes, int]]:
    """What the answers there say, and how often each request came back."""
    client = world.client()
    found = [one.properties.headers or {} for one in client.consume(queue, no_ack=True) if isinstance(one, Content)]
    client.leave()
    return [(headers["x-status"], headers["x-delivery-count"]) for headers in found]


def pooled(**settings: int) -> World:
    world = World()
    world.command(c.DeclarePool(vhost="/", name="core", settings=PoolSettings(**settings)))
    world.turn()
    world.client().declare("answers")
    return world


FORGED = {"x-delivery-count": 9, "x-last-death-queue": "core-req-42"}


@pytest.mark.parametrize("fails", [0, 1, 2])
def test_an_answer_says_how_often_the_request_came_back(fails: int) -> None:
    world = pooled(delivery_limit=5)
    worker = world.client()
    world.client().publish("core", "42", reply_to="answers", headers=FORGED)
    tag = worker.consume("core-req-42")[-1].method.delivery_tag
    for _ in range(fails):
        tag = worker.say(m.BasicReject(tag, requeue=True))[-1].method.delivery_tag
    worker.say(m.BasicReject(tag, requeue=False))
    assert told(world) == [(b"rejected", fails)]


def test_at_its_limit_it_says_the_limit() -> None:
    world = pooled(delivery_limit=2)
    worker = world.client()
    world.client().publish("core", "42", reply_to="answers", delivery_mode=2)
    tag = worker.consume("core-req-42")[-1].method.delivery_tag
    for _ in range(2):
        tag = worker.say(m.BasicReject(tag, requeue=True))[-1].method.delivery_tag
    worker.say(m.BasicReject(tag, requeue=True))
    assert told(world) == [(b"delivery_limit", 2)]


@pytest.mark.parametrize("key", ["a\0", "42"])
def test_what_no_worker_had_says_none_whatever_its_publisher_wrote(key: str) -> None:
    """It dies among the orphans, or for want of room."""
    world = pooled(max_length=1)
    client = world.client()
    client.publish("core", "42")
    client.publish("core", key, reply_to="answers", headers=FORGED)
    assert [count for _, count in told(world)] == [0]


def test_a_request_by_amqp_1_0_alike() -> None:
    world = pooled(delivery_limit=1)
    peer = Peer(world).enter()
    peer.sender("s", "/exchanges/core/42").send(b"x", properties=Properties(reply_to="answers"))
    world.turn()
    worker = world.client()
    tag = worker.consume("core-req-42")[-1].method.delivery_tag
    tag = worker.say(m.BasicReject(tag, requeue=True))[-1].method.delivery_tag
    worker.say(m.BasicReject(tag, requeue=False))
    assert told(world) == [(b"rejected", 1)]
