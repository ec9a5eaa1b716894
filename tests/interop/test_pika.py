"""pika, the blocking adapter, as its documentation shows it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    ChannelClosedByBroker,
    NackError,
    ProbableAuthenticationError,
    UnroutableError,
)

from tests.faults.node import NodeProcess, command, wait_for

Name = Callable[[str], str]


@pytest.fixture
def connection(node: NodeProcess) -> Iterator[pika.BlockingConnection]:
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    yield connection
    if connection.is_open:
        connection.close()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    return connection.channel()


def drained(channel: BlockingChannel, queue: str, count: int) -> list[bytes]:
    """`count` messages by consume, acknowledged."""
    bodies = []
    for method, _, body in channel.consume(queue, inactivity_timeout=60):
        assert method is not None, f"only {len(bodies)} of {count} messages came"
        bodies.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(bodies) == count:
            break
    channel.cancel()
    return bodies


def test_hello_world(channel: BlockingChannel, name: Name) -> None:
    queue = channel.queue_declare(name("hello")).method.queue
    channel.basic_publish("", queue, b"Hello World!")
    assert drained(channel, queue, 1) == [b"Hello World!"]


def test_properties_survive(channel: BlockingChannel, name: Name) -> None:
    queue = channel.queue_declare(name("properties"), durable=True).method.queue
    sent = pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        headers={"n": 1, "big": 1 << 40, "text": "ü", "list": [1, "a", {"b": True}], "none": None},
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=1700000000,
        type="t",
        user_id="guest",
        app_id="a",
    )
    channel.basic_publish("", queue, b"{}", sent)
    _, got, body = channel.basic_get(queue, auto_ack=True)
    assert got == sent
    assert body == b"{}"


@pytest.mark.parametrize("size", [0, 1, 131072 - 8, 131072 - 7, 1 << 20])
def test_sizes(channel: BlockingChannel, name: Name, size: int) -> None:
    queue = channel.queue_declare(name("size")).method.queue
    channel.confirm_delivery()
    body = bytes(i % 251 for i in range(size))
    channel.basic_publish("", queue, body)
    assert channel.basic_get(queue, auto_ack=True)[2] == body


def test_confirms_and_mandatory(channel: BlockingChannel, name: Name) -> None:
    queue = channel.queue_declare(name("confirmed"), durable=True).method.queue
    channel.confirm_delivery()
    for number in range(20):
        channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2), mandatory=True)
    with pytest.raises(UnroutableError) as unroutable:
        channel.basic_publish("", name("nowhere"), b"lost", mandatory=True)
    assert unroutable.value.messages[0].body == b"lost"
    assert unroutable.value.messages[0].method.reply_code == 312
    assert drained(channel, queue, 20) == [b"%d" % number for number in range(20)]


def test_full_queue_nacks(channel: BlockingChannel, name: Name) -> None:
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    queue = channel.queue_declare(name("full"), arguments=arguments).method.queue
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"1")
    channel.basic_publish("", queue, b"2")
    with pytest.raises(NackError):
        channel.basic_publish("", queue, b"3")


def test_nack_requeues_to_its_place(channel: BlockingChannel, name: Name) -> None:
    queue = channel.queue_declare(name("nack")).method.queue
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", queue, body)
    first, _, _ = channel.basic_get(queue)
    second, _, _ = channel.basic_get(queue)
    assert not first.redelivered
    channel.basic_nack(second.delivery_tag, multiple=True, requeue=True)
    again, _, body = channel.basic_get(queue)
    assert (again.redelivered, body) == (True, b"1")
    channel.basic_reject(again.delivery_tag, requeue=False)
    assert drained(channel, queue, 2) == [b"2", b"3"]


@pytest.mark.parametrize(
    "kind, binding, arguments, reached",
    [
        ("direct", "a.b", None, {"a.b"}),
        ("fanout", "", None, {"a.b", "a.b.c", "x"}),
        ("topic", "a.*", None, {"a.b"}),
        ("topic", "a.#", None, {"a.b", "a.b.c"}),
        ("headers", "", {"x-match": "all", "key": "a.b.c"}, {"a.b.c"}),
        ("headers", "", {"x-match": "any", "key": "x", "no": 1}, {"x"}),
    ],
)
def test_exchanges(
    channel: BlockingChannel,
    name: Name,
    kind: str,
    binding: str,
    arguments: dict[str, object] | None,
    reached: set[str],
) -> None:
    exchange, queue = name("x"), channel.queue_declare("", exclusive=True).method.queue
    channel.exchange_declare(exchange, kind, auto_delete=True)
    channel.queue_bind(queue, exchange, binding, arguments)
    for key in ("a.b", "a.b.c", "x"):
        channel.basic_publish(exchange, key, key.encode(), pika.BasicProperties(headers={"key": key}))
    assert {body.decode() for body in drained(channel, queue, len(reached))} == reached
    channel.queue_unbind(queue, exchange, binding, arguments)
    with pytest.raises(ChannelClosedByBroker) as closed:
        channel.exchange_declare(exchange, passive=True)
    assert closed.value.reply_code == 404, "auto-delete: gone with its last binding"


def test_exchange_to_exchange(channel: BlockingChannel, name: Name) -> None:
    source, destination = name("source"), name("destination")
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.exchange_declare(source, "topic")
    channel.exchange_declare(destination, "fanout")
    channel.exchange_bind(destination, source, "log.#")
    channel.queue_bind(queue, destination)
    channel.basic_publish(source, "log.info", b"here")
    channel.basic_publish(source, "audit", b"not here")
    assert drained(channel, queue, 1) == [b"here"]


def test_transactions(connection: pika.BlockingConnection, channel: BlockingChannel, name: Name) -> None:
    queue = channel.queue_declare(name("tx"), durable=True).method.queue
    channel.tx_select()
    channel.basic_publish("", queue, b"rolled back")
    channel.tx_rollback()
    channel.basic_publish("", queue, b"committed", pika.BasicProperties(delivery_mode=2))
    assert connection.channel().basic_get(queue)[0] is None, "nothing is visible before the commit"
    channel.tx_commit()
    method, _, body = channel.basic_get(queue)
    assert body == b"committed"
    channel.basic_ack(method.delivery_tag)
    channel.tx_rollback()
    channel.basic_ack(method.delivery_tag)  # the rollback made it outstanding again
    channel.tx_commit()
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_exclusive_queue(node: NodeProcess, channel: BlockingChannel) -> None:
    queue = channel.queue_declare("", exclusive=True).method.queue
    assert queue.startswith("amq.gen")
    with pika.BlockingConnection(pika.URLParameters(node.url)) as other:
        with pytest.raises(ChannelClosedByBroker) as closed:
            other.channel().basic_get(queue)
        assert closed.value.reply_code == 405
        channel.connection.close()

        def gone() -> bool:
            try:
                other.channel().queue_declare(queue, passive=True)
            except ChannelClosedByBroker as closed:
                return closed.reply_code == 404
            return False

        wait_for(gone, "the queue to end with its connection")


def test_consume_with_prefetch(channel: BlockingChannel, name: Name) -> None:
    queue = channel.queue_declare(name("prefetch")).method.queue
    channel.basic_qos(prefetch_count=3)
    held: list[int] = []
    channel.basic_consume(queue, lambda ch, method, properties, body: held.append(method.delivery_tag))
    for _ in range(10):
        channel.basic_publish("", queue, b"")
    while channel.queue_declare(queue, passive=True).method.message_count != 7:
        channel.connection.process_data_events(0.05)
    channel.connection.process_data_events(0.05)
    assert held == [1, 2, 3]
    channel.basic_ack(3, multiple=True)
    while len(held) < 6:
        channel.connection.process_data_events(0.05)
    channel.basic_recover(requeue=True)
    while len(held) < 9:
        channel.connection.process_data_events(0.05)
    assert channel.queue_declare(queue, passive=True).method.message_count == 4


def test_cancelled_by_delete(channel: BlockingChannel, name: Name) -> None:
    queue = channel.queue_declare(name("deleted")).method.queue
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume(queue, lambda *_: None)
    channel.connection.channel().queue_delete(queue)
    while not cancelled:
        channel.connection.process_data_events(0.05)
    assert cancelled == [tag]


def test_dead_letters_and_ttl(channel: BlockingChannel, name: Name) -> None:
    dead = channel.queue_declare(name("dead")).method.queue
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-message-ttl": 20}
    queue = channel.queue_declare(name("short"), arguments=arguments).method.queue
    channel.basic_publish("", queue, b"late")
    method, properties, body = next(iter(channel.consume(dead, inactivity_timeout=60)))
    assert body == b"late"
    death = properties.headers["x-death"][0]
    assert (death["queue"], death["reason"], death["count"]) == (queue, "expired", 1)
    channel.basic_ack(method.delivery_tag)


def test_direct_reply_to(channel: BlockingChannel, name: Name) -> None:
    queue = channel.queue_declare(name("rpc")).method.queue
    replies: list[bytes] = []
    channel.basic_consume(
        "amq.rabbitmq.reply-to", lambda ch, method, properties, body: replies.append(body), auto_ack=True
    )
    channel.basic_publish("", queue, b"2", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
    server = channel.connection.channel()
    _, properties, body = server.basic_get(queue, auto_ack=True)
    server.basic_publish("", properties.reply_to, body + b" squared is 4")
    while not replies:
        channel.connection.process_data_events(0.05)
    assert replies == [b"2 squared is 4"]


def test_heartbeats_keep_an_idle_connection(node: NodeProcess) -> None:
    parameters = pika.URLParameters(node.url + "?heartbeat=1")
    with pika.BlockingConnection(parameters) as connection:
        connection.process_data_events(3.5)  # three and a half intervals with nothing but heartbeats
        connection.channel().queue_declare("", exclusive=True)


def test_silent_client_is_cut(node: NodeProcess) -> None:
    with pika.BlockingConnection(pika.URLParameters(node.url + "?heartbeat=1")) as connection:
        sock = connection._impl._transport._sock  # type: ignore[attr-defined]
        peer = sock.dup()
        peer.setblocking(True)
        peer.settimeout(60)
        while peer.recv(4096):  # heartbeats of the node, until it gives us up
            pass
        peer.close()
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connection.process_data_events(1)


def test_login_refused(node: NodeProcess) -> None:
    parameters = pika.URLParameters(node.url.replace("guest:guest", "guest:wrong"))
    with pytest.raises(ProbableAuthenticationError):
        pika.BlockingConnection(parameters)


def operate(node: NodeProcess, *words: str) -> None:
    """`clusterbroker WORDS` beside the running node."""
    code, said = command(*words, "--data-dir", str(node.data_dir))
    assert code == 0, said


def test_blocked_and_unblocked(node: NodeProcess, name: Name) -> None:
    told: list[str] = []
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        connection.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
        connection.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
        channel = connection.channel()
        queue = channel.queue_declare(name("blocked")).method.queue
        channel.basic_publish("", queue, b"before")
        operate(node, "alarm", "set", "memory")
        try:
            while not told:
                connection.process_data_events(0.05)
            channel.basic_publish("", queue, b"meanwhile")
        finally:
            operate(node, "alarm", "clear", "memory")
        while len(told) < 2:
            connection.process_data_events(0.05)
        assert "memory" in told[0]
        assert told[1] == "unblocked"
        assert drained(channel, queue, 2) == [b"before", b"meanwhile"]


def test_many_threads_with_own_connections(node: NodeProcess, name: Name) -> None:
    queue = name("threads")
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)

        def publish(worker: int) -> None:
            with pika.BlockingConnection(pika.URLParameters(node.url)) as own:
                publisher = own.channel()
                publisher.confirm_delivery()
                for number in range(50):
                    publisher.basic_publish("", queue, json.dumps([worker, number]), mandatory=True)

        threads = [threading.Thread(target=publish, args=(worker,)) for worker in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        got = [json.loads(body) for body in drained(channel, queue, 400)]
        for worker in range(8):
            assert [number for w, number in got if w == worker] == list(range(50))
        channel.queue_delete(queue)
