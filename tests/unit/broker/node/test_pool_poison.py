"""Requests with which workers are lost: the inventory has what workers die of, and not what they reject."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.pool_entities import PoolSettings
from tests.unit.broker.fronts.amqp091.harness import Client, Content, World
from tests.unit.broker.fronts.amqp10.harness import Peer
from tests.unit.broker.fronts.amqp10.test_passing_over import selector
from tests.unit.broker.node.node_cluster import Cluster

LIMIT = 2


class Broker:
    """One node or three, with a pool and a caller."""

    def __init__(self, nodes: int) -> None:
        self.world: Any = World() if nodes == 1 else Cluster("a", "b", "c")
        settings = PoolSettings(delivery_limit=LIMIT, process_timeout_ms=1000)
        self.sites = [self.world] if nodes == 1 else [self.world[name] for name in self.world.sites]
        order = self.world.command if nodes == 1 else self.world.order
        order(c.DeclarePool(vhost="/", name="core", settings=settings))
        self.settle()
        self.caller = self.sites[0].client()
        self.caller.declare("answers")
        self.settle()

    def settle(self, time_ms: int = 500) -> None:
        self.world.wait(time_ms)

    def call(self, body: bytes = b"x", **about: Any) -> None:
        self.caller.publish("core", "42", body, reply_to="answers", correlation_id="c", **about)
        self.settle()

    def taken(self, at: int = -1, queue: str = "core-req-42") -> tuple[Client, list[Content]]:
        worker = self.sites[at].client()
        heard = worker.say(m.BasicConsume(queue=queue, consumer_tag="w"))
        self.settle(200)
        return worker, [one for one in (*heard, *worker.hear()) if isinstance(one, Content)]

    def read(self, queue: str) -> list[Content]:
        client, found = self.taken(0, queue)
        client.say(m.BasicAck(0, True))
        client.leave()
        self.settle()
        return found


@pytest.fixture(params=[1, 3], ids=["alone", "three"])
def broker(request: pytest.FixtureRequest) -> Broker:
    return Broker(request.param)


def test_what_workers_die_of_is_kept(broker: Broker) -> None:
    broker.call(b"bad", headers={"own": 1}, message_id="m", priority=3)
    workers = []
    for at in range(LIMIT + 1):
        worker, got = broker.taken(at % len(broker.sites))
        assert [one.body for one in got] == [b"bad"]
        workers.append(worker.connection.id)
        worker.leave()
        broker.settle()
    (kept,) = broker.read("core-poison")
    assert (kept.body, kept.properties.message_id, kept.properties.priority) == (b"bad", "m", 3)
    assert (kept.properties.reply_to, kept.method.exchange, kept.method.routing_key) == ("answers", "core", "42")
    headers = kept.properties.headers or {}
    assert sorted(headers) == ["own", "x-poison"]
    assert sorted(headers["x-poison"]["workers"]) == sorted(workers)
    assert all("connection" in how for how in headers["x-poison"]["workers"].values())
    (answer,) = broker.read("answers")
    assert (answer.properties.headers or {})["x-status"] == b"delivery_limit"


@pytest.mark.parametrize("last", ["first", "last", "all"])
def test_what_workers_reject_in_the_end_is_not(broker: Broker, last: str) -> None:
    broker.call(b"bad")
    for nth in range(LIMIT + 1):
        worker, got = broker.taken()
        if last == "all" or (nth == LIMIT) is (last == "last"):
            worker.say(m.BasicCancel("w"))
            worker.say(m.BasicReject(got[0].method.delivery_tag, True))
            broker.settle()
        worker.leave()
        broker.settle()
    assert len(broker.read("core-poison")) == (last == "first")
    assert len(broker.read("answers")) == 1


def test_who_holds_for_too_long_was_lost_too() -> None:
    broker = Broker(1)
    broker.call(b"bad")
    for _ in range(LIMIT + 1):
        worker, got = broker.taken()
        assert got
        broker.settle(2000)
        worker.leave()
        broker.settle()
    (kept,) = broker.read("core-poison")
    assert "too long" in str(kept.properties.headers)


def test_by_amqp_1_0_alike(broker: Broker) -> None:
    broker.call(b"bad")
    for _ in range(LIMIT + 1):
        peer = Peer(broker.sites[-1]).enter()
        receiver = peer.receiver("r", "/queues/core-req-42", credit=10)
        broker.settle()
        assert receiver.bodies() == [b"bad"]
        peer.leave()
        broker.settle()
    assert len(broker.read("core-poison")) == 1


@pytest.mark.parametrize("queue", ["answers", "core-activity"])
def test_a_queue_of_no_requests_has_no_marks(broker: Broker, queue: str) -> None:
    broker.caller.publish("", queue, b"x")
    broker.settle()
    worker, _ = broker.taken(queue=queue)
    worker.leave()
    broker.settle()
    (again,) = broker.read(queue)
    assert not any(name.startswith("x-l") for name in again.properties.headers or {})


def test_a_replayed_one_begins_anew(broker: Broker) -> None:
    broker.call(b"bad")
    for _ in range(LIMIT + 1):
        worker, _ = broker.taken()
        worker.leave()
        broker.settle()
    (kept,) = broker.read("core-poison")
    broker.caller.publish(kept.method.exchange, kept.method.routing_key, kept.body)
    broker.settle()
    for _ in range(LIMIT):
        worker, got = broker.taken()
        assert [one.body for one in got] == [b"bad"]
        worker.leave()
        broker.settle()
    assert broker.read("core-poison") == []
    assert [one.body for one in broker.read("core-req-42")] == [b"bad"]


def test_the_next_owner_knows_how_a_request_came_back() -> None:
    """The last loss is of the owner before, or a rejection is; the log has both."""
    for rejects in (False, True):
        broker = Broker(3)
        broker.call(b"bad")
        owner = broker.world.queue("core-req-42").owner
        others = [site for site in broker.sites if site.name != owner]
        broker.sites = others
        for nth in range(LIMIT):
            worker, got = broker.taken(nth % 2)
            if rejects and nth == LIMIT - 1:
                worker.say(m.BasicCancel("w"))
                worker.say(m.BasicReject(got[0].method.delivery_tag, True))
            worker.leave()
            broker.settle()
        broker.world.kill(owner)
        broker.settle(8000)
        worker, got = broker.taken()
        assert [one.body for one in got] == [b"bad"]
        message = others[0].node.map.queue("/", "core-req-42")
        assert message is not None
        assert message.owner != owner
        assert (got[0].properties.headers or {})["x-last-return"] == ("rejected" if rejects else "lost")
        worker.leave()
        broker.settle(2000)
        (kept,) = broker.read("core-poison")
        assert len((kept.properties.headers or {})["x-poison"]["workers"]) == LIMIT + (not rejects)


def bodies(got: list[Content]) -> list[bytes]:
    return [one.body for one in got]


def test_suspects_are_handed_out_alone_and_only_the_guilty_one_dies(broker: Broker) -> None:
    """Also after the limit's number of crashes in company, of which none counts."""
    sent = [b"bad", *(b"good%d" % n for n in range(9))]
    for body in sent:
        broker.call(body)
    worker, got = broker.taken()
    assert bodies(got) == sent
    worker.leave()
    broker.settle()
    done: list[bytes] = []
    for _ in range(LIMIT + 1):
        first, got = broker.taken()
        second, others = broker.taken(0)
        assert bodies(got + others) == [b"bad", sent[1 + len(done)]], "one each"
        second.say(m.BasicCancel("w"))
        second.say(m.BasicAck(others[0].method.delivery_tag))
        done += bodies(others)
        first.leave()
        second.leave()
        broker.settle()
    (kept,) = broker.read("core-poison")
    assert kept.body == b"bad"
    (answer,) = broker.read("answers")
    assert (answer.properties.headers or {})["x-status"] == b"delivery_limit"
    left = [body for body in sent[1:] if body not in done]
    worker, got = broker.taken()
    for body in left:
        assert bodies(got) == [body]
        heard = worker.say(m.BasicAck(got[0].method.delivery_tag))
        broker.settle(200)
        got = [one for one in (*heard, *worker.hear()) if isinstance(one, Content)]
    assert got == []
    broker.call(b"a")
    broker.call(b"b")
    assert bodies([one for one in worker.hear() if isinstance(one, Content)]) == [b"a", b"b"], "it is over"


