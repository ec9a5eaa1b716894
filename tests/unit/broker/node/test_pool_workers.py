"""Workers that a pool has started: sign-in, rights, and the fence, at one node and at three, by either protocol."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.node.core import Node
from clusterbroker.broker.pools.credentials import WorkerKey, user_of
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp10.errors import UNAUTHORIZED
from clusterbroker.broker.wire.amqp10.performatives import (
    Attach,
    Close,
    Detach,
    Disposition,
    Open,
    Rejected,
    SaslInit,
    SaslOutcome,
)
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.pool_commands import Ended
from clusterbroker.cluster.wiring.pool_entities import NO_KEY, Launch, MoreSettings, PoolSettings
from tests.support.amqp10 import HEADER, SASL_HEADER, frame
from tests.unit.broker.fronts.amqp091.harness import Client, Content, World, bodies
from tests.unit.broker.fronts.amqp10.harness import BEGIN, Peer
from tests.unit.broker.fronts.amqp10.harness import bodies as performatives
from tests.unit.broker.node.node_cluster import Cluster

KEY = WorkerKey(b"k" * 32)


class Broker:
    """One node or three, with a pool and a launch of its key 42, or of none if its workers serve several."""

    def __init__(self, nodes: int, **declared: Any) -> None:
        self.alone = World() if nodes == 1 else None
        self.cluster = Cluster("a", "b", "c") if nodes == 3 else None
        self.order(c.DeclarePool(vhost="/", name="core", **declared))
        for site in self.sites:
            site.node.pools.key = KEY
        caller = self.caller = self.sites[0].client()
        caller.ask(m.ConfirmSelect())
        for queue in ("answers", "others"):
            caller.declare(queue)
        self.settle()
        self.call(b"1")
        self.call(b"other", key="7")
        self.launch = self.launched(NO_KEY if "keys_per_worker" in declared else "42")

    @property
    def sites(self) -> list[Any]:
        return [self.alone] if self.cluster is None else [self.cluster[name] for name in self.cluster.sites]

    @property
    def node(self) -> Node:
        node: Node = self.sites[-1].node
        return node

    def order(self, command: Any) -> Any:
        if self.alone is not None:
            return self.alone.command(command).result
        assert self.cluster is not None
        found = self.cluster.order(command)
        self.settle()
        return found

    def settle(self) -> None:
        if self.alone is not None:
            self.alone.turn()
        else:
            assert self.cluster is not None
            self.cluster.wait(500)

    def launched(self, key: str) -> Launch:
        (pool,) = self.node.map.pools.all()
        epoch = self.node.map.queue_by_id(pool.orphans).epoch  # type: ignore[union-attr]
        before = {launch.launch_id for launch in self.node.map.pools.launches(pool.pool_id)}
        self.order(c.LaunchWorkers(pool_id=pool.pool_id, epoch=epoch, workers=((key, "a", "v"),)))
        (made,) = [one for one in self.node.map.pools.launches(pool.pool_id) if one.launch_id not in before]
        return made

    def revoke(self, launch: Launch) -> None:
        (pool,) = self.node.map.pools.all()
        epoch = self.node.map.queue_by_id(pool.orphans).epoch  # type: ignore[union-attr]
        self.order(c.RevokeWorkers(pool_id=pool.pool_id, epoch=epoch, launches=(launch.launch_id,), why="a test"))

    def call(self, body: bytes, key: str = "42", reply_to: str = "answers") -> None:
        self.caller.publish("core", key, body, reply_to=reply_to, correlation_id="c")
        self.settle()

    def worker(self, at: int = -1, launch: Launch | None = None) -> Client:
        site = self.sites[at]
        user = user_of((launch or self.launch).launch_id)
        site.passwords[user] = KEY.password((launch or self.launch).launch_id).encode()
        client: Client = site.client(user)
        return client

    def said(self, queue: str) -> list[bytes]:
        client = self.sites[0].client()
        heard = client.consume(queue)
        self.settle()
        found = bodies(heard + client.hear())
        client.say(m.BasicAck(0, True))
        client.leave()
        self.settle()
        return found


@pytest.fixture(params=[1, 3], ids=["alone", "three"])
def broker(request: pytest.FixtureRequest) -> Broker:
    return Broker(request.param)


def test_it_signs_in_at_any_node_and_answers_what_it_holds(broker: Broker) -> None:
    for at in range(len(broker.sites)):
        worker = broker.worker(at)
        worker.ask(m.ConfirmSelect())
        heard = worker.consume("core-req-42")
        broker.settle()
        (got,) = [one for one in (*heard, *worker.hear()) if isinstance(one, Content)]
        worker.publish("", got.properties.reply_to or "", b"done", correlation_id="c")
        broker.settle()
        worker.say(m.BasicAck(got.method.delivery_tag))
        broker.settle()
        assert broker.said("answers") == [b"done"]
        worker.leave()
        broker.call(b"again")


def test_another_password_or_launch_is_refused(broker: Broker) -> None:
    site = broker.sites[-1]
    for user, password in (
        (user_of(broker.launch.launch_id), b"wrong"), (user_of(broker.launch.launch_id), b""),
        (user_of("w99999-0"), KEY.password("w99999-0").encode()),
        (user_of("w99999-0"), KEY.password(broker.launch.launch_id).encode()),
    ):  # fmt: skip
        site.passwords[user] = password
        with pytest.raises((AssertionError, ValueError)):
            site.client(user)
    assert all(password not in repr(site.story.refusals).encode() for password in site.passwords.values() if password)


@pytest.mark.parametrize("queue", ["core-req-7", "core-poison", "core-activity", "answers", "core-orphan"])
def test_it_reads_its_own_queue_alone(broker: Broker, queue: str) -> None:
    worker = broker.worker()
    assert worker.code(m.BasicConsume(queue=queue)) == 403
    for number, method in enumerate(
        (m.BasicGet(queue=queue), m.QueuePurge(queue=queue), m.QueueDelete(queue=queue)), 2
    ):
        worker.ask(m.ChannelOpen(), number)
        assert worker.code(method, number) == 403


def test_it_makes_and_binds_nothing(broker: Broker) -> None:
    worker = broker.worker()
    for number, method in enumerate(
        (
            m.QueueDeclare(queue="mine"), m.QueueDeclare(queue="core-req-42", durable=True, arguments={"x-a": 1}),
            m.ExchangeDeclare(exchange="mine"), m.QueueBind(queue="answers", exchange="amq.fanout"),
            m.QueueBind(queue="core-req-42", exchange="core-activity-xchg"), m.QueueDeclare(queue="", exclusive=True),
            m.QueuePurge(queue="core-req-42"),
        ),
        2,
    ):  # fmt: skip
        worker.ask(m.ChannelOpen(), number)
        assert worker.code(method, number) in (403, 406)


def refused(broker: Broker, exchange: str, key: str, worker: Client | None = None, **more: Any) -> bool:
    worker = worker or broker.worker()
    heard = worker.publish(exchange, key, b"no", **more)
    broker.settle()
    return [one.reply_code for one in (*heard, *worker.hear()) if isinstance(one, m.ChannelClose)] == [403]


@pytest.mark.parametrize(
    ("exchange", "key"),
    [
        ("core", "42"), ("core-req-xchg", "7"), ("core-dl-xchg", "42"), ("core-orphan-xchg", "42"), ("amq.topic", "x"),
        ("core-delayed", "7"), ("", "core-req-42"), ("", "others"), ("", "answers"), ("amq.lease", "query"),
        ("amq.stream", "query"), ("amq.txn", "open"),
    ],
)  # fmt: skip
def test_it_publishes_nothing_else(broker: Broker, exchange: str, key: str) -> None:
    assert refused(broker, exchange, key)
    assert broker.said("others") == []
    assert broker.said("answers") == []


@pytest.mark.parametrize("exchange", ["core", "core-req-xchg"])
def test_whether_it_may_call_its_pool_is_so_at_once(broker: Broker, exchange: str) -> None:
    worker = broker.worker()
    for number, may in enumerate((False, True, False), 2):
        more = MoreSettings(workers_may_call=may)
        broker.order(c.SetPool(vhost="/", name="core", settings=PoolSettings(), only=("workers_may_call",), more=more))
        worker.ask(m.ChannelOpen(), number)
        heard = worker.publish(exchange, "7", b"asks", channel=number)
        broker.settle()
        closed = [one for one in (*heard, *worker.hear(number)) if isinstance(one, m.ChannelClose)]
        assert [one.reply_code for one in closed] == ([] if may else [403])


def test_a_reply_address_is_open_while_its_request_is_held(broker: Broker) -> None:
    worker = broker.worker()
    worker.ask(m.BasicQos(prefetch_count=1))
    heard = worker.consume("core-req-42")
    broker.settle()
    (got,) = [one for one in (*heard, *worker.hear()) if isinstance(one, Content)]
    worker.publish("", "answers", b"part")
    worker.ask(m.ChannelOpen(), 2)
    worker.publish("", "answers", b"whole", channel=2)
    worker.say(m.BasicAck(got.method.delivery_tag))
    broker.settle()
    assert broker.said("answers") == [b"part", b"whole"]
    assert refused(broker, "", "answers", worker)
    assert broker.said("answers") == []


def test_an_address_that_its_caller_may_not_use_takes_no_answer(broker: Broker) -> None:
    """A request that came as another queue's dead letter: anybody may have written its address. That is no mistake of
    the worker's: its channel stays, and so does what it holds."""
    arguments = {"x-dead-letter-exchange": "core", "x-dead-letter-routing-key": "42"}
    broker.caller.say(m.QueueDeclare(queue="via", arguments=arguments))
    broker.settle()
    broker.caller.publish("", "via", b"forged", reply_to="victim", correlation_id="c")
    broker.caller.say(m.QueueDeclare(queue="victim"))
    broker.settle()
    broker.caller.consume("via")
    broker.settle()
    (dying,) = [one for one in broker.caller.hear() if isinstance(one, Content)] or [None]
    broker.caller.say(m.BasicReject(dying.method.delivery_tag if dying else 1, requeue=False))
    broker.settle()
    worker = broker.worker()
    worker.ask(m.ConfirmSelect())
    heard = worker.consume("core-req-42")
    broker.settle()
    got = [one for one in (*heard, *worker.hear()) if isinstance(one, Content)]
    assert "victim" in [one.properties.reply_to for one in got]
    for more in ({}, {"headers": {"a": 1}}, {"reply_to": "answers"}):
        heard = worker.publish("", "victim", b"no", **more)
        broker.settle()
        assert [type(one) for one in (*heard, *worker.hear())] == [m.BasicAck]
    assert broker.said("victim") == []
    assert refused(broker, "", "elsewhere", worker)


