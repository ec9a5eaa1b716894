"""A drain of a stream: its owner tells how much there is, and no time passes."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.wire.amqp10.performatives import Flow
from clusterbroker.broker.wire.amqp10.types import Described, Symbol
from tests.unit.broker.fronts.amqp091.harness import World
from tests.unit.broker.fronts.amqp10.harness import Peer, Receiver, bodies
from tests.unit.broker.node.node_cluster import Cluster


def offset(start: Any) -> dict[str, Any]:
    return {"filter": {Symbol("o"): Described(Symbol("rabbitmq:stream-offset-spec"), start)}}


def reader(site: Any, start: Any = "first", **more: Any) -> Receiver:
    return Peer(site).enter(**more).receiver("r", "/queues/s", **offset(start))


def drained(link: Receiver, credit: int, **fields: Any) -> tuple[list[bytes], list[Flow]]:
    heard = link.grant(credit, drain=True, **fields)
    found = [known.body for _, known in link.take()]
    return found, [each for each in bodies(heard + link.peer.raw(b""), Flow) if each.handle == link.number]


def stream(site: Any, count: int) -> Any:
    client = site.client()
    client.declare("s", x_queue_type="stream")
    for number in range(count):
        client.publish("", "s", b"%d" % number)
    return client


def test_what_there_is_comes_and_the_rest_of_the_credit_is_given_up() -> None:
    world = World()
    client = stream(world, 5)
    link = reader(world)
    found, (flow,) = drained(link, 9)
    assert found == [b"0", b"1", b"2", b"3", b"4"]
    assert (flow.delivery_count, flow.link_credit, flow.drain) == (9, 0, True)
    link.count = 9
    found, (flow,) = drained(link, 3)
    assert (found, flow.delivery_count) == ([], 12), "dry at once"
    link.count = 12
    client.publish("", "s", b"5")
    assert link.bodies() == [], "nothing without credit"
    link.count = 12
    link.grant(2)
    assert link.bodies() == [b"5"]


def test_less_credit_than_there_is() -> None:
    world = World()
    stream(world, 5)
    link = reader(world)
    found, (flow,) = drained(link, 2)
    assert (found, flow.delivery_count, flow.link_credit) == ([b"0", b"1"], 2, 0)
    found, (flow,) = drained(link, 3)
    assert (found, flow.delivery_count) == ([b"2", b"3", b"4"], 5), "exactly what there is"


def test_from_the_end() -> None:
    world = World()
    stream(world, 3)
    found, (flow,) = drained(reader(world, "next"), 4)
    assert (found, flow.delivery_count, flow.drain) == ([], 4, True)


def test_behind_a_small_window() -> None:
    world = World()
    stream(world, 5)
    link = reader(world)
    found, flows = drained(link, 9, incoming_window=2)
    assert (found, flows) == ([b"0", b"1"], [])
    heard = link.peer.say(link.peer.flow(next_incoming_id=2, incoming_window=10))
    assert link.bodies() == [b"2", b"3", b"4"]
    (flow,) = [each for each in bodies(heard + link.peer.raw(b""), Flow) if each.handle == link.number]
    assert (flow.delivery_count, flow.link_credit) == (9, 0)


@pytest.mark.parametrize("node", ["a", "b"])
def test_of_a_stream_elsewhere(node: str) -> None:
    cluster = Cluster("a", "b", "c")
    stream(cluster["a"], 4)
    cluster.wait(500)
    link = reader(cluster[node])
    cluster.turn()
    found, (flow,) = drained(link, 6)
    assert (found, flow.delivery_count, flow.link_credit) == ([b"0", b"1", b"2", b"3"], 6, 0)
