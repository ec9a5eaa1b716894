"""The sections of a message of AMQP 1.0: the specification of `broker/wire/amqp10/sections.pyx`."""

from __future__ import annotations

from typing import Final

from clusterbroker.broker.wire.amqp10.performatives import Header, Properties, composed
from clusterbroker.broker.wire.amqp10.types import DecodeError, Described, Symbol, decode
from clusterbroker.broker.wire.numbers import UInt64
from clusterbroker.journal.layout import HAS_EXPIRATION, HAS_HEADERS, HAS_REPLY_TO, HAS_USER_ID, PERSISTENT
from tests.model.record import Message

SECTIONS: Final = 1
"""Of a message's format."""
_DESCRIPTORS: Final = {
    0x70: "amqp:header:list",
    0x71: "amqp:delivery-annotations:map",
    0x72: "amqp:message-annotations:map",
    0x73: "amqp:properties:list",
    0x74: "amqp:application-properties:map",
    0x75: "amqp:data:binary",
    0x76: "amqp:amqp-sequence:list",
    0x77: "amqp:amqp-value:*",
    0x78: "amqp:footer:map",
}
_NUMBERS: Final = {name: number for number, name in _DESCRIPTORS.items()}


class Sections:
    """Where the sections of a message lie."""

    def __init__(self) -> None:
        self.places: dict[int, int] = {}
        self.header = Header()
        self.properties = Properties()


def find_sections(payload: bytes) -> Sections | None:
    """None: it is no message (3.2): sections out of order, of the wrong type, too deep, with too many values, or
    nothing. A body may be missing, whatever the specification says: clients leave an empty one out."""
    found, at, last, bodies = Sections(), 0, 0, False
    try:
        while at < len(payload):
            section, end = decode(payload, at)
            if type(section) is not Described or not isinstance(section.descriptor, (UInt64, Symbol)):
                return None
            code = _NUMBERS.get(section.descriptor, 0) if isinstance(section.descriptor, Symbol) else section.descriptor
            if code not in _DESCRIPTORS or code < last or (code == last and code not in (0x75, 0x76)):
                return None
            if code in (0x75, 0x76, 0x77):
                if bodies and code != last:
                    return None
                bodies = True
            value = section.value
            if code in (0x71, 0x72, 0x78):
                if type(value) is not dict or not all(isinstance(key, (Symbol, UInt64)) for key in value):
                    return None
            elif code == 0x74:
                if type(value) is not dict or not all(type(key) is str for key in value):
                    return None
            elif (code == 0x75 and type(value) is not bytes) or (code == 0x76 and type(value) is not list):
                return None
            elif code in (0x70, 0x73):
                known = composed(section)
                if isinstance(known, Header):
                    found.header = known
                else:
                    found.properties = known
                    if not all(
                        one is None or isinstance(one, (str, bytes, UInt64))
                        for one in (known.message_id, known.correlation_id)
                    ) or any(isinstance(one, Symbol) for one in (known.message_id, known.correlation_id)):
                        return None
            found.places.setdefault(code, at)
            at, last = end, code
    except DecodeError:
        return None
    return found if last else None


def make_message(address: bytes, payload: bytes, now_ms: int) -> Message | None:
    """A message of the sections that a client sent, or None: they are no message. Delivery annotations are for this
    node alone, and are not kept."""
    found = find_sections(payload)
    if found is None:
        return None

    def start(code: int) -> int:
        """Where a section begins, or would."""
        return min((place for known, place in found.places.items() if known >= code), default=len(payload))

    flags = PERSISTENT if found.header.durable else 0
    if 0x72 in found.places or 0x74 in found.places:
        flags |= HAS_HEADERS
    if found.header.ttl is not None:
        flags |= HAS_EXPIRATION
    if found.properties.user_id is not None:
        flags |= HAS_USER_ID
    if found.properties.reply_to is not None:
        flags |= HAS_REPLY_TO
    dropped = start(0x72) - start(0x71)
    kept = payload[: start(0x71)] + payload[start(0x72) :]
    ttl = -1 if found.header.ttl is None else int(found.header.ttl)
    return Message(address, kept, start(0x75) - dropped, flags, int(found.header.priority), now_ms, ttl, SECTIONS)
