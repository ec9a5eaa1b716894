"""Format SECTIONS: messages of AMQP 1.0 (specification, part 3), read and made in the terms of AMQP 0-9-1's properties.

    Message.header   header | message annotations | properties | application properties, each if it was sent
    Message.body     data, amqp-sequence or amqp-value sections | footer

A message keeps its publisher's bytes: who changes a property or an annotation writes the sections that it stands in
anew, and no others. What a consumer of the other protocol sees of a message, both ways:

    AMQP 1.0                                    AMQP 0-9-1
    header: durable, priority, ttl              delivery-mode, priority (4 is none), expiration
    message-id, correlation-id: a text          message-id, correlation-id
        a uuid                                  `urn:uuid:...`
        a ulong, binary                         its digits, base64, and header x-message-id-type, x-correlation-id-type
    user-id, reply-to, content-type,            user-id, reply-to (`/queues/:q` is q), content-type,
        content-encoding                            content-encoding
    creation-time (ms)                          timestamp (s), header timestamp_in_ms
    group-id                                    app-id
    to, subject, absolute-expiry-time,          headers x-opt-to, x-opt-subject, x-opt-absolute-expiry-time,
        group-sequence, reply-to-group-id           x-opt-group-sequence, x-opt-reply-to-group-id
    application properties                      headers of the same names, but for CC and others that routing reads
    annotations x-...                           headers x-...
        x-cc, x-opt-deaths, x-basic-type            CC, x-death, type
        x-opt-producer, x-opt-seq                   x-producer, x-seq
    data sections                               body, joined
    amqp-sequence, amqp-value                   body: the sections as they are, type `amqp-1.0`

Names and values of the two have counterparts, but for decimals (AMQP 1.0's come as bytes), for lists and maps among
application properties, which have none in AMQP 0-9-1's simple headers and stay with consumers of AMQP 1.0, and for
annotations that are no x-, footers and delivery annotations.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from decimal import Decimal as NumberWithPoint
from typing import Any, Final
from urllib.parse import quote, unquote

from msgspec.structs import replace

from clusterbroker.broker.wire.amqp091 import properties as basic
from clusterbroker.broker.wire.amqp091.errors import AmqpError
from clusterbroker.broker.wire.amqp091.fields import STORED_LIMITS, FieldLimits
from clusterbroker.broker.wire.amqp10.performatives import Header, Properties, composed
from clusterbroker.broker.wire.amqp10.types import (
    Array,
    Char,
    Decimal,
    Described,
    Milliseconds,
    Symbol,
    Uuid,
    decode,
    encode,
)
from clusterbroker.broker.wire.numbers import UInt32, UInt64
from clusterbroker.journal.record import Message
from clusterbroker.journal.values import FineTimestamp, LongBytes, Timestamp

ANNOTATIONS: Final = 0x72
APPLICATION: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78
TYPE: Final = "amqp-1.0"
"""Property `type` of a body that is amqp-sequence or amqp-value sections."""
PERSISTENT: Final = 2
"""Property `delivery_mode`."""
PRIORITY: Final = 4
"""Of a message that names none (3.2.1)."""
OWN: Final = ("x-exchange", "x-routing-key")
"""Annotations of the broker, with each delivery."""

RENAMED: Final = {
    "x-cc": "CC", "x-opt-deaths": "x-death", "x-opt-producer": "x-producer", "x-opt-seq": "x-seq",
}  # fmt: skip
"""Annotations, and the headers that mean the same."""
_BACK: Final = {header: annotation for annotation, header in RENAMED.items()}
RESERVED: Final = frozenset({*_BACK, "BCC"})
"""Headers of AMQP 0-9-1 that this broker acts on: no application property becomes one."""
_TYPED: Final = {"message_id": "x-message-id-type", "correlation_id": "x-correlation-id-type"}
_EXTRA: Final = {
    "to": "x-opt-to", "subject": "x-opt-subject", "absolute_expiry_time": "x-opt-absolute-expiry-time",
    "group_sequence": "x-opt-group-sequence", "reply_to_group_id": "x-opt-reply-to-group-id",
}  # fmt: skip
"""Properties of AMQP 1.0 that AMQP 0-9-1 has headers for."""
_IN_MS: Final = "timestamp_in_ms"
_QUEUES: Final = "/queues/"
_SHORT_MAX: Final = 255
"""Bytes of a short string."""
NESTED_MAX: Final = 24
"""Tables and arrays inside each other that a value of AMQP 1.0 is made of: its readers take 32, sections included."""


class Parts:
    """A message's header, taken apart. `known` says which sections were there."""

    __slots__ = ("annotations", "application", "header", "properties")

    def __init__(self, raw: bytes = b"") -> None:
        """Raises DecodeError or KeyError for what is no header; what was accepted is one."""
        self.header: Header | None = None
        self.annotations: dict[Any, Any] | None = None
        self.properties: Properties | None = None
        self.application: dict[str, Any] | None = None
        at = 0
        while at < len(raw):
            section, at = decode(raw, at)
            known = composed(section)
            if isinstance(known, Header):
                self.header = known
            elif isinstance(known, Properties):
                self.properties = known
            elif section.descriptor in (ANNOTATIONS, "amqp:message-annotations:map"):
                self.annotations = section.value
            else:
                self.application = section.value

    def encoded(self) -> bytes:
        sections = (
            b"" if self.header is None else self.header.encoded(),
            b"" if not self.annotations else encode(Described(UInt64(ANNOTATIONS), self.annotations)),
            b"" if self.properties is None else self.properties.encoded(),
            b"" if not self.application else encode(Described(UInt64(APPLICATION), self.application)),
        )
        return b"".join(sections)


