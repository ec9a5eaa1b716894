"""The properties of a message: the part of a content header that a publisher writes and a consumer reads.

    content header payload   | class id u16 | weight u16 | body size u64 | flags u16 | property list |
                                                                         '------ read here --------'

Each property has one bit, the first property the highest (specification 4.2.6.1). A property whose bit is clear is
absent: ``None``, and not one byte in the list. Fourteen properties leave two bits: bit 1 has no meaning and bit 0
announces a second word of flags. No property of the class ``basic`` lives there, so both are refused.

A message must leave this node as it came: ``encode(decode(raw)) == raw`` for everything that a client encodes (a
boolean header other than 0 and 1 and a repeated header name aside, see ``fields.py``). RabbitMQ never looks whether
a property is UTF-8, and clients put raw identifiers into ``correlation_id``; so bytes that are not UTF-8 travel
through the text by ``surrogateescape`` instead of costing the publisher its connection.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias, get_args

from msgspec import Struct

from clusterbroker.broker.wire.amqp091.domains import (
    Octet,
    ShortStr,
    TimestampS,
    pull_longlong,
    pull_octet,
    pull_short,
    pull_shortstr,
    push_longlong,
    push_octet,
    push_short,
    push_shortstr,
)
from clusterbroker.broker.wire.amqp091.errors import syntax_error
from clusterbroker.broker.wire.amqp091.fields import STORED_LIMITS, FieldLimits, Table, pull_table, push_table

CLASS_ID: Final = 60
"""The class ``basic``, the only one with content."""


class Properties(Struct):
    """The properties of the class ``basic`` in the order of the wire; ``None`` is absent."""

    content_type: ShortStr | None = None
    content_encoding: ShortStr | None = None
    headers: Table | None = None
    delivery_mode: Octet | None = None
    """2 is persistent, anything else transient."""
    priority: Octet | None = None
    correlation_id: ShortStr | None = None
    reply_to: ShortStr | None = None
    expiration: ShortStr | None = None
    """Time to live in milliseconds, as decimal digits."""
    message_id: ShortStr | None = None
    timestamp: TimestampS | None = None
    """Seconds since 1970 in UTC, by the publisher's clock."""
    type: ShortStr | None = None
    user_id: ShortStr | None = None
    app_id: ShortStr | None = None
    cluster_id: ShortStr | None = None
    """Reserved in 0-9-1; carried, never looked at."""


PullOne: TypeAlias = Callable[[bytes, int, FieldLimits], tuple[Any, int]]
PushOne: TypeAlias = Callable[[Any], bytes]

_DOMAINS: Final[dict[str, tuple[PullOne, PushOne]]] = {
    "shortstr": (lambda raw, offset, _: pull_shortstr(raw, offset, "surrogateescape"), push_shortstr),
    "octet": (lambda raw, offset, _: pull_octet(raw, offset), push_octet),
    "timestamp": (lambda raw, offset, _: pull_longlong(raw, offset), push_longlong),
    "table": (pull_table, push_table),
}


def _domain(declared: Any) -> str:
    """``shortstr`` from ``Annotated[str, "shortstr"] | None``."""
    domain: str = get_args(declared)[0].__metadata__[0]
    return domain


PROPERTIES: Final = tuple((name, _domain(declared)) for name, declared in Properties.__annotations__.items())
"""Names and elementary domains in the order of the wire."""

_TABLE: Final = tuple((1 << (15 - place), name, *_DOMAINS[domain]) for place, (name, domain) in enumerate(PROPERTIES))
_FLAGS_UNUSED: Final = 0xFFFF >> len(PROPERTIES)


def decode(raw: bytes, limits: FieldLimits = STORED_LIMITS) -> Properties:
    """Flags and property list. Raises ``ConnectionFault`` 502 for anything malformed, truncated or left over. What a
    publish may hold was asked when it came (``codec.FrameDecoder``), and is not asked again."""
    flags, offset = pull_short(raw, 0)
    if flags & _FLAGS_UNUSED:
        raise syntax_error(f"unknown property flags 0x{flags & _FLAGS_UNUSED:x}", CLASS_ID)
    properties = Properties()
    for bit, name, pull, _ in _TABLE:
        if flags & bit:
            value, offset = pull(raw, offset, limits)
            setattr(properties, name, value)
    if offset != len(raw):
        raise syntax_error(f"{len(raw) - offset} bytes behind the last property", CLASS_ID)
    return properties


def without_header(raw: bytes, name: str) -> bytes:
    """Flags and property list without the header of this name, if there is one; the headers table stays."""
    properties = decode(raw)
    properties.headers = {key: value for key, value in (properties.headers or {}).items() if key != name}
    return encode(properties)


def encode(properties: Properties) -> bytes:
    """Flags and property list. Raises ``ValueError`` or ``TypeError`` for a value that does not fit its domain."""
    flags = 0
    parts = [b""]
    for bit, name, _, push in _TABLE:
        value = getattr(properties, name)
        if value is not None:
            flags |= bit
            parts.append(push(value))
    parts[0] = push_short(flags)
    return b"".join(parts)
