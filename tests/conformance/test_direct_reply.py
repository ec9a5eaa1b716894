"""Direct reply-to: RPC without a reply queue (5.1, 5.4)."""

from __future__ import annotations

import pytest

from .conftest import Connect
from .marks import rule
from .wire import Channel, eventually

PSEUDO = "amq.rabbitmq.reply-to"


def request(client: Channel, queue: str) -> str:
    """Send a request and return the reply_to that the server's side sees."""
    client.basic_publish("", queue, b"request", reply_to=PSEUDO, correlation_id="c1")
    eventually(lambda: client.message_count(queue) == 1)
    got = client.basic_get(queue, no_ack=True)
    assert got is not None
    return str(got.properties["reply_to"])


@rule("5.4/mandatory-direct-reply")
def test_a_reply_reaches_the_client(connect: Connect, channel: Channel, queue: str) -> None:
    tag = channel.consume(PSEUDO, no_ack=True)
    reply_to = request(channel, queue)
    assert reply_to.startswith(f"{PSEUDO}.")
    server = connect().channel()
    server.basic_publish("", reply_to, b"reply", correlation_id="c1")
    reply = channel.delivery()
    assert (reply.body, reply.consumer_tag, reply.exchange, reply.routing_key) == (b"reply", tag, "", reply_to)
    assert reply.properties == {"correlation_id": "c1"}


@rule("5.4/reply-key-secret")
def test_reply_keys_are_no_counter(connect: Connect, queue: str) -> None:
    """Who knows a key may reply, without another permission: nobody finds the keys of others from its own."""
    keys = []
    for _ in range(3):
        client = connect().channel()
        client.consume(PSEUDO, no_ack=True)
        keys.append(request(client, queue))
    known = next(at for at, letters in enumerate(zip(*keys, strict=False)) if len(set(letters)) > 1)
    assert min(len(key) for key in keys) - known >= 16, keys


def test_a_passive_declare_says_whether_the_client_is_there(connect: Connect, channel: Channel, queue: str) -> None:
    client = connect().channel()
    client.consume(PSEUDO, no_ack=True)
    reply_to = request(client, queue)
    assert channel.queue_declare(reply_to, passive=True).consumer_count == 1
    client.channel_close(200, "")

    def gone() -> bool:
        probe = channel.connection.channel()
        probe.send("queue.declare", queue=reply_to, passive=True)
        return not probe.answered()

    eventually(gone)


def test_a_reply_to_nobody_is_dropped(connect: Connect, channel: Channel, queue: str) -> None:
    client = connect().channel()
    client.consume(PSEUDO, no_ack=True)
    reply_to = request(client, queue)
    client.connection.close()
    channel.confirm_select()
    channel.basic_publish("", reply_to, b"too late")
    assert channel.confirms(1) == ["ack"]


def test_the_pseudo_queue_may_be_declared_passively(channel: Channel) -> None:
    assert channel.queue_declare(PSEUDO, passive=True).queue == PSEUDO


def test_the_reply_consumer_may_be_cancelled_and_taken_again(channel: Channel) -> None:
    tag = channel.consume(PSEUDO, no_ack=True)
    channel.basic_cancel(tag)
    channel.consume(PSEUDO, no_ack=True)


@rule("5.1/406-no-reply-consumer")
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_request_needs_the_consumer_on_the_same_channel(channel: Channel, queue: str, cancelled: bool) -> None:
    if cancelled:
        channel.basic_cancel(channel.consume(PSEUDO, no_ack=True))
    else:
        channel.connection.channel().consume(PSEUDO, no_ack=True)
    with channel.closes(406, "fast reply consumer does not exist", "basic.publish"):
        channel.basic_publish("", queue, b"x", reply_to=PSEUDO)