def test_copies_of_an_answer_go_nowhere_else(broker: Broker) -> None:
    worker = broker.worker()
    worker.consume("core-req-42")
    broker.settle()
    worker.hear()
    assert refused(broker, "", "answers", worker, headers={"CC": ["others"]})
    assert broker.said("others") == []


def test_a_single_message_opens_its_reply_address_as_well(broker: Broker) -> None:
    worker = broker.worker()
    worker.say(m.BasicGet(queue="core-req-42"))
    broker.settle()
    (got,) = [one for one in worker.hear() if isinstance(one, Content)] or [None]
    worker.publish("", "answers", b"done")
    broker.settle()
    assert broker.said("answers") == [b"done"]
    assert got is None or got.body == b"1"


def test_it_reports_and_puts_off_its_own_requests(broker: Broker) -> None:
    worker = broker.worker()
    worker.publish("core-activity-xchg", "42", headers={"x-event": "started"})
    worker.publish("core-delayed", "42", b"later", headers={"x-delay": 1000})
    broker.settle()
    assert worker.hear() == []
    assert broker.said("core-activity") == [b""]


@pytest.mark.parametrize("mark", ["revoked", "gone"])
def test_revoking_ends_it_at_every_node_and_returns_what_it_holds(broker: Broker, mark: str) -> None:
    workers = [broker.worker(at) for at in range(len(broker.sites))]
    heard = workers[-1].consume("core-req-42")
    broker.settle()
    assert [one.body for one in (*heard, *workers[-1].hear()) if isinstance(one, Content)] == [b"1"]
    if mark == "revoked":
        broker.revoke(broker.launch)
    else:
        place = broker.sites[0].node  # the launch's
        broker.order(
            c.WorkersGone(
                node=place.options.name, incarnation=place.options.incarnation,
                ended=(Ended(broker.launch.launch_id, 1),),
            )
        )  # fmt: skip
    broker.settle()
    for worker in workers:
        (closed,) = worker.hear(0)
        assert closed.reply_code == 320
        assert broker.launch.launch_id in closed.reply_text
    assert broker.said("core-req-42") == [b"1"]
    for at in range(len(broker.sites)):
        with pytest.raises((AssertionError, ValueError)):
            broker.worker(at)


