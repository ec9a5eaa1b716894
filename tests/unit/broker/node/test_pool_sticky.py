"""Sticky requests: who gets those that are meant for one worker, at one node and at three."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.content.selector.filters import Filter
from clusterbroker.broker.pools.sticky import KEPT_MAX, KEPT_MS
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.pool_entities import Launch, PoolSettings
from tests.unit.broker.fronts.amqp091.harness import Client, Content
from tests.unit.broker.fronts.amqp10.harness import Peer
from tests.unit.broker.fronts.amqp10.test_passing_over import selector
from tests.unit.broker.node.test_pool_workers import Broker

QUEUE = "core-req-42"


class Shop(Broker):
    """Two workers of one key, at different nodes if there are several, each with room for some requests."""

    def __init__(self, nodes: int, room: int = 1, **declared: Any) -> None:
        super().__init__(nodes, **declared)
        self.launches = [self.launch, self.launched("42")]
        self.workers = [self.comes(at, room) for at in range(2)]
        first = [one for worker in self.workers for one in self.heard(worker)]
        assert [one.body for one in first] == [b"1"]
        for worker in self.workers:
            self.settles(worker)

    def settle(self) -> None:
        """So long that what is kept is not anybody's meanwhile."""
        if self.cluster is None:
            super().settle()
        else:
            self.cluster.wait(200 if hasattr(self, "workers") else 500)

    def comes(self, at: int, room: int) -> Client:
        worker = self.worker(-at % len(self.sites), self.launches[at])
        worker.say(m.BasicQos(0, room, False))
        self.early = worker.say(m.BasicConsume(queue=QUEUE, consumer_tag="w"))
        self.settle()
        worker.early = [one for one in self.early if isinstance(one, Content)]  # type: ignore[attr-defined]
        return worker

    def ask(self, body: bytes, worker: int | str, **about: Any) -> None:
        named = self.launches[worker].launch_id if isinstance(worker, int) else worker
        self.caller.publish("core", "42", body, headers={"x-sticky": named}, reply_to="answers", **about)
        self.settle()

    def heard(self, worker: Client) -> list[Content]:
        early, worker.early = worker.early, []  # type: ignore[attr-defined]
        return [*early, *(one for one in worker.hear() if isinstance(one, Content))]

    def took(self) -> list[list[bytes]]:
        return [[one.body for one in self.heard(worker)] for worker in self.workers]

    def settles(self, worker: Client) -> None:
        heard = worker.say(m.BasicAck(0, True))
        worker.early += [one for one in heard if isinstance(one, Content)]  # type: ignore[attr-defined]
        self.settle()

    def passes(self, time_ms: int) -> None:
        (self.alone or self.cluster).wait(time_ms)  # type: ignore[union-attr]

    def retires(self, launch: Launch) -> None:
        (pool,) = self.node.map.pools.all()
        epoch = self.node.map.queue_by_id(pool.orphans).epoch  # type: ignore[union-attr]
        self.order(c.RetireWorkers(pool_id=pool.pool_id, epoch=epoch, launches=(launch.launch_id,), why="a test"))


