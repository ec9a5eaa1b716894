"""Every method of AMQP 0-9-1 and of RabbitMQ's extensions, declared once: a class per method, its fields in order.

    payload of a method frame   | class id u16 | method id u16 | fields, see layout.py |

``decode`` turns a payload into its method, ``encode`` a method into its payload. The declarations below are the
only description of the wire format; a test compares them, field by field, with the XML in ``tests/spec``.

Names follow pika: words joined by underscores, ``nowait`` for ``no-wait``, and the fields that 0-9-1 reserves keep
the names that they had in 0-8 (``ticket``, ``capabilities``, ``insist``, ``known_hosts``, ``out_of_band``,
``channel_id``, ``cluster_id``). A reserved field is read and forgotten; nobody checks its value. Short strings are
``str``, long strings are ``bytes`` (a SASL response holds any octets). Times and sizes have the units of the
specification: ``heartbeat`` in seconds, ``frame_max`` and ``prefetch_size`` in bytes.

Methods are immutable and compare by value. Whether a method may be said *now*, and by this peer, is not known here.
"""

import struct
from typing import Final

from msgspec import field

from clusterbroker.broker.wire.amqp091.domains import Bit, Long, LongLong, LongStr, Octet, Short, ShortStr
from clusterbroker.broker.wire.amqp091.errors import ConnectionFault, command_invalid, syntax_error
from clusterbroker.broker.wire.amqp091.fields import DEFAULT_LIMITS, FieldLimits, Table
from clusterbroker.broker.wire.amqp091.layout import METHODS as METHODS
from clusterbroker.broker.wire.amqp091.layout import Method as Method
from clusterbroker.broker.wire.amqp091.layout import declare

_IDS: Final = struct.Struct(">HH")


def decode(payload: bytes, limits: FieldLimits = DEFAULT_LIMITS) -> Method:
    """The method in a method frame's payload.

    Raises ``ConnectionFault``: 503 for a method that does not exist, 502 for one whose fields are truncated,
    malformed, too large for ``limits``, or followed by anything. The error blames the method.
    """
    if len(payload) < _IDS.size:
        raise syntax_error("truncated method id")
    ids: tuple[int, int] = _IDS.unpack_from(payload)
    method = METHODS.get(ids)
    if method is None:
        raise command_invalid(f"unknown method class_id {ids[0]} method_id {ids[1]}", *ids)
    try:
        return method(*method.LAYOUT.pull(payload, _IDS.size, limits))
    except ConnectionFault as fault:
        raise fault.at(*ids) from None


def encode(method: Method) -> bytes:
    """The payload of a method frame.

    Raises ``ValueError`` or ``TypeError`` if a field holds what its domain cannot: our mistake, not the peer's.
    """
    out = bytearray(_IDS.pack(method.CLASS_ID, method.METHOD_ID))
    method.LAYOUT.push(method, out)
    return bytes(out)


@declare("connection.start", 10, 10, synchronous=True)
class ConnectionStart(Method, frozen=True):
    version_major: Octet = 0
    version_minor: Octet = 9
    server_properties: Table = field(default_factory=dict)
    mechanisms: LongStr = b"PLAIN"
    locales: LongStr = b"en_US"


@declare("connection.start-ok", 10, 11, synchronous=True)
class ConnectionStartOk(Method, frozen=True):
    client_properties: Table = field(default_factory=dict)
    mechanism: ShortStr = "PLAIN"
    response: LongStr = b""
    locale: ShortStr = "en_US"


@declare("connection.secure", 10, 20, synchronous=True)
class ConnectionSecure(Method, frozen=True):
    challenge: LongStr = b""


@declare("connection.secure-ok", 10, 21, synchronous=True)
class ConnectionSecureOk(Method, frozen=True):
    response: LongStr = b""


@declare("connection.tune", 10, 30, synchronous=True)
class ConnectionTune(Method, frozen=True):
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


@declare("connection.tune-ok", 10, 31, synchronous=True)
class ConnectionTuneOk(Method, frozen=True):
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


@declare("connection.open", 10, 40, synchronous=True)
class ConnectionOpen(Method, frozen=True):
    virtual_host: ShortStr = "/"
    capabilities: ShortStr = ""
    insist: Bit = False


@declare("connection.open-ok", 10, 41, synchronous=True)
class ConnectionOpenOk(Method, frozen=True):
    known_hosts: ShortStr = ""


@declare("connection.close", 10, 50, synchronous=True)
class ConnectionClose(Method, frozen=True):
    reply_code: Short = 0
    reply_text: ShortStr = ""
    class_id: Short = 0
    method_id: Short = 0


@declare("connection.close-ok", 10, 51, synchronous=True)
class ConnectionCloseOk(Method, frozen=True):
    """No fields."""


