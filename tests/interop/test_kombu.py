"""kombu over py-amqp: what Celery and others build on."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue, pidbox
from kombu.pools import connections, producers, reset

from tests.faults.node import NodeProcess

Name = Callable[[str], str]


@pytest.fixture
def connection(node: NodeProcess) -> Iterator[Connection]:
    with Connection(node.url) as connection:
        yield connection


def test_producer_and_consumer(connection: Connection, name: Name) -> None:
    exchange = Exchange(name("tasks"), "direct", durable=True)
    queue = Queue(name("task"), exchange, routing_key="task", max_length=100, message_ttl=60.0)
    got: list[object] = []

    def on_message(body: object, message: object) -> None:
        got.append(body)
        message.ack()  # type: ignore[attr-defined]

    producer = Producer(connection, exchange=exchange)
    for number in range(5):
        producer.publish(
            {"number": number}, routing_key="task", declare=[queue], serializer="json", compression="zlib", retry=True
        )
    with Consumer(connection, queues=[queue], callbacks=[on_message], prefetch_count=2):
        while len(got) < 5:
            connection.drain_events(timeout=60)
    assert got == [{"number": number} for number in range(5)]
    queue(connection.default_channel).delete()


def test_pools(node: NodeProcess, name: Name) -> None:
    connection = Connection(node.url, transport_options={"confirm_publish": True})
    queue = name("pooled")
    with connections[connection].acquire(block=True) as pooled:
        simple = pooled.SimpleQueue(queue)
        for number in range(10):
            with producers[connection].acquire(block=True) as producer:
                producer.publish(number, exchange="", routing_key=queue, delivery_mode=2)
        assert [simple.get(timeout=60).payload for _ in range(10)] == list(range(10))
        simple.close()
    reset()


def test_simple_queue(connection: Connection, name: Name) -> None:
    simple = connection.SimpleQueue(name("simple"))
    for number in range(3):
        simple.put({"n": number})
    assert simple.qsize() == 3
    for number in range(3):
        message = simple.get(block=True, timeout=60)
        assert message.payload == {"n": number}
        message.ack()
    with pytest.raises(simple.Empty):
        simple.get_nowait()
    simple.close()
    simple.queue(connection.default_channel).delete()


def test_simple_buffer(connection: Connection, name: Name) -> None:
    """A transient queue that is neither exclusive nor durable: RabbitMQ 4.3 refuses it, here it lives."""
    buffer = connection.SimpleBuffer(name("buffer"))
    buffer.put("x")
    assert buffer.get(timeout=60).payload == "x"
    buffer.close()


def test_priorities(connection: Connection, name: Name) -> None:
    queue = Queue(name("priority"), max_priority=9)
    queue(connection.default_channel).declare()
    producer = connection.Producer()
    for priority in (0, 9, 3):
        producer.publish(priority, routing_key=queue.name, priority=priority)
    bound = queue(connection.default_channel)
    got = [bound.get(no_ack=True).payload for _ in range(3)]
    assert got == [9, 3, 0]


def test_requeue_reject_and_global_qos(connection: Connection, name: Name) -> None:
    queue = Queue(name("requeued"))
    bound = queue(connection.default_channel)
    bound.declare()
    connection.Producer().publish("again", routing_key=queue.name)
    seen: list[bool] = []

    def on_message(_: object, message: object) -> None:
        seen.append(message.delivery_info["redelivered"])  # type: ignore[attr-defined]
        (message.ack if len(seen) > 2 else message.requeue)()  # type: ignore[attr-defined]

    consumer = Consumer(connection, [queue], callbacks=[on_message])
    consumer.qos(prefetch_count=4, apply_global=True)
    with consumer:
        while len(seen) < 3:
            connection.drain_events(timeout=60)
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.2)
    assert seen == [False, True, True]


def test_qos_changes_consumers_that_exist(connection: Connection, name: Name) -> None:
    """Kombu means the specification's basic.qos unless the broker says that it is RabbitMQ 3."""
    queue = Queue(name("raised"))
    queue(connection.default_channel).declare()
    for number in range(9):
        connection.Producer().publish(number, routing_key=queue.name)
    got: list[object] = []
    consumer = Consumer(connection, [queue], callbacks=[lambda body, message: got.append(body)])
    consumer.qos(prefetch_count=2)
    with consumer:
        for limit in (2, 3, 5):
            consumer.qos(prefetch_count=limit)
            while len(got) < limit:
                connection.drain_events(timeout=60)
            with pytest.raises(socket.timeout):
                connection.drain_events(timeout=0.1)
    assert got == [0, 1, 2, 3, 4]


def test_pidbox_broadcast(node: NodeProcess, name: Name) -> None:
    """What `celery inspect` is made of: a fanout to nodes, answers to a reply queue."""
    mailbox = pidbox.Mailbox(name("pidbox"), type="fanout")
    with Connection(node.url) as asking, Connection(node.url) as one, Connection(node.url) as two:
        listening = []
        for connection, host in ((one, "one"), (two, "two")):
            state = {"host": host}
            mailbox_node = mailbox(connection).Node(host, state=state, channel=connection.channel())
            mailbox_node.handlers["whoami"] = lambda state, **_: state["host"]
            listening.append((connection, mailbox_node.listen(callback=mailbox_node.handle_message)))
        box = mailbox(asking)
        channel = asking.channel()
        box.get_reply_queue()(channel).declare()
        ticket = "ticket"
        box._publish("whoami", {}, reply_ticket=ticket, timeout=60, channel=channel)
        for connection, _ in listening:
            connection.drain_events(timeout=60)
        answers = box._collect(ticket, limit=2, timeout=60, channel=channel)
        assert sorted(answers, key=str) == [{"one": "one"}, {"two": "two"}]


def test_heartbeat_check(node: NodeProcess) -> None:
    with Connection(node.url, heartbeat=2) as connection:
        connection.connect()
        assert connection.get_heartbeat_interval() == 2
        for _ in range(4):
            connection.heartbeat_check(rate=2)