def test_revoking_ends_one_that_has_not_entered_yet(broker: Broker) -> None:
    site = broker.sites[-1]
    user = user_of(broker.launch.launch_id)
    site.passwords[user] = KEY.password(broker.launch.launch_id).encode()
    worker = Client(site)
    worker.raw(b"AMQP\0\0\x09\x01")
    worker.raw_method(0, m.ConnectionStartOk({}, "PLAIN", worker.plain(user)))
    worker.raw_method(0, m.ConnectionTuneOk(2047, 131072, 0))
    broker.settle()
    assert [type(one) for one in worker.hear(0)] == [m.ConnectionStart, m.ConnectionTune]
    broker.revoke(broker.launch)
    worker.raw_method(0, m.ConnectionOpen("/"))
    broker.settle()
    (closed,) = worker.hear(0)
    assert isinstance(closed, m.ConnectionClose)


def test_what_a_revoked_worker_still_says_is_void(broker: Broker) -> None:
    worker = broker.worker()
    heard = worker.consume("core-req-42")
    broker.settle()
    (got,) = [one for one in (*heard, *worker.hear()) if isinstance(one, Content)]
    broker.revoke(broker.launch)
    worker.publish("", "answers", b"late")
    worker.say(m.BasicAck(got.method.delivery_tag))
    broker.settle()
    assert broker.said("answers") == []
    assert broker.said("core-req-42") == [b"1"]


