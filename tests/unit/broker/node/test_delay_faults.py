"""Delay queues and those that would hurt them: targets that refuse, headers of thousands of values, repeats, keys."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.delay.delay_queue import DelayQueue
from clusterbroker.broker.node.due_messages import DueMessages
from clusterbroker.broker.node.inspecting import Inspection
from clusterbroker.broker.stats.inspection import Request
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring.commands import PauseQueue
from clusterbroker.journal.values import Timestamp
from tests.unit.broker.fronts.amqp091.harness import Client, World, bodies

NAME = "amq.delay.later"
REFUSING: dict[str, Any] = {"x_max_length": 1, "x_overflow": "reject-publish"}
KEYS = {"x-delay-key": "k"}


def exchange(client: Client, name: str = "later", kind: str = "direct", **arguments: Any) -> None:
    named = {key.replace("_", "-"): value for key, value in arguments.items()}
    client.ask(
        m.ExchangeDeclare(0, name, "x-delayed-message", durable=True, arguments={"x-delayed-type": kind, **named})
    )


def bound(client: Client, queue: str, source: str = "later", key: str = "k", **arguments: Any) -> None:
    client.declare(queue, **arguments)
    client.ask(m.QueueBind(0, queue, source, key))


def delaying(world: World, name: str = NAME) -> DelayQueue:
    queue = world.queue(name)
    assert isinstance(queue, DelayQueue)
    return queue


@pytest.fixture
def world() -> World:
    made = World()
    client = made.client()
    exchange(client)
    bound(client, "q")
    return made


def full(world: World, key: str = "full") -> Client:
    """A queue that refuses."""
    client = world.client()
    bound(client, "full", key=key, **REFUSING)
    client.publish("", "full", b"first")
    return client


# -- targets that refuse ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refused", [1, 1500])
def test_what_a_full_queue_refuses_holds_up_no_other(world: World, refused: int) -> None:
    client = full(world)
    client.publish("later", "full", *[b"%d" % n for n in range(refused)], headers={"x-delay": 1000})
    client.publish("later", "k", *[b"%d" % n for n in range(4500)], headers={"x-delay": 1001})
    world.wait(2000)
    assert world.queue("q").ring.ready == 4500
    client.ask(m.QueuePurge(0, "full"))
    taker = world.client()
    got: list[bytes] = []
    taker.consume("full", no_ack=True)
    world.wait(400_000)
    got += bodies(taker.hear())
    assert got == [b"%d" % n for n in range(refused)], "each once, in order"
    assert delaying(world).ring.ready == 0


@pytest.mark.long
def test_one_of_two_targets_that_refuses_holds_up_no_other(world: World) -> None:
    """Each message goes to both."""
    client = full(world, "k")
    numbers = [b"%d" % n for n in range(4500)]
    client.publish("later", "k", *numbers, headers={"x-delay": 1000})
    world.wait(70_000)
    assert bodies(world.client().consume("q", no_ack=True)) == numbers
    client.ask(m.QueuePurge(0, "full"))
    taker = world.client()
    taker.consume("full", no_ack=True)
    world.wait(400_000)
    assert bodies(taker.hear()) == numbers
    assert delaying(world).ring.ready == delaying(world).ring.unacked == 0


def test_what_one_of_two_refuses_comes_once_over_restarts(world: World) -> None:
    client = full(world, "k")
    client.ask(m.ConfirmSelect())
    client.publish("later", "k", b"1", b"2", b"3", headers={"x-delay": 1000})
    world.wait(1500)
    world.crash()
    world.wait(1500)
    world.crash()
    client = world.client()
    assert bodies(client.consume("q", no_ack=True)) == [b"1", b"2", b"3"]
    client.ask(m.QueuePurge(0, "full"))
    client.consume("full", "other", no_ack=True)
    world.wait(130_000)
    assert bodies(client.hear()) == [b"1", b"2", b"3"]


# -- headers of thousands of values -----------------------------------------------------------------------------------


def heavy(count: int = 4000) -> dict[str, Any]:
    return {f"h{n}": n for n in range(count)}


def turns_until_fired(world: World, client: Client, headers: dict[str, Any]) -> int:
    """Turns of the node in which its processor is not given back."""
    client.publish("later", "k", *[b"x"] * 60, headers=headers)
    world.now_ms += 10_000
    turns = 0
    while world.queue("q").ring.ready < 60:
        world.driver.turn(world.now_ms)
        if world.journal is not None and not world.journal.idle:
            world.complete()
        turns += 1
        assert turns < 10_000
    return turns


@pytest.mark.long
def test_a_turn_is_bounded_by_the_bytes_of_headers(world: World) -> None:
    client = world.client()
    light = turns_until_fired(world, client, {"x-delay": 1000})
    assert light < 15
    client.ask(m.QueuePurge(0, "q"))
    text = "1000"  # is read by decoding all of the header
    assert turns_until_fired(world, client, {"x-delay": text, **heavy()}) >= light + 20


@pytest.mark.long
def test_so_is_the_first_reading_of_a_new_owner(world: World) -> None:
    client = world.client()
    client.ask(m.ConfirmSelect())
    client.publish("later", "k", *[b"x"] * 60, headers={"x-delay": "100000", "x-delay-key": "k" * 200, **heavy()})
    for number in range(60):  # of keys beside a text for a delay the header is decoded
        client.publish("later", "k", b"x", headers={"x-delay": "100000", "x-delay-key": f"k{number}", **heavy()})
    world.reads_wait = True
    world.crash()
    queue = delaying(world)
    turns = 0
    while not queue.is_read:
        world.reads_wait = False
        world.driver.turn(world.now_ms)
        world.answer_reads()
        turns += 1
        assert turns < 1000
    assert queue.under("k" * 200) == [60]
    assert turns > 10


# -- numbered publishes -----------------------------------------------------------------------------------------------


def test_a_numbered_message_that_is_sent_again_after_its_time_comes_once(world: World) -> None:
    client = world.client()
    headers = {"x-producer": "p", "x-seq": 1, "x-deliver-at": world.node.now_ms + 1000}
    client.publish("later", "k", b"x", headers=headers)
    world.wait(2000)
    client.publish("later", "k", b"x", headers=headers)
    world.wait(2000)
    assert bodies(client.consume("q", no_ack=True)) == [b"x"]


def test_a_numbered_one_that_comes_late_is_routed_at_once(world: World) -> None:
    client = world.client()
    client.consume("q", no_ack=True)
    headers = {"x-producer": "p", "x-seq": 1, "x-deliver-at": world.node.now_ms - 1000}
    heard = client.publish("later", "k", b"x", headers=headers)
    world.wait(1)
    client.publish("later", "k", b"x", headers=headers)
    world.wait(1)
    assert bodies([*heard, *client.hear()]) == [b"x"]


def test_a_transient_numbered_message_survives_with_its_number(world: World) -> None:
    client = world.client()
    client.ask(m.ConfirmSelect())
    headers = {"x-producer": "p", "x-seq": 1, "x-delay": 5000}
    client.publish("later", "k", b"x", transient=True, headers=headers)
    world.crash()
    client = world.client()
    client.publish("later", "k", b"x", transient=True, headers=headers)
    world.wait(6000)
    assert bodies(client.consume("q", no_ack=True)) == [b"x"]


# -- moves, times, keys -----------------------------------------------------------------------------------------------


def test_a_move_that_ends_after_the_due_time_without_success_strands_nothing(world: World) -> None:
    client = world.client()
    client.declare("elsewhere")
    client.publish("later", "k", b"x", headers={"x-delay": 1000})
    world.turn()
    queue = delaying(world)
    world.disk_waits = True
    request = Request(
        what="move", queue_id=queue.entity.queue_id, seqs=(1,), exchange="", routing_key="elsewhere", count=1
    )
    inspection = Inspection(world.node, queue, request, 10**15)
    inspection.step(world.now_ms)
    assert queue.ring.unacked == 1, "it is on its way"
    world.now_ms += 3000
    world.turn()
    inspection.leave()
    world.disk_waits = False
    world.wait(3000)
    assert bodies(world.client().consume("q", no_ack=True)) == [b"x"]


def test_a_timestamp_of_amqp_1_0_keeps_its_milliseconds() -> None:
    from clusterbroker.broker.content.sections import to_field
    from clusterbroker.broker.routing.delays import due_ms
    from clusterbroker.broker.wire.amqp10.types import Milliseconds

    at_ms = 1_700_000_000_789
    assert due_ms({"x-opt-delivery-time": to_field(Milliseconds(at_ms))}, 1) == at_ms
    assert due_ms({"x-opt-delivery-time": Timestamp(1_700_000_000)}, 1) == 1_700_000_000_000


def test_rows_of_replaced_keys_do_not_pile_up(world: World) -> None:
    client = world.client()
    for _ in range(10):
        client.publish("later", "k", *[b"x"] * 1000, headers={"x-delay": 3_600_000, **KEYS})
    queue = delaying(world)
    assert queue.ring.ready == 1
    assert len(queue._index) < 3000


def test_rows_of_what_an_operator_cancelled_do_not_pile_up(world: World) -> None:
    client = world.client()
    client.publish("later", "k", *[b"x"] * 3000, headers={"x-delay": 3_600_000})
    queue = delaying(world)
    request = Request(what="delete", queue_id=queue.entity.queue_id, count=2900)
    inspection = Inspection(world.node, queue, request, 10**15)
    for _ in range(1000):
        inspection.step(world.now_ms)
        world.turn()
        if inspection.over:
            break
    assert queue.ring.ready == 100
    assert len(queue._index) < 1200, "void rows are fewer than 1,024, or a quarter"
    world.wait(3_600_001)
    assert len(bodies(client.consume("q", no_ack=True))) == 100


@pytest.mark.parametrize("limits", [{"x_max_delayed": 2}, {"x_max_delayed_bytes": 2}])
def test_a_newer_message_of_a_key_finds_the_room_of_the_one_that_it_replaces(limits: dict[str, Any]) -> None:
    world = World()
    client = world.client()
    exchange(client, **limits)
    bound(client, "q")
    client.ask(m.ConfirmSelect())
    for body, key in ((b"1", "k"), (b"2", "l"), (b"3", "k"), (b"4", "k")):
        [heard] = client.publish("later", "k", body, headers={"x-delay": 1000, "x-delay-key": key})
        assert isinstance(heard, m.BasicAck), body
    [heard] = client.publish("later", "k", b"5", headers={"x-delay": 1000, "x-delay-key": "new"})
    assert isinstance(heard, m.BasicNack)
    world.wait(2000)
    assert bodies(client.consume("q", no_ack=True)) == [b"2", b"4"]


def test_two_delayed_exchanges_before_one_queue_give_one_copy(world: World) -> None:
    client = world.client()
    exchange(client, "too")
    bound(client, "q", "too")
    bound(client, "only", "too")
    client.ask(m.ExchangeDeclare(0, "both", "fanout", durable=True))
    for name in ("later", "too"):
        client.ask(m.ExchangeBind(0, name, "both", "k"))
    client.publish("both", "k", b"x", headers={"x-delay": 1000})
    world.wait(2000)
    assert bodies(client.consume("q", no_ack=True)) == [b"x"]
    assert bodies(client.consume("only", "other", no_ack=True)) == [b"x"]


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_a_rate_bounds_what_leaves_in_a_second() -> None:
    world = World()
    client = world.client()
    exchange(client, x_delay_rate=100)
    bound(client, "q")
    client.publish("later", "k", *[b"%d" % n for n in range(1000)], headers={"x-delay": 1000})
    world.wait(1000)
    world.wait(3000)
    assert 300 <= world.queue("q").ring.ready <= 410
    world.wait(8000)
    assert bodies(world.client().consume("q", no_ack=True)) == [b"%d" % n for n in range(1000)]


def test_there_are_so_many_keys_at_most(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterbroker.broker.delay.delay_keys.KEYS_MAX", 3)
    client = world.client()
    client.ask(m.ConfirmSelect())
    answers = []
    for key in ("1", "2", "3", "4", "2"):
        [heard] = client.publish("later", "k", key.encode(), headers={"x-delay": 1000, "x-delay-key": key})
        answers.append(isinstance(heard, m.BasicAck))
    assert answers == [True, True, True, False, True]
    world.wait(2000)
    [heard] = client.publish("later", "k", b"5", headers={"x-delay": 1000, "x-delay-key": "5"})
    assert isinstance(heard, m.BasicAck), "keys of what has left are free"


def test_an_exchange_in_which_something_waits_is_in_use(world: World) -> None:
    client = world.client()
    client.publish("later", "k", b"x", headers={"x-delay": 1000})
    client.ask(m.QueueDelete(0, "q"))
    assert world.client().code(m.ExchangeDelete(0, "later", if_unused=True)) == 406
    world.wait(2000)
    assert client.ask(m.ExchangeDelete(0, "later", if_unused=True)) == m.ExchangeDeleteOk()
    assert client.ask(m.ExchangeDelete(0, "later", if_unused=True)) == m.ExchangeDeleteOk(), "it is gone"


def test_lavinmqs_argument_makes_a_delayed_exchange_of_a_type() -> None:
    world = World()
    client = world.client()
    declare = m.ExchangeDeclare(0, "later", "direct", durable=True, arguments={"x-delayed-exchange": True})
    assert client.ask(declare) == client.ask(declare) == m.ExchangeDeclareOk()
    bound(client, "q")
    client.publish("later", "k", b"x", headers={"x-delay": 1000})
    assert delaying(world).ring.ready == 1
    world.wait(2000)
    assert bodies(client.consume("q", no_ack=True)) == [b"x"]


def test_what_cannot_be_read_when_it_is_due_holds_up_nothing(world: World) -> None:
    client = world.client()
    client.ask(m.ConfirmSelect())
    client.publish("later", "k", b"1", b"2", b"3", headers={"x-delay": 1000})
    world.checkpoint()
    world.crash()
    world.turn()
    queue = delaying(world)
    assert queue.is_read
    assert world.journal is not None
    read = world.journal.read
    world.journal.read = lambda queue_id, places: [  # type: ignore[method-assign]
        None if place[0] == 2 else found for place, found in zip(places, read(queue_id, places), strict=True)
    ]
    world.wait(2000)
    client = world.client()
    assert bodies(client.consume("q", no_ack=True)) == [b"1", b"3"]
    assert (queue.ring.ready, queue.ring.unacked) == (1, 0)
    world.journal.read = read  # type: ignore[method-assign]
    world.wait(70_000)
    assert bodies(client.hear()) == [b"2"], "it was mended"


# -- targets that go, and what raises ----------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [0, 1])
def test_a_queue_that_is_deleted_while_it_is_sent_to_holds_nothing(world: World, others: int) -> None:
    """What was held for it goes with it; another one gets its copies."""
    client = world.client()
    if others:
        bound(client, "other")
    client.publish("later", "k", *[b"%d" % n for n in range(5)], headers={"x-delay": 1000})
    world.now_ms += 1000
    world.disk_waits = True
    world.turn()
    assert delaying(world).ring.dead()
    client.ask(m.QueueDelete(0, "q"))
    world.disk_waits = False
    world.wait(100)
    letters = delaying(world).letters
    assert letters is not None
    assert (len(letters), letters.held_bytes, delaying(world).ring.dead(), letters.lanes) == (0, 0, [], {})
    if others:
        assert world.queue("other").ring.ready == 5


def test_lanes_of_deleted_queues_do_not_pile_up(world: World) -> None:
    client = full(world)
    client.publish("later", "full", b"x", headers={"x-delay": 1000})
    world.wait(1500)
    letters = delaying(world).letters
    assert letters is not None
    assert letters.lanes
    client.ask(m.QueueDelete(0, "full"))
    world.wait(2000)
    assert (delaying(world).ring.ready, letters.lanes) == (0, {})


def test_what_goes_to_several_queues_is_asked_for_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not once for each message, with all that are due behind it."""
    client = world.client()
    bound(client, "other")
    asked = []
    whole = DueMessages.together

    def together(due: DueMessages, queue: Any, messages: Any, bytes_max: int) -> Any:
        asked.append(len(messages))
        return whole(due, queue, messages, bytes_max)

    monkeypatch.setattr(DueMessages, "together", together)
    client.publish("later", "k", *[b"x"] * 200, headers={"x-delay": 1000})
    world.wait(1000)
    assert (world.queue("q").ring.ready, world.queue("other").ring.ready) == (200, 200)
    assert sum(asked) <= 200


