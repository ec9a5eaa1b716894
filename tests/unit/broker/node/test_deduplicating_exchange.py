"""Exchanges of type `x-message-deduplication`: one message of each value passes, whoever owns their queue and when."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.delay import delay_queue, due_letters
from clusterbroker.broker.delay.comparing import ComparingQueue
from clusterbroker.broker.delay.delay_queue import READ_MAX
from clusterbroker.broker.queues.effort import TURN, Effort
from clusterbroker.broker.queues.states import DEAD, READY, UNACKED
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp10.types import Milliseconds, Uuid
from clusterbroker.journal.values import Timestamp
from tests.support.amqp10 import message
from tests.unit.broker.fronts.amqp091.harness import Client, World, bodies
from tests.unit.broker.fronts.amqp10.harness import Peer
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.shapes import topics

HEADER, TTL = "x-deduplication-header", "x-cache-ttl"
CACHE = "amq.deduplication.x"


def declare(client: Client, name: str = "x", size: int = 100, **arguments: Any) -> None:
    said = {"x-cache-size": size, **{key.replace("_", "-"): value for key, value in arguments.items()}}
    client.ask(m.ExchangeDeclare(0, name, "x-message-deduplication", durable=True, arguments=said))


def wire(client: Client, *queues: str, **arguments: Any) -> None:
    declare(client, **arguments)
    for queue in queues or ("q",):
        client.declare(queue)
        client.ask(m.QueueBind(0, queue, "x", "any"))
    client.ask(m.ConfirmSelect())


def publish(client: Client, body: bytes, value: Any, exchange: str = "x", **more: Any) -> list[Any]:
    headers = {} if value is None else {HEADER: value}
    return client.publish(exchange, "k", body, headers={**headers, **more})


def taken(client: Client, queue: str = "q") -> list[bytes]:
    """What the queue has, which is then empty."""
    found = bodies(client.consume(queue, f"of {queue}", no_ack=True))
    client.ask(m.BasicCancel(f"of {queue}"))
    return found


def cache(world: World, name: str = CACHE) -> ComparingQueue:
    queue = world.queue(name)
    assert isinstance(queue, ComparingQueue)
    return queue


def test_the_first_of_each_value_passes_and_all_are_confirmed() -> None:
    world = World()
    client = world.client()
    wire(client, "q", "r")
    for body, value in ((b"1", "a"), (b"2", "b"), (b"3", "a"), (b"4", None), (b"5", None), (b"6", 7), (b"7", "7")):
        heard = publish(client, body, value)
        assert [type(one) for one in heard if isinstance(one, m.BasicAck | m.BasicNack)] == [m.BasicAck]
    assert taken(client) == [b"1", b"2", b"4", b"5", b"6", b"7"] == taken(client, "r")
    counts = world.node.vhosts["/"].counts("x")
    assert (counts.publish_in, counts.drop_repeated) == (7, 1)


def test_it_outlives_consumption_and_keeps_what_the_publisher_wrote() -> None:
    world = World()
    client = world.client()
    wire(client)
    publish(client, b"1", "a", other="h")
    (first,) = [one for one in client.consume("q", no_ack=True) if hasattr(one, "body")]
    assert (first.method.exchange, first.method.routing_key) == ("x", "k")
    assert first.properties.headers == {HEADER: "a", "other": "h"}
    assert bodies(publish(client, b"2", "a")) == []


def test_the_oldest_value_goes_when_there_are_too_many() -> None:
    world = World()
    client = world.client()
    wire(client, size=2)
    for body, value in ((b"1", "a"), (b"2", "b"), (b"3", "c"), (b"4", "a"), (b"5", "c"), (b"6", "b")):
        publish(client, body, value)
    assert taken(client) == [b"1", b"2", b"3", b"4", b"6"]
    assert (cache(world).known, cache(world).ring.ready) == (2, 2)


def test_values_are_known_for_a_time() -> None:
    world = World()
    client = world.client()
    wire(client, x_cache_ttl=1000)
    publish(client, b"1", "a")
    publish(client, b"2", "b", **{TTL: 5000})
    world.wait(900)
    assert [publish(client, body, value) and body for body, value in ((b"3", "a"), (b"4", "b"))]
    world.wait(200)
    publish(client, b"5", "a")
    publish(client, b"6", "b")
    world.wait(4000)
    publish(client, b"7", "b", **{TTL: "9"})
    assert taken(client) == [b"1", b"2", b"5", b"7"]
    world.wait(2000)
    assert cache(world).ring.ready == 0, "and then they are gone"


def test_no_message_expires_before_it_passes() -> None:
    world = World()
    client = world.client()
    wire(client)
    cache(world).halted = True
    client.publish("x", "k", b"1", headers={HEADER: "a"}, expiration="1000")
    world.wait(5000)
    cache(world).halted = False
    cache(world).ring.mark()
    world.turn()
    assert world.queue("q").ready == 1
    world.wait(1500)
    assert taken(client) == []


def test_a_message_may_expire_where_it_passes_to() -> None:
    world = World()
    client = world.client()
    wire(client)
    client.publish("x", "k", b"1", headers={HEADER: "a"}, expiration="1000")
    assert world.queue("q").ready == 1
    world.wait(1500)
    assert taken(client) == []


@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_restart_knows_all_values(checkpoints: bool) -> None:
    world = World()
    client = world.client()
    wire(client)
    for number in range(20):
        publish(client, b"%d" % number, f"v{number}")
    assert len(taken(client)) == 20
    if checkpoints:
        world.checkpoint()
    world.crash()
    client = world.client()
    for number in range(21):
        publish(client, b"again %d" % number, f"v{number}")
    assert taken(client) == [b"again 20"]


@pytest.mark.parametrize("groups", range(7))
def test_a_crash_behind_any_group_loses_none_and_doubles_none(groups: int) -> None:
    """Two of one value and one of another are published; the node dies when so many groups are on the disk."""
    world = World()
    client = world.client()
    wire(client)
    world.disk_waits = True
    heard = []
    for body, value in ((b"1", "a"), (b"2", "a"), (b"3", "b")):
        heard += publish(client, body, value)
    for _ in range(groups):
        if world.group is not None:
            world.commit()
    heard += client.hear()
    confirmed = max((one.delivery_tag for one in heard if isinstance(one, m.BasicAck)), default=0)
    world.crash()
    world.disk_waits = False
    client = world.client()
    got = taken(client)
    assert got[: (0, 1, 1, 2)[confirmed]] == [b"1", b"3"][: (0, 1, 1, 2)[confirmed]]
    for body, value in ((b"1", "a"), (b"2", "a"), (b"3", "b")):
        publish(client, body, value)
    assert got + taken(client) == [b"1", b"3"]


def test_what_comes_while_values_are_read_is_judged_behind_them() -> None:
    world = World()
    client = world.client()
    wire(client)
    for number in range(20):
        publish(client, b"%d" % number, f"v{number}")
    assert len(taken(client)) == 20
    world.checkpoint()
    world.crash()
    world.reads_wait = True
    client = world.client()
    for body, value in ((b"again", "v7"), (b"new", "w"), (b"and again", "w")):
        publish(client, body, value)
    assert taken(client) == [], "nothing passes before all values are known"
    world.reads_wait = False
    world.turn()
    assert taken(client) == [b"new"]


def test_what_a_queue_refuses_is_tried_again() -> None:
    world = World()
    client = world.client()
    wire(client)
    client.declare("full", x_max_length=1, x_overflow="reject-publish")
    client.ask(m.QueueBind(0, "full", "x", ""))
    numbers = [b"%d" % number for number in range(12)]
    for number in numbers:
        publish(client, number, number.decode())
    assert taken(client) == numbers, "others do not wait"
    got = []
    for _ in range(20):
        got += taken(client, "full")
        world.wait(61_000)
    assert sorted(got, key=int) == numbers


def test_a_queue_that_is_full_of_what_has_passed_holds_nothing_up() -> None:
    """One queue has it, and is full again, when the other one has room at last."""
    world = World()
    client = world.client()
    wire(client)
    for queue in ("r", "s"):
        client.declare(queue, x_max_length=1, x_overflow="reject-publish")
        client.ask(m.QueueBind(0, queue, "x", ""))
    client.publish("", "s", b"before")
    publish(client, b"1", "a")
    assert cache(world).ring.ready == 2, "its value, and what s has no room for"
    assert taken(client, "s") == [b"before"]
    world.wait(2000)
    assert cache(world).ring.ready == 1
    assert (taken(client), taken(client, "r"), taken(client, "s")) == ([b"1"],) * 3


def test_all_goes_on_when_a_queue_that_refuses_is_deleted() -> None:
    world = World()
    client = world.client()
    wire(client)
    client.declare("full", x_max_length=0, x_overflow="reject-publish")
    client.ask(m.QueueBind(0, "full", "x", ""))
    numbers = [b"%d" % number for number in range(9)]
    for number in numbers:
        publish(client, number, number.decode())
    assert taken(client) == numbers, "no other queue waits for it"
    assert cache(world).ring.ready == 18
    client.ask(m.QueueDelete(queue="full"))
    world.wait(61_000)
    assert cache(world).ring.ready == 9, "what nobody wants any more leaves, values stay"


@pytest.mark.parametrize("others", [(), ("r",)])
def test_what_waits_for_a_queue_is_no_repeat_after_a_restart(others: tuple[str, ...]) -> None:
    """Its value is known, and it has passed: alone it is what was kept for that queue."""
    world = World()
    client = world.client()
    declare(client)
    client.declare("full", x_max_length=1, x_overflow="reject-publish")
    client.ask(m.ConfirmSelect())
    client.publish("", "full", b"before")
    for queue in ("full", *others):
        client.declare(queue) if queue != "full" else None
        client.ask(m.QueueBind(0, queue, "x", ""))
    for body, value in ((b"1", "a"), (b"2", "a"), (b"3", "b")):
        publish(client, body, value)
    world.checkpoint()
    world.crash()
    client = world.client()
    got = []
    for _ in range(5):
        got += taken(client, "full")
        world.wait(61_000)
    assert got == [b"before", b"1", b"3"]
    for queue in others:
        assert taken(client, queue) == [b"1", b"3"]


@pytest.mark.parametrize("groups", range(1, 7))
def test_a_queue_that_is_full_of_what_it_took_before_a_crash_takes_it_once(groups: int) -> None:
    world = World()
    client = world.client()
    declare(client)
    client.declare("full", x_max_length=1, x_overflow="reject-publish")
    client.ask(m.QueueBind(0, "full", "x", ""))
    client.ask(m.ConfirmSelect())
    world.disk_waits = True
    publish(client, b"1", "a")
    for _ in range(groups):
        if world.group is not None:
            world.commit()
    world.crash()
    world.disk_waits = False
    world.wait(61_000)
    client = world.client()
    publish(client, b"2", "a")
    got = []
    for _ in range(3):
        got += taken(client, "full")
        world.wait(61_000)
    assert got == [b"1"]


def test_what_is_put_back_because_its_exchange_is_not_known_is_no_repeat_of_itself() -> None:
    world = World()
    client = world.client()
    wire(client)
    cache(world).halted = True
    for body, value in ((b"1", "a"), (b"2", "a")):
        publish(client, body, value)
    exchanges = world.node.vhosts["/"].router._exchanges
    its = exchanges.pop("x")
    cache(world).halted = False
    cache(world).ring.mark()
    world.turn()
    assert world.queue("q").ready == 0
    exchanges["x"] = its
    world.wait(2000)
    assert taken(client) == [b"1"]


def test_a_publisher_names_no_queues() -> None:
    world = World()
    client = world.client()
    wire(client, "q", "r")
    for body in (b"1", b"2"):
        publish(client, body, "a", **{"x-delay-to": ["q"]})
    assert taken(client) == [b"1"] == taken(client, "r")


@pytest.mark.parametrize("read", [False, True])
def test_a_turn_decodes_a_part_of_very_long_headers(read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`read`: they are on the disk alone."""
    world = World()
    client = world.client()
    wire(client)
    queue = cache(world)
    queue.halted = True
    much = {f"h{number}": "x" * 100 for number in range(400)}
    for number in range(60):
        publish(client, b"%d" % number, number, **much)
    left: list[int] = []
    decoded = Effort.decoded

    def counted(effort: Effort, header_bytes: int) -> None:
        decoded(effort, header_bytes)
        left.append(effort.left)

    monkeypatch.setattr(Effort, "decoded", counted)
    if read:
        world.checkpoint()
        world.crash()
        client = world.client()
    else:
        queue.halted = False
        queue.ring.mark()
        world.turn()
    assert len(left) >= 60
    assert min(left) > -TURN
    assert taken(client) == [b"%d" % number for number in range(60)]


