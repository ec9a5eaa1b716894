"""Which protocol a connection gets, and what becomes of one that never says."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.fronts.amqp091.connection import Connection
from clusterbroker.broker.fronts.opening import FRONTS, Fronts, Opening
from clusterbroker.broker.node.clients import Accepted
from tests.unit.broker.fronts.amqp091.harness import HEADER, World


def other(node: Any, accepted: Accepted) -> Any:
    raise AssertionError("it is chosen, and not opened")


BOTH = Fronts({HEADER: Connection, b"AMQP\0\1\0\0": other, b"\x10": other}, otherwise=Connection)


@pytest.mark.parametrize(
    ("data", "front"),
    [
        (HEADER + b"more", Connection), (b"AMQP\0\1\0\0", other), (b"AMQP\0\1", other), (b"\x10\x20", other),
        (b"A", None), (b"AMQP\0", None), (b"GET / HTTP/1.1", Connection), (b"AMQP\3", Connection),
    ],
)  # fmt: skip
def test_first_bytes_choose(data: bytes, front: Any) -> None:
    assert BOTH.choose(data) is front


def opening(world: World, fronts: Fronts = BOTH, **how: Any) -> tuple[Opening, list[Any]]:
    became: list[Any] = []
    return Opening(world.node, Accepted("192.0.2.1:5", False, world.now_ms, **how), fronts, became.append), became


def test_what_came_before_the_choice_is_handed_on() -> None:
    world = World()
    core, became = opening(world)
    core.receive(HEADER[:5], world.now_ms)
    assert (core.undecoded, became) == (HEADER[:5], [])
    core.receive(core.undecoded + HEADER[5:], world.now_ms)
    (connection,) = became
    assert isinstance(connection, Connection)
    assert connection.out.size > 0, "connection.start"
    assert world.node.clients == {connection.id: connection}


def test_the_facts_of_the_socket_reach_the_front() -> None:
    world = World()
    core, became = opening(world, FRONTS, identity="client")
    core.receive(HEADER, world.now_ms)
    assert type(became[0]) is Connection
    assert (became[0].peer, became[0].peer_identity, became[0].loopback) == ("192.0.2.1:5", "client", False)
    assert became[0].opened_at_ms == world.now_ms


def test_a_client_that_says_nothing_is_cut() -> None:
    world = World(handshake_timeout_s=5.0)
    core, _ = opening(world)
    core.tick(world.now_ms + 5000)
    assert core.ending is None
    core.tick(world.now_ms + 5001)
    assert core.ending == "abort"
    assert world.story.cuts == ["no protocol header within 5 s"]
    assert core in world.node.sending


def test_a_node_that_stops_closes_it() -> None:
    world = World()
    core, _ = opening(world)
    core.dismiss()
    assert not core.reading
    core.force_close("shutdown")
    assert core.ending == "flush"
    assert world.story.faults[0][1].code == 320
