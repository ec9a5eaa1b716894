"""What is written, what is bounded, and what hostile bytes cost (rules T2, B45, C74, Z)."""

from __future__ import annotations

import os
import random
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.server.control.client import ask
from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslInit,
    Source,
    Target,
    Transfer,
)
from clusterbroker.broker.wire.amqp10.types import Described, Symbol
from tests.support.amqp10 import HEADER, SASL_HEADER, frame, message

from ..marks import rule
from .conftest import Connect10
from .test_own_nodes import DURABLE, Nodes, started
from .wire import Ended, Peer, Session, check

FROM_FIRST = {
    Symbol("offset"): Described(Symbol("rabbitmq:stream-offset-spec"), "first"),
}  # fmt: skip
own = pytest.mark.skipif("CONFORMANCE_URL" in os.environ, reason="it starts a node of its own")

# -- what is written


def wide(data: bytes, at: int = 0) -> tuple[int, list[str]]:
    """Where the value at `at` ends, and which encodings in it are wider than they need be (1.6)."""
    code, found = data[at], []
    at += 1
    if code == 0:
        at, first = wide(data, at)
        at, second = wide(data, at)
        return at, first + second
    kind, width = code >> 4, {5: 1, 6: 2, 7: 4, 8: 8, 9: 16}.get(code >> 4, 0)
    number = int.from_bytes(data[at : at + width]) if width else -1
    if code in (0x70, 0x80) and number < 256:
        found.append(f"{code:#x} for {number}")
    if code in (0x52, 0x53) and number == 0:
        found.append(f"{code:#x} for 0")
    if code == 0x56:
        found.append("0x56 for a boolean")
    if kind <= 9:
        return at + width, found
    long = kind in (0xB, 0xD, 0xF)
    size = struct.unpack_from(">I", data, at)[0] if long else data[at]
    at += 4 if long else 1
    stop = at + size
    if kind in (0xA, 0xB):
        return stop, ["a long one for a short one"] if long and size < 256 else []
    if kind in (0xE, 0xF):
        return stop, []
    count = struct.unpack_from(">I", data, at)[0] if long else data[at]
    at += 4 if long else 1
    if (long and size - 3 < 256 and count < 256) or (count == 0 and code in (0xC0, 0xD0)):
        found.append(f"{code:#x} for {count} in {size} bytes")
    while at < stop:
        at, more = wide(data, at)
        found += more
    return at, found


class Raw(Peer):
    """Keeps what the node sends."""

    bytes_read = b""

    def _fill(self, deadline: float) -> None:
        feed = self.reader.feed

        def kept(data: bytes) -> Any:
            self.bytes_read += data
            return feed(data)

        self.reader.feed = kept  # type: ignore[method-assign]
        try:
            super()._fill(deadline)
        finally:
            self.reader.feed = feed  # type: ignore[method-assign]


@rule("T2")
def test_we_write_the_smallest(target: Any, queue: str) -> None:
    peer = Raw(target.address)
    session = peer.session()
    sender = session.sender(f"/queues/{queue}")
    for number in range(300):
        sender.post(b"%d" % number, application={"n": number})
    link = session.receiver(f"/queues/{queue}", credit=300)
    for each in link.deliveries(300):
        link.dispose(each.id, state=Accepted(), settled=False)
    link.grant(5, drain=True)
    link.flow()
    session.settle_down()
    session.sender("/queues/nobody has this", waits=False)
    session.settle_down()
    data, at, kinds = peer.bytes_read, 0, set()
    while at < len(data):
        if data[at : at + 4] == b"AMQP":
            at += 8
            continue
        size = struct.unpack_from(">I", data, at)[0]
        body = data[at + 8 : at + size]
        place = 0
        while place < len(body):
            kinds.add(body[place + 2])
            place, found = wide(body, place)
            assert not found, (found, body)
            if body[2] == 0x14 and place:
                break  # the sections of a message follow: those of its publisher are as they came
        at += size
    assert {0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16} <= kinds, "all that a node says was looked at"
    peer.close()


# -- windows and counts


