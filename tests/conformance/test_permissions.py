"""Who may do what (5.3): configure, write, read, and topic permissions. The users are in target.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .conftest import Connect
from .marks import differs_from_rabbitmq_3_10, rule
from .target import Target
from .wire import Channel, Connection

Q, X, HIDDEN_Q, HIDDEN_X = "perm-q", "perm-x", "hidden-q", "hidden-x"


@pytest.fixture(scope="module")
def things(target: Target) -> Iterator[None]:
    """Queues and exchanges that the users' patterns match (perm-...) or do not (hidden-...)."""
    connection = Connection(target.address)
    channel = connection.channel()
    for queue in (Q, HIDDEN_Q, "perm-open-q"):
        channel.queue_declare(queue)
    for exchange in (X, HIDDEN_X, "perm-open-x"):
        channel.exchange_declare(exchange, "direct")
    channel.exchange_declare("perm-topic", "topic")
    yield
    channel = connection.channel()
    for queue in (Q, HIDDEN_Q, "perm-open-q", "perm-new"):
        channel.queue_delete(queue)
    for exchange in (X, HIDDEN_X, "perm-open-x", "perm-topic", "perm-new"):
        channel.exchange_delete(exchange)
    connection.close()


As = Callable[[str], Channel]


@pytest.fixture
def channel_as(connect_as: Connect, things: None) -> As:
    return lambda user: connect_as(user).channel()


def refused(user: str, kind: str, thing: str) -> str:
    return f"access to {kind} '{thing}' in vhost '/' refused for user '{user}'"


@rule("5.3/permission-declare")
def test_declare_and_delete_need_configure(channel_as: As) -> None:
    allowed = channel_as("conf-declarer")
    allowed.queue_declare("perm-new")
    allowed.queue_delete("perm-new")
    allowed.exchange_declare("perm-new", "direct")
    allowed.exchange_delete("perm-new")
    for method, arguments in [
        ("queue.declare", {"queue": HIDDEN_Q}),
        ("queue.delete", {"queue": HIDDEN_Q}),
        ("exchange.declare", {"exchange": HIDDEN_X, "type": "direct"}),
        ("exchange.delete", {"exchange": HIDDEN_X}),
    ]:
        channel = channel_as("conf-declarer")
        kind = method.split(".")[0]
        with channel.closes(403, refused("conf-declarer", kind, arguments[kind])):
            channel.send(method, **arguments)


@rule("5.3/permission-passive")
def test_a_passive_declare_needs_no_configure(channel_as: As) -> None:
    channel = channel_as("conf-reader")
    channel.queue_declare(Q, passive=True)
    channel.exchange_declare(X, passive=True)


@rule("5.3/permission-publish")
def test_publish_needs_write_on_the_exchange(channel_as: As) -> None:
    channel = channel_as("conf-writer")
    channel.basic_publish(X, "k", b"allowed")
    channel.basic_qos_probe()
    with channel.closes(403, refused("conf-writer", "exchange", HIDDEN_X), "basic.publish"):
        channel.basic_publish(HIDDEN_X, "k", b"x")


@rule("5.3/permission-publish")
def test_the_default_exchange_has_a_name_for_permissions(channel_as: As) -> None:
    channel = channel_as("conf-writer")
    with channel.closes(403, refused("conf-writer", "exchange", "amq.default"), "basic.publish"):
        channel.basic_publish("", Q, b"x")


@rule("5.3/permission-read")
@pytest.mark.parametrize("method", ["basic.consume", "basic.get", "queue.purge"])
def test_consume_get_and_purge_need_read(channel_as: As, method: str) -> None:
    allowed = channel_as("conf-reader")
    allowed.send(method, queue=Q)
    allowed.wait(lambda: allowed.replies, method)
    channel = channel_as("conf-writer")
    with channel.closes(403, refused("conf-writer", "queue", Q)):
        channel.send(method, queue=Q)


def check_pair(channel_as: As, method: str, allowed: dict[str, Any], cases: list[tuple[dict[str, Any], str]]) -> None:
    channel = channel_as("conf-half")
    channel.send(method, **allowed)
    channel.reply(f"{method}-ok")
    for arguments, text in cases:
        channel = channel_as("conf-half")
        with channel.closes(403, text):
            channel.send(method, **arguments)


