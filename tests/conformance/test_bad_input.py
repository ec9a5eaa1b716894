"""Bad input on the wire and out of order (amqp-rules.md 7.4).

Every case ends in a close code from its list, in a dropped connection where that is allowed, or, where the input is
merely odd, in a normal answer. Each time another client, connected before, still publishes and consumes.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .bad_octets import DROP, OK, SYNTAX, WIRE, frame, publish_frames, special_values
from .conftest import Connect
from .encoding import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    METHODS,
    PROTOCOL_HEADER,
    Raw,
    encode_frame,
    encode_header,
    encode_method,
    encode_table,
)
from .marks import rule
from .target import Target
from .wire import Channel, Connection, ConnectionClosed, Silence, raw_reply

Name = Callable[[str], str]


@pytest.fixture(autouse=True)
def bystander(target: Target) -> Iterator[Channel]:
    """Another client, open before the bad input; after it, a message still makes its way through it."""
    connection = Connection(target.address)
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).queue
    channel.consume(queue, no_ack=True)
    channel.confirm_select()
    yield channel
    channel.basic_publish("", queue, b"still here")
    assert channel.confirms(1) == ["ack"]
    assert channel.delivery().body == b"still here"
    connection.close()


@pytest.fixture(scope="module", autouse=True)
def half_a_header(target: Target) -> Iterator[Connection]:
    """Opened before the first test of the file, so that its timeout passes beside the others."""
    connection = Connection(target.address, stop_before="header")
    connection.send_bytes(b"AMQP")
    yield connection
    connection.abandon()


def outcome(connection: Connection, channel: Channel, allowed: set[object], timeout_s: float = 5.0) -> object:
    """What came of it: a close code, DROP, or OK when the channel still answers and an answer is allowed."""
    deadline = time.monotonic() + timeout_s
    answered = False
    try:
        channel.send("channel.flow", active=True)
        while not (answered and OK in allowed):
            for close in (channel.closed, connection.closed):
                if close is not None:
                    return close.reply_code
            if not connection.pump(deadline):
                break
            answered = any(reply.name == "channel.flow-ok" for reply in channel.replies)
    except ConnectionClosed:
        return DROP if connection.closed is None else connection.closed.reply_code
    assert answered, f"neither an answer nor a close within {timeout_s} s"
    return OK


@rule("7.4/wire")
@pytest.mark.parametrize("case", WIRE)
def test_bad_octets(connect: Connect, case: str) -> None:
    octets, allowed = WIRE[case]
    connection = connect()
    channel = connection.channel(1)
    connection.send_bytes(octets)
    assert outcome(connection, channel, allowed) in allowed


@rule("7.4/wire")
@pytest.mark.parametrize("case", special_values())
def test_odd_table_values_in_headers_pass_or_are_refused(connect: Connect, case: str) -> None:
    """Headers are opaque: what is accepted comes back octet for octet."""
    value = special_values()[case]
    connection = connect()
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).queue
    channel.basic_publish("", queue, b"x", headers={"k": value})
    allowed = SYNTAX | {OK, 406}
    result = outcome(connection, channel, allowed)
    assert result in allowed
    if result is OK:
        channel.replies.clear()
        got = channel.basic_get(queue, no_ack=True)
        assert got is not None
        assert got.raw_properties.endswith(encode_table({"k": value}))


@rule("7.4/wire")
def test_one_octet_per_packet(connect: Connect) -> None:
    connection = connect(stop_before="header")
    start_ok = encode_method("connection.start-ok", mechanism="PLAIN", response="\0guest\0guest", locale="en_US")

    def drip(octets: bytes) -> None:
        for i in range(len(octets)):
            connection.send_bytes(octets[i : i + 1])

    drip(PROTOCOL_HEADER)
    connection.reply("connection.start")
    drip(encode_frame(FRAME_METHOD, 0, start_ok))
    connection.tune = connection.reply("connection.tune")
    connection.tune_ok()
    drip(encode_frame(FRAME_METHOD, 0, encode_method("connection.open", virtual_host="/")))
    connection.reply("connection.open-ok")
    channel = connection.unopened_channel(1)
    drip(encode_frame(FRAME_METHOD, 1, encode_method("channel.open")))
    channel.reply("channel.open-ok")
    drip(publish_frames(encode_header(3, {}), b"a", b"b", b"c"))
    assert outcome(connection, channel, {OK}) is OK


@rule("7.4/wire")
def test_a_hundred_thousand_empty_body_frames(connect: Connect) -> None:
    connection = connect()
    channel = connection.channel(1)
    queue = channel.queue_declare("", exclusive=True).queue
    octets = encode_frame(FRAME_METHOD, 1, encode_method("basic.publish", routing_key=queue))
    octets += encode_frame(FRAME_HEADER, 1, encode_header(1, {}))
    connection.send_bytes(octets + encode_frame(FRAME_BODY, 1, b"") * 100_000 + encode_frame(FRAME_BODY, 1, b"x"))
    allowed: set[object] = {OK, 501, 505}
    result = outcome(connection, channel, allowed, timeout_s=20)
    assert result in allowed
    if result is OK:
        channel.replies.clear()
        assert channel.basic_get(queue, no_ack=True).body == b"x"


@rule("7.4/wire")
def test_the_largest_frame_is_legal(connect: Connect) -> None:
    connection = connect()
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).queue
    body = bytes(131072 - 8)
    channel.basic_publish("", queue, body)
    assert channel.basic_get(queue, no_ack=True).body == body


@rule("7.4/wire")
@pytest.mark.parametrize("seed", range(8))
def test_random_octets(connect: Connect, seed: int) -> None:
    """In place of the header, and in place of a frame."""
    noise = random.Random(seed).randbytes(400)
    if seed % 2:
        connection = connect(stop_before="header")
        connection.send_bytes(noise)
        connection.socket.shutdown(socket.SHUT_WR)
        raw_reply(connection, 1 << 20)
        assert connection.ended
        return
    connection = connect()
    channel = connection.channel(1)
    connection.send_bytes(noise)
    connection.socket.shutdown(socket.SHUT_WR)
    assert outcome(connection, channel, SYNTAX) in SYNTAX | {504}


@rule("7.4/wire")
def test_the_same_frames_with_every_truncation(connect: Connect) -> None:
    """A method cut short at every octet, in a frame that is itself whole."""
    payload = encode_method("queue.declare", queue="q", nowait=True, exclusive=True, arguments={"k": [1, "two", {}]})
    for cut in range(0, len(payload), 5):
        connection = connect()
        channel = connection.channel(1)
        connection.send_bytes(frame(FRAME_METHOD, payload[:cut]))
        assert outcome(connection, channel, SYNTAX) in SYNTAX, cut


Sequence = Callable[[Connection, Channel], None]


def in_turn(*names: str, **arguments: Any) -> Sequence:
    """Send these methods one after another; the arguments go to each that has them. Answers are not waited for."""

    def act(_: Connection, channel: Channel) -> None:
        for name in names:
            fields = {field for field, _ in METHODS[name][2]}
            channel.send(name, **{key: value for key, value in arguments.items() if key in fields})

    return act


def interrupted(connection: Connection, channel: Channel) -> None:
    channel.send("basic.publish")
    channel.send("channel.close", reply_code=200)


SEQUENCES: dict[str, tuple[Sequence, set[object]]] = {
    "second start-ok": (lambda c, _: c.start_ok(), {501, 503, 504, 505}),
    "second tune-ok": (lambda c, _: c.tune_ok(), {501, 503, 504, 505}),
    "second open": (lambda c, _: c.send("connection.open", virtual_host="/"), {501, 503, 504, 505}),
    "close during content": (interrupted, {505}),
    "ack tag 0": (lambda _, ch: ch.basic_ack(0), {406}),
    "ack of everything when there is nothing": (lambda _, ch: ch.basic_ack(0, multiple=True), {OK}),
    "ack up to an unknown tag": (lambda _, ch: ch.basic_ack(5, multiple=True), {406}),
    "ack of tag 2^64-1": (lambda _, ch: ch.basic_ack(2**64 - 1), {406}),
    "qos 65535": (lambda _, ch: ch.basic_qos(prefetch_count=65535), {OK}),
    "cancel of an unknown tag": (lambda _, ch: ch.basic_cancel("nobody"), {OK}),
    "confirm after tx": (in_turn("tx.select", "confirm.select"), {406}),
    "tx after confirm": (in_turn("confirm.select", "tx.select"), {406}),
    "consume with a duplicate tag": (
        in_turn("basic.consume", "basic.consume", consumer_tag="t"),
        {530},
    ),
    "delete amq.fanout": (lambda _, ch: ch.send("exchange.delete", exchange="amq.fanout"), {403}),
    "flow-ok that nobody asked for": (lambda _, ch: ch.send("channel.flow-ok", active=True), {OK, 503, 505, 540}),
    "close-ok that nobody asked for": (lambda _, ch: ch.send("channel.close-ok"), {OK, 503, 504, 505}),
    "cancel-ok that nobody asked for": (
        lambda _, ch: ch.send("basic.cancel-ok", consumer_tag="t"),
        {OK, 503, 505, 540},
    ),
    "a method of the server": (
        lambda _, ch: ch.send("basic.get-empty"),
        {503, 504, 505, 540, 541},
    ),
    "x-max-length 2^63": (
        lambda _, ch: ch.send("queue.declare", exclusive=True, arguments={"x-max-length": Raw(b"L\x80" + bytes(7))}),
        {406} | SYNTAX,
    ),
}  # fmt: skip


@rule("7.4/sequence")
@pytest.mark.parametrize("case", SEQUENCES)
def test_bad_sequences(connect: Connect, case: str) -> None:
    act, allowed = SEQUENCES[case]
    connection = connect()
    channel = connection.channel(1)
    channel.queue_declare("", exclusive=True)
    act(connection, channel)
    assert outcome(connection, channel, allowed) in allowed


@rule("7.4/sequence")
def test_anything_out_of_turn_before_open(connect: Connect) -> None:
    """All at once, because RabbitMQ lets each of them wait for some seconds before it ends the socket."""
    impatient = [connect(stop_before="tune-ok")]
    impatient[0].send("connection.open", virtual_host="/")
    for method in ("connection.open", "queue.declare", "connection.tune-ok", "connection.close-ok"):
        impatient.append(connect(stop_before="start-ok"))
        impatient[-1].send_method(1 if method.startswith("queue") else 0, method)
    impatient.append(connect(stop_before="start-ok"))
    impatient[-1].start_ok(response=b"\0guest\0" + b"x" * 1_000_000)
    for connection in impatient:
        close = connection.drops(timeout_s=8)
        assert close is None or close.reply_code in {501, 503, 504, 505}


@rule("7.4/sequence")
def test_a_channel_number_is_reused(connect: Connect) -> None:
    connection = connect()
    for _ in range(200):
        channel = connection.channel(1)
        channel.channel_close(200, "")
    channel = connection.channel(1)
    with channel.closes(404):
        channel.basic_get("nosuch")
    assert outcome(connection, connection.channel(1), {OK}) is OK


@rule("7.4/sequence")
def test_publishes_to_a_missing_exchange_before_the_close_is_seen(connect: Connect) -> None:
    """What a client sent before it reads the channel.close is ignored, content and all."""
    connection = connect()
    channel = connection.channel()
    with channel.closes(404, "no exchange 'nosuch'", "basic.publish"):
        for _ in range(500):
            channel.basic_publish("nosuch", "k", b"x" * 100)


NAMES = [
    "<script>alert(1)</script>",
    "../../etc/passwd",
    "%2e%2e%2f%00",
    "a/b",
    "'; drop",
    "{}",
    "%s%n",
    "\u202eabc",
    " ",
]


@rule("7.4/sequence")
@pytest.mark.parametrize("stem", NAMES)
def test_odd_names_are_only_names(connect: Connect, stem: str) -> None:
    channel = connect().channel()
    queue = stem + "-" * (200 - len(stem))
    assert channel.queue_declare(queue, exclusive=True).queue == queue
    channel.queue_bind(queue, "amq.topic", stem)
    channel.basic_publish("", queue, b"x")
    assert channel.basic_get(queue, no_ack=True).routing_key == queue


@rule("7.4/sequence")
def test_a_thousand_bindings_and_gets(connect: Connect) -> None:
    channel = connect().channel()
    queue = channel.queue_declare("", exclusive=True).queue
    for i in range(1000):
        channel.queue_bind(queue, "amq.direct", f"k{i}", nowait=True)
    channel.basic_publish("amq.direct", "k999", b"x")
    for _ in range(300):
        channel.basic_get(queue)
    channel.queue_delete(queue)


@rule("7.4/abuse")
def test_connections_opened_and_dropped(target: Target, bystander: Channel) -> None:
    for i in range(150):
        connection = Connection(target.address, stop_before=("header", "start-ok", "tune-ok", "")[i % 4])
        connection.abandon()
    assert Connection(target.address).channel()


@rule("7.4/abuse")
def test_a_consumer_that_never_reads(connect: Connect) -> None:
    """30 MB wait for it; the broker does not."""
    reader, feeder = connect(), connect()
    channel, publisher = reader.channel(), feeder.channel()
    queue = channel.queue_declare("", auto_delete=True).queue
    channel.consume(queue, no_ack=True)
    publisher.confirm_select()
    for _ in range(300):
        publisher.basic_publish("", queue, bytes(100_000))
    assert publisher.confirms(300, timeout_s=20) == ["ack"] * 300
    reader.abandon()


@rule("7.4/abuse")
def test_a_flood_of_returns(connect: Connect) -> None:
    connection = connect()
    channel = connection.channel()
    channel.confirm_select()
    for _ in range(3000):
        channel.basic_publish("", "nobody", b"x" * 50, mandatory=True)
    assert len(channel.returns(3000)) == 3000
    assert channel.confirms(3000) == ["ack"] * 3000


@rule("7.4/abuse")
def test_many_exclusive_queues_go_with_their_connection(connect: Connect) -> None:
    connection = connect()
    channel = connection.channel()
    for _ in range(200):
        channel.queue_declare("", exclusive=True)
    connection.close()


@rule("7.4/abuse")
def test_a_slow_handshake_is_cut(half_a_header: Connection) -> None:
    """Half a protocol header, then nothing: the handshake timeout is 10 s."""
    half_a_header.drops(timeout_s=15)


def test_the_client_notices_a_broker_that_hangs(connect: Connect) -> None:
    with pytest.raises(Silence):
        connect().channel().reply("never", timeout_s=0.05)