def test_one_that_raises_takes_none_of_its_run_with_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those before it go, it is named, and when its queue is resumed the others go on."""
    world.story.forgives = True
    client = world.client()
    whole = DueMessages._made

    def made(due: DueMessages, messages: Any, targets: int, now_ms: int) -> Any:
        if any(message.body == b"3" for message in messages):
            raise ValueError("a mistake")
        return whole(due, messages, targets, now_ms)

    monkeypatch.setattr(DueMessages, "_made", made)
    numbers = [b"%d" % n for n in range(6)]
    client.publish("later", "k", *numbers, headers={"x-delay": 1000})
    world.wait(1500)
    assert world.queue("q").ring.ready == 3
    assert [(name, seq) for name, seq, _ in world.story.mistakes] == [(NAME, 4)]
    assert delaying(world).entity.paused
    monkeypatch.undo()
    world.command(PauseQueue(vhost="/", name=NAME, paused=False))
    world.wait(1500)
    assert bodies(client.consume("q", no_ack=True)) == numbers
    assert len(delaying(world).letters or ()) == 0


@pytest.mark.parametrize("groups", range(1, 8))
def test_a_queue_that_is_full_of_what_it_took_before_a_crash_gets_it_once(groups: int) -> None:
    """The letter is published again, and finds its queue full of itself."""
    world = World()
    client = world.client()
    client.ask(m.ExchangeDeclare(0, "x", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}))
    client.declare("full", x_max_length=1, x_overflow="reject-publish")
    client.ask(m.QueueBind(0, "full", "x", ""))
    client.ask(m.ConfirmSelect())
    client.publish("x", "k", b"1", headers={"x-delay": 1000})
    world.disk_waits = True
    world.wait(2000)
    for _ in range(groups):
        if world.group is not None:
            world.commit()
    world.crash()
    world.disk_waits = False
    client = world.client()
    world.wait(61_000)
    got = []
    for number in range(3):
        got += bodies(client.consume("full", f"of {number}", no_ack=True))
        client.ask(m.BasicCancel(f"of {number}"))
        world.wait(61_000)
    assert got == [b"1"]


def test_what_waits_for_each_of_its_queues_has_no_key_that_one_of_another_queue_replaces() -> None:
    world = World()
    client = world.client()
    exchange(client)
    for name in ("full", "full as well"):
        bound(client, name, durable=True, **REFUSING)
        client.publish("", name, b"first", delivery_mode=2)
    client.ask(m.ConfirmSelect())
    client.publish("later", "k", b"1", headers={"x-delay": 1000, **KEYS}, delivery_mode=2)
    world.wait(2000)
    assert delaying(world).ring.ready == 2
    world.crash()  # the next owner reads what waits, and its keys
    client = world.client()
    world.wait(2000)
    got = {name: bodies(client.consume(name, name, no_ack=True)) for name in ("full", "full as well")}
    world.wait(61_000)
    more = sorted(bodies(client.hear()))
    assert (got, more) == ({"full": [b"first"], "full as well": [b"first"]}, [b"1", b"1"])


def test_one_that_nobody_takes_is_not_taken_for_newer_than_what_waits_under_its_key() -> None:
    """It is appended anew, behind the newer one, and another owner reads both."""
    world = World()
    client = world.client()
    exchange(client)
    bound(client, "full", durable=True, **REFUSING)
    about: dict[str, Any] = {"delivery_mode": 2}
    client.publish("later", "k", b"first", headers={"x-delay": 1000}, **about)
    client.publish("later", "k", b"old", headers={"x-delay": 1000, **KEYS}, **about)
    world.wait(500)
    world.disk_waits = True  # the old one is on its way when the newer one comes, and hears then that its queue is full
    world.now_ms += 600
    world.turn()
    client.publish("later", "k", b"new", headers={"x-delay": 20_000, **KEYS}, **about)
    while world.group is not None:
        world.commit()
        world.turn()
    world.disk_waits = False
    world.turn()
    assert [row[0] for row in delaying(world).ring.living(1, 9, 9)] == [3, 4], "new, and old anew"
    world.crash()
    client = world.client()
    world.wait(100)
    client.publish("later", "k", b"newest", headers={"x-delay": 20_000, **KEYS}, **about)
    heard = bodies(client.consume("full", no_ack=True))
    world.wait(70_000)
    assert heard + bodies(client.hear()) == [b"first", b"old", b"newest"]
