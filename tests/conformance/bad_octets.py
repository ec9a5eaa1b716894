"""Bad octets for test_bad_input.py: each with the close codes that may follow, DROP, or OK where it is merely odd."""

from __future__ import annotations

import struct
from typing import Any

from .encoding import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    Field,
    Raw,
    encode_frame,
    encode_header,
    encode_method,
)

OK = "a normal answer"
DROP = "the end of the socket"
SYNTAX: set[object] = {501, 502, 503, 505, 540, 541, DROP}


def frame(kind: int, payload: bytes, channel: int = 1, size: int | None = None) -> bytes:
    """A frame whose size field may lie."""
    return struct.pack(">BHI", kind, channel, len(payload) if size is None else size) + payload + b"\xce"


def publish_frames(header: bytes, *bodies: bytes) -> bytes:
    octets = encode_frame(FRAME_METHOD, 1, encode_method("basic.publish", routing_key="nobody"))
    octets += encode_frame(FRAME_HEADER, 1, header)
    return octets + b"".join(encode_frame(FRAME_BODY, 1, body) for body in bodies)


def declare(table: Raw) -> bytes:
    payload = encode_method("queue.declare", exclusive=True, nowait=True, arguments=table)
    return encode_frame(FRAME_METHOD, 1, payload)


def sized(octets: bytes) -> Raw:
    """A table's content with its true length before it."""
    return Raw(struct.pack(">I", len(octets)) + octets)


def nested(depth: int, kind: bytes = b"F") -> bytes:
    """A table value nested `depth` times (a table needs a key at each level, an array does not)."""
    octets = b""
    for _ in range(depth):
        octets = (b"\x01k" if kind == b"F" else b"") + kind + struct.pack(">I", len(octets)) + octets
    return octets if kind == b"F" else b"\x01k" + octets


def header_with(flags: bytes, rest: bytes = b"") -> bytes:
    return struct.pack(">HHQ", 60, 0, 0) + flags + rest