@rule("5.3/permission-bind")
@pytest.mark.parametrize("method", ["queue.bind", "queue.unbind"])
def test_bind_needs_write_on_the_queue_and_read_on_the_exchange(channel_as: As, method: str) -> None:
    check_pair(
        channel_as,
        method,
        {"queue": "perm-open-q", "exchange": "perm-open-x", "routing_key": "k"},
        [
            ({"queue": Q, "exchange": "perm-open-x"}, refused("conf-half", "queue", Q)),
            ({"queue": "perm-open-q", "exchange": X}, refused("conf-half", "exchange", X)),
        ],
    )


@rule("5.3/permission-bind-e2e")
@pytest.mark.parametrize("method", ["exchange.bind", "exchange.unbind"])
def test_e2e_needs_write_on_the_destination_and_read_on_the_source(channel_as: As, method: str) -> None:
    check_pair(
        channel_as,
        method,
        {"destination": "perm-open-x", "source": "perm-open-x", "routing_key": "k"},
        [
            ({"destination": X, "source": "perm-open-x"}, refused("conf-half", "exchange", X)),
            ({"destination": "perm-open-x", "source": X}, refused("conf-half", "exchange", X)),
        ],
    )


@rule("5.3/permission-dlx")
def test_a_dlx_needs_read_on_the_queue_and_write_on_the_dlx(channel_as: As) -> None:
    """conf-half may configure perm-*, but write and read only perm-open*."""
    allowed = channel_as("conf-half")
    allowed.queue_declare("perm-open-dlq", auto_delete=True, arguments={"x-dead-letter-exchange": "perm-open-x"})
    allowed.queue_delete("perm-open-dlq")
    channel = channel_as("conf-half")
    with channel.closes(403, refused("conf-half", "queue", "perm-new")):
        channel.queue_declare("perm-new", arguments={"x-dead-letter-exchange": "perm-open-x"})
    channel = channel_as("conf-half")
    with channel.closes(403, refused("conf-half", "exchange", X)):
        channel.queue_declare("perm-open-dlq", arguments={"x-dead-letter-exchange": X})


@rule("5.3/permission-ae")
def test_an_ae_needs_read_on_the_exchange_and_write_on_the_ae(channel_as: As) -> None:
    allowed = channel_as("conf-half")
    allowed.exchange_declare("perm-open-ae", "fanout", arguments={"alternate-exchange": "perm-open-x"})
    allowed.exchange_delete("perm-open-ae")
    channel = channel_as("conf-half")
    with channel.closes(403, refused("conf-half", "exchange", "perm-new")):
        channel.exchange_declare("perm-new", "fanout", arguments={"alternate-exchange": "perm-open-x"})
    channel = channel_as("conf-half")
    with channel.closes(403, refused("conf-half", "exchange", X)):
        channel.exchange_declare("perm-open-ae", "fanout", arguments={"alternate-exchange": X})


@rule("5.3/permission-topic")
def test_topic_permissions_are_checked_on_the_routing_key(channel_as: As) -> None:
    channel = channel_as("conf-topical")
    channel.basic_publish("perm-topic", "a.b", b"allowed")
    channel.queue_bind(Q, "perm-topic", "a.#")
    with channel.closes(403, "access to topic 'b.a' in exchange 'perm-topic' in vhost '/' refused", "basic.publish"):
        channel.basic_publish("perm-topic", "b.a", b"x")
    channel = channel_as("conf-topical")
    with channel.closes(403, "access to topic 'b.#' in exchange 'perm-topic' in vhost '/' refused"):
        channel.queue_bind(Q, "perm-topic", "b.#")


@rule("5.3/permission-topic-copies")
@differs_from_rabbitmq_3_10("asks for the routing key alone; 4.1 asks for all (rabbitmq-server 12553)")
@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_topic_permissions_are_checked_on_the_keys_of_headers(channel_as: As, header: str) -> None:
    channel = channel_as("conf-topical")
    channel.basic_publish("perm-topic", "a.b", b"allowed", headers={header: ["a.c"]})
    with channel.closes(403, "access to topic 'b.a' in exchange 'perm-topic' in vhost '/' refused", "basic.publish"):
        channel.basic_publish("perm-topic", "a.b", b"x", headers={header: ["a.c", "b.a"]})


@rule("5.5/cancel-notice-permission")
@differs_from_rabbitmq_3_10("keeps a consumer whose permission is taken", hangs=True)
def test_a_consumer_whose_permission_is_taken_is_cancelled(connect_as: Connect, things: None, target: Target) -> None:
    channel = connect_as("conf-all").channel()
    tag = channel.consume(Q)
    target.revoke_read("conf-all")
    assert channel.cancel_notice().consumer_tag == tag