def test_what_workers_reject_is_no_suspect_any_more(broker: Broker) -> None:
    for body in (b"1", b"2", b"3"):
        broker.call(body)
    worker, _ = broker.taken()
    worker.leave()
    broker.settle()
    for _ in range(3):
        worker, got = broker.taken()
        assert len(got) == 1
        worker.say(m.BasicCancel("w"))
        worker.say(m.BasicAck(got[0].method.delivery_tag) if got[0].body != b"3" else m.BasicReject(1, True))
        worker.leave()
        broker.settle()
    broker.call(b"4")
    assert bodies(broker.taken()[1]) == [b"3", b"4"]


def test_the_next_owner_knows_suspects() -> None:
    broker = Broker(3)
    for body in (b"1", b"2"):
        broker.call(body)
    owner = broker.world.queue("core-req-42").owner
    broker.sites = [site for site in broker.sites if site.name != owner]
    worker, got = broker.taken()
    assert bodies(got) == [b"1", b"2"]
    worker.leave()
    broker.settle()
    broker.world.kill(owner)
    broker.settle(8000)
    worker, got = broker.taken()
    assert bodies(got) == [b"1"]
    heard = worker.say(m.BasicAck(got[0].method.delivery_tag))
    broker.settle(200)
    assert bodies([one for one in (*heard, *worker.hear()) if isinstance(one, Content)]) == [b"2"]