WIRE: dict[str, tuple[bytes, set[object]]] = {
    "frame type 0": (frame(0, b"x"), {501, 505, DROP}),
    "frame type 4": (frame(4, b"x"), {501, 505, DROP}),
    "frame type 9": (frame(9, b"x"), {501, 505, DROP}),
    "frame type 255": (frame(255, b"x"), {501, 505, DROP}),
    "frame type 255 on channel 0": (frame(255, b"x", channel=0), {501, 505, DROP}),
    "method of size 0": (frame(FRAME_METHOD, b""), SYNTAX),
    "method of size 1": (frame(FRAME_METHOD, b"\0"), SYNTAX),
    "header of size 0": (frame(FRAME_HEADER, b""), SYNTAX),
    "body of size 0 without a method": (frame(FRAME_BODY, b""), {505}),
    "size 2^31-1": (frame(FRAME_BODY, b"", size=2**31 - 1), {501}),
    "size 2^32-1": (frame(FRAME_BODY, b"", size=2**32 - 1), {501}),
    "size far beyond frame_max": (frame(FRAME_METHOD, b"", size=131072 + 100), {501}),
    "heartbeat on a channel": (frame(FRAME_HEARTBEAT, b""), {501, 505}),
    "heartbeat on channel 0 with a payload": (frame(FRAME_HEARTBEAT, b"x", channel=0), {501, 505, OK}),
    "method of a channel on channel 0": (
        frame(FRAME_METHOD, encode_method("queue.declare", queue="q"), channel=0),
        {503, 504},
    ),
    "header on channel 0": (frame(FRAME_HEADER, encode_header(0, {}), channel=0), {505}),
    "body on channel 0": (frame(FRAME_BODY, b"x", channel=0), {505}),
    "method on an unopened channel": (frame(FRAME_METHOD, encode_method("tx.select"), channel=9), {504}),
    "channel 65535 unopened": (frame(FRAME_METHOD, encode_method("tx.select"), channel=65535), {504, 530}),
    "body longer than its header says": (publish_frames(encode_header(2, {}), b"four"), {501, 502, 505, OK}),
    "body ends early": (
        publish_frames(encode_header(9, {}), b"four") + frame(FRAME_METHOD, encode_method("tx.select")),
        {505},
    ),
    "body without a header": (
        frame(FRAME_METHOD, encode_method("basic.publish")) + frame(FRAME_BODY, b"x"),
        {505},
    ),
    "two headers": (publish_frames(encode_header(9, {})) + frame(FRAME_HEADER, encode_header(9, {})), {505}),
    "two publishes interleaved": (frame(FRAME_METHOD, encode_method("basic.publish")) * 2, {505}),
    "header of another class": (publish_frames(encode_header(0, {}, class_id=90)), {505}),
    "header with a weight": (publish_frames(struct.pack(">HHQH", 60, 7, 0, 0)), {501, 502, 505, OK, DROP}),
    "body size 2^64-1": (publish_frames(encode_header(2**64 - 1, {}), b"x"), {311, 406, 501, 502, 505}),
    "unknown class": (frame(FRAME_METHOD, struct.pack(">HH", 999, 10)), SYNTAX),
    "unknown method": (frame(FRAME_METHOD, struct.pack(">HH", 50, 999)), SYNTAX),
    "a method that ends early": (frame(FRAME_METHOD, encode_method("queue.declare", queue="queue")[:-7]), SYNTAX),
    "a method with octets left over": (frame(FRAME_METHOD, encode_method("tx.select") + b"more"), SYNTAX | {OK}),
    "reserved bits set": (
        frame(FRAME_METHOD, encode_method("queue.declare", queue="nosuch", passive=True)[:-5] + b"\xff" + bytes(4)),
        {404, 501, 502, OK},
    ),
    "short string of bad UTF-8": (
        frame(FRAME_METHOD, encode_method("basic.get", queue=b"\xff\xfe\x80")),
        {404, 406, 502, 501, 541, DROP},
    ),
    "short string with NUL": (frame(FRAME_METHOD, encode_method("basic.get", queue="a\0b")), {404, 406, 501, 502}),
    "short string of 255 octets": (frame(FRAME_METHOD, encode_method("basic.get", queue="q" * 255)), {404}),
    "short string beyond the end": (frame(FRAME_METHOD, struct.pack(">HHHB", 60, 70, 0, 200) + b"q"), SYNTAX),
    "table length beyond the end": (declare(Raw(struct.pack(">I", 2**32 - 1))), SYNTAX),
    "long string beyond the end": (declare(sized(b"\x01kS\xff\xff\xff\xff")), SYNTAX),
    "array beyond its table": (declare(sized(b"\x01kA\x00\x00\x10\x00")), SYNTAX),
    "key beyond the end": (declare(sized(b"\xffk")), SYNTAX),
    "unknown type tag": (declare(sized(b"\x01k?1234")), SYNTAX),
    "tables nested deep": (declare(sized(nested(10_000))), SYNTAX | {OK, 406}),
    "arrays nested deep": (declare(sized(nested(10_000, b"A"))), SYNTAX | {OK, 406}),
    "arrays of arrays": (declare(sized(nested(5, b"A"))), {OK}),
    "duplicate keys": (declare(sized(b"\x01kt\x01" * 2)), {OK, 502, 501}),
    "an empty key": (declare(sized(b"\x00t\x01")), {OK, 502, 501}),
    "a header with all property flags and no values": (publish_frames(header_with(b"\xff\xfe")), SYNTAX),
    "a property flags continuation": (publish_frames(header_with(b"\x00\x01\x00\x00")), SYNTAX | {OK}),
    "property flags continued forever": (publish_frames(header_with(b"\x00\x01" * 5000)), SYNTAX | {OK}),
}  # fmt: skip


def special_values() -> dict[str, Any]:
    return {
        "NaN": Raw(b"d" + struct.pack(">d", float("nan"))),
        "infinity": Raw(b"d" + struct.pack(">d", float("inf"))),
        "float NaN": Raw(b"f" + struct.pack(">f", float("nan"))),
        "timestamp 0": Field("T", 0),
        "timestamp 2^64-1": Field("T", 2**64 - 1),
        "decimal of scale 255": Field("D", (255, 2**32 - 1)),
        "empty table": {},
        "empty array": [],
        "long string of NUL": Field("S", b"\0" * 10),
        "long string of bad UTF-8": Field("S", b"\xff\xfe"),
        "void": None,
    }
