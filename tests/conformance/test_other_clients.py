"""What the suites of other clients met: each rule failed in one of them, and RabbitMQ keeps it."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import pytest

from .conftest import Connect
from .encoding import FRAME_BODY, FRAME_HEADER, encode_header
from .marks import differs_from_rabbitmq_3_10, rule
from .target import Target
from .wire import Channel, Connection, ConnectionClosed, eventually

Name = Callable[[str], str]


EVERY_TLS = "EXTERNAL is offered to everybody inside TLS, also by 4.3: who has no certificate is refused later"


@rule("5.2/external-with-certificate")
@pytest.mark.parametrize(
    "shown", ["plain", pytest.param("no certificate", marks=differs_from_rabbitmq_3_10(EVERY_TLS)), "certificate"]
)
def test_external_is_offered_to_who_has_shown_a_certificate(target: Target, shown: str) -> None:
    """py-amqp (so Kombu and Celery) and AMQPStorm choose it wherever it is offered."""
    url, tls = target.inside_tls("client" if shown == "certificate" else "")
    if shown == "plain":
        url, tls = target.address, None
    connection = Connection(url, tls=tls, stop_before="start-ok")
    assert ("EXTERNAL" in connection.start.mechanisms.split()) == (shown == "certificate")
    connection.start_ok()
    assert connection.reply("connection.tune"), "the password does, with a certificate too"
    connection.abandon()


@rule("5.2/frame-max-payload")
@pytest.mark.parametrize("frame_max", [8192, 131072])
def test_a_payload_may_be_as_long_as_frame_max(connect: Connect, name: Name, frame_max: int) -> None:
    """AMQPStorm and rabbitpy cut bodies so. What comes back fits by the letter: `wire.py` looks at each frame."""
    channel, reader = connect(frame_max=frame_max).channel(), connect(frame_max=frame_max).channel()
    queue = name("q")
    channel.queue_declare(queue, durable=True)
    body = bytes(range(256)) * (frame_max // 128) + b"the end"
    channel.send("basic.publish", routing_key=queue)
    channel.connection.send_frame(FRAME_HEADER, channel.number, encode_header(len(body), {}))
    for at in range(0, len(body), frame_max):
        channel.connection.send_frame(FRAME_BODY, channel.number, body[at : at + frame_max])
    reader.consume(queue, no_ack=True)
    assert reader.delivery().body == body
    channel.connection.is_usable()


@rule("5.2/update-secret-password")
@pytest.mark.parametrize("secret", ["guest", "something else", ""])
def test_a_password_user_has_no_secret_to_update(connection: Connection, secret: str) -> None:
    for _ in range(2):
        connection.send("connection.update-secret", new_secret=secret, reason="rotation")
        connection.reply("connection.update-secret-ok")
    connection.is_usable()


@rule("5.3/delete-ok-before-cancel")
@pytest.mark.parametrize("exclusive", [False, True])
def test_delete_ok_comes_before_the_cancel_on_its_channel(connect: Connect, name: Name, exclusive: bool) -> None:
    """A client that waits for delete-ok takes a cancel before it for one that it did not cause (Kombu raises)."""
    connection = connect()
    channel, other = connection.channel(), connection.channel()
    queue = name("q")
    other.queue_declare(queue, exclusive=exclusive)
    tags = {channel.consume(queue), channel.consume(queue)}
    elsewhere = other.consume(queue)
    channel.queue_delete(queue)
    assert {channel.cancel_notice().consumer_tag, channel.cancel_notice().consumer_tag} == tags
    said = [method.name for method in channel.log if method.name in ("queue.delete-ok", "basic.cancel")]
    assert said == ["queue.delete-ok", "basic.cancel", "basic.cancel"]
    assert other.cancel_notice().consumer_tag == elsewhere
    channel.basic_qos_probe()


@rule("5.3/delete-ok-before-cancel")
def test_a_cancel_follows_a_delete_that_nobody_answers(channel: Channel, queue: str) -> None:
    tag = channel.consume(queue)
    channel.queue_delete(queue, nowait=True)
    assert channel.cancel_notice().consumer_tag == tag


@rule("5.3/delete-ok-before-cancel")
def test_a_refused_delete_cancels_nobody(connection: Connection, queue: str) -> None:
    channel, other = connection.channel(), connection.channel()
    tag = channel.consume(queue)
    with other.closes(406, "in use"):
        other.queue_delete(queue, if_unused=True)
    channel.basic_publish("", queue, b"x")
    assert channel.delivery().consumer_tag == tag


@rule("5.3/permission-vhost-creator")
def test_who_creates_a_vhost_may_use_it(target: Target, connect: Connect, name: Name) -> None:
    vhost = name("vhost")
    assert target.api("PUT", f"vhosts/{vhost}", {}).status_code == 201
    try:
        given = target.api("GET", f"permissions/{vhost}/guest").json()
        assert [given[kind] for kind in ("configure", "write", "read")] == [".*", ".*", ".*"]
        for _ in range(3):
            eventually(lambda: _entered(connect, vhost))
        assert (
            target.api("PUT", f"permissions/{vhost}/guest", {"configure": "", "write": "", "read": ""}).status_code
            == 204
        )
        assert target.api("PUT", f"vhosts/{vhost}", {}).status_code == 204
        assert target.api("GET", f"permissions/{vhost}/guest").json()["read"] == "", "what is there is left as it is"
    finally:
        target.api("DELETE", f"vhosts/{vhost}")


def _entered(connect: Connect, vhost: str) -> bool:
    try:
        return connect(vhost=vhost).channel().queue_declare("", exclusive=True) is not None
    except ConnectionClosed:  # another node hears of it later
        return False


@rule("5.2/healthchecks-node")
def test_health_checks_of_nodes(target: Target) -> None:
    # The page's rows come once in a while: an alarm that another test has just cleared may still stand in them.
    eventually(lambda: target.api("GET", "healthchecks/node").json() == {"status": "ok"})
    nodes = [node["name"] for node in target.api("GET", "nodes").json()]
    for node in nodes:
        assert target.api("GET", f"healthchecks/node/{quote(node)}").json() == {"status": "ok"}
    assert target.api("GET", "healthchecks/node/none").status_code == 404
