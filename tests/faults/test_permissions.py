"""Every operation of AMQP needs the rights that its row says, all of them and no other (amqp-rules 5.3).

A user gets exactly the rights of a row, and the operation is done; then each of them is taken away in turn, and it is
refused with the text that RabbitMQ gives. All on one connection: what was allowed a moment ago is not remembered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ProbableAccessDeniedError

from clusterbroker.broker.server.control.client import ask
from tests.conftest import RunningNode

pytestmark = [pytest.mark.faults]
USER, NOTHING = "probe", "^$"


class Right(NamedTuple):
    """The `sort` of thing is for the text only."""

    kind: str
    sort: str
    name: str


def configure(sort: str, name: str) -> Right:
    return Right("configure", sort, name)


def write(sort: str, name: str) -> Right:
    return Right("write", sort, name)


def read(sort: str, name: str) -> Right:
    return Right("read", sort, name)


Q, X, TO, DEFAULT = "p-queue", "p-exchange", "p-target", "amq.default"
Operation = Callable[[BlockingChannel], Any]


def published(exchange: str, key: str = "k", **more: Any) -> Operation:
    def operation(channel: BlockingChannel) -> None:
        channel.confirm_delivery()
        channel.basic_publish(exchange, key, b"", **more)

    return operation


def in_transaction(exchange: str) -> Operation:
    def operation(channel: BlockingChannel) -> None:
        channel.tx_select()
        channel.basic_publish(exchange, "k", b"")
        channel.tx_commit()

    return operation


def declared(**arguments: Any) -> Operation:
    table = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}

    def operation(channel: BlockingChannel) -> None:
        channel.queue_declare("p-new", auto_delete=True, arguments=table)
        channel.queue_delete("p-new")

    return operation


def exchange_declared(**arguments: Any) -> Operation:
    table = {name.replace("_", "-"): value for name, value in arguments.items()}

    def operation(channel: BlockingChannel) -> None:
        channel.exchange_declare("p-new", "fanout", arguments=table)
        channel.exchange_delete("p-new")

    return operation


ROWS: dict[str, tuple[Operation, tuple[Right, ...]]] = {
    "declare a new queue": (declared(), (configure("queue", "p-new"),)),
    "declare a queue again": (lambda c: c.queue_declare(Q), (configure("queue", Q),)),
    "declare a queue, the server names it": (lambda c: c.queue_declare(""), (configure("queue", "amq.gen-"),)),
    "declare an exclusive queue": (lambda c: c.queue_declare("p-own", exclusive=True), (configure("queue", "p-own"),)),
    "declare a queue passively": (lambda c: c.queue_declare(Q, passive=True), ()),
    "declare a queue with a dead-letter exchange": (
        declared(dead_letter_exchange=X),
        (configure("queue", "p-new"), read("queue", "p-new"), write("exchange", X)),
    ),
    "declare a queue whose dead letters go to the default exchange": (
        declared(dead_letter_exchange="", dead_letter_routing_key=Q),
        (configure("queue", "p-new"), read("queue", "p-new"), write("exchange", DEFAULT)),
    ),
    "declare a queue whose dead letters go nowhere yet": (
        declared(dead_letter_exchange="p-later"),
        (configure("queue", "p-new"), read("queue", "p-new"), write("exchange", "p-later")),
    ),
    "delete a queue": (lambda c: c.queue_delete("p-gone"), (configure("queue", "p-gone"),)),
    "delete a queue if it is empty": (
        lambda c: c.queue_delete("p-gone", if_empty=True),
        (configure("queue", "p-gone"),),
    ),
    "purge a queue": (lambda c: c.queue_purge(Q), (read("queue", Q),)),
    "bind a queue": (lambda c: c.queue_bind(Q, X, "k"), (write("queue", Q), read("exchange", X))),
    "unbind a queue": (lambda c: c.queue_unbind(Q, X, "k"), (write("queue", Q), read("exchange", X))),
    "declare a new exchange": (exchange_declared(), (configure("exchange", "p-new"),)),
    "declare an exchange again": (lambda c: c.exchange_declare(X, "direct"), (configure("exchange", X),)),
    "declare an exchange passively": (lambda c: c.exchange_declare(X, passive=True), ()),
    "declare an exchange with an alternate exchange": (
        exchange_declared(alternate_exchange=X),
        (configure("exchange", "p-new"), read("exchange", "p-new"), write("exchange", X)),
    ),
    "delete an exchange": (lambda c: c.exchange_delete("p-gone"), (configure("exchange", "p-gone"),)),
    "bind an exchange": (lambda c: c.exchange_bind(TO, X, "k"), (write("exchange", TO), read("exchange", X))),
    "unbind an exchange": (lambda c: c.exchange_unbind(TO, X, "k"), (write("exchange", TO), read("exchange", X))),
    "publish": (published(X), (write("exchange", X),)),
    "publish to a queue by its name": (published("", Q), (write("exchange", DEFAULT),)),
    "publish to what cannot be routed": (published(X, "nowhere"), (write("exchange", X),)),
    "publish to a topic exchange": (published("amq.topic", "a.b"), (write("exchange", "amq.topic"),)),
    "publish in a transaction": (in_transaction(X), (write("exchange", X),)),
    "get": (lambda c: c.basic_get(Q), (read("queue", Q),)),
    "get without acknowledgement": (lambda c: c.basic_get(Q, auto_ack=True), (read("queue", Q),)),
    "consume": (lambda c: c.basic_consume(Q, lambda *_: None), (read("queue", Q),)),
    "wait for direct replies": (lambda c: c.basic_consume("amq.rabbitmq.reply-to", lambda *_: None, auto_ack=True), ()),
}


class Guarded:
    """A node, and a connection of the user."""

    def __init__(self, directory: Path) -> None:
        self.node = RunningNode(directory)
        self.node.start()
        self.do("user.add", name=USER, password="probe-password")
        self.connections: list[pika.BlockingConnection] = []
        owner = self.connect("guest", "guest").channel()
        owner.queue_declare(Q)
        for exchange in (X, TO):
            owner.exchange_declare(exchange, "direct")
        self.owner = owner

    def do(self, what: str, **arguments: Any) -> None:
        assert ask(self.node.data_dir, what, arguments) == {"ok": True}

    def connect(self, user: str, password: str) -> pika.BlockingConnection:
        parameters = pika.ConnectionParameters(
            "127.0.0.1", self.node.port, credentials=pika.PlainCredentials(user, password)
        )
        self.connections.append(pika.BlockingConnection(parameters))
        return self.connections[-1]

    def permit(self, rights: tuple[Right, ...]) -> None:
        """These and no other."""
        patterns = {}
        for kind in ("configure", "write", "read"):
            names = [
                re.escape(right.name) + ("" if right.name != "amq.gen-" else ".*")
                for right in rights
                if right.kind == kind
            ]
            patterns[kind] = f"^({'|'.join(names)})$" if names else NOTHING
        self.do("permission.set", user=USER, vhost="/", **patterns)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    place = Guarded(tmp_path_factory.mktemp("permissions"))
    place.permit(())
    yield place
    for connection in place.connections:
        if connection.is_open:
            connection.close()
    place.node.stop()


@pytest.fixture(scope="module")
def connection(guarded: Guarded) -> pika.BlockingConnection:
    return guarded.connect(USER, "probe-password")


@pytest.mark.parametrize("name", ROWS)
def test_what_an_operation_needs(guarded: Guarded, connection: pika.BlockingConnection, name: str) -> None:
    operation, rights = ROWS[name]
    guarded.permit(rights)
    channel = connection.channel()
    operation(channel)
    channel.close()
    for lacking in rights:
        guarded.permit(tuple(right for right in rights if right is not lacking))
        channel = connection.channel()
        with pytest.raises(ChannelClosedByBroker) as caught:
            operation(channel)
        assert caught.value.reply_code == 403
        text = re.sub(r"'amq\.gen-[^']+'", "'amq.gen-'", caught.value.reply_text)
        assert text == (
            f"ACCESS_REFUSED - {lacking.kind} access to {lacking.sort} '{lacking.name}' in vhost '/' refused for user "
            f"'{USER}'"
        )


TOPICS: dict[str, tuple[str, Callable[[str], Operation]]] = {
    "publish": ("write", lambda key: published("amq.topic", key)),
    "bind a queue": ("read", lambda key: lambda c: c.queue_bind(Q, "amq.topic", key)),
    "unbind a queue": ("read", lambda key: lambda c: c.queue_unbind(Q, "amq.topic", key)),
    "bind an exchange": ("read", lambda key: lambda c: c.exchange_bind(TO, "amq.topic", key)),
    "unbind an exchange": ("read", lambda key: lambda c: c.exchange_unbind(TO, "amq.topic", key)),
}


@pytest.mark.parametrize("name", TOPICS)
def test_which_routing_keys_a_topic_exchange_takes(
    guarded: Guarded, connection: pika.BlockingConnection, name: str
) -> None:
    kind, operation = TOPICS[name]
    guarded.do("permission.set", user=USER, vhost="/", configure=".*", write=".*", read=".*")
    patterns = {"write": NOTHING, "read": NOTHING, kind: r"^{username}\..*$"}
    guarded.do("permission.topic", user=USER, vhost="/", exchange="amq.topic", **patterns)
    channel = connection.channel()
    operation(f"{USER}.a")(channel)
    channel.close()
    channel = connection.channel()
    with pytest.raises(ChannelClosedByBroker) as caught:
        operation("other.a")(channel)
    assert (caught.value.reply_code, caught.value.reply_text) == (
        403,
        f"ACCESS_REFUSED - {kind} access to topic 'other.a' in exchange 'amq.topic' in vhost '/' refused for user "
        f"'{USER}'",
    )


def test_a_vhost_needs_a_permission(guarded: Guarded) -> None:
    guarded.do("permission.clear", user=USER, vhost="/")
    with pytest.raises(ProbableAccessDeniedError) as caught:
        guarded.connect(USER, "probe-password")
    assert f"(530) \"NOT_ALLOWED - access to vhost '/' refused for user '{USER}'\"" in str(caught.value)