def test_a_backlog_is_judged_after_a_restart() -> None:
    world = World()
    client = world.client()
    wire(client)
    cache(world).halted = True
    end = READ_MAX + 100
    for first in range(0, end, 100):
        client.publish("x", "k", *[b"%d" % number for number in range(first, first + 100)], headers={HEADER: first})
    publish(client, b"last", 200)
    publish(client, b"new", "n")
    assert taken(client) == []
    world.checkpoint()
    world.crash()
    client = world.client()
    assert taken(client) == [*(b"%d" % first for first in range(0, end, 100)), b"new"]


@pytest.mark.parametrize("commits", range(1, 5))
def test_an_entry_behind_a_repeat_that_was_not_judged_yet_counts(monkeypatch: pytest.MonkeyPatch, commits: int) -> None:
    """The first one has passed and its value is known, behind the second one, when the node dies."""
    monkeypatch.setattr(due_letters, "HELD_MAX", 1)
    monkeypatch.setattr(delay_queue, "READ_MAX", 1)
    world = World()
    client = world.client()
    wire(client)
    world.disk_waits = True
    client.publish("x", "k", b"1", b"2", headers={HEADER: "a"})
    for _ in range(commits):
        if world.group is not None:
            world.commit()
    world.crash()
    world.disk_waits = False
    assert taken(world.client()) == [b"1"]


