"""What a publish may hold at most goes every way that a stored message can take, and nobody asks its limits again.

A publish may have 10,000 values in its headers, nested 64 deep, and bytes that are no UTF-8 in properties and names.
The broker adds to that (histories of deaths, counts, numbers, traces), decodes it and encodes it again: hours later, in
a turn, at another node, after a restart. Whatever it finds there was accepted once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.broker.node.spans import Spans
from clusterbroker.broker.routing.carbon_copy import COPIES_MAX, KEY_BYTES_MAX
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.fields import DEFAULT_LIMITS
from clusterbroker.broker.wire.numbers import UInt32
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.journal.values import LongBytes, Timestamp
from tests.unit.broker.fronts.amqp091.harness import Client, Content, World, bodies
from tests.unit.broker.fronts.amqp091.leasing_reader import Reader
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.places import away, declared, drained
from tests.unit.broker.node.test_inspecting import owner, run
from tests.unit.broker.node.test_spans import Receiver
from tests.unit.broker.transactions.stager import Stager

Shape = dict[str, Any]
BODY = b"body"
NO_TEXT = "\udcff\udc80"
"""As bytes that are no UTF-8 travel through text."""


def nested(depth: int, kind: type) -> Any:
    value: Any = None
    for _ in range(depth):
        value = {"n": value} if kind is dict else [value]
    return value


def deaths(count: int, **more: Any) -> list[Any]:
    """A history that a client made up."""
    return [{"queue": f"d{n}", "reason": "expired", "count": 1, **more} for n in range(count)]


MOST = DEFAULT_LIMITS.entries_max
LIMITS: dict[str, Shape] = {
    "values": {"headers": {str(n): None for n in range(MOST)}},
    "values in an array": {"headers": {"a": [None] * (MOST - 1)}},
    "all but one value": {"headers": {str(n): None for n in range(MOST - 1)}},
    "tables in each other": {"headers": nested(DEFAULT_LIMITS.depth_max, dict)},
    "arrays in each other": {"headers": {"n": nested(DEFAULT_LIMITS.depth_max - 1, list)}},
    "bytes": {"headers": {"long": b"\xff" * 120_000}},
    "a history": {"headers": {"x-death": deaths(MOST // 5)}},
    "a history of long tables": {"headers": {"x-death": deaths(300, more="x" * 300)}},
    "a history that nests": {"headers": {"x-death": deaths(20, more=nested(60, list))}},
    "copies": {"headers": {"CC": ["c" * KEY_BYTES_MAX] * COPIES_MAX, "x-death": deaths(500)}},
    "blind copies": {"headers": {"BCC": [f"b{n}" for n in range(COPIES_MAX)]}},
    "no text": {
        "headers": {NO_TEXT: LongBytes(b"\xfe"), "x-first-death-queue": LongBytes(b"\xff")},
        "correlation_id": NO_TEXT, "message_id": NO_TEXT, "type": NO_TEXT, "app_id": NO_TEXT, "cluster_id": NO_TEXT,
        "content_type": NO_TEXT, "content_encoding": NO_TEXT, "reply_to": NO_TEXT,
    },
    "numbers": {
        "headers": {"x-death": [{"queue": "d", "reason": "expired", "count": 2**63 - 1}], "t": Timestamp(2**64 - 1)},
        "timestamp": 2**64 - 1, "priority": 255,
    },
    "the broker's own names": {
        "headers": {
            "x-death": "no array", "x-first-death-queue": 7, "x-first-death-exchange": None, "x-delivery-count": "no",
            "x-acquired-count": [], "traceparent": b"no", "x-queue-seq": {}, "x-stream-offset": UInt32(1),
        }
    },
}  # fmt: skip


ALWAYS = ("values", "tables in each other", "a history", "no text")
"""The others take turns."""
SHAPES = [
    pytest.param(shape, id=name, marks=() if name in ALWAYS else pytest.mark.matrix) for name, shape in LIMITS.items()
]


def shapes() -> st.SearchStrategy[Shape]:
    """Those, and whatever lies within the limits."""
    names = st.sampled_from(["x-death", "x-first-death-queue", "traceparent", "x-stream-offset", "a", NO_TEXT])
    scalar = st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=9), st.text(max_size=9),
        st.integers(0, 2**64 - 1).map(Timestamp), st.just(LongBytes(b"\xff")), st.floats(),
    )  # fmt: skip
    value = st.recursive(
        scalar, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=20
    )
    text = st.sampled_from(["", "t", NO_TEXT, "x" * 255])
    drawn = st.fixed_dictionaries(
        {"headers": st.dictionaries(names, value, max_size=5)},
        optional={"message_id": text, "correlation_id": text, "type": text, "timestamp": st.integers(0, 2**64 - 1)},
    )
    return st.one_of(st.sampled_from(list(LIMITS.values())), drawn)


def got(client: Client, queue: str, **how: Any) -> list[bytes]:
    """All that a queue has, one by one."""
    found = []
    while isinstance(one := client.ask(m.BasicGet(queue=queue, **how)), Content):
        found.append(one.body)
    return found


DLX = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "grave"}


# -- the ways, at one node


def expired(world: World, publish: Callable[[], None], client: Client) -> None:
    client.declare("grave")
    client.declare("q", x_message_ttl=10, **DLX)
    publish()
    world.wait(20)
    assert got(client, "grave", no_ack=True) == [BODY]


def too_long(world: World, publish: Callable[[], None], client: Client) -> None:
    client.declare("grave")
    client.declare("q", x_max_length=0, **DLX)
    publish()
    assert got(client, "grave", no_ack=True) == [BODY]


def refused(world: World, publish: Callable[[], None], client: Client) -> None:
    client.declare("grave")
    client.declare("q", x_max_length=0, x_overflow="reject-publish-dlx", **DLX)
    publish()
    assert got(client, "grave", no_ack=True) == [BODY]


def rejected_again_and_again(world: World, publish: Callable[[], None], client: Client) -> None:
    client.declare("grave", x_dead_letter_exchange="", x_dead_letter_routing_key="q")
    client.declare("q", **DLX)
    publish()
    for queue in ("q", "grave") * 3:
        one = client.ask(m.BasicGet(queue=queue))
        assert bodies([one]) == [BODY]
        client.say(m.BasicReject(one.method.delivery_tag, False))
    assert got(client, "q", no_ack=True) == [BODY]


def returned_too_often(world: World, publish: Callable[[], None], client: Client) -> None:
    client.declare("grave")
    client.declare("q", x_queue_type="quorum", x_delivery_limit=2, **DLX)
    publish()
    for _ in range(3):
        one = client.ask(m.BasicGet(queue="q"))
        assert bodies([one]) == [BODY]
        client.say(m.BasicReject(one.method.delivery_tag, True))
    assert got(client, "grave", no_ack=True) == [BODY]


def after_a_restart(world: World, publish: Callable[[], None], client: Client) -> None:
    client.declare("grave")
    client.declare("q", x_message_ttl=1000, **DLX)
    publish()
    world.crash()
    world.wait(2000)
    assert got(world.client(), "grave", no_ack=True) == [BODY]


def handed_out_again(world: World, publish: Callable[[], None], client: Client) -> None:
    client.declare("q", x_queue_type="quorum")
    publish()
    assert bodies(client.consume("q")) == [BODY]
    client.say(m.BasicRecover(True))
    client.leave()
    world.crash()
    assert bodies(world.client().consume("q")) == [BODY]


def told_by_the_firehose(world: World, publish: Callable[[], None], client: Client) -> None:
    world.command(c.AddVhost(name="/", tracing=True))
    client.declare("q")
    client.declare("trace", x_message_ttl=5, **DLX)
    client.declare("grave")
    client.ask(m.QueueBind(queue="trace", exchange="amq.rabbitmq.trace", routing_key="#"))
    publish()
    assert bodies(client.consume("q", no_ack=True)) == [BODY]
    assert got(client, "trace", no_ack=False) == [BODY, BODY]
    client.leave()
    world.wait(100)
    assert got(world.client(), "grave", no_ack=True)[:2] == [BODY, BODY]


def traced(world: World, publish: Callable[[], None], client: Client) -> None:
    world.node.watching.trace(Spans(world.node.options, Receiver(), 1.0, 1000))
    client.declare("grave")
    client.declare("q", x_queue_type="quorum", **DLX)
    publish()
    assert bodies(client.consume("q")) == [BODY]
    client.leave()
    reader = world.client()
    (again,) = [said for said in reader.consume("q") if isinstance(said, Content)]
    assert again.body == BODY
    reader.say(m.BasicNack(again.method.delivery_tag, False, False))
    assert got(reader, "grave", no_ack=True) == [BODY]


def staged(world: World, _: Callable[[], None], client: Client) -> None:
    client.declare("q")
    client.ask(m.QueueBind(queue="q", exchange="amq.headers", routing_key="", arguments={"x-match": "all"}))
    stager = Stager(world.client(channels=2))
    stager.declare("txn.s", target="amq.headers")
    stager.stage("txn.s", BODY, **world.shape)  # type: ignore[attr-defined]
    assert stager.commit("txn.s")["outcome"] == "committed"
    world.wait(100)
    assert got(client, "q", no_ack=True) == [BODY]


def read_as_a_stream(world: World, publish: Callable[[], None], client: Client) -> None:
    client.declare("q", x_queue_type="stream")
    publish()
    for client_ in (client, world.client()):
        client_.ask(m.BasicQos(0, 10, False))
        assert bodies(client_.consume("q", arguments={"x-stream-offset": "first"})) == [BODY]


def leased(world: World, publish: Callable[[], None], client: Client) -> None:
    client.declare("q")
    publish()
    reader = Reader(world.client())
    assert reader.take()["rows"] == 1
    assert reader.read(1, 2) == reader.read(1, 2) == [(1, BODY)]


WAYS = [
    expired, too_long, refused, rejected_again_and_again, returned_too_often, after_a_restart, handed_out_again,
    told_by_the_firehose, traced, staged, read_as_a_stream, leased,
]  # fmt: skip


def goes(way: Callable[..., None], shape: Shape) -> None:
    world = World()
    world.shape = shape  # type: ignore[attr-defined]
    client = world.client()
    client.ask(m.ConfirmSelect())

    def publish() -> None:
        assert client.publish("", "q", BODY, **shape)[0].__class__ in (m.BasicAck, m.BasicNack)

    way(world, publish, client)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_was_accepted_at_a_limit_is_never_judged_again(way: Callable[..., None], shape: Shape) -> None:
    goes(way, shape)


@settings(max_examples=60, deadline=None)
@given(way=st.sampled_from(WAYS), shape=shapes())
def test_nor_is_whatever_was_accepted(way: Callable[..., None], shape: Shape) -> None:
    goes(way, shape)


# -- in a cluster


@pytest.mark.parametrize("shape", SHAPES)
def test_nor_in_a_cluster(shape: Shape) -> None:
    """Dead letters, moves and replays of queues that other nodes own."""
    cluster = Cluster("a", "b", "c")
    declared(cluster, "grave", "b")
    declared(cluster, "q", "a", x_message_ttl=50, **DLX)
    declared(cluster, "kept", "c")
    client = cluster["c"].client()
    client.ask(m.ConfirmSelect())
    assert [type(said) for said in client.publish("", "q", BODY, **shape)] == [m.BasicAck]
    cluster.wait(5000)
    where = {"exchange": "", "routing_key": "kept"}
    assert run(owner(cluster, "grave"), "replay", "grave", filter="", **where).done == 1
    back = run(owner(cluster, "grave"), "move", "grave", filter="")
    assert back.done == 1 or back.skipped == {"no_origin": [1]}, "a publisher's own history says where it died first"
    cluster.wait(5000)
    cluster.kill("b")
    cluster.wait(5000)
    assert drained(cluster, "grave", away(cluster, "grave")[0]) == [BODY]
    assert drained(cluster, "kept") == [BODY]


def test_a_message_dies_as_often_as_it_likes_and_its_header_stays_small() -> None:
    """Names and keys are as long as they may be."""
    world = World()
    client = world.client()
    names = [f"{n:0255}" for n in range(40)]
    for name in names:
        client.declare(name)
        client.ask(m.QueueDelete(queue=name))
        client.declare(name, x_dead_letter_exchange="", x_dead_letter_routing_key=names[(names.index(name) + 1) % 40])
    chance = random.Random(1)
    keys = [f"{chance.random()!r:0>255}" for _ in range(COPIES_MAX)]
    client.publish("", names[0], BODY, headers={"CC": keys})
    longest = 0
    for turn in range(120):
        one = client.ask(m.BasicGet(queue=names[turn % 40]))
        assert isinstance(one, Content)
        (death, *_) = one.properties.headers.get("x-death", [None])
        if turn:
            assert (death["queue"], death["count"]) == (names[(turn - 1) % 40], (turn - 1) // 40 + 1)
        longest = max(longest, len(world.queue(names[turn % 40]).ring.message(turn // 40 + 1).header))
        client.say(m.BasicReject(one.method.delivery_tag, False))
    assert longest < 100_000
