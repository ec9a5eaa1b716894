"""The rows of 5.1 that cost the channel. `closes` also checks the NAME, the ids of the offender, and what lives on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Connect
from .marks import differs_from_rabbitmq_3_10, rule
from .target import HookMissing, Target
from .wire import Channel, Connection

Name = Callable[[str], str]


def no_queue(queue: str) -> str:
    return f"no queue '{queue}' in vhost '/'"


def no_exchange(exchange: str) -> str:
    return f"no exchange '{exchange}' in vhost '/'"


@rule("5.1/channel-errors-keep-the-connection", "5.1/text-form")
def test_a_channel_error_leaves_the_other_channels_alone(connection: Connection, queue: str) -> None:
    wrong, other = connection.channel(), connection.channel()
    with wrong.closes(404, no_queue("nosuch"), "queue.declare"):
        wrong.queue_declare("nosuch", passive=True)
    assert other.message_count(queue) == 0
    reopened = connection.channel(wrong.number)
    assert reopened.message_count(queue) == 0, "the number may be used again after channel.close-ok"


@rule("5.1/connection-errors-close-it", "5.1/text-form")
def test_a_connection_error_ends_all_channels(connection: Connection) -> None:
    channel = connection.channel()
    connection.channel()
    with connection.closes(540, "active=false", "channel.flow"):
        channel.channel_flow(active=False)


@rule("5.1/404-missing")
@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("basic.consume", {"queue": "nosuch"}),
        ("basic.get", {"queue": "nosuch"}),
        ("queue.bind", {"queue": "nosuch", "exchange": "amq.direct"}),
        ("queue.purge", {"queue": "nosuch"}),
        ("queue.declare", {"queue": "nosuch", "passive": True}),
    ],
)
def test_a_missing_queue_is_404(channel: Channel, method: str, arguments: dict[str, Any]) -> None:
    with channel.closes(404, no_queue("nosuch")):
        channel.send(method, **arguments)


@rule("5.1/404-missing")
def test_a_missing_exchange_is_404(connection: Connection, queue: str) -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("exchange.declare", {"exchange": "nosuch", "passive": True}),
        ("queue.bind", {"queue": queue, "exchange": "nosuch"}),
        ("exchange.bind", {"destination": "amq.direct", "source": "nosuch"}),
        ("exchange.bind", {"destination": "nosuch", "source": "amq.direct"}),
    ]
    for method, arguments in cases:
        channel = connection.channel()
        with channel.closes(404, no_exchange("nosuch")):
            channel.send(method, **arguments)


@rule("5.1/404-missing")
def test_a_publish_to_a_missing_exchange_is_404(channel: Channel) -> None:
    with channel.closes(404, no_exchange("nosuch"), "basic.publish"):
        channel.basic_publish("nosuch", "key", b"x")


@rule("5.1/404-no-last-queue")
@pytest.mark.parametrize("method", ["basic.consume", "basic.get", "queue.bind", "queue.purge", "queue.delete"])
def test_an_empty_queue_name_without_a_declared_one_is_404(channel: Channel, method: str) -> None:
    arguments = {"exchange": "amq.direct", "routing_key": "k"} if method == "queue.bind" else {}
    with channel.closes(404, "no previously declared queue"):
        channel.send(method, queue="", **arguments)


@rule("5.1/403-reserved-name")
def test_a_reserved_name_is_403(connection: Connection) -> None:
    channel = connection.channel()
    with channel.closes(403, "queue name 'amq.mine' contains reserved prefix 'amq.*'"):
        channel.queue_declare("amq.mine")
    channel = connection.channel()
    with channel.closes(403, "exchange name 'amq.mine' contains reserved prefix 'amq.*'"):
        channel.exchange_declare("amq.mine", "direct")


@rule("5.1/403-reserved-name")
def test_a_reserved_name_that_exists_may_be_redeclared(channel: Channel) -> None:
    """Exchanges; for queues RabbitMQ looks at the name before it looks for the queue, so nothing is asserted there."""
    channel.exchange_declare("amq.topic", "topic", durable=True)


@rule("5.1/403-default-exchange")
@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("exchange.declare", {"exchange": "", "type": "direct", "durable": True}),
        ("exchange.delete", {"exchange": ""}),
        ("exchange.bind", {"destination": "", "source": "amq.direct"}),
        ("exchange.bind", {"destination": "amq.direct", "source": ""}),
    ],
)
def test_the_default_exchange_is_not_to_be_touched(channel: Channel, method: str, arguments: dict[str, Any]) -> None:
    with channel.closes(403, "operation not permitted on the default exchange"):
        channel.send(method, **arguments)


@rule("5.1/403-default-exchange")
def test_queues_are_not_bound_to_the_default_exchange(connection: Connection, queue: str) -> None:
    for method in ("queue.bind", "queue.unbind"):
        channel = connection.channel()
        with channel.closes(403, "operation not permitted on the default exchange"):
            channel.send(method, queue=queue, exchange="", routing_key="k")


@rule("5.1/403-delete-system-exchange")
def test_system_exchanges_are_not_deleted(channel: Channel) -> None:
    with channel.closes(403, "deletion of system exchange 'amq.direct' in vhost '/' not allowed"):
        channel.exchange_delete("amq.direct")


@rule("5.1/403-internal-exchange")
def test_an_internal_exchange_takes_no_publishes(channel: Channel, name: Name) -> None:
    exchange = name("internal")
    channel.exchange_declare(exchange, "fanout", internal=True)
    text = f"cannot publish to internal exchange '{exchange}' in vhost '/'"
    with channel.closes(403, text, "basic.publish"):
        channel.basic_publish(exchange, "", b"x")


@rule("5.1/403-permission")
def test_a_missing_permission_is_403(connect_as: Connect) -> None:
    channel = connect_as("conf-declarer").channel()
    text = "access to exchange 'amq.topic' in vhost '/' refused for user 'conf-declarer'"
    with channel.closes(403, text, "basic.publish"):
        channel.basic_publish("amq.topic", "k", b"x")


@rule("5.1/403-exclusive-consumer")
def test_an_exclusive_consumer_keeps_others_out(connection: Connection, queue: str) -> None:
    connection.channel().basic_consume(queue, exclusive=True)
    channel = connection.channel()
    with channel.closes(403, f"queue '{queue}' in vhost '/' in exclusive use"):
        channel.basic_consume(queue)


@rule("5.1/405-exclusive-queue")
@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("queue.declare", {"exclusive": True}),
        ("queue.declare", {"passive": True}),
        ("queue.bind", {"exchange": "amq.direct", "routing_key": "k"}),
        ("queue.unbind", {"exchange": "amq.direct", "routing_key": "k"}),
        ("queue.purge", {}),
        ("queue.delete", {}),
        ("basic.consume", {}),
        ("basic.get", {}),
    ],
)
def test_an_exclusive_queue_is_locked_to_others(
    connect: Connect, channel: Channel, name: Name, method: str, arguments: dict[str, Any]
) -> None:
    queue = name("mine")
    channel.queue_declare(queue, exclusive=True)
    channel.queue_bind(queue, "amq.direct", "k")
    other = connect().channel()
    with other.closes(405, f"cannot obtain exclusive access to locked queue '{queue}' in vhost '/'"):
        other.send(method, queue=queue, **arguments)


@rule("5.1/405-before-arguments")
@pytest.mark.parametrize("flags", [{}, {"durable": True}, {"arguments": {"x-max-length": 5}}])
def test_the_exclusive_check_comes_first(connect: Connect, channel: Channel, name: Name, flags: dict[str, Any]) -> None:
    queue = name("mine")
    channel.queue_declare(queue, exclusive=True)
    other = connect().channel()
    with other.closes(405, f"cannot obtain exclusive access to locked queue '{queue}'"):
        other.queue_declare(queue, **flags)


@rule("5.1/405-before-arguments")
@pytest.mark.parametrize("existing", [True, False])
def test_a_redeclare_with_the_other_exclusive_flag_is_405(channel: Channel, name: Name, existing: bool) -> None:
    queue = name("mine")
    channel.queue_declare(queue, exclusive=existing)
    with channel.closes(405, f"cannot obtain exclusive access to locked queue '{queue}'"):
        channel.queue_declare(queue, exclusive=not existing)


@rule("5.1/405-get-on-sac-quorum")
def test_get_on_a_single_active_consumer_quorum_queue_is_405(channel: Channel, name: Name) -> None:
    queue = name("sac")
    arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
    channel.queue_declare(queue, durable=True, arguments=arguments)
    with channel.closes(405, ""):
        channel.basic_get(queue)


@rule("5.1/405-protected-queue")
@pytest.mark.skip(reason="no AMQP client can make a protected queue; RabbitMQ 4 has them for its own plugins")
def test_a_protected_queue_is_not_deleted() -> None: ...


@rule("5.1/406-inequivalent")
def test_an_inequivalent_redeclare_is_406(connection: Connection, name: Name) -> None:
    queue = name("q")
    connection.channel().queue_declare(queue, durable=True, arguments={"x-max-length": 5})
    argument = "inequivalent arg '{}' for queue '" + queue + "' in vhost '/': "
    cases: list[tuple[dict[str, Any], str]] = [
        ({"durable": False}, argument.format("durable") + "received 'false' but current is 'true'"),
        (
            {"durable": True, "auto_delete": True},
            argument.format("auto_delete") + "received 'true' but current is 'false'",
        ),
        (
            {"durable": True},
            argument.format("x-max-length") + "received none but current is the value '5' of type",
        ),
        (
            {"durable": True, "arguments": {"x-max-length": 6}},
            argument.format("x-max-length") + "received '6' but current is '5'",
        ),
    ]
    for flags, text in cases:
        channel = connection.channel()
        with channel.closes(406, text):
            channel.queue_declare(queue, **flags)


@rule("5.1/406-inequivalent")
@pytest.mark.parametrize(
    ("argument", "flags"),
    [
        ("type", {"type": "fanout"}),
        ("durable", {"durable": True}),
        ("auto_delete", {"auto_delete": True}),
        ("internal", {"internal": True}),
        ("alternate-exchange", {"arguments": {"alternate-exchange": "amq.fanout"}}),
    ],
)
def test_an_inequivalent_exchange_is_406(channel: Channel, name: Name, argument: str, flags: dict[str, Any]) -> None:
    exchange = name("x")
    channel.exchange_declare(exchange, "direct")
    with channel.closes(406, f"inequivalent arg '{argument}' for exchange '{exchange}' in vhost '/'"):
        channel.exchange_declare(exchange, **({"type": "direct"} | flags))


BAD_ARGUMENTS: list[tuple[str, Any]] = [
    ("x-message-ttl", -1),
    ("x-message-ttl", "100"),
    ("x-expires", 0),
    ("x-expires", -1),
    ("x-expires", "100"),
    ("x-max-length", -1),
    ("x-max-length", "10"),
    ("x-max-length-bytes", -1),
    ("x-max-length-bytes", "10"),
    ("x-max-priority", 256),
    ("x-max-priority", -1),
    ("x-max-priority", "high"),
    ("x-overflow", "drop-everything"),
    ("x-overflow", 1),
    ("x-dead-letter-routing-key", "key without an exchange"),
    ("x-single-active-consumer", "yes"),
    ("x-queue-type", 7),
]


@rule("5.1/406-bad-argument")
@pytest.mark.parametrize(("argument", "value"), BAD_ARGUMENTS)
def test_a_bad_argument_is_406(channel: Channel, name: Name, argument: str, value: Any) -> None:
    queue = name("q")
    with channel.closes(406, f"invalid arg '{argument}' for queue '{queue}' in vhost '/'"):
        channel.queue_declare(queue, arguments={argument: value})


@rule("5.1/406-bad-argument")
@pytest.mark.parametrize("argument", ["x-dead-letter-exchange", "x-dead-letter-routing-key"])
def test_a_dead_letter_argument_that_is_no_string_is_406(channel: Channel, name: Name, argument: str) -> None:
    queue = name("q")
    arguments = {"x-dead-letter-exchange": "x", "x-dead-letter-routing-key": "k"} | {argument: 5}
    with channel.closes(406, f" queue '{queue}' in vhost '/'"):
        channel.queue_declare(queue, arguments=arguments)


@rule("5.1/406-bad-argument")
def test_an_unknown_queue_type_is_406(channel: Channel, name: Name) -> None:
    with channel.closes(406, ""):
        channel.queue_declare(name("q"), durable=True, arguments={"x-queue-type": "nosuch"})


@rule("5.1/406-unknown-exchange-type")
@differs_from_rabbitmq_3_10("503 connection, command invalid")
def test_an_unknown_exchange_type_is_406(channel: Channel, name: Name) -> None:
    with channel.closes(406, "unknown exchange type 'nosuch'"):
        channel.exchange_declare(name("x"), "nosuch")


@rule("5.1/406-if-unused")
def test_a_used_queue_is_not_deleted_if_unused(connection: Connection, queue: str) -> None:
    channel = connection.channel()
    channel.basic_consume(queue)
    with channel.closes(406, f"queue '{queue}' in vhost '/' in use"):
        channel.queue_delete(queue, if_unused=True)


@rule("5.1/406-if-unused")
def test_a_bound_exchange_is_not_deleted_if_unused(channel: Channel, queue: str, name: Name) -> None:
    exchange = name("x")
    channel.exchange_declare(exchange, "direct")
    channel.queue_bind(queue, exchange, "k")
    with channel.closes(406, f"exchange '{exchange}' in vhost '/' in use"):
        channel.exchange_delete(exchange, if_unused=True)


@rule("5.1/406-if-empty")
def test_a_queue_with_messages_is_not_deleted_if_empty(channel: Channel, queue: str) -> None:
    channel.confirm_select()
    channel.basic_publish("", queue, b"x")
    channel.confirms(1)
    with channel.closes(406, f"queue '{queue}' in vhost '/' not empty"):
        channel.queue_delete(queue, if_empty=True)


@rule("5.1/406-delivery-tag")
@pytest.mark.parametrize("method", ["basic.ack", "basic.nack", "basic.reject"])
def test_an_unknown_delivery_tag_is_406(channel: Channel, method: str) -> None:
    with channel.closes(406, "unknown delivery tag 7"):
        channel.send(method, delivery_tag=7)


@rule("5.1/406-delivery-tag")
def test_a_repeated_delivery_tag_is_406(channel: Channel, queue: str) -> None:
    channel.basic_publish("", queue, b"x")
    channel.basic_consume(queue)
    assert channel.delivery().delivery_tag == 1
    channel.basic_ack(1)
    with channel.closes(406, "unknown delivery tag 1"):
        channel.basic_ack(1)


@rule("5.1/406-message-size")
def test_a_body_beyond_the_limit_is_406(channel: Channel, queue: str) -> None:
    """16 MiB is our default, and what oracle.py sets."""
    size = 16 * 1024 * 1024 + 1
    with channel.closes(406, f"message size {size} is larger than configured max size {size - 1}", "basic.publish"):
        channel.basic_publish("", queue, bytes(size))


@rule("5.1/406-expiration")
@pytest.mark.parametrize("expiration", ["-1", "1e9", "", "ten", "1.5"])
def test_a_bad_expiration_is_406(channel: Channel, queue: str, expiration: str) -> None:
    with channel.closes(406, f"invalid expiration '{expiration}'", "basic.publish"):
        channel.basic_publish("", queue, b"x", expiration=expiration)


@rule("5.1/406-user-id")
def test_another_user_id_is_406(channel: Channel, queue: str) -> None:
    channel.basic_publish("", queue, b"true", user_id="guest")
    text = "user_id property set to 'mallory' but authenticated user was 'guest'"
    with channel.closes(406, text, "basic.publish"):
        channel.basic_publish("", queue, b"x", user_id="mallory")


@rule("5.1/406-no-reply-consumer")
def test_reply_to_without_a_reply_consumer_is_406(channel: Channel, queue: str) -> None:
    with channel.closes(406, "fast reply consumer does not exist", "basic.publish"):
        channel.basic_publish("", queue, b"x", reply_to="amq.rabbitmq.reply-to")


@rule("5.1/406-tx-confirm-mixed")
def test_tx_and_confirm_do_not_mix(connection: Connection) -> None:
    channel = connection.channel()
    channel.tx_select()
    with channel.closes(406, "cannot switch from tx to confirm mode"):
        channel.confirm_select()
    channel = connection.channel()
    channel.confirm_select()
    with channel.closes(406, "cannot switch from confirm to tx mode"):
        channel.tx_select()


@rule("5.1/406-no-tx")
@pytest.mark.parametrize("method", ["tx.commit", "tx.rollback"])
def test_commit_and_rollback_need_a_tx(channel: Channel, method: str) -> None:
    with channel.closes(406, "channel is not transactional"):
        channel.send(method)


@rule("5.1/406-vhost-queue-limit")
def test_the_vhosts_queue_limit_is_406(connect: Connect, provisioned: Target) -> None:
    channel = connect(vhost="conf-two-queues").channel()
    for _ in range(2):
        channel.queue_declare("", exclusive=True)
    text = "cannot declare queue 'one-too-many': queue limit in vhost 'conf-two-queues' (2) is reached"
    with channel.closes(406, text):
        channel.queue_declare("one-too-many", exclusive=True)


@rule("5.1/406-exchange-limit")
@differs_from_rabbitmq_3_10("has no limit of exchanges", hangs=True)
def test_the_exchange_limit_is_406(target: Target, channel: Channel, name: Name) -> None:
    target.set_exchanges_max(1)
    try:
        with channel.closes(406, "exchange limit"):
            channel.exchange_declare(name("x"), "direct")
    finally:
        target.set_exchanges_max(None)


@rule("5.1/406-server-named")
def test_a_server_named_stream_is_406(channel: Channel) -> None:
    with channel.closes(406, ""):
        channel.queue_declare("", durable=True, arguments={"x-queue-type": "stream"})


@rule("5.1/406-reply-consumer-ack")
def test_a_reply_consumer_with_manual_ack_is_406(channel: Channel) -> None:
    with channel.closes(406, "reply consumer cannot acknowledge"):
        channel.basic_consume("amq.rabbitmq.reply-to")


@rule("5.1/406-reply-consumer-second")
def test_a_second_reply_consumer_is_406(channel: Channel) -> None:
    channel.basic_consume("amq.rabbitmq.reply-to", no_ack=True)
    with channel.closes(406, "reply consumer already set"):
        channel.basic_consume("amq.rabbitmq.reply-to", no_ack=True)


def test_hooks_are_named_when_they_are_missing() -> None:
    with pytest.raises(HookMissing, match="set_alarm"):
        Target().set_alarm("memory", True)
