"""AMQP 0-9-1 bytes for the conformance suite, written apart from the broker's own codec so that it can judge it.

A frame is `type:octet channel:short size:long payload end:0xCE`. A method payload is `class:short method:short` and the
arguments that `METHODS` names in their order; adjacent bits share octets, lowest bit first. Values that this module
cannot say (a table with a lying length, say) tests write as bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"

ERROR_NAMES = {
    311: "CONTENT_TOO_LARGE",
    312: "NO_ROUTE",
    313: "NO_CONSUMERS",
    320: "CONNECTION_FORCED",
    402: "INVALID_PATH",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}

# name class method arguments; an argument is name:type, a type is one of
# o octet, h short, l long, q longlong, s short string, S long string, b bit, F table; `_` is reserved.
_TABLE = """
connection.start 10 10 version_major:o version_minor:o server_properties:F mechanisms:S locales:S
connection.start-ok 10 11 client_properties:F mechanism:s response:S locale:s
connection.secure 10 20 challenge:S
connection.secure-ok 10 21 response:S
connection.tune 10 30 channel_max:h frame_max:l heartbeat:h
connection.tune-ok 10 31 channel_max:h frame_max:l heartbeat:h
connection.open 10 40 virtual_host:s _1:s _2:b
connection.open-ok 10 41 _1:s
connection.close 10 50 reply_code:h reply_text:s class_id:h method_id:h
connection.close-ok 10 51
connection.blocked 10 60 reason:s
connection.unblocked 10 61
connection.update-secret 10 70 new_secret:S reason:s
connection.update-secret-ok 10 71
channel.open 20 10 _1:s
channel.open-ok 20 11 _1:S
channel.flow 20 20 active:b
channel.flow-ok 20 21 active:b
channel.close 20 40 reply_code:h reply_text:s class_id:h method_id:h
channel.close-ok 20 41
access.request 30 10 realm:s exclusive:b passive:b active:b write:b read:b
access.request-ok 30 11 ticket:h
exchange.declare 40 10 _1:h exchange:s type:s passive:b durable:b auto_delete:b internal:b nowait:b arguments:F
exchange.declare-ok 40 11
exchange.delete 40 20 _1:h exchange:s if_unused:b nowait:b
exchange.delete-ok 40 21
exchange.bind 40 30 _1:h destination:s source:s routing_key:s nowait:b arguments:F
exchange.bind-ok 40 31
exchange.unbind 40 40 _1:h destination:s source:s routing_key:s nowait:b arguments:F
exchange.unbind-ok 40 51
queue.declare 50 10 _1:h queue:s passive:b durable:b exclusive:b auto_delete:b nowait:b arguments:F
queue.declare-ok 50 11 queue:s message_count:l consumer_count:l
queue.bind 50 20 _1:h queue:s exchange:s routing_key:s nowait:b arguments:F
queue.bind-ok 50 21
queue.purge 50 30 _1:h queue:s nowait:b
queue.purge-ok 50 31 message_count:l
queue.delete 50 40 _1:h queue:s if_unused:b if_empty:b nowait:b
queue.delete-ok 50 41 message_count:l
queue.unbind 50 50 _1:h queue:s exchange:s routing_key:s arguments:F
queue.unbind-ok 50 51
basic.qos 60 10 prefetch_size:l prefetch_count:h global_:b
basic.qos-ok 60 11
basic.consume 60 20 _1:h queue:s consumer_tag:s no_local:b no_ack:b exclusive:b nowait:b arguments:F
basic.consume-ok 60 21 consumer_tag:s
basic.cancel 60 30 consumer_tag:s nowait:b
basic.cancel-ok 60 31 consumer_tag:s
basic.publish 60 40 _1:h exchange:s routing_key:s mandatory:b immediate:b
basic.return 60 50 reply_code:h reply_text:s exchange:s routing_key:s
basic.deliver 60 60 consumer_tag:s delivery_tag:q redelivered:b exchange:s routing_key:s
basic.get 60 70 _1:h queue:s no_ack:b
basic.get-ok 60 71 delivery_tag:q redelivered:b exchange:s routing_key:s message_count:l
basic.get-empty 60 72 _1:s
basic.ack 60 80 delivery_tag:q multiple:b
basic.reject 60 90 delivery_tag:q requeue:b
basic.recover-async 60 100 requeue:b
basic.recover 60 110 requeue:b
basic.recover-ok 60 111
basic.nack 60 120 delivery_tag:q multiple:b requeue:b
confirm.select 85 10 nowait:b
confirm.select-ok 85 11
tx.select 90 10
tx.select-ok 90 11
tx.commit 90 20
tx.commit-ok 90 21
tx.rollback 90 30
tx.rollback-ok 90 31
"""

METHODS: dict[str, tuple[int, int, list[tuple[str, str]]]] = {}
for _line in _TABLE.strip().splitlines():
    _name, _class_id, _method_id, *_arguments = _line.split()
    _fields = [(a.split(":")[0], a.split(":")[1]) for a in _arguments]
    METHODS[_name] = (int(_class_id), int(_method_id), _fields)
NAMES = {(class_id, method_id): name for name, (class_id, method_id, _) in METHODS.items()}
CARRIES_CONTENT = {"basic.publish", "basic.return", "basic.deliver", "basic.get-ok"}

PROPERTIES = [
    ("content_type", "s"),
    ("content_encoding", "s"),
    ("headers", "F"),
    ("delivery_mode", "o"),
    ("priority", "o"),
    ("correlation_id", "s"),
    ("reply_to", "s"),
    ("expiration", "s"),
    ("message_id", "s"),
    ("timestamp", "q"),
    ("type", "s"),
    ("user_id", "s"),
    ("app_id", "s"),
    ("cluster_id", "s"),
]

_FORMATS = {"o": ">B", "h": ">H", "l": ">I", "q": ">Q"}
_FIELD_FORMATS = {"b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "L": ">q"}
_FIELD_FORMATS |= {"f": ">f", "d": ">d", "T": ">Q"}


@dataclass(frozen=True)
class Field:
    """A table value with its type tag chosen by the test, for example `Field("s", 10)` for a short integer."""

    tag: str
    value: Any


@dataclass(frozen=True)
class Raw:
    """Bytes that stand for a whole table value, tag included."""

    octets: bytes


def _text(value: str | bytes) -> bytes:
    return value.encode("utf-8") if isinstance(value, str) else value


def encode_field(value: Any) -> bytes:
    match value:
        case Raw():
            return value.octets
        case Field(tag=tag) if tag in _FIELD_FORMATS:
            return tag.encode() + struct.pack(_FIELD_FORMATS[tag], value.value)
        case Field(tag="D"):
            scale, number = value.value
            return b"D" + struct.pack(">BI", scale, number)
        case Field(tag=("S" | "x")):
            octets = _text(value.value)
            return value.tag.encode() + struct.pack(">I", len(octets)) + octets
        case bool():
            return b"t" + bytes([value])
        case int():
            small = -(2**31) <= value < 2**31
            return b"I" + struct.pack(">i", value) if small else b"l" + struct.pack(">q", value)
        case float():
            return b"d" + struct.pack(">d", value)
        case str():
            return b"S" + struct.pack(">I", len(_text(value))) + _text(value)
        case bytes():
            return b"x" + struct.pack(">I", len(value)) + value
        case dict():
            return b"F" + encode_table(value)
        case list():
            items = b"".join(encode_field(item) for item in value)
            return b"A" + struct.pack(">I", len(items)) + items
        case None:
            return b"V"
    raise TypeError(f"no table value: {value!r}")


def encode_table(table: dict[str, Any] | Raw | None) -> bytes:
    if isinstance(table, Raw):
        return table.octets
    body = b"".join(bytes([len(_text(k))]) + _text(k) + encode_field(v) for k, v in (table or {}).items())
    return struct.pack(">I", len(body)) + body


def encode_value(kind: str, value: Any) -> bytes:
    if kind in _FORMATS:
        return struct.pack(_FORMATS[kind], value or 0)
    if kind == "F":
        return encode_table(value)
    octets = _text(value or "")
    return (bytes([len(octets)]) if kind == "s" else struct.pack(">I", len(octets))) + octets


def encode_method(name: str, **arguments: Any) -> bytes:
    """A method's payload; arguments that are not given are zero, empty or false."""
    class_id, method_id, fields = METHODS[name]
    unknown = set(arguments) - {field for field, _ in fields}
    assert not unknown, f"{name} has no argument {unknown}"
    out = bytearray(struct.pack(">HH", class_id, method_id))
    bits: list[bool] = []

    def flush() -> None:
        if bits:
            out.append(sum(bit << i for i, bit in enumerate(bits)))
            bits.clear()

    for field, kind in fields:
        if kind == "b":
            bits.append(bool(arguments.get(field)))
        else:
            flush()
            out += encode_value(kind, arguments.get(field))
    flush()
    return bytes(out)


