"""Recoverable sender links when nodes are lost, stand still or are all started anew: three nodes of each test's own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.wire.amqp10.performatives import Accepted
from tests.support.amqp10 import message

from ..marks import rule
from ..test_nodes_lost import Losing, losing_member
from ..wire import eventually
from .test_recoverable_senders import recoverable, states
from .wire import Peer, Sender, Session

pytestmark = pytest.mark.skipif("CONFORMANCE_URL" in os.environ, reason="it kills nodes of its own")
PATIENCE_S = 60.0
CONTAINER = "press"
QUEUE = "/queues/q"


class World(Losing):
    """The cluster, and its clients."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._peers: list[Peer] = []

    def session(self, name: str) -> Session:
        target = self.cluster.target(name)
        peer = Peer(f"amqp://guest:guest@{target.host}:{target.port}/", container=CONTAINER)
        self._peers.append(peer)
        return peer.session()

    def sender(self, name: str, **fields: Any) -> Sender:
        return recoverable(self.session(name), QUEUE, timeout=600, **fields)

    def others(self, *but: str) -> list[str]:
        return [name for name in self.cluster.names if name not in but]

    def bodies(self, name: str, count: int) -> list[bytes]:
        """All that is in the queue."""
        channel = self.connect(name).channel()
        eventually(lambda: channel.message_count("q") == count, PATIENCE_S)
        return self.session(name).receiver(QUEUE, credit=count).bodies(count)

    def end(self) -> None:
        for peer in self._peers:
            peer.abandon()
        super().end()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    try:
        asyncio.run(world.cluster.begin())
        world.connect("a").channel().queue_declare("q", durable=True)
        yield world
    finally:
        world.end()


def post(link: Sender, *bodies: bytes) -> None:
    """Each is accepted."""
    for number in [link.post(body, tag=body) for body in bodies]:
        assert link.outcome(number) == Accepted()


@rule("R161")
@pytest.mark.parametrize("lost", ["the client's node", "the owner", "both"])
def test_a_link_goes_on_at_another_node(world: World, lost: str) -> None:
    owner = world.owner("q")
    home = owner if lost == "both" else world.others(owner)[0]
    link = world.sender(home)
    post(link, b"1", b"2")
    for body in (b"3", b"4"):  # in doubt: nobody waits for their outcomes
        link.post(body, tag=body)
    world.kill(owner if lost == "the owner" else home)
    there = world.others(owner, home)[0]
    again = world.sender(there, unsettled=dict.fromkeys((b"2", b"3", b"4", b"5")))
    known = states(again.attach)
    assert known[b"2"] == Accepted()
    assert all(state == Accepted() for state in known.values())
    for tag in (b"3", b"4", b"5"):
        if tag not in known:
            assert again.outcome(again.transfer(message(tag), delivery_tag=tag)) == Accepted()
    assert again.send(b"6") == Accepted()
    assert sorted(world.bodies(there, 6)) == [b"1", b"2", b"3", b"4", b"5", b"6"]


@rule("R171")
def test_late_frames_of_the_old_node_are_refused(world: World) -> None:
    owner = world.owner("q")
    home, there = world.others(owner)
    link = world.sender(home)
    post(link, b"1")
    world.cluster.signal(home, signal.SIGSTOP)
    late = [b"2", b"3"]
    for body in late:
        link.post(body, tag=body)  # its node reads them when it goes on
    eventually(lambda: losing_member(world, there, home) is False, PATIENCE_S)
    again = world.sender(there, unsettled=dict.fromkeys((b"1", *late)))
    assert states(again.attach) == {b"1": Accepted()}
    world.cluster.signal(home, signal.SIGCONT)
    eventually(lambda: losing_member(world, there, home) is True, PATIENCE_S)
    for body in late:
        assert again.outcome(again.transfer(message(body), delivery_tag=body)) == Accepted()
    assert world.bodies(there, 3) == [b"1", b"2", b"3"]


@rule("R172")
def test_a_link_goes_on_after_a_full_restart(world: World) -> None:
    link = world.sender("a")
    post(link, b"1", b"2")
    for name in world.cluster.names:
        world.kill(name)

    async def start() -> None:
        await asyncio.gather(*(world.cluster.start(name) for name in world.cluster.names))

    asyncio.run(start())
    again = world.sender("b", unsettled=dict.fromkeys((b"1", b"2", b"3")))
    assert states(again.attach) == {b"1": Accepted(), b"2": Accepted()}
    assert again.outcome(again.transfer(message(b"3"), delivery_tag=b"3")) == Accepted()
    assert world.bodies("c", 3) == [b"1", b"2", b"3"]