@declare("connection.blocked", 10, 60)
class ConnectionBlocked(Method, frozen=True):
    reason: ShortStr = ""


@declare("connection.unblocked", 10, 61)
class ConnectionUnblocked(Method, frozen=True):
    """No fields."""


@declare("connection.update-secret", 10, 70, synchronous=True)
class ConnectionUpdateSecret(Method, frozen=True):
    new_secret: LongStr = b""
    reason: ShortStr = ""


@declare("connection.update-secret-ok", 10, 71, synchronous=True)
class ConnectionUpdateSecretOk(Method, frozen=True):
    """No fields."""


@declare("channel.open", 20, 10, synchronous=True)
class ChannelOpen(Method, frozen=True):
    out_of_band: ShortStr = ""


@declare("channel.open-ok", 20, 11, synchronous=True)
class ChannelOpenOk(Method, frozen=True):
    channel_id: LongStr = b""


@declare("channel.flow", 20, 20, synchronous=True)
class ChannelFlow(Method, frozen=True):
    active: Bit = False


@declare("channel.flow-ok", 20, 21)
class ChannelFlowOk(Method, frozen=True):
    active: Bit = False


@declare("channel.close", 20, 40, synchronous=True)
class ChannelClose(Method, frozen=True):
    reply_code: Short = 0
    reply_text: ShortStr = ""
    class_id: Short = 0
    method_id: Short = 0


@declare("channel.close-ok", 20, 41, synchronous=True)
class ChannelCloseOk(Method, frozen=True):
    """No fields."""


@declare("access.request", 30, 10, synchronous=True)
class AccessRequest(Method, frozen=True):
    """From 0-8; 0-9-1 dropped the class, old clients still ask, and RabbitMQ answers ticket 1."""

    realm: ShortStr = "/data"
    exclusive: Bit = False
    passive: Bit = True
    active: Bit = True
    write: Bit = True
    read: Bit = True


@declare("access.request-ok", 30, 11, synchronous=True)
class AccessRequestOk(Method, frozen=True):
    ticket: Short = 1


@declare("exchange.declare", 40, 10, synchronous=True)
class ExchangeDeclare(Method, frozen=True):
    ticket: Short = 0
    exchange: ShortStr = ""
    type: ShortStr = "direct"
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    internal: Bit = False
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


@declare("exchange.declare-ok", 40, 11, synchronous=True)
class ExchangeDeclareOk(Method, frozen=True):
    """No fields."""


@declare("exchange.delete", 40, 20, synchronous=True)
class ExchangeDelete(Method, frozen=True):
    ticket: Short = 0
    exchange: ShortStr = ""
    if_unused: Bit = False
    nowait: Bit = False


@declare("exchange.delete-ok", 40, 21, synchronous=True)
class ExchangeDeleteOk(Method, frozen=True):
    """No fields."""


@declare("exchange.bind", 40, 30, synchronous=True)
class ExchangeBind(Method, frozen=True):
    ticket: Short = 0
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


@declare("exchange.bind-ok", 40, 31, synchronous=True)
class ExchangeBindOk(Method, frozen=True):
    """No fields."""


@declare("exchange.unbind", 40, 40, synchronous=True)
class ExchangeUnbind(Method, frozen=True):
    ticket: Short = 0
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


@declare("exchange.unbind-ok", 40, 51, synchronous=True)
class ExchangeUnbindOk(Method, frozen=True):
    """No fields."""


@declare("queue.declare", 50, 10, synchronous=True)
class QueueDeclare(Method, frozen=True):
    ticket: Short = 0
    queue: ShortStr = ""
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


@declare("queue.declare-ok", 50, 11, synchronous=True)
class QueueDeclareOk(Method, frozen=True):
    queue: ShortStr = ""
    message_count: Long = 0
    consumer_count: Long = 0


@declare("queue.bind", 50, 20, synchronous=True)
class QueueBind(Method, frozen=True):
    ticket: Short = 0
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


@declare("queue.bind-ok", 50, 21, synchronous=True)
class QueueBindOk(Method, frozen=True):
    """No fields."""


@declare("queue.purge", 50, 30, synchronous=True)
class QueuePurge(Method, frozen=True):
    ticket: Short = 0
    queue: ShortStr = ""
    nowait: Bit = False


@declare("queue.purge-ok", 50, 31, synchronous=True)
class QueuePurgeOk(Method, frozen=True):
    message_count: Long = 0


@declare("queue.delete", 50, 40, synchronous=True)
class QueueDelete(Method, frozen=True):
    ticket: Short = 0
    queue: ShortStr = ""
    if_unused: Bit = False
    if_empty: Bit = False
    nowait: Bit = False


