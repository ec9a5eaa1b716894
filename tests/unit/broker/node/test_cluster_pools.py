"""Worker pools with copies: the next controller and the next responder go on, at whichever step of what is due."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.content.message import taken_at
from clusterbroker.broker.pools.group_queue import GroupQueue
from clusterbroker.broker.pools.messages import PlaceTold, PoolMessage, TemplateTold
from clusterbroker.broker.pools.orphan_queue import OrphanQueue
from clusterbroker.broker.queues.producers import dead_letter_producer
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.levels import STARTED_WORKERS
from clusterbroker.cluster.wiring.pool_entities import PoolSettings
from tests.unit.broker.fronts.amqp091.harness import Client, Content, bodies
from tests.unit.broker.node.node_cluster import Cluster

KEYS = ("1", "2", "3")


def declare(cluster: Cluster, **settings: Any) -> None:
    cluster.order(c.DeclarePool(vhost="/", name="core", settings=PoolSettings(**settings)))
    cluster.wait(200)


def survivor(cluster: Cluster, lost: str = "") -> Client:
    return next(cluster[name] for name in cluster.sites if name != lost).client()


def confirming(cluster: Cluster, lost: str = "") -> Client:
    client = survivor(cluster, lost)
    client.ask(m.ConfirmSelect())
    return client


def groups(cluster: Cluster, lost: str = "") -> dict[str, tuple[str, bool]]:
    site = next(cluster[name] for name in cluster.sites if name != lost)
    pools = site.node.map.pools
    (pool,) = pools.all()
    return {group.key: (group.state, group.moving) for group in pools.groups(pool.pool_id)}


def test_requests_reach_the_queues_of_their_keys_from_any_node() -> None:
    cluster = Cluster("a", "b", "c")
    declare(cluster)
    for name in cluster.sites:
        client = cluster[name].client()
        client.ask(m.ConfirmSelect())
        for key in KEYS:
            client.publish("core", key, f"{name}{key}".encode())
    cluster.wait(500)
    assert groups(cluster) == dict.fromkeys(KEYS, ("active", False))
    for key in KEYS:
        got = bodies(cluster["b"].client().consume(f"core-req-{key}"))
        assert sorted(got) == [f"{name}{key}".encode() for name in sorted(cluster.sites)]
    assert len(cluster.digests()) == 1


@pytest.mark.parametrize("rounds", range(24))
def test_a_controller_that_dies_at_any_step_neither_loses_nor_doubles(rounds: int) -> None:
    cluster = Cluster("a", "b", "c")
    declare(cluster)
    cluster.order(c.PausePool(vhost="/", name="core"))
    cluster.wait(100)
    owner = cluster.queue("core-orphan").owner
    sender = confirming(cluster, owner)
    for number in range(30):
        sender.publish("core", KEYS[number % 3], b"%d" % number)
    cluster.wait(300)
    cluster.begin(rounds, c.PausePool(vhost="/", name="core", paused=False))
    cluster.kill(owner)
    cluster.wait(8000)
    assert cluster.queue("core-orphan").owner != owner
    got = [body for key in KEYS for body in bodies(survivor(cluster, owner).consume(f"core-req-{key}"))]
    assert sorted(got, key=int) == [b"%d" % number for number in range(30)]
    assert groups(cluster, owner) == dict.fromkeys(KEYS, ("active", False))


@pytest.mark.parametrize("rounds", range(24))
def test_a_responder_that_dies_at_any_step_answers_once(rounds: int) -> None:
    cluster = Cluster("a", "b", "c")
    declare(cluster)
    cluster.order(c.PausePool(vhost="/", name="core"))
    cluster.wait(100)
    owner = cluster.queue("core-dl").owner
    client = confirming(cluster, owner)
    client.declare("answers")
    for number in range(20):
        client.publish("core", "42", b"x", reply_to="answers", correlation_id=str(number), expiration="1000")
    cluster.wait(900)
    cluster.begin(rounds, time_ms=200)
    cluster.kill(owner)
    cluster.wait(12_000)
    heard = survivor(cluster, owner).consume("answers")
    answers = [one.properties.correlation_id for one in heard if isinstance(one, Content)]
    assert sorted(answers, key=lambda one: int(one or 0)) == [str(number) for number in range(20)]


def test_an_idle_group_ends_in_a_cluster_and_begins_again() -> None:
    cluster = Cluster("a", "b", "c")
    declare(cluster, unbind_delay_s=5, stop_delay_s=5)
    client = confirming(cluster)
    for _ in range(3):
        client.publish("core", "42", b"x")
        cluster.wait(500)
        worker = cluster["c"].client()
        heard = worker.consume("core-req-42")
        for one in heard:
            if isinstance(one, Content):
                worker.say(m.BasicAck(one.method.delivery_tag))
        cluster.wait(500)
        assert groups(cluster) == {"42": ("active", False)}
        cluster.wait(6000)
        assert groups(cluster) == {"42": ("unbound", False)}
        worker.say(m.BasicCancel("ctag"))
        cluster.wait(7000)
        assert groups(cluster) == {}
    assert len(cluster.digests()) == 1


def test_a_group_that_a_consumer_made_is_settled_by_the_controller() -> None:
    cluster = Cluster("a", "b", "c")
    declare(cluster)
    owner = cluster.queue("core-orphan").owner
    worker = survivor(cluster, owner)
    worker.consume("core-req-9")
    cluster.wait(500)
    assert groups(cluster) == {"9": ("active", False)}
    client = confirming(cluster)
    client.publish("core", "9", b"x")
    cluster.wait(500)
    assert bodies(worker.hear()) == [b"x"]


def test_a_controller_of_before_orders_nothing() -> None:
    cluster = Cluster("a", "b", "c")
    declare(cluster)
    owner = cluster.queue("core-orphan").owner
    (pool,) = cluster[owner].node.map.pools.all()
    old = cluster.queue("core-orphan").epoch
    cluster.kill(owner)
    cluster.wait(5000)
    site = next(cluster[name] for name in cluster.sites if name != owner)
    told: list[Any] = []
    site.node.propose(c.RequireGroups(pool_id=pool.pool_id, epoch=old, keys=("x",)), told.append)
    cluster.wait(500)
    assert "a controller of epoch" in told[0].error.text
    assert isinstance(site.node.queues.get(pool.orphans), OrphanQueue | None)


def test_a_pool_that_is_deleted_ends_whoever_owns_its_queues() -> None:
    cluster = Cluster("a", "b", "c")
    declare(cluster)
    client, worker = confirming(cluster), cluster["c"].client()
    client.declare("answers")
    for key in KEYS:
        client.publish("core", key, b"x", reply_to="answers", correlation_id=key)
    cluster.wait(500)
    assert bodies(worker.consume("core-req-1")) == [b"x"]
    cluster.order(c.DeletePool(vhost="/", name="core", force=True))
    cluster.wait(2000)
    assert groups(cluster) == {"1": ("unbound", False)}, "a worker holds one"
    worker.leave()
    cluster.wait(5000)
    heard = cluster["b"].client().consume("answers")
    answers = [one.properties.correlation_id for one in heard if isinstance(one, Content)]
    assert sorted(str(one) for one in answers) == sorted(KEYS)
    assert cluster["a"].node.map.pools.all() == ()
    assert {queue.name for queue in cluster["a"].node.map.queues("/")} == {"answers"}


def test_reports_at_one_node_prolong_a_life_at_another() -> None:
    cluster = Cluster("a", "b", "c")
    declare(cluster, unbind_delay_s=5)
    clients = [cluster[name].client() for name in cluster.sites]
    clients[0].ask(m.ConfirmSelect())
    clients[0].publish("core", "42", b"x")
    cluster.wait(300)
    worker = cluster["b"].client()
    worker.consume("core-req-42")
    worker.say(m.BasicAck(1))
    for number in range(6):
        cluster.wait(3000)
        assert groups(cluster) == {"42": ("active", False)}
        clients[number % 3].publish("core-activity-xchg", "42", b"", headers={"x-event": "request-received"})
    cluster.wait(6000)
    assert groups(cluster) == {"42": ("unbound", False)}


def test_a_time_to_live_counts_from_the_first_queue_whoever_owns_the_second() -> None:
    cluster = Cluster("a", "b", "c")
    declare(cluster, request_ttl_ms=20_000)
    cluster.order(c.PausePool(vhost="/", name="core"))
    cluster.wait(100)
    client = confirming(cluster)
    client.declare("answers")
    client.consume("answers", no_ack=True)
    for key in KEYS:
        client.publish("core", key, b"x", reply_to="answers", correlation_id=key, expiration="10000")
        client.publish("core", key, b"x", reply_to="answers", correlation_id=key * 2)
    cluster.wait(8000)
    cluster.order(c.PausePool(vhost="/", name="core", paused=False))
    cluster.wait(1500)
    assert set(groups(cluster)) == set(KEYS)
    client.hear()
    cluster.wait(1500)
    heard = [one.properties.correlation_id for one in client.hear() if isinstance(one, Content)]
    assert sorted(str(one) for one in heard) == sorted(KEYS)
    cluster.wait(8000)
    assert client.hear() == []
    cluster.wait(2000)
    heard = [one.properties.correlation_id for one in client.hear() if isinstance(one, Content)]
    assert sorted(str(one) for one in heard) == sorted(key * 2 for key in KEYS)


def test_places_are_told_from_their_feature_level_on() -> None:
    cluster = Cluster("a", "b", level=STARTED_WORKERS - 1)
    told = PlaceTold({"core": TemplateTold("v1", "subprocess")})
    sent: list[Any] = []
    for name in cluster.sites:
        hub = cluster[name].node.role.hub
        send = hub.send

        def noted(peer: str, head: Any, *more: Any, send: Any = send) -> Any:
            sent.append(head)
            return send(peer, head, *more)

        hub.send = noted
    cluster["a"].node.pool_desk.tell_place(told)
    cluster.order(c.DeclarePool(vhost="/", name="core", template="core"))
    cluster.wait(500)
    assert not [head for head in sent if isinstance(head, PoolMessage)], "a member of a release before drops the link"
    members = tuple((member.name, member.incarnation) for member in cluster["a"].node.map.members())
    cluster.order(c.RaiseLevel(level=STARTED_WORKERS, members=members))
    cluster.wait(500)
    assert cluster["b"].node.pool_desk.places["a"].told == told


def test_a_pool_below_its_feature_level_is_at_rest() -> None:
    cluster = Cluster("a", "b", level=STARTED_WORKERS - 1)
    cluster.order(c.DeclarePool(vhost="/", name="core", template="core"))  # of a release before
    survivor(cluster).publish("core", "42", b"x")
    cluster.wait(2000)
    waking = [cluster[name].node._wakes.next_ms for name in cluster.sites]
    assert all(at_ms is None or at_ms > cluster.now_ms + 10 for at_ms in waking), (waking, cluster.now_ms)


def test_a_command_of_a_group_may_be_answered_after_its_queue_went_elsewhere() -> None:
    cluster = Cluster("a", "b", "c")
    declare(cluster, unbind_delay_s=1)
    confirming(cluster).publish("core", "42", b"x")
    cluster.wait(500)
    worker = survivor(cluster)
    assert bodies(worker.consume("core-req-42")) == [b"x"]
    worker.say(m.BasicAck(1))
    entity = cluster.queue("core-req-42")
    owner, other = cluster[entity.owner], next(name for name in cluster.sites if name != entity.owner)
    kept: list[Any] = []
    propose, owner.propose = owner.propose, kept.extend  # type: ignore[method-assign]
    cluster.wait(1500)
    assert [type(command) for command, _ in kept] == [c.UnbindGroup]
    owner.propose = propose  # type: ignore[method-assign]
    cluster.order(
        c.TransferOwner(
            node=entity.owner, incarnation=entity.incarnation, queue_id=entity.queue_id, epoch=entity.epoch,
            version=cluster.queue("core-req-42").version, to=NodeId(other),
        )
    )  # fmt: skip
    cluster.wait(500)
    assert cluster.queue("core-req-42").owner == other
    owner.propose(kept)
    cluster.wait(500)
    assert groups(cluster) == {"42": ("active", False)}


def test_what_is_over_behind_a_request_that_waits_is_not_moved_to_a_worker_that_waits() -> None:
    cluster = Cluster("a", "b", "c")
    declare(cluster, unbind_delay_s=1)
    client, worker = confirming(cluster), cluster["b"].client()
    client.publish("core", "42", b"x")
    cluster.wait(500)
    assert bodies(worker.consume("core-req-42")) == [b"x"]
    worker.say(m.BasicAck(1))
    cluster.wait(2500)
    assert groups(cluster) == {"42": ("unbound", False)}
    cluster.order(c.PausePool(vhost="/", name="core"))
    cluster.wait(100)
    client.publish("core", "42", b"1")
    client.publish("core", "42", b"2", expiration="1000")
    cluster.wait(3000)
    cluster.order(c.PausePool(vhost="/", name="core", paused=False))
    cluster.wait(500)
    assert bodies(worker.hear()) == [b"1"]


def test_what_is_over_when_it_comes_is_not_handed_to_a_worker_that_waits() -> None:
    """It was moved in time, and was under way for long. Nothing but its commit keeps it from the worker then."""
    cluster = Cluster("a", "b", "c")
    declare(cluster, request_ttl_ms=20_000)
    client = confirming(cluster)
    client.declare("answers")
    client.publish("core", "42", b"1", reply_to="answers")
    cluster.wait(500)
    entity = cluster.queue("core-req-42")
    node = cluster[entity.owner].node
    queue = node.queues[entity.queue_id]
    assert isinstance(queue, GroupQueue)
    message = queue.ring.message(1)
    assert message is not None
    worker = survivor(cluster)
    assert bodies(worker.consume("core-req-42")) == [b"1"]
    worker.say(m.BasicAck(1))
    cluster.wait(500)
    moved = dead_letter_producer(cluster.queue("core-orphan").queue_id)
    came = [taken_at(message, node.now_ms - age_ms) for age_ms in (20_500, 19_500)]
    queue.publish_numbered(moved, (7, 8), came, None, node.now_ms)
    cluster.wait(300)
    assert bodies(worker.hear()) == [b"1"]
    (answer,) = [one for one in client.consume("answers") if isinstance(one, Content)]
    assert answer.properties.headers is not None
    assert answer.properties.headers["x-status"] == b"expired"
