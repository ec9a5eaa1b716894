"""Declaring and deleting queues (5.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Connect
from .encoding import Field
from .marks import rule
from .target import Target
from .wire import Channel, Connection, eventually

Name = Callable[[str], str]


def missing(connection: Connection, queue: str) -> bool:
    """Whether a passive declare on a channel of its own says 404."""
    channel = connection.channel()
    channel.send("queue.declare", queue=queue, passive=True)
    channel.answered()
    assert channel.closed is None or channel.closed.reply_code == 404
    return channel.closed is not None


@rule("5.3/idempotent-declare")
@pytest.mark.parametrize(
    "flags",
    [
        {"durable": True},
        {"auto_delete": True},
        {"exclusive": True},
        {"durable": True, "arguments": {"x-max-length": 9, "x-overflow": "reject-publish", "x-message-ttl": 60000}},
    ],
)
def test_an_equal_redeclare_succeeds(channel: Channel, name: Name, flags: dict[str, Any]) -> None:
    queue = name("q")
    assert channel.queue_declare(queue, **flags).queue == queue
    assert channel.queue_declare(queue, **flags).queue == queue


@rule("5.3/compared-flags")
@pytest.mark.parametrize("flag", ["durable", "auto_delete"])
def test_the_flags_are_compared(channel: Channel, name: Name, flag: str) -> None:
    queue = name("q")
    channel.queue_declare(queue)
    text = f"inequivalent arg '{flag}' for queue '{queue}' in vhost '/': received 'true' but current is 'false'"
    with channel.closes(406, text):
        channel.queue_declare(queue, **{flag: True})


@rule("5.3/compared-flags")
def test_a_passive_declare_compares_nothing(channel: Channel, name: Name) -> None:
    queue = name("q")
    channel.queue_declare(queue, durable=True, arguments={"x-max-length": 5})
    assert channel.queue_declare(queue, passive=True, auto_delete=True).queue == queue


COMPARED: list[tuple[str, Any, Any]] = [
    ("x-expires", 60000, 70000),
    ("x-message-ttl", 60000, 70000),
    ("x-dead-letter-exchange", "a", "b"),
    ("x-dead-letter-routing-key", "a", "b"),
    ("x-max-length", 5, 6),
    ("x-max-length-bytes", 5, 6),
    ("x-max-priority", 5, 6),
    ("x-overflow", "reject-publish", "drop-head"),
    ("x-single-active-consumer", True, False),
]


@rule("5.3/compared-arguments")
@pytest.mark.parametrize(("argument", "first", "second"), COMPARED)
@pytest.mark.parametrize("absent", [False, True], ids=["other", "absent"])
def test_the_x_arguments_are_compared(
    channel: Channel, name: Name, argument: str, first: Any, second: Any, absent: bool
) -> None:
    queue = name("q")
    base = {"x-dead-letter-exchange": "a"} if argument == "x-dead-letter-routing-key" else {}
    channel.queue_declare(queue, arguments=base | {argument: first})
    with channel.closes(406, f"inequivalent arg '{argument}' for queue '{queue}' in vhost '/'"):
        channel.queue_declare(queue, arguments=base if absent else base | {argument: second})


@rule("5.3/compared-arguments")
def test_the_queue_type_is_compared(channel: Channel, name: Name) -> None:
    queue = name("q")
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "classic"})
    with channel.closes(406, "inequivalent arg 'x-queue-type'"):
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})


@rule("5.3/argument-of-another-type")
@pytest.mark.parametrize("argument", ["x-max-age", "x-stream-max-segment-size-bytes"])
def test_a_streams_argument_is_refused_elsewhere(channel: Channel, name: Name, argument: str) -> None:
    queue = name("q")
    value = "1h" if argument == "x-max-age" else 1000
    with channel.closes(406, f"invalid arg '{argument}' for queue '{queue}' in vhost '/' of queue type"):
        channel.queue_declare(queue, durable=True, arguments={argument: value})


@rule("5.3/integer-widths")
@pytest.mark.parametrize("tag", ["b", "s", "l", "I"])
def test_integers_of_any_width_are_equal(channel: Channel, name: Name, tag: str) -> None:
    queue = name("q")
    channel.queue_declare(queue, arguments={"x-max-length": 10})
    assert channel.queue_declare(queue, arguments={"x-max-length": Field(tag, 10)}).queue == queue


@rule("5.3/absent-type-is-classic")
def test_an_absent_type_is_classic(channel: Channel, name: Name) -> None:
    first, second = name("q"), name("q")
    channel.queue_declare(first, durable=True)
    channel.queue_declare(first, durable=True, arguments={"x-queue-type": "classic"})
    channel.queue_declare(second, durable=True, arguments={"x-queue-type": "classic"})
    channel.queue_declare(second, durable=True)


@rule("5.3/unknown-arguments")
def test_unknown_arguments_are_ignored(channel: Channel, name: Name) -> None:
    queue = name("q")
    channel.queue_declare(queue, arguments={"x-nobody-knows": "this", "plain": [1, {"deep": None}]})
    channel.queue_declare(queue, arguments={"x-nobody-knows": "that"})
    channel.queue_declare(queue)


@rule("5.3/relaxed-redeclare")
@pytest.mark.skip(reason="needs the setting quorum_relaxed_checks_on_redeclaration; off by default")
def test_a_relaxed_redeclare_hits_a_quorum_queue() -> None: ...


@rule("5.3/idempotent-delete")
def test_deleting_what_is_missing_succeeds(channel: Channel, queue: str) -> None:
    assert channel.queue_delete("nosuch").message_count == 0
    channel.exchange_delete("nosuch")
    channel.queue_unbind(queue, "amq.direct", "no such binding")
    channel.queue_unbind("nosuch", "amq.direct", "k")
    channel.queue_unbind(queue, "nosuch", "k")


@rule("5.3/declare-ok-counts")
def test_declare_ok_counts_ready_messages_and_all_consumers(channel: Channel, connect: Connect, queue: str) -> None:
    for _ in range(3):
        channel.basic_publish("", queue, b"x")
    eventually(lambda: channel.message_count(queue) == 3)
    channel.basic_qos(prefetch_count=1)
    channel.consume(queue)
    channel.consume(queue)
    connect().channel().consume(queue, arguments={"x-priority": -5})
    eventually(lambda: channel.message_count(queue) == 0)
    assert channel.queue_declare(queue, passive=True).consumer_count == 3


@rule("5.3/declare-ok-counts")
def test_delete_and_purge_answer_with_the_ready_count(channel: Channel, queue: str) -> None:
    for _ in range(4):
        channel.basic_publish("", queue, b"x")
    assert channel.basic_get(queue) is not None
    assert channel.queue_purge(queue).message_count == 3
    channel.basic_publish("", queue, b"x")
    assert channel.queue_delete(queue).message_count == 1


@rule("5.3/exclusive-not-durable")
def test_an_exclusive_queue_goes_with_its_connection(connect: Connect, connection: Connection, name: Name) -> None:
    queue = name("mine")
    owner = connect()
    owner.channel().queue_declare(queue, exclusive=True, durable=True)
    owner.close()
    assert missing(connection, queue), "gone when connection.close-ok arrives"


@rule("5.3/exclusive-not-durable")
def test_the_durable_flag_of_an_exclusive_queue_is_ignored(channel: Channel, name: Name) -> None:
    queue = name("mine")
    channel.queue_declare(queue, exclusive=True, durable=True)
    channel.queue_declare(queue, exclusive=True, durable=False)


@rule("5.3/exclusive-not-durable")
def test_an_exclusive_queue_goes_when_the_socket_is_cut(connect: Connect, connection: Connection, name: Name) -> None:
    queue = name("mine")
    owner = connect()
    owner.channel().queue_declare(queue, exclusive=True)
    owner.abandon()
    eventually(lambda: missing_or_locked(connection, queue))


def missing_or_locked(connection: Connection, queue: str) -> bool:
    channel = connection.channel()
    channel.send("queue.declare", queue=queue, passive=True)
    assert not channel.answered()
    assert channel.closed is not None
    return bool(channel.closed.reply_code == 404)


@rule("5.3/auto-delete")
def test_auto_delete_waits_for_a_first_consumer(connection: Connection, name: Name) -> None:
    channel = connection.channel()
    queue = name("auto")
    channel.queue_declare(queue, auto_delete=True)
    channel.basic_publish("", queue, b"x")
    assert channel.basic_get(queue, no_ack=True) is not None, "a get is no consumer"
    assert not missing(connection, queue)
    first, second = channel.consume(queue), channel.consume(queue)
    channel.basic_cancel(first)
    assert not missing(connection, queue)
    channel.basic_cancel(second)
    eventually(lambda: missing(connection, queue))


@rule("5.3/auto-delete")
def test_auto_delete_when_the_consumers_channel_closes(connection: Connection, name: Name) -> None:
    queue = name("auto")
    channel = connection.channel()
    channel.queue_declare(queue, auto_delete=True)
    channel.consume(queue)
    channel.channel_close(200, "")
    eventually(lambda: missing(connection, queue))


@rule("5.3/names-crlf")
def test_cr_and_lf_are_stripped_from_names(channel: Channel, name: Name) -> None:
    queue, exchange = name("q"), name("x")
    assert channel.queue_declare(f"{queue[:2]}\r\n{queue[2:]}\n").queue == queue
    channel.exchange_declare(f"{exchange}\r\n", "fanout")
    channel.queue_bind(queue, exchange, "")


@rule("5.3/names-length")
def test_names_of_255_bytes_of_utf8(channel: Channel, name: Name) -> None:
    queue = name("q")
    longest = queue + "ß" * ((255 - len(queue)) // 2)
    longest += "x" * (255 - len(longest.encode()))
    assert len(longest.encode()) == 255
    assert channel.queue_declare(longest, exclusive=True).queue == longest


@rule("5.3/last-declared-queue")
def test_an_empty_name_means_the_last_declared_queue(channel: Channel, name: Name) -> None:
    first, last = name("q"), name("q")
    channel.queue_declare(first)
    channel.queue_declare(last)
    channel.queue_bind("", "amq.direct", last)
    channel.basic_publish("amq.direct", last, b"1")
    assert channel.basic_get("", no_ack=True).body == b"1"
    channel.basic_publish("amq.direct", last, b"2")
    assert channel.queue_purge("").message_count == 1
    channel.basic_consume("", no_ack=True)
    channel.basic_publish("", last, b"3")
    assert channel.delivery().body == b"3"
    channel.queue_delete("")
    assert channel.message_count(first) == 0


@rule("5.3/bind-both-empty")
def test_binding_with_both_empty_uses_the_queues_name_as_key(channel: Channel, name: Name) -> None:
    queue = name("q")
    channel.queue_declare(queue)
    channel.queue_bind("", "amq.direct", "")
    channel.basic_publish("amq.direct", queue, b"by its name")
    assert channel.basic_get(queue, no_ack=True).body == b"by its name"


@rule("5.3/server-named")
def test_an_empty_name_gets_one(channel: Channel) -> None:
    first = channel.queue_declare("", exclusive=True).queue
    second = channel.queue_declare("", exclusive=True).queue
    assert first.startswith("amq.gen-")
    assert second.startswith("amq.gen-")
    assert first != second


@rule("5.3/server-named-secret")
def test_names_of_the_server_are_no_counter(channel: Channel) -> None:
    """A permission like ^amq\\.gen.* is common: who knows its own names must not know those of others."""
    names = [channel.queue_declare("", exclusive=True).queue for _ in range(4)]
    known = next(at for at, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1)
    assert min(len(name) for name in names) - known >= 16, names


@rule("5.3/precedence-argument", "5.3/precedence-minimum")
def test_numeric_conflicts_take_the_minimum(channel: Channel, provisioned: Target, name: Name) -> None:
    """The policy says 80 ms; the argument says a minute."""
    queue = name("policy-ttl-q")
    channel.queue_declare(queue, arguments={"x-message-ttl": 60000})
    channel.basic_publish("", queue, b"x")
    eventually(lambda: channel.message_count(queue) == 1)
    eventually(lambda: channel.message_count(queue) == 0, timeout_s=2)


@rule("5.3/precedence-argument")
def test_the_dlx_in_the_argument_beats_the_policy(channel: Channel, provisioned: Target, name: Name) -> None:
    source, dead = name("policy-dlx-q"), name("dead")
    channel.queue_declare(dead)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel.queue_declare(source, arguments=arguments)
    channel.basic_publish("", source, b"x")
    channel.basic_reject(channel.basic_get(source).delivery_tag)
    eventually(lambda: channel.message_count(dead) == 1)


@rule("5.3/precedence-operator", "5.3/precedence-minimum")
def test_an_operator_policy_beats_the_argument(channel: Channel, provisioned: Target, name: Name) -> None:
    """The operator's policy says at most 2 messages; the argument says 10."""
    queue = name("policy-length-q")
    channel.queue_declare(queue, arguments={"x-max-length": 10})
    for i in range(5):
        channel.basic_publish("", queue, b"%d" % i)
    channel.basic_qos_probe()
    eventually(lambda: channel.message_count(queue) == 2)
    assert channel.basic_get(queue, no_ack=True).body == b"3"