@declare("queue.delete-ok", 50, 41, synchronous=True)
class QueueDeleteOk(Method, frozen=True):
    message_count: Long = 0


@declare("queue.unbind", 50, 50, synchronous=True)
class QueueUnbind(Method, frozen=True):
    ticket: Short = 0
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    arguments: Table = field(default_factory=dict)


@declare("queue.unbind-ok", 50, 51, synchronous=True)
class QueueUnbindOk(Method, frozen=True):
    """No fields."""


@declare("basic.qos", 60, 10, synchronous=True)
class BasicQos(Method, frozen=True):
    prefetch_size: Long = 0
    prefetch_count: Short = 0
    global_qos: Bit = False


@declare("basic.qos-ok", 60, 11, synchronous=True)
class BasicQosOk(Method, frozen=True):
    """No fields."""


@declare("basic.consume", 60, 20, synchronous=True)
class BasicConsume(Method, frozen=True):
    ticket: Short = 0
    queue: ShortStr = ""
    consumer_tag: ShortStr = ""
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


@declare("basic.consume-ok", 60, 21, synchronous=True)
class BasicConsumeOk(Method, frozen=True):
    consumer_tag: ShortStr = ""


@declare("basic.cancel", 60, 30, synchronous=True)
class BasicCancel(Method, frozen=True):
    consumer_tag: ShortStr = ""
    nowait: Bit = False


@declare("basic.cancel-ok", 60, 31, synchronous=True)
class BasicCancelOk(Method, frozen=True):
    consumer_tag: ShortStr = ""


@declare("basic.publish", 60, 40, has_content=True)
class BasicPublish(Method, frozen=True):
    ticket: Short = 0
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    mandatory: Bit = False
    immediate: Bit = False


@declare("basic.return", 60, 50, has_content=True)
class BasicReturn(Method, frozen=True):
    reply_code: Short = 0
    reply_text: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""


@declare("basic.deliver", 60, 60, has_content=True)
class BasicDeliver(Method, frozen=True):
    consumer_tag: ShortStr = ""
    delivery_tag: LongLong = 0
    redelivered: Bit = False
    exchange: ShortStr = ""
    routing_key: ShortStr = ""


@declare("basic.get", 60, 70, synchronous=True)
class BasicGet(Method, frozen=True):
    ticket: Short = 0
    queue: ShortStr = ""
    no_ack: Bit = False


@declare("basic.get-ok", 60, 71, synchronous=True, has_content=True)
class BasicGetOk(Method, frozen=True):
    delivery_tag: LongLong = 0
    redelivered: Bit = False
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    message_count: Long = 0


@declare("basic.get-empty", 60, 72, synchronous=True)
class BasicGetEmpty(Method, frozen=True):
    cluster_id: ShortStr = ""


@declare("basic.ack", 60, 80)
class BasicAck(Method, frozen=True):
    delivery_tag: LongLong = 0
    multiple: Bit = False


@declare("basic.reject", 60, 90)
class BasicReject(Method, frozen=True):
    delivery_tag: LongLong = 0
    requeue: Bit = False


@declare("basic.recover-async", 60, 100)
class BasicRecoverAsync(Method, frozen=True):
    requeue: Bit = False


@declare("basic.recover", 60, 110, synchronous=True)
class BasicRecover(Method, frozen=True):
    requeue: Bit = False


@declare("basic.recover-ok", 60, 111, synchronous=True)
class BasicRecoverOk(Method, frozen=True):
    """No fields."""


@declare("basic.nack", 60, 120)
class BasicNack(Method, frozen=True):
    delivery_tag: LongLong = 0
    multiple: Bit = False
    requeue: Bit = False


@declare("tx.select", 90, 10, synchronous=True)
class TxSelect(Method, frozen=True):
    """No fields."""


@declare("tx.select-ok", 90, 11, synchronous=True)
class TxSelectOk(Method, frozen=True):
    """No fields."""


@declare("tx.commit", 90, 20, synchronous=True)
class TxCommit(Method, frozen=True):
    """No fields."""


@declare("tx.commit-ok", 90, 21, synchronous=True)
class TxCommitOk(Method, frozen=True):
    """No fields."""


@declare("tx.rollback", 90, 30, synchronous=True)
class TxRollback(Method, frozen=True):
    """No fields."""


@declare("tx.rollback-ok", 90, 31, synchronous=True)
class TxRollbackOk(Method, frozen=True):
    """No fields."""


@declare("confirm.select", 85, 10, synchronous=True)
class ConfirmSelect(Method, frozen=True):
    nowait: Bit = False


@declare("confirm.select-ok", 85, 11, synchronous=True)
class ConfirmSelectOk(Method, frozen=True):
    """No fields."""