def test_by_amqp_1_0_suspects_come_alone_too(broker: Broker) -> None:
    for body in (b"1", b"2"):
        broker.call(body)
    peer = Peer(broker.sites[-1]).enter()
    receiver = peer.receiver("r", "/queues/core-req-42", credit=10)
    broker.settle()
    assert receiver.bodies() == [b"1", b"2"]
    peer.leave()
    broker.settle()
    again = Peer(broker.sites[-1]).enter().receiver("r", "/queues/core-req-42", credit=10)
    broker.settle()
    assert again.bodies() == [b"1"]


def suspected(broker: Broker, *sent: bytes) -> None:
    """These requests wait, and a worker was lost with all of them."""
    for body in sent:
        broker.call(body)
    worker, got = broker.taken()
    assert bodies(got) == list(sent)
    worker.leave()
    broker.settle()


def test_a_worker_of_two_consumers_ends_too(broker: Broker) -> None:
    """It holds two requests whatever is handed out alone: these count, or it would be lost again and again."""
    suspected(broker, b"1", b"2")
    for _ in range(LIMIT + 1):
        assert broker.read("core-poison") == []
        worker = broker.sites[-1].client()
        for tag in ("v", "w"):
            worker.say(m.BasicConsume(queue="core-req-42", consumer_tag=tag))
        broker.settle()
        worker.leave()
        broker.settle()
    assert bodies(broker.read("core-poison")) == [b"1", b"2"]


def test_who_has_given_a_suspect_back_gets_the_next_one(broker: Broker) -> None:
    suspected(broker, b"1", b"2", b"3")
    (first, one), (second, two), (_, three) = (broker.taken() for _ in range(3))
    assert bodies(one + two + three) == [b"1", b"2", b"3"]
    first.say(m.BasicAck(one[0].method.delivery_tag))
    broker.settle(100)
    second.say(m.BasicReject(two[0].method.delivery_tag, True))
    broker.settle(100)
    assert bodies([got for got in first.hear() if isinstance(got, Content)]) == [b"2"]
    broker.call(b"4")
    assert bodies([got for got in second.hear() if isinstance(got, Content)]) == [b"4"]


def test_who_passes_suspects_over_holds_up_nobody(broker: Broker) -> None:
    suspected(broker, b"1", b"2")
    choosy = Peer(broker.sites[-1]).enter().receiver("r", "/queues/core-req-42", credit=10, filter=selector("n = 3"))
    broker.settle()
    assert choosy.bodies() == []
    assert bodies([*broker.taken()[1], *broker.taken()[1]]) == [b"1", b"2"]
