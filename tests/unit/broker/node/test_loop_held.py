"""No single event of a client holds the node's loop for 100 ms: over a corpus of shapes that once did, or might.

Measured is the CPU time of each step of the loop (a read that is handled, a turn, a group commit), so that others at
work on this machine do not count. A step that the machine disturbs is tried again: the least of six counts. The 100 ms
are of a machine that adds a million numbers in 50 ms; one that is throttled, or old, has so much more.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from clusterbroker.broker.fronts.amqp091.connection import Connection
from clusterbroker.broker.node.core import Node
from clusterbroker.broker.routing.labour import STEPS_MAX
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring_log import MemoryWiringLog
from tests.unit.broker.fronts.amqp091.harness import Content, World
from tests.unit.broker.node.shapes import COSTLY, IN_TURNS, SHAPES, Shape, bound, topics, wired

HELD_S = 0.1
MILLION_S = 0.05
STEPS = (
    (Connection, "receive"),
    (Connection, "lost"),
    (Connection, "tick"),
    (MemoryWiringLog, "propose"),
    (Node, "turn"),
    (Node, "write_group"),
    (Node, "group_committed"),
    (Node, "loaded"),
)


class Watch:
    """The longest step, and which one it was."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.what = ""
        self.depth = 0

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        self.depth += 1
        began = time.thread_time()
        try:
            yield
        finally:
            took = time.thread_time() - began
            self.depth -= 1
            if not self.depth and took > self.longest:
                self.longest, self.what = took, name


@contextmanager
def watching(monkeypatch: pytest.MonkeyPatch, steps: Iterable[tuple[Any, str]]) -> Iterator[Watch]:
    seen = Watch()

    def watched(kind: Any, name: str) -> None:
        real = getattr(kind, name)

        def timed(*given: Any, **named: Any) -> Any:
            with seen.step(name):
                return real(*given, **named)

        monkeypatch.setattr(kind, name, timed)

    for kind, name in steps:
        watched(kind, name)
    gc.collect()
    gc.disable()
    yield seen
    gc.enable()


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    with watching(monkeypatch, STEPS) as seen:
        yield seen


def million_s() -> float:
    """How long this machine takes at present to add a million numbers, s of a processor."""
    began, total = time.thread_time(), 0
    for number in range(1_000_000):
        total += number
    return time.thread_time() - began


def shapes(some: list[Shape], *marks: pytest.MarkDecorator) -> list[Any]:
    return [
        pytest.param(shape, id=shape.__name__, marks=(*marks, pytest.mark.long) if shape in COSTLY else marks)
        for shape in some
    ]


@pytest.mark.parametrize("shape", [*shapes(SHAPES), *shapes(IN_TURNS, pytest.mark.matrix)])
def test_no_event_holds_the_loop(shape: Shape, watch: Watch) -> None:
    for _ in range(6):  # the best of some: another process beside may want the memory's bandwidth
        world = World()
        event = shape(world, world.client())
        watch.longest = 0.0
        event()
        if watch.longest < HELD_S * max(1.0, million_s() / MILLION_S):
            return
    raise AssertionError(f"{watch.what} took {watch.longest * 1000:.0f} ms")


def test_a_publish_that_costs_too_much_is_refused_and_counted() -> None:
    world = World()
    client = world.client()
    topics(world, client)
    (close,) = client.publish("t", ".".join(["a"] * 120), b"")
    assert close.reply_code == 406
    assert f"{STEPS_MAX:,} steps" in close.reply_text
    assert world.node.labour.refused == 1
    other = world.client()
    assert other.publish("t", "a.b", b"") == []


def test_what_waits_for_a_turn_comes_in_its_order() -> None:
    world = World()
    client = world.client()
    topics(world, client)
    client.declare("log")
    wired(world, *(bound("t", "log", f"#.k{n}") for n in range(40)))
    client.ask(m.ConfirmSelect())
    keys = [".".join(["a"] * 15 + [f"k{n}"]) for n in range(40)]
    client.raw(b"".join(client.content("t", key, b"%d" % n) for n, key in enumerate(keys)))
    assert client.connection.rest, "it is much work"
    assert not client.connection.reading
    client.raw(client.content("", "log", b"last"))
    world.turn()
    assert not client.connection.rest
    got = []
    while isinstance(one := client.say(m.BasicGet(queue="log", no_ack=True))[-1], Content):
        got.append(one.body)
    assert got == [*(b"%d" % n for n in range(40)), b"last"]


def test_a_batch_that_is_divided_is_confirmed_whole() -> None:
    world = World()
    client = world.client()
    client.say(m.ExchangeDeclare(exchange="f", type="fanout"))
    for number in range(200):
        client.declare(f"q{number}")
    wired(world, *(bound("f", f"q{number}", "") for number in range(200)))
    client.ask(m.ConfirmSelect())
    client.raw(client.content("f", "", b"x") * 1500)
    assert client.connection.rest
    world.turn()
    assert [said.delivery_tag for said in client.hear(1) if isinstance(said, m.BasicAck)][-1] == 1500
    assert world.queue("q7").ring.ready == 1500


@pytest.mark.parametrize("mandatory_headers", [False, True])
def test_a_message_to_very_many_queues_is_confirmed_when_the_last_one_has_it(
    mandatory_headers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what its channel says behind it comes behind it."""
    monkeypatch.setattr("clusterbroker.broker.access.publisher.TARGETS_AT_ONCE", 10)
    world = World()
    client, other = world.client(), world.client()
    client.say(m.ExchangeDeclare(exchange="f", type="fanout"))
    for number in range(35):
        client.declare(f"q{number}")
    wired(world, *(bound("f", f"q{number}", "") for number in range(35)))
    client.ask(m.ConfirmSelect())
    headers = {"headers": {"CC": ["q34"]}} if mandatory_headers else {}
    behind = client.content("", "q34", b"behind")
    client.raw(b"".join(client.content("f", "", body, **headers) for body in (b"1", b"2")) + behind)
    assert sum(world.queue(f"q{number}").ring.ready for number in range(35)) == 10
    other.publish("", "q34", b"between")
    assert other.ask(m.QueueDeclare(queue="q0", passive=True)), "others are served"
    world.turn()
    assert [said.delivery_tag for said in client.hear(1) if isinstance(said, m.BasicAck)][-1] == 3
    bodies = []
    while isinstance(got := other.ask(m.BasicGet(queue="q34", no_ack=True)), Content):
        bodies.append(got.body)
    assert [body for body in bodies if body != b"between"] == [b"1", b"2", b"behind"]
    assert world.queue("q0").ring.ready == 2


def test_who_goes_meanwhile_has_published_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterbroker.broker.access.publisher.TARGETS_AT_ONCE", 10)
    world = World()
    client = world.client()
    client.say(m.ExchangeDeclare(exchange="f", type="fanout"))
    for number in range(35):
        client.declare(f"q{number}")
    wired(world, *(bound("f", f"q{number}", "") for number in range(35)))
    client.raw(client.content("f", "", b"x"))
    client.connection.lost(world.now_ms)
    world.turn()
    assert all(world.queue(f"q{number}").ring.ready == 1 for number in range(35))