@pytest.fixture(params=[1, 3], ids=["alone", "three"])
def nodes(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.mark.parametrize("meant", [0, 1])
def test_each_goes_to_the_worker_that_it_means(nodes: int, meant: int) -> None:
    shop = Shop(nodes)
    for nth in range(4):
        shop.ask(b"%d" % nth, meant)
        got = shop.took()
        assert got[meant] == [b"%d" % nth]
        assert got[1 - meant] == []
        shop.settles(shop.workers[meant])


def test_it_waits_for_a_busy_worker_and_others_go_on(nodes: int) -> None:
    shop = Shop(nodes)
    shop.ask(b"busy", 0)
    shop.ask(b"next", 0)
    shop.call(b"other")
    assert shop.took() == [[b"busy"], [b"other"]]
    shop.settles(shop.workers[1])
    assert shop.took() == [[], []], "it is kept"
    shop.settles(shop.workers[0])
    assert shop.took() == [[b"next"], []]


def test_not_for_longer_than_that(nodes: int) -> None:
    shop = Shop(nodes)
    shop.ask(b"busy", 0)
    shop.ask(b"next", 0)
    assert shop.took() == [[b"busy"], []]
    shop.passes(KEPT_MS + 100)
    assert shop.took() == [[], [b"next"]]


def test_its_time_begins_when_another_would_have_got_it() -> None:
    shop = Shop(1)
    shop.ask(b"busy", 0)
    shop.ask(b"too", 1)
    shop.ask(b"next", 0)
    shop.passes(5 * KEPT_MS)
    assert shop.took() == [[b"busy"], [b"too"]]
    shop.settles(shop.workers[1])
    assert shop.took() == [[], []], "the other one has room only now"
    shop.passes(KEPT_MS + 100)
    assert shop.took() == [[], [b"next"]]


@pytest.mark.parametrize("how", ["leaves", "cancels", "retired", "revoked"])
def test_a_worker_that_is_served_no_more_keeps_nothing(nodes: int, how: str) -> None:
    shop = Shop(nodes)
    shop.ask(b"busy", 0)
    shop.ask(b"next", 0)
    assert shop.took() == [[b"busy"], []]
    match how:
        case "leaves":
            shop.workers[0].leave()
        case "cancels":
            shop.workers[0].say(m.BasicCancel("w"))
        case "retired":
            shop.retires(shop.launches[0])
        case _:
            shop.revoke(shop.launches[0])
    shop.settle()
    assert shop.took()[1] in ([b"next"], [b"busy"]), "whichever is first: what was held has returned, or is held still"


@pytest.mark.parametrize("named", ["", "w1-99", "\0", "nobody"])
def test_who_names_nobody_is_served_by_anybody(nodes: int, named: str) -> None:
    shop = Shop(nodes)
    shop.ask(b"a", named)
    shop.ask(b"b", named)
    assert sorted(body for some in shop.took() for body in some) == [b"a", b"b"]


@pytest.mark.parametrize("value", [7, {"a": 1}, [1], None, b"\xff", True])
def test_a_name_that_is_none_names_nobody(value: Any) -> None:
    shop = Shop(1)
    for body in (b"a", b"b"):
        shop.caller.publish("core", "42", body, headers={"x-sticky": value})
        shop.settle()
    assert sorted(body for some in shop.took() for body in some) == [b"a", b"b"]


def test_one_that_returns_is_anybodys() -> None:
    shop = Shop(1)
    shop.ask(b"a", 0)
    assert shop.took() == [[b"a"], []]
    shop.workers[0].say(m.BasicCancel("w"))
    shop.workers[0].say(m.BasicNack(0, True, True))
    shop.settle()
    assert shop.took() == [[], [b"a"]]


def test_one_that_expires_meanwhile_is_answered(nodes: int) -> None:
    shop = Shop(nodes)
    shop.ask(b"busy", 0)
    shop.ask(b"next", 0, expiration="300")
    shop.passes(600)
    assert shop.took() == [[b"busy"], []]
    shop.passes(KEPT_MS)
    assert shop.took() == [[], []]
    assert shop.said("answers") == [b""]


def test_of_very_many_some_are_kept() -> None:
    shop = Shop(1)
    shop.ask(b"busy", 0)
    for _ in range(KEPT_MAX):
        shop.ask(b"kept", 0)
    assert shop.took() == [[b"busy"], []]
    shop.ask(b"more", 0)
    assert shop.took() == [[], [b"more"]]


def test_by_amqp_1_0_alike(nodes: int) -> None:
    shop = Shop(nodes)
    peer = Peer(shop.sites[0]).enter()
    sender = peer.sender("s", "/exchanges/core/42")
    for nth in range(3):
        sender.send(b"%d" % nth, application={"x-sticky": shop.launches[1].launch_id})
        shop.settle()
        assert shop.took() == [[], [b"%d" % nth]]
        shop.settles(shop.workers[1])


def test_suspects_are_tried_alone_all_the_same() -> None:
    shop = Shop(1, room=2, settings=PoolSettings(delivery_limit=3))
    shop.ask(b"a", 0)
    shop.ask(b"b", 0)
    assert shop.took() == [[b"a", b"b"], []]
    shop.workers[0].leave()
    shop.settle()
    assert shop.took()[1] == [b"a"], "one at a time"
    shop.settles(shop.workers[1])
    assert shop.took()[1] == [b"b"]


def test_suspects_that_return_are_shown_to_all() -> None:
    """Also to those that walk the queue for what is kept."""
    shop = Shop(1, room=2, settings=PoolSettings(delivery_limit=3))
    shop.launches.append(shop.launched("42"))
    shop.workers.append(shop.comes(2, 2))
    shop.ask(b"a", 0)
    shop.ask(b"b", 0)
    for worker in (1, 1, 2, 2):
        shop.ask(b"held", worker)
    shop.ask(b"kept", 1)
    assert shop.took() == [[b"a", b"b"], [b"held"] * 2, [b"held"] * 2]
    shop.workers[0].leave()
    shop.settle()
    for at in (1, 2):
        shop.workers[at].early += [one for one in shop.workers[at].say(m.BasicAck(0, True)) if isinstance(one, Content)]
    shop.settle()
    assert shop.took()[1:] == [[b"a"], [b"b"]]


@pytest.mark.parametrize("why", ["halted", "nobody"])
def test_what_nobody_can_have_wakes_nobody(why: str) -> None:
    shop = Shop(1)
    shop.ask(b"busy", 0)
    shop.ask(b"next", 0)
    assert shop.alone is not None
    queue = shop.alone.node.vhosts["/"].queues[QUEUE]
    if why == "halted":
        queue.halted = True
    else:
        for launch in shop.launches:
            shop.retires(launch)
    shop.passes(2 * KEPT_MS)
    turns = 0
    serve = queue._serve

    def counted(now_ms: int) -> None:
        nonlocal turns
        turns += 1
        serve(now_ms)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(queue), "_serve", lambda _, now_ms: counted(now_ms))
        shop.passes(KEPT_MS)
    assert turns < 20


