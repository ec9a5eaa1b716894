"""One order of effects in each turn, whoever's world it is; groups that nobody waits for are put off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clusterbroker.broker.node.driver import LAZY_MS, ROUNDS_MAX, Driver
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import World


class Recording(World):
    """Writes down what its turns ask for."""

    def __init__(self, **options: Any) -> None:
        self.asked: list[str] = []
        self.delays: list[int] = []
        self.mute = False
        super().__init__(**options)

    @property
    def may_speak(self) -> bool:  # type: ignore[override]
        return not self.mute

    def order(self, proposals: Sequence[Any]) -> None:
        self.asked.append("order")
        super().order(proposals)

    def read(self, loads: Sequence[Any]) -> None:
        self.asked.append("read")
        super().read(loads)

    def verify(self, checks: Sequence[Any]) -> None:
        self.asked.append("verify")
        super().verify(checks)

    def file(self) -> None:
        self.asked.append("file")
        super().file()

    def submit(self, writer: Any, group: Any) -> None:
        self.asked.append("submit")
        super().submit(writer, group)

    def later(self, delay_ms: int) -> None:
        self.delays.append(delay_ms)

    def send(self, now_ms: int) -> None:
        self.asked.append("send")
        super().send(now_ms)

    def exchange(self) -> None:
        self.asked.append("exchange")


def test_what_is_written_comes_before_what_is_said() -> None:
    world = Recording()
    client = world.client()
    client.declare("q")
    client.say(m.ConfirmSelect())
    world.asked.clear()
    client.raw(client.content("", "q", b"1"))
    client.raw_method(1, m.QueueDeclare(queue="other", durable=True))
    world._turn()
    first = world.asked[: world.asked.index("exchange") + 1]
    assert first == ["order", "file", "submit", "send", "exchange"]


def test_one_group_at_a_time() -> None:
    world = Recording()
    client = world.client()
    client.declare("q")
    world.disk_waits = True
    client.publish("", "q", b"1")
    assert world.asked.count("submit") == 1
    client.publish("", "q", b"2")
    assert world.asked.count("submit") == 1
    world.asked.clear()
    world.complete()
    world.disk_waits = False
    world.turn()
    assert "submit" in world.asked


def test_who_may_not_speak_sends_nothing_and_needs_no_turn_for_it() -> None:
    world = Recording()
    client = world.client()
    world.mute = True
    world.asked.clear()
    client.raw_method(1, m.QueueDeclare(queue="q"))
    assert world.driver.turn(world.now_ms) is False
    assert "send" not in world.asked
    world.mute = False
    world.driver.turn(world.now_ms)
    assert client.hear(1) == [m.QueueDeclareOk("q", 0, 0)]


def test_acknowledgements_alone_wait_for_company() -> None:
    world = Recording()
    client = world.client()
    client.declare("q")
    client.publish("", "q", b"1", b"2")
    world.driver = Driver(world.node, world, lambda: world.now_ms)
    world.now_ms += LAZY_MS
    client.say(m.BasicGet(queue="q"))
    client.say(m.BasicAck(delivery_tag=1))
    world.asked.clear()
    client.say(m.BasicGet(queue="q"))
    client.say(m.BasicAck(delivery_tag=2))
    assert "submit" not in world.asked
    assert world.delays[-1] == LAZY_MS
    world.now_ms += LAZY_MS
    world.turn()
    assert "submit" in world.asked
    world.asked.clear()
    client.publish("", "q", b"3")
    assert "submit" in world.asked, "a publish does not wait"


def test_a_turn_ends_though_each_answer_asks_again() -> None:
    world = Recording()
    asked = 0

    def again(_applied: Any) -> None:
        nonlocal asked
        asked += 1
        world.node.propose(c.PassTime(after_ms=asked, lived_ms=asked + 1, wall_ms=0), again)

    again(None)
    world.asked.clear()
    assert world.driver.turn(world.now_ms) is True
    assert world.asked.count("order") == ROUNDS_MAX
    world.node.proposals.clear()