class Sections:
    """Format SECTIONS (`content.formats.Format`)."""

    def properties(self, header: bytes, limits: FieldLimits) -> basic.Properties:  # noqa: ARG002 - checked when it came
        parts = Parts(header)
        found = _from_header(parts.header)
        headers: dict[str, Any] = {}
        if parts.properties is not None:
            _from_properties(parts.properties, found, headers)
        for name, value in (parts.application or {}).items():
            if not isinstance(value, (list, dict)) and name not in RESERVED and len(name.encode()) <= _SHORT_MAX:
                headers[name] = to_field(value)
        for key, value in (parts.annotations or {}).items():
            if not isinstance(key, Symbol) or not key.startswith("x-") or len(key) > _SHORT_MAX:
                continue
            if key == "x-basic-type":
                found.type = _cut(str(value))
            else:
                headers[RENAMED.get(key, str(key))] = to_field(value)
        found.headers = headers or None
        return found

    def timestamp(self, header: bytes) -> int | None:
        known = Parts(header).properties
        return None if known is None or known.creation_time is None else max(0, known.creation_time) // 1000

    def accept(self, address: bytes, header: bytes, body: bytes, now_ms: int) -> Message | AmqpError:
        from clusterbroker.broker.wire.amqp10.sections import make_message

        made = make_message(address, header + body, now_ms, own=True)
        assert made is not None, "sections that were accepted, or are the broker's own, are well-formed"
        return made

    def header(self, before: bytes, properties: basic.Properties) -> bytes:
        parts = Parts(before)
        known = self.properties(before, STORED_LIMITS)
        _set_header(parts, properties)
        _set_properties(parts, known, properties)
        _set_headers(parts, known.headers or {}, properties.headers or {})
        _set_type(parts, known.type, properties.type)
        return parts.encoded()

    def annotated(self, header: bytes, added: Mapping[str, Any], removed: str) -> bytes:
        parts = Parts(header)
        parts.annotations = dict(parts.annotations or {})
        parts.annotations.pop(_BACK.get(removed, removed), None)
        for name, value in added.items():
            parts.annotations[Symbol(_BACK.get(name, name))] = from_field(value)
        return parts.encoded()

    def changed(self, header: bytes, annotations: Mapping[str, Any]) -> bytes:
        parts = Parts(header)
        parts.annotations = {**(parts.annotations or {}), **annotations}
        return parts.encoded()

    def unnamed(self, header: bytes) -> bytes:
        """Without annotations that the broker gives each delivery."""
        parts = Parts(header)
        parts.annotations = {key: value for key, value in (parts.annotations or {}).items() if key not in OWN}
        return parts.encoded()

    def looked_into(self, header: bytes) -> bool:
        return b"x-cc" in header or b"x-opt-producer" in header

    def plain(self, body: bytes) -> tuple[bytes, str | None]:
        data: list[bytes] = []
        at = 0
        while at < len(body):
            descriptor, at = decode(body, at + 1)  # nothing else of a section is decoded, whatever its publisher wrote
            if descriptor in (FOOTER, "amqp:footer:map"):
                break
            if descriptor not in (DATA, "amqp:data:binary"):
                return body, TYPE
            value, at = decode(body, at)
            data.append(value)
        return b"".join(data), None

    def wrapped(self, body: bytes, kind: str | None) -> bytes:
        if kind == TYPE and body and _are_sections(body):
            return body
        return encode(Described(UInt64(DATA), body))