def test_what_is_known_of_them_goes_with_them() -> None:
    """One that stays until its time is over keeps nothing of those behind it."""
    shop = Shop(1)
    shop.ask(b"busy", 0)
    shop.ask(b"next", 0)
    for nth in range(50):
        shop.ask(b"%d" % nth, 1)
        assert shop.took()[1] == [b"%d" % nth]
        shop.settles(shop.workers[1])
    assert shop.alone is not None
    selecting = shop.alone.node.vhosts["/"].queues[QUEUE].dispatch.selecting
    assert len(selecting._kept) == len(selecting._passed) == 1


@pytest.mark.parametrize("left", [KEPT_MS * 2, 0])
def test_afterwards_nobody_walks(nodes: int, left: int) -> None:
    shop = Shop(nodes)
    for _ in range(3):
        shop.ask(b"busy", 0)
    shop.passes(left)
    for _ in range(3):
        for worker in shop.workers:
            shop.settles(worker)
    shop.settle()
    (queue,) = [
        found for site in shop.sites for found in site.node.queues.values() if found.name == QUEUE and not found.paused
    ]
    assert not queue.ring.ready
    assert not queue.subscriptions.selects
    assert all(credit.selection is None for credit in queue.subscriptions.credits)


def test_a_filter_goes_on_where_it_is() -> None:
    """What it has passed over is not judged anew for each request that is kept."""
    shop = Shop(1)
    for worker in shop.workers:
        worker.leave()
    shop.settle()
    peer = Peer(shop.sites[0]).enter()
    receiver = peer.receiver("r", f"/queues/{QUEUE}", credit=100, filter=selector("kind = 'fast'"))
    for _ in range(30):
        shop.caller.publish("core", "42", b"slow", headers={"kind": "slow"})
    worker = shop.comes(1, 1)
    shop.workers = [worker]
    shop.settle()
    judged: list[bytes] = []
    takes = Filter.takes

    def counted(self: Filter, subject: Any) -> bool:
        judged.append(subject.message.body)
        return takes(self, subject)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Filter, "takes", counted)
        for _ in range(5):
            shop.ask(b"kept", 1)
            shop.passes(2 * KEPT_MS)
    assert receiver.bodies() == []
    assert judged.count(b"slow") <= 30
    assert judged.count(b"kept") <= 2 * 5


@pytest.mark.parametrize("late_ms", [-2000, 2000])
def test_its_time_begins_by_the_clock_of_its_owner(late_ms: int) -> None:
    """As of any request, also by a transaction at another node."""
    shop = Shop(3)
    shop.ask(b"busy", 0)
    shop.ask(b"too", 1)
    assert shop.took() == [[b"busy"], [b"too"]]
    assert shop.cluster is not None
    cluster = shop.cluster
    other = next(site for site in shop.sites if site.name != cluster.queue(QUEUE).owner)

    class Skewed(type(other)):  # type: ignore[misc]
        now_ms = property(lambda _: cluster.now_ms + late_ms, lambda *_: None)

    other.__class__ = Skewed
    client = other.client()
    client.ask(m.TxSelect())
    client.publish("core", "42", b"x", headers={"x-sticky": "nobody"}, reply_to="answers", expiration="1000")
    client.say(m.TxCommit())
    shop.passes(500)
    assert shop.said("answers") == [], "not yet"
    shop.passes(1000)
    assert shop.said("answers") == [b""]
