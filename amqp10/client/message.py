"""A message between Python and its sections (specification 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from clusterbroker.broker.wire.amqp10.performatives import Composite, Header, Properties, composed
from clusterbroker.broker.wire.amqp10.types import DecodeError, Described, Symbol, decode, encode
from clusterbroker.broker.wire.numbers import UInt64

DELIVERY_ANNOTATIONS, ANNOTATIONS, APPLICATION, DATA, SEQUENCE, VALUE, FOOTER = (
    UInt64(code) for code in (0x71, 0x72, 0x74, 0x75, 0x76, 0x77, 0x78)
)
NO_VALUE: Final = object()
"""A message has no amqp-value section; None would be one of null."""


@dataclass(slots=True)
class Message:
    """`body` is one data section, unless `value` (amqp-value) or `sequence` (amqp-sequence) is given.

    Keys of `annotations` are symbols on the wire, and plain text here. A received message whose data came in several
    sections has them joined.
    """

    body: bytes = b""
    value: Any = NO_VALUE
    sequence: list[Any] | None = None
    header: Header = field(default_factory=Header)
    properties: Properties = field(default_factory=Properties)
    annotations: dict[str, Any] = field(default_factory=dict)
    application: dict[str, Any] = field(default_factory=dict)
    delivery_annotations: dict[str, Any] = field(default_factory=dict)
    footer: dict[str, Any] = field(default_factory=dict)
    durable: bool = True
    """Of the header; a message is durable unless it says otherwise, here and not in the standard."""

    def encoded(self) -> bytes:
        """The sections in the standard's order. Raises ValueError or TypeError for a value that has no encoding."""
        self.header.durable = self.durable
        parts = [self.header.encoded()]
        parts += _annotations(DELIVERY_ANNOTATIONS, self.delivery_annotations)
        parts += _annotations(ANNOTATIONS, self.annotations)
        if self.properties != Properties():
            parts.append(self.properties.encoded())
        if self.application:
            parts.append(encode(Described(APPLICATION, self.application)))
        if self.value is not NO_VALUE:
            inner = self.value.encoded() if isinstance(self.value, Composite) else encode(self.value)
            parts.append(b"\0\x53\x77" + inner)
        elif self.sequence is not None:
            parts.append(encode(Described(SEQUENCE, self.sequence)))
        else:
            parts.append(encode(Described(DATA, self.body)))
        parts += _annotations(FOOTER, self.footer)
        return b"".join(parts)

    @classmethod
    def decoded(cls, payload: bytes) -> Message:
        """Raises DecodeError."""
        found = cls(durable=False)
        data: list[bytes] = []
        at = 0
        while at < len(payload):
            section, at = decode(payload, at)
            known = composed(section)
            if isinstance(known, Header):
                found.header, found.durable = known, known.durable
            elif isinstance(known, Properties):
                found.properties = known
            elif isinstance(known, Described):
                _take(found, data, known)
            else:
                raise DecodeError("a section of a message is no described value of the standard")
        found.body = b"".join(data)
        return found


def _annotations(code: UInt64, entries: Mapping[str, Any]) -> list[bytes]:
    return [encode(Described(code, {Symbol(key): item for key, item in entries.items()}))] if entries else []


def _take(found: Message, data: list[bytes], section: Described) -> None:
    value = section.value
    if section.descriptor == DATA and isinstance(value, bytes):
        data.append(value)
    elif section.descriptor == VALUE:
        found.value = composed(value)
    elif section.descriptor == SEQUENCE and isinstance(value, list):
        found.sequence = [*(found.sequence or []), *value]
    elif section.descriptor in _MAPS and isinstance(value, dict):
        setattr(found, _MAPS[section.descriptor], {_text(key): item for key, item in value.items()})
    else:
        raise DecodeError(f"no section of a message has the descriptor {section.descriptor!r} and such a value")


_MAPS: Final[dict[Any, str]] = {
    DELIVERY_ANNOTATIONS: "delivery_annotations",
    ANNOTATIONS: "annotations",
    APPLICATION: "application",
    FOOTER: "footer",
}


def _text(key: Any) -> Any:
    return str(key) if isinstance(key, Symbol) else key


def place_of(payload: bytes, section: int, offset: int) -> int:
    """Where in an encoded message a `received` state points to (3.4.1): `offset` bytes into its section of that
    number. Raises DecodeError for a place that the message does not have."""
    at = 0
    for _ in range(section):
        _, at = decode(payload, at)
    if at + offset > len(payload):
        raise DecodeError(f"the peer has received {offset} bytes of section {section}, which is not so long")
    return at + offset
