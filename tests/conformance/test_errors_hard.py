"""The rows of 5.1 that cost the whole connection. `closes` waits for the end of the socket, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .encoding import FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD, encode_header, encode_method
from .marks import differs_from_rabbitmq_3_10, rule
from .target import Target
from .wire import ANY, Connection

Name = Callable[[str], str]


@rule("5.1/540-immediate")
def test_immediate_is_540(connection: Connection, queue: str) -> None:
    channel = connection.channel()
    with connection.closes(540, "immediate=true", "basic.publish"):
        channel.basic_publish("", queue, b"x", immediate=True)


@rule("5.1/540-prefetch-size", "5.1/540-recover", "5.1/540-flow")
@pytest.mark.parametrize(
    ("method", "arguments", "text"),
    [
        ("basic.qos", {"prefetch_size": 10}, "prefetch_size!=0 (10)"),
        ("basic.recover", {"requeue": False}, "requeue=false"),
        ("basic.recover-async", {"requeue": False}, "requeue=false"),
        ("channel.flow", {"active": False}, "active=false"),
    ],
)
def test_what_nobody_implements_is_540(
    connection: Connection, method: str, arguments: dict[str, Any], text: str
) -> None:
    channel = connection.channel()
    with connection.closes(540, text, method):
        channel.send(method, **arguments)


@rule("5.1/540-stream-get")
@pytest.mark.parametrize("method", ["basic.get", "queue.purge"])
def test_get_and_purge_of_a_stream_are_540(connection: Connection, name: Name, method: str) -> None:
    """Only where there are streams; a broker without them refuses the declare."""
    stream = name("stream")
    channel = connection.channel()
    channel.send("queue.declare", queue=stream, durable=True, arguments={"x-queue-type": "stream"})
    if not channel.answered():
        assert channel.closed is not None
        assert channel.closed.reply_code == 406
        return
    with connection.closes(540, "", method):
        channel.send(method, queue=stream)


@rule("5.1/530-consumer-tag")
def test_a_consumer_tag_in_use_is_530(connection: Connection, queue: str) -> None:
    channel = connection.channel()
    channel.basic_consume(queue, "mine")
    with connection.closes(530, "attempt to reuse consumer tag 'mine'", "basic.consume"):
        channel.basic_consume(queue, "mine")


@rule("5.1/530-consumers-per-channel")
@differs_from_rabbitmq_3_10("has no limit of consumers", hangs=True)
def test_too_many_consumers_on_a_channel_are_530(connection: Connection, target: Target, queue: str) -> None:
    target.set_consumers_per_channel_max(2)
    try:
        channel = connection.channel()
        channel.basic_consume(queue)
        channel.basic_consume(queue)
        with connection.closes(530, "consumer", "basic.consume"):
            channel.basic_consume(queue)
    finally:
        target.set_consumers_per_channel_max(None)


@rule("5.1/503-unimplemented-method")
@pytest.mark.parametrize("method", ["connection.open", "queue.declare-ok"])
def test_a_method_in_the_wrong_place_is_503(connection: Connection, method: str) -> None:
    """A method that only the server sends, or one of channel 0 on another channel."""
    channel = connection.channel()
    with connection.closes(503, "", ANY):
        channel.send(method)


@rule("5.1/504-second-open")
def test_a_second_channel_open_is_504(connection: Connection) -> None:
    channel = connection.channel()
    with connection.closes(504, "second 'channel.open' seen", "channel.open"):
        channel.channel_open()


@rule("5.1/504-unopened")
def test_a_method_on_an_unopened_channel_is_504(connection: Connection) -> None:
    channel = connection.unopened_channel(3)
    with connection.closes(504, "expected 'channel.open'", "queue.declare"):
        channel.queue_declare("q", passive=True)


@rule("5.1/504-during-commit")
def test_a_method_while_a_commit_is_pending_is_504_or_waits(connection: Connection, queue: str) -> None:
    """A broker that is still writing says 504; one that has written already answers both in order."""
    channel = connection.channel()
    channel.tx_select()
    channel.basic_publish("", queue, b"x", delivery_mode=2)
    channel.send("tx.commit")
    channel.send("basic.qos", prefetch_count=1)
    try:
        channel.reply("tx.commit-ok")
        channel.reply("basic.qos-ok")
    except AssertionError:
        assert connection.closed is not None
        assert connection.closed.reply_code == 504


@rule("5.1/505-content-without-method")
@pytest.mark.parametrize("kind", [FRAME_HEADER, FRAME_BODY])
def test_content_without_a_method_is_505(connection: Connection, kind: int) -> None:
    channel = connection.channel()
    payload = encode_header(0, {}) if kind == FRAME_HEADER else b"body"
    with connection.closes(505, "expected method frame", ANY):
        connection.send_frame(kind, channel.number, payload)


@rule("5.1/505-heartbeat-channel")
def test_a_heartbeat_on_a_channel_is_505(connection: Connection) -> None:
    channel = connection.channel()
    with connection.closes(505, "", None):
        connection.send_frame(FRAME_HEARTBEAT, channel.number, b"")


@rule("5.1/505-header-class")
def test_a_header_of_another_class_is_505(connection: Connection, queue: str) -> None:
    channel = connection.channel()
    channel.send("basic.publish", routing_key=queue)
    with connection.closes(505, "expected content header for class 60, got one for class 50 instead", ANY):
        connection.send_frame(FRAME_HEADER, channel.number, encode_header(0, {}, class_id=50))


@rule("5.1/501-oversize")
def test_an_oversize_frame_is_501(connection: Connection) -> None:
    """RabbitMQ forgives 8 octets beyond frame_max; ours need not."""
    with connection.closes(501, "frame_too_large", None):
        connection.send_bytes(bytes([FRAME_BODY]) + (1).to_bytes(2, "big") + (131072 + 1).to_bytes(4, "big"))


@rule("5.1/501-frame-end")
def test_a_wrong_frame_end_is_501(connection: Connection) -> None:
    payload = encode_method("channel.open")
    with connection.closes(501, "invalid_frame_end_marker", None):
        connection.send_frame(FRAME_METHOD, 1, payload, end=FRAME_END ^ 1)