@rule("B45")
def test_more_transfers_than_the_window_end_the_session_and_no_other(connect10: Connect10, queue: str) -> None:
    peer = connect10()
    other = peer.session()
    kept = other.sender(f"/queues/{queue}")
    for _ in range(10):
        session = peer.session()
        sender = session.sender(f"/queues/{queue}")
        peer.raw(
            b"".join(
                frame(session.channel, Transfer(handle=0, delivery_id=number, delivery_tag=b"t", settled=True))
                for number in range(2500)
            )
        )
        found = peer.find(lambda known: isinstance(known.body, (End, Detach))).body
        if isinstance(found, End):
            break  # else the node read them in two parts, of which the first is more than the link's credit
        assert found.handle == sender.handle
    assert isinstance(found, End)
    check(found.error, "amqp:session:window-violation")
    session.say(End())
    assert kept.send(b"lives") == Accepted()
    assert other.receiver(f"/queues/{queue}", credit=1).bodies(1) == [b"lives"]


@rule("C74")
def test_delivery_counts_wrap(session: Session, queue: str) -> None:
    sender = session.sender(f"/queues/{queue}", initial_delivery_count=2**32 - 3)
    assert [sender.send(b"%d" % number) for number in range(6)] == [Accepted()] * 6
    session.say(session.flow(sender.handle, delivery_count=3, link_credit=0, echo=True))
    flow = session.wait(Flow, lambda known: known.handle == sender.handle and known.delivery_count == 3)
    assert flow.link_credit == 994
    link = session.receiver(f"/queues/{queue}")
    link.grant(6)
    link.accept(*link.deliveries(6))
    for _ in range(3):
        link.grant(2**31 - 1, drain=True)
        told = link.flow()
        assert (told.link_credit, told.delivery_count) == (0, (link.count + 2**31 - 1) % 2**32)
        link.count = int(told.delivery_count or 0)
    assert link.count == (6 + 3 * (2**31 - 1)) % 2**32, "it has wrapped"
    fresh = session.sender(f"/queues/{queue}")
    fresh.send(b"a")
    fresh.send(b"b")
    assert link.waiting() == 0
    link.grant(1)
    assert link.bodies(1) == [b"a"]
    assert link.waiting() == 0


# -- bounds


@rule("Z182")
def test_sessions_and_links_are_bounded(connect10: Connect10, queue: str) -> None:
    peer = connect10()
    most = int(peer.opened.channel_max)
    begin = Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10)
    peer.raw(b"".join(frame(number, begin) for number in range(most + 1)))
    for _ in range(most + 1):
        peer.find(lambda known: isinstance(known.body, Begin))
    with peer.closes("amqp:connection:framing-error", at_once=True):
        peer.say(begin, channel=most + 1)
    session = connect10().session()
    assert session.begun.handle_max == 1023
    target, source = Target(address=f"/queues/{queue}"), Source()
    attaches = [
        Attach(name=f"l{number}", handle=number, role=False, target=target, source=source, initial_delivery_count=0)
        for number in range(1024)
    ]
    session.peer.raw(b"".join(frame(0, each) for each in attaches))
    for each in attaches:
        session.wait(Attach, lambda known, name=each.name: known.name == name)  # type: ignore[misc]
    with session.peer.closes("amqp:connection:framing-error", "1023", at_once=True):
        session.say(Attach(name="more", handle=1024, role=False, target=target, initial_delivery_count=0))


@rule("Z182")
def test_names_and_words_of_sasl_are_bounded(connect10: Connect10, queue: str) -> None:
    session = connect10().session()
    session.sender(f"/queues/{queue}", name="n" * 300, waits=False).detached("amqp:invalid-field", "256")
    silent = connect10(stop_before="init")
    with suppress(Ended, OSError):
        silent.try_login("PLAIN", b"\0guest\0" + b"p" * (40 << 10))
        pytest.fail("a response of 40 KiB was taken")
    silent.wait_end()


@own
@rule("Z182")
def test_incomplete_deliveries_are_bounded(tmp_path: Path) -> None:
    for nodes in started(tmp_path, 1, CLUSTERBROKER_LIMITS__PARTIAL_BYTES_MAX=str(32 << 20)):
        nodes.declared("q")
        greedy, modest = nodes.session("a"), nodes.session("a")
        senders = [greedy.sender("/queues/q") for _ in range(4)]
        other = modest.sender("/queues/q")
        first = other.transfer(message(b"x" * 1000)[:500], more=True)
        with greedy.peer.closes("amqp:resource-limit-exceeded", "incomplete", at_once=True):
            for sender in senders:
                sender.transfer(b"\0\x53\x75\xb0\x00\xb7\x1b\x00", more=True)
            with suppress(OSError):
                for _ in range(110):
                    for sender in senders:
                        greedy.say(Transfer(handle=sender.handle, more=True), b"y" * 100_000)
        modest.say(Transfer(handle=other.handle), message(b"x" * 1000)[500:])
        modest.transfers += 1
        assert other.outcome(first) == Accepted()


