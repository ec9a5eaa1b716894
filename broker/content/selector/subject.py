"""A message as a filter asks for it, and what the names of a selector mean.

Headers, properties, application properties and annotations are looked at, never a body. They are decoded when a filter
asks for them first; a message of AMQP 0-9-1 is seen as a consumer of AMQP 1.0 would see it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.content.formats import SECTIONS, format_of
from clusterbroker.broker.content.sections import Parts
from clusterbroker.broker.content.selector.syntax import BadSelector
from clusterbroker.broker.wire.amqp091.fields import STORED_LIMITS
from clusterbroker.broker.wire.amqp10.performatives import Properties
from clusterbroker.broker.wire.amqp10.types import Char, Decimal, Described, Milliseconds, Uuid
from clusterbroker.broker.wire.numbers import UInt64

if TYPE_CHECKING:
    from clusterbroker.broker.content.selector.evaluation import Value
    from clusterbroker.journal.record import Message

PRIORITY: Final = 4
"""Of a message that names none (3.2.1)."""
PERSISTENT: Final = 1
"""Flag of a message."""
PROPERTIES: Final = tuple(field for field, _, _, _ in Properties.FIELDS)
_JMS: Final = {
    "JMSCorrelationID": "correlation_id",
    "JMSMessageID": "message_id",
    "JMSTimestamp": "creation_time",
    "JMSType": "subject",
    "JMSReplyTo": "reply_to",
    "JMSDestination": "to",
    "JMSExpiration": "absolute_expiry_time",
    "JMSXGroupID": "group_id",
    "JMSXGroupSeq": "group_sequence",
    "JMSXUserID": "user_id",
}
"""Names of JMS for properties of AMQP 1.0 (AMQP JMS Mapping 1.0)."""
_IDS: Final = ("message_id", "correlation_id")


class Subject:
    """One message."""

    __slots__ = ("_parts", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self._parts: Parts | None = None

    @property
    def parts(self) -> Parts:
        """Raises what reading the message's format raises."""
        if self._parts is None:
            message = self.message
            header = message.header
            if message.format != SECTIONS:
                properties = format_of(message.format).properties(header, STORED_LIMITS)
                header = format_of(SECTIONS).header(b"", properties)
            self._parts = Parts(header)
        return self._parts

    def property_of(self, field: str) -> Any:
        """A field of the properties section, as it was sent."""
        known = self.parts.properties
        return None if known is None else getattr(known, field)

    def application_property(self, name: str) -> Any:
        return (self.parts.application or {}).get(name)


def plain(value: Any) -> Any:
    """A value as a selector compares it; None: it does not."""
    if isinstance(value, Uuid):
        return str(value)
    if value is None or isinstance(value, (Decimal, Described, list, dict, Char)):
        return str(value) if isinstance(value, Char) else None
    if isinstance(value, Milliseconds):
        return int(value)
    return value


def _id(value: Any) -> Any:
    """A message-id as JMS shows it."""
    if isinstance(value, UInt64):
        return f"ID:AMQP_ULONG:{int(value)}"
    if isinstance(value, Uuid):
        return f"ID:AMQP_UUID:{value}"
    if isinstance(value, bytes):
        return f"ID:AMQP_BINARY:{value.hex().upper()}"
    return value


def _property(field: str) -> Value:
    return lambda subject: plain(subject.property_of(field))


def _application(name: str) -> Value:
    return lambda subject: plain(subject.application_property(name))


def _annotation(name: str) -> Value:
    return lambda subject: plain((subject.parts.annotations or {}).get(name))


def _header(field: str) -> Value:
    if field == "priority":
        return lambda subject: PRIORITY if (known := subject.parts.header) is None else int(known.priority)
    if field == "durable":
        return lambda subject: bool(subject.message.flags & PERSISTENT)
    if field == "ttl":
        return lambda subject: None if (known := subject.parts.header) is None else plain(known.ttl)
    raise BadSelector(f"there is no header '{field[:60]}' to select by: priority, durable, ttl")


def jms_name(name: str) -> Value:
    """What a name means in a JMS selector."""
    if name == "JMSPriority":
        return _header("priority")
    if name == "JMSDeliveryMode":
        return lambda subject: "PERSISTENT" if subject.message.flags & PERSISTENT else "NON_PERSISTENT"
    if name in _JMS:
        field = _JMS[name]
        if field in _IDS:
            return lambda subject: _id(subject.property_of(field))
        if field == "user_id":
            return lambda subject: None if (raw := subject.property_of(field)) is None else raw.decode(errors="replace")
        return _property(field)
    if name.startswith("amqp."):
        field = name[5:]
        return _property(field) if field in PROPERTIES else _header(field)
    return _application(name)


def sql_name(name: str) -> Value:
    """What a name means in an SQL filter expression of AMQP: `section.field`, or an application property."""
    section, dot, field = name.partition(".")
    if not dot:
        return _application(name)
    if section in ("p", "properties"):
        field = field.replace("-", "_")
        if field not in PROPERTIES:
            raise BadSelector(f"there is no property '{field[:60]}': {', '.join(PROPERTIES)}")
        return _property(field)
    if section in ("h", "header"):
        return _header(field)
    if section in ("a", "application_properties"):
        return _application(field)
    if section in ("m", "message_annotations"):
        return _annotation(field)
    raise BadSelector(f"'{section[:60]}' is no section of a message: header, properties, application_properties")
