"""Methods: golden bytes, an independent writer (pika), and every way of being malformed."""

from __future__ import annotations

import struct
from typing import Any

import pika.spec  # type: ignore[import-untyped]
import pytest

from clusterbroker.broker.wire.amqp091.errors import ConnectionFault
from clusterbroker.broker.wire.amqp091.fields import FieldLimits
from clusterbroker.broker.wire.amqp091.methods import (
    METHODS,
    AccessRequest,
    BasicAck,
    BasicConsume,
    BasicDeliver,
    BasicPublish,
    BasicQos,
    ConnectionStartOk,
    ConnectionTune,
    Method,
    QueueBind,
    QueueDeclare,
    TxSelect,
    decode,
    encode,
)
from clusterbroker.broker.wire.numbers import Int32

SAMPLES: dict[str, Any] = {
    "bit": True,
    "octet": 0x12,
    "short": 0x1234,
    "long": 0x12345678,
    "longlong": 0x123456789ABCDEF0,
    "shortstr": "näme",
    "longstr": b"long",
    "table": {"answer": Int32(42), "text": "ä"},
}
"""One value of each domain whose bytes are not symmetric."""


def sample(method: type[Method]) -> Method:
    return method(*[SAMPLES[domain] for _, domain in method.LAYOUT.fields])


def fault(payload: bytes, limits: FieldLimits | None = None) -> ConnectionFault:
    with pytest.raises(ConnectionFault) as caught:
        decode(payload, limits or FieldLimits())
    return caught.value


every_method = pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.NAME)


@pytest.mark.parametrize(
    ("method", "payload"),
    [
        (TxSelect(), "005a 000a"),
        (BasicAck(delivery_tag=5, multiple=True), "003c 0050 0000000000000005 01"),
        (ConnectionTune(channel_max=2047, frame_max=131072, heartbeat=60), "000a 001e 07ff 00020000 003c"),
        (
            QueueDeclare(queue="q", durable=True, auto_delete=True, arguments={"a": None}),
            "0032 000a 0000 01 71 0a 00000003 01 61 56",
        ),
        (BasicPublish(exchange="x", routing_key="k", mandatory=True), "003c 0028 0000 0178 016b 01"),
        (BasicDeliver("c", 1, True, "x", "k"), "003c 003c 0163 0000000000000001 01 0178 016b"),
        (BasicQos(0, 10, True), "003c 000a 00000000 000a 01"),
        (
            BasicConsume(queue="q", consumer_tag="c", no_local=True, nowait=True),
            "003c 0014 0000 0171 0163 09 00000000",
        ),
        (AccessRequest(realm="r"), "001e 000a 0172 1e"),
    ],
    ids=lambda value: value.NAME if isinstance(value, Method) else "",
)
def test_golden_bytes(method: Method, payload: str) -> None:
    raw = bytes.fromhex(payload)
    assert encode(method) == raw
    assert decode(raw) == method


@every_method
def test_every_method_round_trips(method: type[Method]) -> None:
    for value in (method(), sample(method)):
        again = decode(encode(value))
        assert again == value
        assert type(again) is method


@every_method
def test_pika_writes_the_same_bytes_from_the_same_fields(method: type[Method]) -> None:
    ours = sample(method)
    fields = {name: getattr(ours, name) for name, _ in method.LAYOUT.fields}
    theirs = pika.spec.methods[method.CLASS_ID << 16 | method.METHOD_ID](**fields)
    assert struct.pack(">HH", method.CLASS_ID, method.METHOD_ID) + b"".join(theirs.encode()) == encode(ours)
    assert theirs.NAME.lower() == method.NAME.replace("-", "")
    assert theirs.synchronous == pika_synchronous(method)


def pika_synchronous(method: type[Method]) -> bool:
    """pika marks requests only; the specification marks the answers as well."""
    return method.SYNCHRONOUS and not method.NAME.endswith(("-ok", "-empty"))


@every_method
def test_every_truncation_and_every_trailing_byte_is_a_syntax_error_of_the_method(method: type[Method]) -> None:
    payload = encode(sample(method))
    ids = (method.CLASS_ID, method.METHOD_ID)
    for length in range(4, len(payload)):
        error = fault(payload[:length])
        assert (error.code, error.class_id, error.method_id) == (502, *ids)
    error = fault(payload + b"\x00")
    assert (error.code, error.class_id, error.method_id) == (502, *ids)
    assert error.text == "1 bytes behind the last field"


@pytest.mark.parametrize("length", range(4))
def test_less_than_two_ids_is_a_syntax_error(length: int) -> None:
    error = fault(bytes(length))
    assert (error.code, error.text) == (502, "truncated method id")


@pytest.mark.parametrize("ids", [(0, 0), (10, 12), (60, 255), (65535, 65535), (85, 20)])
def test_an_unknown_method_is_invalid_and_named(ids: tuple[int, int]) -> None:
    error = fault(ids[0].to_bytes(2, "big") + ids[1].to_bytes(2, "big") + b"anything")
    assert (error.code, error.class_id, error.method_id) == (503, *ids)
    assert error.reply_text == f"COMMAND_INVALID - unknown method class_id {ids[0]} method_id {ids[1]}"


def test_a_name_that_is_not_utf8_is_a_syntax_error() -> None:
    payload = encode(QueueBind(queue="q", exchange="x", routing_key="kk")).replace(b"kk", b"\xff\xfe")
    error = fault(payload)
    assert (error.code, error.class_id, error.method_id) == (502, 50, 20)
    assert error.text == "malformed UTF-8 in shortstr"


def test_a_sasl_response_holds_any_octets() -> None:
    response = b"\x00guest\x00\xff\xfe"
    again = decode(encode(ConnectionStartOk(response=response)))
    assert isinstance(again, ConnectionStartOk)
    assert again.response == response


def test_arguments_are_held_to_the_limits() -> None:
    payload = encode(QueueDeclare(arguments={"a": {"b": {"c": None}}}))
    assert fault(payload, FieldLimits(depth_max=2)).code == 502
    assert fault(payload, FieldLimits(entries_max=2)).code == 502
    assert decode(payload, FieldLimits(depth_max=3, entries_max=3)) == decode(payload)


def test_bits_beyond_the_declared_ones_are_not_looked_at() -> None:
    payload = bytearray(encode(BasicAck(1)))
    payload[-1] = 0xFE
    assert decode(bytes(payload)) == BasicAck(1)


def test_methods_are_immutable_and_share_no_arguments() -> None:
    method = QueueDeclare()
    with pytest.raises(AttributeError):
        method.queue = "other"  # type: ignore[misc]
    method.arguments["a"] = None
    assert QueueDeclare().arguments == {}


@pytest.mark.parametrize(
    "method",
    [
        BasicAck(delivery_tag=-1),
        BasicQos(prefetch_count=2**16),
        QueueDeclare(queue="x" * 256),
        QueueDeclare(arguments={"a": 2**63}),
    ],
    ids=repr,
)
def test_a_value_that_does_not_fit_is_our_mistake(method: Method) -> None:
    with pytest.raises(ValueError, match="fit"):
        encode(method)
