"""Hostile links at a node: unsettled maps of anything, tags that are used again, links that are stolen over and over,
and very many attaches. Its memory is bounded, and another client is served meanwhile."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.node.links import LINKS_MAX
from clusterbroker.broker.server.control.client import ask
from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Close,
    Detach,
    Received,
    Rejected,
    Source,
    Target,
)
from clusterbroker.broker.wire.amqp10.types import Described, Symbol
from tests.support.amqp10 import frame, message

from ..marks import rule
from .test_own_nodes import Nodes, started
from .wire import Ended, Peer

pytestmark = [
    pytest.mark.skipif("CONFORMANCE_URL" in os.environ, reason="it starts nodes of its own"),
    pytest.mark.long,
]
GROWTH_MAX: int = 48 << 20
AT_ONCE = 500
ATTACHES = (LINKS_MAX // AT_ONCE + 10) * AT_ONCE


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Nodes, Callable[[], None]]]:
    """A node, and a call that asks whether another client is served; in the end its memory is looked at."""
    for nodes in started(tmp_path, 1):
        nodes.declared("q")
        nodes.declared("healthy")
        session = nodes.session("a")
        ends = session.sender("/queues/healthy"), session.receiver("/queues/healthy", credit=10_000)
        is_served = partial(is_healthy, *ends)
        is_served()
        before = resident(nodes)
        yield nodes, is_served
        is_served()
        grown = resident(nodes) - before
        assert grown < GROWTH_MAX, f"{grown >> 20} MB more"
        assert "made a mistake" not in nodes.nodes["a"].log.read_text()


def is_healthy(sender: Any, receiver: Any) -> None:
    assert sender.send(b"m") == Accepted()
    assert receiver.bodies(1) == [b"m"]


def resident(nodes: Nodes) -> int:
    return int((ask(nodes.data_dir("a"), "status") or {})["resident_bytes"])


def hostile_map(chance: random.Random) -> dict[Any, Any]:
    """Tags and states, as they should be and as they should not."""
    tags = [b"", b"t", b"t" * 32, b"t" * 33, "text", 5, None]
    states = [None, Accepted(), Received(1, 2**60), Rejected(), "text", 7, [1], Described(Symbol("nothing"), [])]
    count = chance.choice([1, 3, 400])
    found: dict[Any, Any] = {b"%06d" % number: chance.choice(states[:3]) for number in range(count)}
    if chance.random() < 0.7:
        found[chance.choice(tags)] = chance.choice(states)
    return found


@rule("Z182")
def test_hostile_unsettled_maps(served: tuple[Nodes, Callable[[], None]]) -> None:
    nodes, is_served = served
    chance, refusals = random.Random(1), 0
    for number in range(300):
        peer = nodes.peer("a", container=f"hostile-{number % 7}")
        session = peer.session()
        for handle in range(3):
            role, lasting = chance.random() < 0.5, {"expiry_policy": "never", "timeout": 60, "durable": 2}
            session.say(
                Attach(
                    name=f"n{chance.randrange(3)}", handle=handle, role=role, initial_delivery_count=0,
                    source=Source(address="/queues/q", **lasting), target=Target(address="/queues/q", **lasting),
                    unsettled=hostile_map(chance), incomplete_unsettled=chance.random() < 0.3,
                    desired_capabilities=chance.choice([(), ("clusterbroker:link-recovery",)]),
                )
            )  # fmt: skip
        peer.say(Close())
        while True:
            try:
                body = peer.find(lambda _: True).body
            except Ended:
                break
            refusals += isinstance(body, Detach) and body.error is not None
            if isinstance(body, Close):
                break
        peer.abandon()
        if number % 50 == 0:
            is_served()
    assert refusals > 300, "most of them are refused"


@rule("Z182")
def test_tags_that_are_used_again(served: tuple[Nodes, Callable[[], None]]) -> None:
    nodes, is_served = served
    for _ in range(100):
        session = nodes.session("a")
        link = session.sender("/queues/q", second=True)
        with link.detaches("amqp:invalid-field"):
            for _ in range(3):
                link.post(b"m", tag=b"same")
        again = session.sender("/queues/q")
        assert [again.send(b"m", tag=b"same") for _ in range(3)] == [Accepted()] * 3, "a settled one is free"
        session.peer.close()
    is_served()


@rule("Z182")
def test_links_that_are_stolen_over_and_over(served: tuple[Nodes, Callable[[], None]]) -> None:
    nodes, is_served = served
    peers = [nodes.peer("a", container="same") for _ in range(4)]
    sessions = [peer.session() for peer in peers]
    for number in range(400):
        session = sessions[number % 4]
        link = session.sender("/queues/q", name="stolen", target=Target(address="/queues/q", timeout=60, durable=0))
        link.transfer(message(b"part" * 50)[:50], more=True)
        if number % 100 == 0:
            is_served()
    for peer in peers:
        peer.abandon()


@rule("Z182")
@pytest.mark.matrix
def test_more_attaches_than_a_node_has_room_for(served: tuple[Nodes, Callable[[], None]]) -> None:
    """One after another, each under a name of its own; half of them are closed, the others are left, and lost with
    their connections: nothing of them takes room. Nobody reads their answers, which are counted."""
    nodes, is_served = served
    attaches = [_attach(handle) for handle in range(AT_ONCE)]
    for turn in range(ATTACHES // AT_ONCE):
        peer = nodes.peer("a")
        peer.session()
        peer.raw(b"".join(attach.replace(NAME, b"%08d" % turn) for attach in attaches))
        answered(peer, AT_ONCE)
        if turn % 20 == 0:
            is_served()
        peer.abandon()
        nodes.opened.remove(peer)
    assert nodes.session("a").sender("/queues/q").send(b"m") == Accepted(), "there is room for a link"


NAME = b"@" * 8


def _attach(handle: int) -> bytes:
    link = Attach(
        name=f"link-{handle}-{NAME.decode()}", handle=handle, role=False, initial_delivery_count=0, source=Source(),
        target=Target(address="/queues/q", timeout=handle % 2 * 5),
    )  # fmt: skip
    return frame(0, link) + (frame(0, Detach(handle=handle, closed=True)) if handle % 2 else b"")


HEAD_BYTES = 8
CODE_AT = HEAD_BYTES + 2
"""Of a frame's performative: the descriptor is a small ulong."""


def answered(peer: Peer, count: int) -> None:
    """So many attaches, and whatever comes with them but an end. The peer reads nothing any more."""
    data, at, attaches = bytearray(), 0, 0
    while attaches < count:
        while len(data) < at + HEAD_BYTES or len(data) < at + int.from_bytes(data[at : at + 4]):
            got = peer.socket.recv(1 << 18)
            assert got, f"the connection ended after {attaches} attaches"
            data += got
        code = data[CODE_AT + at]
        assert code not in (END, CLOSE), f"the node ends it after {attaches} attaches"
        attaches += code == ATTACH
        at += int.from_bytes(data[at : at + 4])


ATTACH, END, CLOSE = 0x12, 0x17, 0x18
