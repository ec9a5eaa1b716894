"""What the bytes of a message are encoded in, and the table of those that this release can read.

A message keeps the header and body that its publisher sent; `Message.format` says how they are encoded, and goes with
it through ring, journal, replication and frames as any byte. Commands and the management process read properties too,
and no records: this module imports a node's compiled modules only where a message is made. Who reads or changes a
header asks the format's `Format`; a protocol with a format of its own adds one to `FORMATS`, and translates only
where consumer and message differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from clusterbroker.broker.wire.amqp091 import properties as basic
from clusterbroker.broker.wire.amqp091.errors import AmqpError
from clusterbroker.broker.wire.amqp091.fields import STORED_LIMITS, FieldLimits
from clusterbroker.broker.wire.amqp091.properties import Properties

if TYPE_CHECKING:
    from clusterbroker.journal.record import Message

BASIC: Final = 0
"""AMQP 0-9-1: property flags and list of class basic | body."""
SECTIONS: Final = 1
"""AMQP 1.0: header, annotations, properties and application properties | body sections, footer."""
MQTT: Final = 2
"""MQTT 5: properties of PUBLISH | payload."""
NAMES: Final = {BASIC: "AMQP 0-9-1 basic", SECTIONS: "AMQP 1.0 sections", MQTT: "MQTT"}

_HAS_TIMESTAMP: Final = 0x40
"""In the second byte of AMQP 0-9-1's property flags."""


class UnknownFormatError(ValueError):
    """A message is of a format that this release cannot read. It stays where it is."""

    def __init__(self, number: int) -> None:
        name = f", {NAMES[number]}" if number in NAMES else ""
        super().__init__(f"a message of format {number}{name}: this release cannot read it")


class Format(Protocol):
    """How messages of one format are read and made. `Properties` is the form that all rooms between a front and the
    bytes know: AMQP 0-9-1's, of which every other protocol has the counterparts."""

    def properties(self, header: bytes, limits: FieldLimits) -> Properties:
        """Raises AmqpError when a field exceeds `limits`; what a publish may hold was checked when it came."""

    def timestamp(self, header: bytes) -> int | None:
        """The property `timestamp` (seconds since 1970); quick for the many messages that have none."""

    def accept(self, address: bytes, header: bytes, body: bytes, now_ms: int) -> Message | AmqpError:
        """A message at ingress: its flags (durable and others), priority and time to live are what its header says."""

    def header(self, before: bytes, properties: Properties) -> bytes:
        """The header with these properties. What `Properties` cannot say stays as it was `before`."""

    def annotated(self, header: bytes, added: Mapping[str, Any], removed: str) -> bytes:
        """The header with these annotations of the broker's more, and without the header named `removed`."""

    def changed(self, header: bytes, annotations: Mapping[str, Any]) -> bytes:
        """The header with these annotations of a consumer, values of AMQP 1.0, in place of those of the same names."""

    def looked_into(self, header: bytes) -> bool:
        """Whether CC, BCC or a producer's number may stand there. Errs on the careful side."""

    def plain(self, body: bytes) -> tuple[bytes, str | None]:
        """The body as AMQP 0-9-1 has it, and the property `type` that says so if it is no plain bytes."""

    def wrapped(self, body: bytes, kind: str | None) -> bytes:
        """A plain body in this format; `kind`: its property `type`."""


class Basic:
    """Format BASIC."""

    def properties(self, header: bytes, limits: FieldLimits) -> Properties:
        return basic.decode(header, limits)

    def timestamp(self, header: bytes) -> int | None:
        return basic.decode(header).timestamp if header[1] & _HAS_TIMESTAMP else None

    def accept(self, address: bytes, header: bytes, body: bytes, now_ms: int) -> Message | AmqpError:
        from clusterbroker.broker.wire.amqp091 import codec

        return codec.make_message(address, header, body, now_ms)

    def header(self, _: bytes, properties: Properties) -> bytes:
        return basic.encode(properties)

    def annotated(self, header: bytes, added: Mapping[str, Any], removed: str) -> bytes:
        properties = basic.decode(header)
        headers = {name: value for name, value in (properties.headers or {}).items() if name != removed} | dict(added)
        properties.headers = headers or (None if properties.headers is None else {})
        return basic.encode(properties)

    def changed(self, header: bytes, annotations: Mapping[str, Any]) -> bytes:
        from clusterbroker.broker.content.sections import to_field

        return self.annotated(header, {str(name): to_field(value) for name, value in annotations.items()}, "")

    def looked_into(self, header: bytes) -> bool:
        return b"CC" in header or b"x-producer" in header

    def plain(self, body: bytes) -> tuple[bytes, str | None]:
        return body, None

    def wrapped(self, body: bytes, _: str | None) -> bytes:
        return body


def _sections() -> Format:
    from clusterbroker.broker.content.sections import Sections

    return Sections()


FORMATS: Final[dict[int, Format]] = {BASIC: Basic()}
READERS: Final[dict[int, Callable[[], Format]]] = {SECTIONS: _sections}
"""Formats that are imported when the first message of theirs is met: most nodes meet none."""


def format_of(number: int) -> Format:
    """Raises UnknownFormatError."""
    known = FORMATS.get(number)
    if known is None:
        if number not in READERS:
            raise UnknownFormatError(number)
        known = FORMATS[number] = READERS[number]()
    return known


def translate(message: Message, to: int) -> Message:
    """The message in the format `to`, for a consumer that reads nothing else; itself if it is in that. Raises
    UnknownFormatError."""
    if message.format == to:
        return message
    from clusterbroker.journal.record import Message

    source, target = format_of(message.format), format_of(to)
    properties = source.properties(message.header, STORED_LIMITS)
    body, kind = source.plain(message.body)
    properties.type = kind or properties.type
    header = target.header(b"", properties)
    return Message(
        message.address, header + target.wrapped(body, properties.type), len(header), message.flags, message.priority,
        message.time_ms, message.ttl_ms, to,
    )  # fmt: skip