# -- hostile bytes


def noise(chance: random.Random) -> bytes:
    """One frame that may be anything: a performative as it should be, damaged, or none."""
    number = chance.randrange(2**32)
    body = chance.choice([
        Open(container_id="x"), Begin(next_outgoing_id=number, incoming_window=5, outgoing_window=5),
        Attach(name="n", handle=chance.randrange(4), role=chance.random() < 0.5, source=Source(address="/queues/q"),
               target=Target(address="/queues/q"), initial_delivery_count=0),
        Flow(next_incoming_id=0, incoming_window=number, next_outgoing_id=0, outgoing_window=9,
             handle=chance.randrange(4), link_credit=number, delivery_count=number, drain=True, echo=True),
        Transfer(handle=chance.randrange(4), delivery_id=number, delivery_tag=b"t", more=chance.random() < 0.5),
        Disposition(role=True, first=0, last=number, settled=True, state=Accepted()),
        Detach(handle=chance.randrange(4), closed=True), End(), Close(),
    ])  # fmt: skip
    data = bytearray(frame(chance.randrange(3), body, message(b"x") if isinstance(body, Transfer) else b""))
    for _ in range(chance.choice([0, 0, 1, 3])):
        data[chance.randrange(8, len(data))] = chance.randrange(256)
    if chance.random() < 0.02:
        data[chance.randrange(8)] = chance.randrange(256)
    return bytes(data)


@rule("Z183")
def test_a_hundred_thousand_random_frames(target: Any, connect10: Connect10, queue: str) -> None:
    chance, healthy = random.Random(1), connect10().session()
    sender = healthy.sender(f"/queues/{queue}")
    receiver = healthy.receiver(f"/queues/{queue}", credit=1000)
    begin = b"\0guest\0guest"
    for number in range(500):
        peer = Peer(target.address, stop_before="header")
        with suppress(OSError):
            init = frame(0, SaslInit(mechanism="PLAIN", initial_response=begin), kind=1)
            opened = frame(0, Open(container_id="noise")) + frame(
                0, Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100)
            )
            peer.raw(SASL_HEADER + init + HEADER + opened)
            peer.raw(b"".join(noise(chance) for _ in range(200)))
        peer.abandon()
        if number % 50 == 0:
            assert sender.send(b"%d" % number) == Accepted()
            assert receiver.bodies(1) == [b"%d" % number]
    assert sender.send(b"end") == Accepted()
    assert receiver.bodies(1) == [b"end"]
    assert "made a mistake" not in target.node_log()
    assert "Traceback" not in target.node_log()


@own
@rule("Z184")
def test_slow_receivers_cost_bounded_memory(tmp_path: Path) -> None:
    """Forty of them: of what they have credit for, which is 32 MB each, the node keeps a megabyte or two."""

    def resident(nodes: Nodes) -> int:
        return int((ask(nodes.data_dir("a"), "status") or {})["resident_bytes"])

    for nodes in started(tmp_path, 1):
        nodes.basic("a").queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
        session = nodes.session("a")
        sender = session.sender("/queues/s")
        posted = [sender.post(b"x" * 16_000, header=DURABLE) for _ in range(500)]
        assert all(sender.outcome(number) == Accepted() for number in posted)
        before = resident(nodes)
        slow = []
        for _ in range(40):
            one = nodes.session("a")
            one.say(one.flow(window=100_000))
            slow.append(one.receiver("/queues/s", credit=1_000_000, filter=FROM_FIRST))
        fast = nodes.session("a").receiver("/queues/s", credit=1000, filter=FROM_FIRST)
        assert len(fast.deliveries(500)) == 500, "others have theirs"
        grown = resident(nodes) - before
        assert grown < 160 << 20, f"{grown >> 20} MB more"
        assert len(slow[0].deliveries(500)) == 500, "who reads again goes on"