def test_another_worker_of_the_key_goes_on(broker: Broker) -> None:
    other = broker.launched("42")
    stays = broker.worker(launch=other)
    broker.revoke(broker.launch)
    stays.consume("core-req-42")
    assert stays.ended is None


def test_the_same_by_amqp_1_0(broker: Broker) -> None:
    site = broker.sites[-1]
    user = user_of(broker.launch.launch_id)
    site.passwords[user] = KEY.password(broker.launch.launch_id).encode()
    peer = Peer(site)
    secret = f"\0{user}\0{KEY.password(broker.launch.launch_id)}".encode()
    login10(peer, secret)
    receiver = peer.receiver("r", "/queues/core-req-42", credit=10)
    broker.settle()
    (got,) = receiver.take()
    assert got[1].body == b"1"
    answers = peer.sender("answers", "/queues/answers")
    assert states(answers.send(b"done"), broker, peer)[0] is not Rejected
    assert refuses(peer, "others", broker)
    assert any(isinstance(one.body, Detach) for one in peer.receiver("no", "/queues/core-req-7").attached)
    assert broker.said("answers") == [b"done"]
    assert broker.said("others") == []
    broker.revoke(broker.launch)
    (closed,) = performatives(peer.raw(b""), Close)
    assert closed.error.condition == UNAUTHORIZED
    assert broker.said("core-req-42") == [b"1"]
    late = Peer(site)
    init = sasl(secret)
    heard = late.raw(SASL_HEADER + init)
    assert [one.code for one in performatives(heard, SaslOutcome)] != [0]


def sasl(secret: bytes) -> bytes:
    return frame(0, SaslInit(mechanism="PLAIN", initial_response=secret), kind=1)


def login10(peer: Peer, secret: bytes) -> None:
    heard = peer.raw(SASL_HEADER + sasl(secret))
    assert heard[-1].body == SaslOutcome(code=0), heard
    peer.raw(HEADER + frame(0, Open(container_id="w")) + frame(0, BEGIN))


def states(heard: list[Any], broker: Broker, peer: Peer) -> list[type]:
    broker.settle()
    heard = heard + peer.raw(b"")
    return [type(one.state) for one in performatives(heard, Disposition)]


def refuses(peer: Peer, queue: str, broker: Broker) -> bool:
    sender = peer.sender(queue, f"/queues/{queue}")
    heard = [*sender.attached, *sender.send(b"no")]
    broker.settle()
    heard += peer.raw(b"")
    ended = performatives(heard, Detach) + performatives(heard, Close)
    assert performatives(heard, Attach)
    return bool(ended) or Rejected in [type(one.state) for one in performatives(heard, Disposition)]
