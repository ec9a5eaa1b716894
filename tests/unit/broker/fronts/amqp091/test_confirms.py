"""Each publish is answered once, in whatever order its queues answer."""

from __future__ import annotations

import random
import struct

from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.fronts.amqp091.confirms import Confirms
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.codec import OutBuffer
from tests.unit.broker.fronts.amqp091.harness import World


def answers(out: OutBuffer) -> list[tuple[bool, int, bool]]:
    """(positive, tag, multiple) of what was said."""
    data, found, at = bytes(out.take()), [], 0
    while at < len(data):
        _, channel, size = struct.unpack_from(">BHI", data, at)
        method = m.decode(data[at + 7 : at + 7 + size])
        assert channel == 5
        assert isinstance(method, m.BasicAck | m.BasicNack)
        found.append((isinstance(method, m.BasicAck), method.delivery_tag, method.multiple))
        at += size + 8
    return found


@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=30),
    rejected=st.sets(st.integers(0, 29)),
    seed=st.integers(0, 1 << 32),
)
def test_every_publish_is_answered_exactly_once(counts: list[int], rejected: set[int], seed: int) -> None:
    rng = random.Random(seed)
    ready: list[None] = []
    confirms = Confirms(lambda: ready.append(None))
    out = OutBuffer(8192)
    waiting: list[object] = []
    outstanding: dict[int, bool] = {}
    said: dict[int, bool] = {}

    def flush() -> None:
        ready.clear()
        confirms.flush(out, 5)
        for positive, tag, multiple in answers(out):
            assert tag in outstanding
            for known in [known for known in outstanding if known <= tag] if multiple else [tag]:
                said[known] = positive
                assert outstanding.pop(known) is positive, f"{known} is answered as its queues did"

    for place, count in enumerate(counts):
        rejecting = place in rejected
        ticket = confirms.ticket(1 if rejecting else count)
        ticket.rejected = rejecting
        for tag in range(ticket.first, ticket.last + 1):
            outstanding[tag] = not rejecting
        for _ in range(rng.randint(0, 3)):
            ticket.hold()
        waiting += [ticket] * ticket.waits
        while waiting and rng.random() < 0.5:
            waiting.pop(rng.randrange(len(waiting))).pass_()
            assert not ready or len(ready) == 1, "who is to flush is told once"
            if ready and rng.random() < 0.5:
                flush()
    rng.shuffle(waiting)
    for ticket in waiting:
        ticket.pass_()
    flush()
    assert outstanding == {}
    assert sorted(said) == list(range(1, confirms.next))


def test_what_is_done_at_the_front_is_said_together_and_what_is_behind_one_by_one() -> None:
    confirms, out = Confirms(lambda: None), OutBuffer(8192)
    tickets = [confirms.ticket(count) for count in (2, 1, 3, 1)]
    for number in (0, 2):
        tickets[number].pass_()
    confirms.flush(out, 5)
    assert answers(out) == [(True, 2, True), (True, 4, False), (True, 5, False), (True, 6, False)]
    tickets[3].rejected = True
    tickets[3].pass_()
    tickets[1].pass_()
    confirms.flush(out, 5)
    assert answers(out) == [(True, 3, True), (False, 7, False)]


def test_a_slow_queue_does_not_hold_back_the_others() -> None:
    world = World()
    client = world.client()
    client.declare("slow")
    client.declare("quick", x_durability="memory")
    client.ask(m.ConfirmSelect())
    world.disk_waits = True
    assert client.publish("", "slow", b"1", b"2") == []
    assert client.publish("", "quick", b"3") == [m.BasicAck(3, False)]
    world.commit()
    assert client.hear() == [m.BasicAck(2, True)]


def test_an_acknowledgement_before_the_disk_confirms() -> None:
    world = World()
    client, consumer = world.client(), world.client()
    client.declare("q")
    client.declare("busy")
    world.disk_waits = True
    client.publish("", "busy", b"keeps the disk at work")
    client.ask(m.ConfirmSelect())
    consumer.consume("q")
    client.publish("", "q", b"1")
    consumer.say(m.BasicAck(1))
    assert client.hear() == [m.BasicAck(1, True)], "what was acknowledged unwritten needs no disk"


def test_confirm_select_twice_and_without_an_answer() -> None:
    client = World().client()
    assert client.say(m.ConfirmSelect(nowait=True)) == []
    assert client.publish("", "nobody", b"1") == [m.BasicAck(1, True)]
    assert client.ask(m.ConfirmSelect()) == m.ConfirmSelectOk()
    assert client.publish("", "nobody", b"2") == [m.BasicAck(2, True)], "the count goes on"
    assert client.code(m.TxSelect()) == 406
