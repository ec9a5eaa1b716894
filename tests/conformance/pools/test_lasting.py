"""Requests, answers and generations over lost owners and restarts (rules 22, 24 and 60), on nodes of this file's own:
one, which is started again, and three, of which another one takes over."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

from tests.faults.pools import PATIENCE_S, PoolNodes, eventually, told

from ..channel import Channel
from ..marks import rule
from ..on_nodes import BOTH
from ..wire import Connection
from .started import BYTES

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif("CONFORMANCE_URL" in os.environ, reason="it kills nodes of its own"),
]
KEYS = tuple(str(number) for number in range(10))

Open = Callable[[str], Channel]


class LastingNodes(PoolNodes):
    """Nodes that tests kill."""

    def other(self, name: str) -> str:
        """A node that is not this one; of one that is alone, itself."""
        return next((one for one in self.names if one != name), name)

    def lose(self, name: str) -> None:
        """`kill -9`. Where nobody can take over, the node is started again."""
        self.kill(name)
        if len(self.names) == 1:
            self.start()

    def restart(self) -> None:
        """`kill -9` of all, then all at once."""
        for name in self.names:
            self.kill(name)
        self.start()

    def leader(self, queue: str) -> str:
        return eventually(f"a leader of {queue}", lambda: self.owner(queue))

    def act(self, pool: str, action: str) -> None:
        self.api("POST", f"pools/%2F/{pool}/{action}", {}).raise_for_status()


@pytest.fixture(scope="module", **BOTH)
def started(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[LastingNodes]:
    made = LastingNodes(tmp_path_factory.mktemp("nodes"), *request.param, memory_bytes=BYTES)
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def nodes(started: LastingNodes) -> LastingNodes:
    """All of them, which run."""
    started.start_lost()
    return started


@pytest.fixture
def pool(nodes: LastingNodes, request: pytest.FixtureRequest) -> Iterator[str]:
    """A name, whose pool is deleted at the end."""
    name = "p" + str(abs(hash(request.node.name)) % 1_000_000)
    yield name
    nodes.start_lost()
    nodes.api("DELETE", f"pools/%2F/{name}?force=true")


@pytest.fixture
def channel_at(nodes: LastingNodes) -> Iterator[Open]:
    """`channel_at("b")`: on a connection of its own to this node."""
    opened: list[Connection] = []

    def one(name: str) -> Channel:
        opened.append(Connection(nodes.url(name)))
        return opened[-1].channel()

    yield one
    for connection in opened:
        connection.abandon()


def publish(channel: Channel, pool: str, bodies: list[bytes]) -> None:
    """Confirmed requests of KEYS, transient ones and others."""
    channel.confirm_select()
    for number, body in enumerate(bodies):
        channel.basic_publish(pool, KEYS[number % len(KEYS)], body, delivery_mode=1 + number % 2)
    assert set(channel.confirms(len(bodies), PATIENCE_S)) == {"ack"}


def taken(channel: Channel, pool: str, count: int) -> list[bytes]:
    """What is in the queues of all keys: so many, and no more."""
    for key in KEYS:
        channel.consume(f"{pool}-req-{key}")
    channel.wait(lambda: len(channel.delivered) >= count, f"{count} requests", PATIENCE_S)
    bodies = [channel.delivered.popleft().body for _ in range(count)]
    channel.nothing_delivered(2)
    return sorted(bodies, key=int)


@rule("22")
@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.1])
def test_an_orphan_is_moved_once_though_its_owner_dies(
    nodes: LastingNodes, pool: str, channel_at: Open, after_s: float
) -> None:
    nodes.declare(pool, "noop")
    owner = nodes.leader(f"{pool}-orphan")
    near = nodes.other(owner)
    nodes.act(pool, "pause")
    bodies = [b"%d" % number for number in range(100)]
    publish(channel_at(near), pool, bodies)
    nodes.act(pool, "resume")
    time.sleep(after_s)  # a step of the move
    nodes.lose(owner)
    assert taken(channel_at(near), pool, len(bodies)) == bodies


@rule("22")
def test_what_waits_survives_that_all_nodes_end(nodes: LastingNodes, pool: str, channel_at: Open) -> None:
    nodes.declare(pool, "noop")
    nodes.act(pool, "pause")
    bodies = [b"%d" % number for number in range(20)]
    publish(channel_at(nodes.names[0]), pool, bodies)
    nodes.act(pool, "resume")
    nodes.restart()
    assert taken(channel_at(nodes.names[-1]), pool, len(bodies)) == bodies


@rule("24")
def test_answers_come_once_though_the_responder_dies(nodes: LastingNodes, pool: str, channel_at: Open) -> None:
    nodes.declare(pool, "noop")
    owner = nodes.leader(f"{pool}-dl")
    near = nodes.other(owner)
    channel, answers = channel_at(near), f"{pool}answers"
    channel.confirm_select()
    channel.queue_declare(answers, durable=True)
    nodes.act(pool, "pause")
    for number in range(50):
        about = {"reply_to": answers, "correlation_id": str(number), "expiration": str(2000 + 10 * number)}
        channel.basic_publish(pool, "42", b"x", delivery_mode=2, **about)
    assert set(channel.confirms(50)) == {"ack"}
    eventually("some are answered, others are on their way or not due", lambda: channel.message_count(answers) > 5)
    nodes.lose(owner)
    taker = channel_at(near)
    taker.consume(answers, no_ack=True)
    taker.wait(lambda: len(taker.delivered) >= 50, "all answers", PATIENCE_S)
    heard = [taker.delivered.popleft().properties["correlation_id"] for _ in range(50)]
    taker.nothing_delivered(2)
    assert sorted(heard, key=int) == [str(number) for number in range(50)]


# -- rule 60 ---------------------------------------------------------------------------------------------------------


class Lives:
    """Of the key 42, of a pool whose groups go as soon as nobody asks."""

    def __init__(self, nodes: LastingNodes, pool: str) -> None:
        self.nodes = nodes
        self.pool = pool
        self.group_queue = f"{pool}-req-42"
        nodes.declare(pool, unbind_delay_s=0, stop_delay_s=0)

    def say(self, word: str) -> None:
        self.nodes.api("POST", f"pools/%2F/{self.pool}/groups/42/{word}", {}).raise_for_status()

    def serve(self) -> set[int]:
        """A life that lasts until `end` begins, or goes on: the generations of the group and of its workers. A request
        has made the group; when that is gone before it is pinned, a word."""
        with self.nodes.roaming_caller(self.pool) as caller:
            assert told(caller.call("42", timeout_s=PATIENCE_S))["key"] == "42"
            self.say("pin")
            assert told(caller.call("42", timeout_s=PATIENCE_S))["key"] == "42"
        group = eventually("the group", lambda: self.nodes.groups(self.pool).get("42"))
        return {group["generation"]} | {row["generation"] for row in self.nodes.workers(self.pool)}

    def end(self) -> None:
        self.say("unpin")
        eventually("the group is gone, and its workers", lambda: not self.nodes.groups(self.pool))
        eventually("its workers are gone", lambda: not self.nodes.workers(self.pool))

    def change(self, queue: str, how: str) -> None:
        """Another node leads the queue, of which another one was started again."""
        old = self.nodes.leader(queue)
        if how == "moved":
            if len(self.nodes.names) > 1:
                self.nodes.lead(queue, self.nodes.other(old))
                eventually("it leads", lambda: self.nodes.owner(queue) not in ("", old))
        else:
            self.nodes.lose(old)
            if len(self.nodes.names) > 1:
                eventually("another leader", lambda: self.nodes.owner(queue) not in ("", old))
        self.nodes.start_lost()


@rule("60")
@pytest.mark.parametrize("how", ["moved", "killed"])
def test_generations_rise_over_any_failover(nodes: LastingNodes, pool: str, how: str) -> None:
    """Of the orphan queue's owner between two lives of a key, and of the group's queue's owner during one. A node that
    is alone moves nothing: it has the lives."""
    lives = Lives(nodes, pool)
    first = lives.serve()
    lives.end()
    lives.change(f"{pool}-orphan", how)
    second = lives.serve()
    lives.change(lives.group_queue, how)
    second |= lives.serve()
    lives.end()
    third = lives.serve()
    assert max(first) < min(second)
    assert max(second) < min(third)
