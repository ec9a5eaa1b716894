"""What a second protocol attaches to besides queues: streams, leases, and the address of its own replies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fronts.toy_client import ToyClient
from tests.fronts.toy_leasing import LEASING
from tests.unit.broker.fronts.amqp091.harness import Client, World
from tests.unit.broker.node.node_cluster import Cluster


def filled(client: Client, name: str, count: int = 5, **arguments: Any) -> None:
    client.declare(name, **arguments)
    for number in range(count):
        client.publish("", name, b"%d" % number)


def messages(first: int, bodies: range) -> list[str]:
    return [f"MSG {first + place} 0 {body}" for place, body in enumerate(bodies)]


@pytest.mark.parametrize("start, begins", [("first", 0), ("3", 3), ("last", 0)])
def test_a_stream_is_read_from_where_the_client_says(start: str, begins: int) -> None:
    world = World()
    filled(world.client(), "s", x_queue_type="stream")
    toy = ToyClient(world).enter()
    assert toy.say(f"SUB s 10 {start}") == ["ON s", *messages(1, range(begins, 5))]
    assert toy.say("PUB 1 s 5") == ["OK 1", f"MSG {6 - begins} 0 5"]


def test_a_stream_gives_no_more_than_the_limit() -> None:
    world = World()
    filled(world.client(), "s", x_queue_type="stream")
    toy = ToyClient(world).enter()
    assert toy.say("SUB s 2 first") == ["ON s", *messages(1, range(2))]
    assert toy.say("ACK 1") == messages(3, range(2, 3))
    unlimited = ToyClient(world).enter()
    assert unlimited.say("SUB s 0") == [
        "ERR precondition_failed consumer prefetch count is not set for stream 's' in vhost '/'"
    ]


def test_a_stream_is_read_at_any_node_of_a_cluster_and_over_its_owner_s_end() -> None:
    cluster = Cluster("a", "b", "c")
    filled(cluster["a"].client(), "s", x_queue_type="stream")
    owner = cluster.queue("s").owner
    one, other = (name for name in "abc" if name != owner)
    toy = ToyClient(cluster[one]).enter()
    assert toy.say("SUB s 100 first") == ["ON s", *messages(1, range(5))]
    cluster.kill(owner)
    assert ToyClient(cluster[other]).enter().say("PUB 1 s 5") == ["OK 1"]
    cluster.wait(1)
    assert toy.say() == messages(6, range(5, 6))


def test_a_lease_is_taken_read_and_settled() -> None:
    world = World()
    rabbit = world.client()
    filled(rabbit, "q", x_queue_type="quorum")
    toy = ToyClient(world, LEASING).enter()

    def ask(key: str, **fields: Any) -> dict[str, Any]:
        (line,) = toy.say(f"ASK amq.lease {key} {json.dumps({'queue': 'q', 'name': 'n', 'run': 'r', **fields})}")
        told: dict[str, Any] = json.loads(line.removeprefix("TOLD "))
        return told

    taken = ask("take")
    assert (taken["outcome"], taken["start"], taken["end"]) == ("leased", 1, 6)
    assert toy.say("LEASE q n 1 4 10") == ["ON q", *messages(1, range(3)), "END q"]
    assert ask("settle", upto=4)["outcome"] == "settled"
    assert ask("release")["outcome"] == "released"
    assert [said.body for said in rabbit.consume("q")] == [b"3", b"4"]
    refused = ToyClient(world, LEASING).enter().say("LEASE q n 4 6 10")
    assert refused[0].startswith("ERR not_found"), refused


def test_a_leased_range_is_read_at_any_node() -> None:
    cluster = Cluster("a", "b", "c")
    filled(cluster["a"].client(), "q", x_queue_type="quorum")
    far = next(name for name in "abc" if name != cluster.queue("q").owner)
    toy = ToyClient(cluster[far], LEASING).enter()
    (told,) = toy.say('ASK amq.lease take {"queue": "q", "name": "n", "run": "r"}')
    assert '"end": 6' in told
    assert toy.say("LEASE q n 1 6 10") == ["ON q", *messages(1, range(5)), "END q"]