def _are_sections(body: bytes) -> bool:
    """Whether a publisher's bytes are what it says they are."""
    from clusterbroker.broker.wire.amqp10.sections import make_message

    made = make_message(b"\0\0", body, 0)
    return made is not None and made.payload == body and made.header_length == 0


# -- values


def to_field(value: Any) -> Any:
    """A value of AMQP 1.0 as a field of AMQP 0-9-1."""
    if isinstance(value, Milliseconds):
        return FineTimestamp.of(max(0, value))
    if isinstance(value, UInt64):
        return int(value) if value < 2**63 else str(int(value))
    if isinstance(value, (Symbol, Char)):
        return str(value)
    if isinstance(value, Uuid):
        return str(value)
    if isinstance(value, Decimal):
        return bytes(value)
    if isinstance(value, Described):
        return to_field(value.value)
    if isinstance(value, dict):
        return {_cut(str(key)): to_field(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_field(item) for item in value]
    return value


def _cut(text: str) -> str:
    """As much of a text as a short string holds."""
    return text if _short(text) else text.encode()[:_SHORT_MAX].decode(errors="ignore")


def from_field(value: Any, depth: int = 0) -> Any:
    """A field of AMQP 0-9-1 as a value of AMQP 1.0; what is nested deeper than others read is left out."""
    if depth >= NESTED_MAX:
        return None
    if isinstance(value, Timestamp):
        return Milliseconds(min(value * 1000 + value.more_ms, 2**63 - 1))
    if isinstance(value, NumberWithPoint):
        return str(value)
    if isinstance(value, LongBytes):
        return bytes(value)
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, Mapping):
        return {from_field(str(key)): from_field(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple) and not isinstance(value, Array):
        return [from_field(item, depth + 1) for item in value]
    return value


# -- from AMQP 1.0


def _from_header(header: Header | None) -> basic.Properties:
    found = basic.Properties()
    if header is not None:
        found.delivery_mode = PERSISTENT if header.durable else 1
        found.priority = None if header.priority == PRIORITY else header.priority
        found.expiration = None if header.ttl is None else str(int(header.ttl))
    return found


def _short(text: str) -> bool:
    return len(text.encode("utf-8", "surrogateescape")) <= _SHORT_MAX


def _from_properties(known: Properties, found: basic.Properties, headers: dict[str, Any]) -> None:
    for name, typed in _TYPED.items():
        value = getattr(known, name)
        if value is None:
            continue
        text, kind = _id_text(value)
        if _short(text):
            setattr(found, name, text)
            if kind:
                headers[typed] = kind
        else:
            headers["x-" + name.replace("_", "-")] = text
    if known.user_id is not None:
        text = known.user_id.decode("utf-8", "surrogateescape")
        if _short(text):
            found.user_id = text
    if isinstance(known.reply_to, str):
        text = known.reply_to
        text = unquote(text[len(_QUEUES) :]) if text.startswith(_QUEUES) else text
        if _short(text):
            found.reply_to = text
    for name in ("content_type", "content_encoding"):
        text = getattr(known, name)
        if text is not None and _short(text):
            setattr(found, name, str(text))
    if known.creation_time is not None and known.creation_time >= 0:
        found.timestamp = known.creation_time // 1000
        headers[_IN_MS] = int(known.creation_time)
    if known.group_id is not None and _short(known.group_id):
        found.app_id = known.group_id
    for name, header in _EXTRA.items():
        value = getattr(known, name)
        if value is not None:
            headers[header] = int(value) if name == "absolute_expiry_time" else to_field(value)


def _id_text(value: Any) -> tuple[str, str]:
    """A message-id as text, and the name of its type: empty where the text says it."""
    if isinstance(value, Uuid):
        return f"urn:uuid:{value}", ""
    if isinstance(value, UInt64):
        return str(int(value)), "ulong"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode(), "binary"
    return str(value), ""


# -- to AMQP 1.0: what is other than `known` is written, all else stays


def _set_header(parts: Parts, wanted: basic.Properties) -> None:
    durable = wanted.delivery_mode == PERSISTENT
    priority = PRIORITY if wanted.priority is None else min(255, wanted.priority)
    ttl = (
        None if wanted.expiration is None or not wanted.expiration.isdigit() else min(int(wanted.expiration), 2**32 - 1)
    )
    if parts.header is None and (durable, priority, ttl) == (False, PRIORITY, None):
        return
    parts.header = replace(parts.header or Header(), durable=durable, priority=priority, ttl=ttl)


def _set_properties(parts: Parts, known: basic.Properties, wanted: basic.Properties) -> None:
    changed: dict[str, Any] = {}
    headers = wanted.headers or {}
    for name, typed in _TYPED.items():
        text = getattr(wanted, name)
        if text != getattr(known, name):
            changed[name] = None if text is None else _id_of(text, headers.get(typed))
    if wanted.user_id != known.user_id:
        changed["user_id"] = None if wanted.user_id is None else wanted.user_id.encode("utf-8", "surrogateescape")
    if wanted.reply_to != known.reply_to:
        changed["reply_to"] = None if wanted.reply_to is None else _QUEUES + quote(readable(wanted.reply_to), safe="")
    for name in ("content_type", "content_encoding"):
        text = getattr(wanted, name)
        if text != getattr(known, name):
            changed[name] = None if text is None else Symbol(text.encode("ascii", "replace").decode())
    if wanted.timestamp != known.timestamp:
        changed["creation_time"] = None if wanted.timestamp is None else _in_ms(wanted.timestamp, headers.get(_IN_MS))
    if wanted.app_id != known.app_id:
        changed["group_id"] = None if wanted.app_id is None else readable(wanted.app_id)
    for name, header in _EXTRA.items():
        if header not in (known.headers or {}) and (value := _extra(name, headers.get(header))) is not None:
            changed[name] = value
    if changed:
        parts.properties = replace(parts.properties or Properties(), **changed)


def _extra(name: str, value: Any) -> Any:
    """A property that AMQP 0-9-1 carries as a header; None: it is not what it was."""
    if name == "absolute_expiry_time":
        return Milliseconds(value) if isinstance(value, int) and -(2**63) <= value < 2**63 else None
    if name == "group_sequence":
        return UInt32(value) if isinstance(value, int) and 0 <= value < 2**32 else None
    return readable(value) if isinstance(value, str) else None


def readable(value: str) -> str:
    """A text of 0-9-1, which may be any bytes, where it has to be UTF-8."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _in_ms(timestamp: int, exact: Any) -> int:
    """A time in seconds; `exact`: in milliseconds, if a header says it."""
    if isinstance(exact, int) and exact // 1000 == timestamp and exact < 2**63:
        return Milliseconds(exact)
    return Milliseconds(min(timestamp * 1000, 2**63 - 1))


def _id_of(text: str, kind: Any) -> Any:
    """A message-id of the type that it once had."""
    if kind == "ulong" and text.isascii() and text.isdigit() and int(text) < 2**64:
        return UInt64(text)
    if kind == "binary":
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            return readable(text)
    if text.startswith("urn:uuid:"):
        try:
            return Uuid.parse(text[9:])
        except ValueError:
            return readable(text)
    return readable(text)


def _set_headers(parts: Parts, known: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    carried = {*_TYPED.values(), *_EXTRA.values(), _IN_MS} if parts.properties is not None else set()
    annotations = dict(parts.annotations or {})
    application = dict(parts.application or {})
    for name in known.keys() - wanted.keys():
        annotations.pop(_BACK.get(name, name), None)
        if name not in RESERVED:
            application.pop(name, None)
    for name, value in wanted.items():
        if name in carried or (name in known and known[name] == value and type(known[name]) is type(value)):
            continue
        if name == "BCC":
            continue
        if name in _BACK or name.startswith("x-"):
            annotations[Symbol(_BACK.get(name, name).encode("ascii", "replace").decode())] = from_field(value)
        elif not isinstance(value, (list, tuple, dict)):
            application[readable(name)] = from_field(value)
    parts.annotations, parts.application = annotations, application


def _set_type(parts: Parts, known: str | None, wanted: str | None) -> None:
    if wanted in (known, TYPE):
        return
    parts.annotations = dict(parts.annotations or {})
    if wanted is None:
        parts.annotations.pop("x-basic-type", None)
    else:
        parts.annotations[Symbol("x-basic-type")] = readable(wanted)