def encode_header(body_size: int, properties: dict[str, Any], class_id: int = 60) -> bytes:
    unknown = set(properties) - {name for name, _ in PROPERTIES}
    assert not unknown, f"no such property: {unknown}"
    flags, values = 0, b""
    for i, (name, kind) in enumerate(PROPERTIES):
        if properties.get(name) is not None:
            flags |= 1 << (15 - i)
            values += encode_value(kind, properties[name])
    return struct.pack(">HHQH", class_id, 0, body_size, flags) + values


def encode_frame(kind: int, channel: int, payload: bytes, end: int = FRAME_END) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([end])


class Reader:
    """Reads values off a payload, strictly: running past the end raises `AssertionError`."""

    def __init__(self, octets: bytes) -> None:
        self.octets, self.at = octets, 0

    def take(self, n: int) -> bytes:
        assert self.at + n <= len(self.octets), f"the server's payload ends early: {self.octets!r}"
        self.at += n
        return self.octets[self.at - n : self.at]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def value(self, kind: str) -> Any:
        if kind in _FORMATS:
            return self.number(_FORMATS[kind])
        if kind == "F":
            return self.table()
        return self.take(self.number(">B" if kind == "s" else ">I")).decode("utf-8", "surrogateescape")

    def table(self) -> dict[str, Any]:
        inner = Reader(self.take(self.number(">I")))
        table = {}
        while inner.at < len(inner.octets):
            key = inner.value("s")
            table[key] = inner.field()
        return table

    def field(self) -> Any:
        tag = self.take(1).decode("latin-1")
        if tag in _FIELD_FORMATS:
            return self.number(_FIELD_FORMATS[tag])
        if tag == "t":
            return self.number(">B") != 0
        if tag == "S":
            return self.value("S")
        if tag == "x":
            return self.take(self.number(">I"))
        if tag == "F":
            return self.table()
        if tag == "D":
            return Field("D", struct.unpack(">BI", self.take(5)))
        if tag == "A":
            inner, items = Reader(self.take(self.number(">I"))), []
            while inner.at < len(inner.octets):
                items.append(inner.field())
            return items
        assert tag == "V", f"the server sent the unknown type tag {tag!r}"
        return None


def decode_method(payload: bytes) -> tuple[str, dict[str, Any]]:
    reader = Reader(payload)
    ids = (reader.number(">H"), reader.number(">H"))
    assert ids in NAMES, f"the server sent the unknown method {ids}"
    arguments: dict[str, Any] = {}
    bit = 0
    octet = 0
    for field, kind in METHODS[NAMES[ids]][2]:
        if kind == "b":
            if bit == 0:
                octet = reader.number(">B")
            arguments[field] = bool(octet >> bit & 1)
            bit += 1
        else:
            bit = 0
            arguments[field] = reader.value(kind)
    assert reader.at == len(payload), f"the server's {NAMES[ids]} has octets left over"
    return NAMES[ids], arguments


def decode_header(payload: bytes) -> tuple[int, dict[str, Any]]:
    reader = Reader(payload)
    class_id, weight, size, flags = (reader.number(form) for form in (">H", ">H", ">Q", ">H"))
    assert (class_id, weight) == (60, 0), f"the server's content header has class {class_id}, weight {weight}"
    properties = {name: reader.value(kind) for i, (name, kind) in enumerate(PROPERTIES) if flags >> (15 - i) & 1}
    return size, properties