def test_an_entry_that_is_read_again_keeps_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands among messages that were not judged yet when the node died; the values of those are newer."""
    monkeypatch.setattr(due_letters, "HELD_MAX", 1)
    monkeypatch.setattr(delay_queue, "READ_MAX", 1)
    world = World()
    client = world.client()
    wire(client, size=3)
    world.disk_waits = True
    some = ((b"1", "a"), (b"2", "b"), (b"3", "c"))
    client.raw(b"".join(client.content("x", "k", body, headers={HEADER: value}) for body, value in some))
    world.turn()
    publish(client, b"4", "d")
    assert [state for _, state, *_ in cache(world).ring.living(1, 9, 9)] == [DEAD, UNACKED, UNACKED, READY, READY]
    world.commit()
    world.complete()
    world.crash()
    world.disk_waits = False
    client = world.client()
    assert taken(client) == [b"1", b"2", b"3", b"4"]
    for body, value in ((b"5", "b"), (b"6", "a")):
        publish(client, body, value)
    assert taken(client) == [b"6"]


def test_exchanges_behind_it_route_by_the_message() -> None:
    world = World()
    client = world.client()
    wire(client)
    client.ask(m.ExchangeDeclare(0, "onward", "headers", durable=True))
    client.ask(m.ExchangeBind(0, "onward", "x", ""))
    for queue, match in (("yes", 1), ("no", 2)):
        client.declare(queue)
        client.ask(m.QueueBind(0, queue, "onward", "", arguments={"x-match": "all", "h": match}))
    publish(client, b"1", "a", h=1)
    publish(client, b"2", "a", h=1)
    assert (taken(client, "yes"), taken(client, "no"), taken(client)) == ([b"1"], [], [b"1"])


def test_a_circle_of_two_ends_though_they_forget_at_once() -> None:
    world = World()
    client = world.client()
    for name in ("x", "y"):
        declare(client, name, size=1, x_cache_ttl=1)
        client.declare(f"q{name}")
        client.ask(m.QueueBind(0, f"q{name}", name, ""))
    client.ask(m.ExchangeBind(0, "y", "x", ""))
    client.ask(m.ExchangeBind(0, "x", "y", ""))
    world.disk_waits = True
    publish(client, b"1", "a", BCC=["b"], **{TTL: 1})
    for _ in range(20):  # values are forgotten while the message is on its way
        if world.group is not None:
            world.commit()
        world.wait(10)
    world.disk_waits = False
    world.turn()
    found = [one for name in "xy" for one in client.consume(f"q{name}", name, no_ack=True) if hasattr(one, "body")]
    assert [(one.body, one.properties.headers) for one in found] == [(b"1", {HEADER: "a", TTL: 1})] * 2


def test_without_a_binding_the_alternate_exchange_gets_it_once() -> None:
    world = World()
    client = world.client()
    declare(client, alternate_exchange="amq.fanout")
    client.declare("q")
    client.ask(m.QueueBind(0, "q", "amq.fanout", ""))
    publish(client, b"1", "a")
    publish(client, b"2", "a")
    assert taken(client) == [b"1"]


def test_a_mandatory_message_without_a_queue_is_returned_and_its_value_not_known() -> None:
    world = World()
    client = world.client()
    declare(client)
    heard = client.publish("x", "k", b"1", headers={HEADER: "a"}, mandatory=True)
    assert [one.body for one in heard if isinstance(getattr(one, "method", None), m.BasicReturn)] == [b"1"]
    client.declare("q")
    client.ask(m.QueueBind(0, "q", "x", ""))
    for body in (b"2", b"3"):
        assert not client.publish("x", "k", body, headers={HEADER: "a"}, mandatory=True), "nor is a repeat"
    assert taken(client) == [b"2"]


def test_a_way_that_costs_too_much_leads_nowhere() -> None:
    """By its key it would be refused; what its headers cost is seen behind the exchange."""
    world = World()
    client = world.client()
    topics(world, client)
    declare(client)
    client.ask(m.ExchangeBind(0, "t", "x", ""))
    costly = {HEADER: "a", "CC": [".".join(["a"] * 120)]}
    heard = client.publish("x", "k", b"1", headers=costly, mandatory=True)
    assert [one.body for one in heard if isinstance(getattr(one, "method", None), m.BasicReturn)] == [b"1"]
    sender = world.client()
    sender.ask(m.TxSelect())
    sender.publish("x", "k", b"2", headers=costly, mandatory=True)
    heard = sender.say(m.TxCommit())
    assert [one.body for one in heard if isinstance(getattr(one, "method", None), m.BasicReturn)] == [b"2"]


def test_times_of_other_milliseconds_are_other_values() -> None:
    world = World()
    client = world.client()
    wire(client)
    link = Peer(world).enter().sender("s", "/exchanges/x/k")
    for body, time_ms in ((b"1", 1000), (b"2", 1001), (b"3", 1000)):
        link.send(body, application={HEADER: Milliseconds(time_ms)})
    publish(client, b"4", Timestamp(1))
    assert taken(client) == [b"1", b"2"]


def test_a_message_of_amqp_1_0_passes_two_as_it_was() -> None:
    world = World()
    client = world.client()
    for name in ("x", "y"):
        declare(client, name, size=1, x_cache_ttl=1)
        client.declare(f"q{name}")
        client.ask(m.QueueBind(0, f"q{name}", name, ""))
    client.ask(m.ExchangeBind(0, "y", "x", ""))
    client.ask(m.ExchangeBind(0, "x", "y", ""))
    peer = Peer(world).enter()
    said = {HEADER: Uuid(bytes(16)), "time": Milliseconds(1001), "bytes": b"\0\xff", "none": None}
    raw = message(b"1", annotations={"x-opt-a": "b"}, application=said)
    peer.sender("s", "/exchanges/x/k").transfer(raw)
    for queue in ("qx", "qy"):
        found = [known for _, known in peer.receiver(queue, f"/queues/{queue}", credit=5).take()]
        assert [(known.application, known.raw) for known in found] == [(said, found[0].raw)]
        assert found[0].raw in raw
        assert {str(name) for name in found[0].annotations} == {"x-opt-a", "x-exchange", "x-routing-key"}


def test_a_transaction_and_a_dead_letter_and_a_number_are_messages_as_others() -> None:
    world = World()
    client = world.client()
    wire(client)
    sender = world.client()
    sender.ask(m.TxSelect())
    for body in (b"1", b"2"):
        publish(sender, body, "a")
    assert taken(client) == []
    sender.ask(m.TxCommit())
    assert taken(client) == [b"1"]
    client.declare("dying", x_dead_letter_exchange="x")
    for body in (b"3", b"4"):
        client.publish("", "dying", body, headers={HEADER: "d"})
    other = world.client()
    other.consume("dying")
    other.say(m.BasicReject(1, requeue=False), m.BasicReject(2, requeue=False))
    assert taken(client) == [b"3"]
    for body in (b"5", b"6"):
        publish(client, body, None, **{"x-producer": "p", "x-seq": 1})
        publish(client, body, "n", **{"x-producer": "p", "x-seq": 2})
    assert taken(client) == [b"5", b"5"]


def survivor(cluster: Cluster, lost: str) -> Client:
    return next(cluster[name] for name in cluster.sites if name != lost).client()


@pytest.mark.parametrize("commits", range(6))
@pytest.mark.parametrize("slow", ["owner", "target", "others"])
def test_an_owner_that_dies_at_each_step_loses_none_and_doubles_none(slow: str, commits: int) -> None:
    cluster = Cluster("a", "b", "c")
    wire(cluster["a"].client())
    owner, target = (str(cluster.queue(name).owner) for name in (CACHE, "q"))
    sender = survivor(cluster, owner)
    sender.ask(m.ConfirmSelect())
    publish(sender, b"0", "before")
    waits = {"owner": [owner], "target": [target], "others": [name for name in cluster.sites if name != owner]}[slow]
    for name in waits:
        cluster[name].disk_waits = True
    for body, value in ((b"1", "a"), (b"2", "a"), (b"3", "b"), (b"x", "before")):
        publish(sender, body, value)
    for _ in range(commits):
        for name in waits:
            if cluster[name].group is not None:
                cluster[name].complete()
        cluster.turn()
    for name in waits:
        cluster[name].disk_waits = False
    cluster.kill(owner)
    cluster.wait(3000)
    assert cluster.queue(CACHE).owner != owner
    for body, value in ((b"4", "b"), (b"5", "c"), (b"6", "before")):
        publish(sender, body, value)
    cluster.wait(3000)
    assert taken(survivor(cluster, owner)) == [b"0", b"1", b"3", b"5"]


@pytest.mark.parametrize("returns", [False, True])
def test_nothing_waits_for_a_queue_that_is_offline(returns: bool) -> None:
    """It gets all of it when it comes back, or is deleted."""
    cluster = Cluster("a", "b", "c")
    wire(cluster["a"].client())
    client = cluster["c"].client()
    client.declare("lone", x_replicas=1, x_queue_leader_locator="client-local")
    client.ask(m.QueueBind(0, "lone", "x", ""))
    assert cluster.queue("lone").owner == "c"
    cluster.kill("c")
    cluster.wait(3000)
    client = cluster["a"].client()
    client.ask(m.ConfirmSelect())
    numbers = [b"%d" % number for number in range(5)]
    for number in numbers:
        publish(client, number, number.decode())
    cluster.wait(3000)
    assert taken(client) == numbers
    if returns:
        cluster.restart("c")
        cluster.wait(5000)
        assert taken(cluster["c"].client(), "lone") == numbers
    else:
        client.ask(m.QueueDelete(queue="lone"))
        cluster.wait(3000)
    assert taken(client) == []
