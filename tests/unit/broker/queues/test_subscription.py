"""Who consumes from a queue, in which order, and how the single active consumer changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterbroker.broker.queues.subscription import Subscriptions
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import Client, Content, World, bodies


def consumer(world: World, priority: int = 0, prefetch: int = 0, **more: Any) -> Client:
    client = world.client()
    client.ask(m.BasicQos(0, prefetch, False))
    client.heard_first = client.consume("q", arguments={"x-priority": priority}, **more)  # type: ignore[attr-defined]
    return client


def single(world: World | None = None, **arguments: Any) -> World:
    world = world or World()
    world.client().declare("q", x_single_active_consumer=True, **arguments)
    return world


def publish(world: World, *words: bytes) -> None:
    client = world.client()
    client.publish("", "q", *words)
    client.leave()


def active(world: World) -> int | None:
    found = world.queue("q").subscriptions.active
    return None if found is None else list(world.queue("q").subscriptions).index(found)


def test_equals_take_turns_and_higher_priority_comes_first() -> None:
    world = World()
    world.client().declare("q")
    low, one, two = consumer(world), consumer(world, 5, prefetch=2), consumer(world, 5, prefetch=2)
    publish(world, *b"1 2 3 4 5".split())
    assert [len(bodies(client.hear())) for client in (low, one, two)] == [1, 2, 2]


def test_the_order_of_members() -> None:
    world = World()
    world.client().declare("q")
    for priority in (0, 5, 5, -3, 9):
        consumer(world, priority)
    assert [member.credit.priority for member in world.queue("q").subscriptions] == [9, 5, 5, 0, -3]


def test_exclusive_is_forgotten_with_its_member() -> None:
    world = World()
    world.client().declare("q")
    client = consumer(world, exclusive=True)
    assert world.queue("q").subscriptions.exclusive
    client.leave()
    assert not world.queue("q").subscriptions.exclusive


def test_only_the_first_is_active_until_it_goes() -> None:
    world = single()
    first, second, third = consumer(world), consumer(world), consumer(world)
    publish(world, b"1", b"2")
    assert (bodies(first.hear()), bodies(second.hear())) == ([b"1", b"2"], [])
    first.leave()
    assert bodies(second.hear()) == [b"1", b"2"]
    second.say(m.BasicAck(1), m.BasicCancel("ctag"))
    publish(world, b"3")
    assert bodies(third.hear()) == [b"3"], "what the cancelled one holds stays with its channel"
    assert world.queue("q").ring.unacked == 2


@pytest.mark.parametrize("how", ["ack", "reject", "return", "cancel", "leave", "tx"])
def test_a_higher_priority_takes_over_when_the_active_one_holds_nothing(how: str) -> None:
    world = single()
    low = consumer(world)
    if how == "tx":
        low.ask(m.TxSelect())
    publish(world, b"1")
    high = consumer(world, 5)
    publish(world, b"2")
    assert (bodies(low.hear()), bodies(high.hear())) == ([b"1"], []), "it gets nothing more, and holds one yet"
    if how == "ack":
        low.say(m.BasicAck(1))
    elif how == "reject":
        low.say(m.BasicReject(1, False))
    elif how == "return":
        low.say(m.BasicReject(1, True))
    elif how == "cancel":
        low.say(m.BasicCancel("ctag"))
    elif how == "tx":
        low.say(m.BasicAck(1), m.TxCommit())
    else:
        low.leave()
    assert active(world) == 0
    assert bodies(high.hear()) == ([b"1", b"2"] if how in ("return", "leave") else [b"2"])
    assert bodies(low.hear()) == []


def test_a_higher_priority_takes_over_at_once_when_the_active_one_is_idle() -> None:
    world = single()
    low, high = consumer(world), consumer(world, 5)
    publish(world, b"1")
    assert (bodies(low.hear()), bodies(high.hear())) == ([], [b"1"])
    higher = consumer(world, 7)
    high.leave()
    assert bodies(higher.hear()) == [b"1"]
    assert bodies(low.hear()) == []


def test_a_higher_one_that_goes_before_it_took_over_gives_the_queue_back() -> None:
    world = single()
    low = consumer(world)
    publish(world, b"1")
    high = consumer(world, 5)
    high.leave()
    publish(world, b"2")
    assert bodies(low.hear()) == [b"1", b"2"]


def test_the_order_of_messages_is_kept_over_many_hand_overs() -> None:
    world = single()
    seen: list[bytes] = []
    clients = [consumer(world, prefetch=2) for _ in range(3)]
    for number in range(30):
        publish(world, b"%d" % number)
        for client in clients:
            got = [said for said in client.hear() if isinstance(said, Content)]
            for said in got:
                seen.append(said.body)
                client.say(m.BasicAck(said.method.delivery_tag))
        if number % 7 == 3:
            clients.pop(0).leave()
            clients.append(consumer(world, prefetch=2))
    assert seen == [b"%d" % number for number in range(30)]


def test_get_is_refused_where_only_one_may_consume() -> None:
    world = single(x_queue_type="quorum")
    assert world.client().code(m.BasicGet(queue="q")) == 405


def test_without_members() -> None:
    subscriptions = Subscriptions(True)
    subscriptions.settle()
    assert (len(subscriptions), subscriptions.credits, subscriptions.active) == (0, [], None)


class Counted:
    """A consumer that counts how often anybody looks at it."""

    looks = 0
    exclusive = holds = False
    held = 0
    node = "b"

    def __init__(self, number: int) -> None:
        self.order = (1, "b", number)
        self._credit = SimpleNamespace(priority=0, active=True, selection=None)

    @property
    def credit(self) -> Any:
        Counted.looks += 1
        return self._credit

    def activated(self, active: bool) -> None: ...


@pytest.mark.parametrize("single_active", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
def test_very_many_consumers_come_and_go_without_a_look_at_all_others_for_each(
    single_active: bool, at_once: bool
) -> None:
    """With 8,000 of one client the owner's loop stood for seconds when they went, and the next owner's when it heard
    of them: longer than a lease."""
    count = 2000
    members: list[Any] = [Counted(number) for number in range(count)]
    subscriptions = Subscriptions(single_active)
    Counted.looks = 0
    for member in members:
        subscriptions.add(member)
    assert len(subscriptions.credits) == (1 if single_active else count)
    if at_once:
        subscriptions.leave(dict.fromkeys(members))
    else:
        for member in members:
            subscriptions.remove(member)
    assert (len(subscriptions), subscriptions.credits, subscriptions.active) == (0, [], None)
    assert not any(member.credit.active for member in members)
    assert Counted.looks < 50 * count
