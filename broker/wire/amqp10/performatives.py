"""Every composite type of AMQP 1.0 that a broker meets, declared once: a class per type, its fields in order.

    composite    | 0x00 | descriptor ulong | list of the fields; those behind the last that is not null are left out |

A class's declarations are the only description of its form; a test compares them, field by field, with the tables of
the standard in ``tests/spec``. Names follow the standard, words joined by underscores. A field without a default is
mandatory (2.7, 1.4: absent or null is an error); of one with a default null means the default. A field that may have
several values is a tuple here; on the wire it is null, a single value or an array (1.4).

    parts       transport 2.7, 2.8; messaging 3.2, 3.4, 3.5; transactions 4.5; security 5.3.3

``decode`` reads what a frame begins with, and says where its payload starts. Whether a performative may come *now* is
not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar, get_args, get_type_hints

import msgspec

from clusterbroker.broker.wire.amqp10 import flows
from clusterbroker.broker.wire.amqp10.types import (
    Array,
    DecodeError,
    Described,
    Milliseconds,
    Symbol,
    encode_list,
    symbols,
)
from clusterbroker.broker.wire.amqp10.types import (
    decode as decode_value,
)
from clusterbroker.broker.wire.amqp10.types import (
    encode as encode_value,
)
from clusterbroker.broker.wire.numbers import UInt8, UInt16, UInt32, UInt64

Boolean = Annotated[bool, "boolean"]
UByte = Annotated[int, "ubyte"]
UShort = Annotated[int, "ushort"]
UInt = Annotated[int, "uint"]
ULong = Annotated[int, "ulong"]
Timestamp = Annotated[int, "timestamp"]
Binary = Annotated[bytes, "binary"]
String = Annotated[str, "string"]
Name = Annotated[str, "symbol"]
Names = Annotated[tuple[str, ...], "symbols"]
"""Several symbols, or none."""
Fields: TypeAlias = Annotated[dict[str, Any], "fields"]
"""A map whose keys are symbols (2.8.14)."""
Map = Annotated[dict[Any, Any], "map"]
AnyValue = Annotated[Any, "*"]
"""A value of any type; of a type that is declared here its class, of another described type `Described`."""


class _Kind(NamedTuple):
    """What a field's name of a type means: the Python type that is read, and what is encoded for a value."""

    type: type
    wire: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


_KINDS: Final = {
    "boolean": _Kind(bool, _same),
    "ubyte": _Kind(UInt8, UInt8),
    "ushort": _Kind(UInt16, UInt16),
    "uint": _Kind(UInt32, UInt32),
    "ulong": _Kind(UInt64, UInt64),
    "timestamp": _Kind(Milliseconds, Milliseconds),
    "binary": _Kind(bytes, _same),
    "string": _Kind(str, _same),
    "symbol": _Kind(Symbol, Symbol),
    "symbols": _Kind(Symbol, symbols),
    "fields": _Kind(dict, _same),
    "map": _Kind(dict, _same),
    "*": _Kind(object, _same),
}


class Composite(msgspec.Struct):
    """What all composite types have; each class says it once, in its decorator."""

    NAME: ClassVar[str]
    """As the standard writes it: ``disposition``."""
    CODE: ClassVar[int]
    """The numeric descriptor; the symbolic one is `SYMBOL`."""
    SYMBOL: ClassVar[str]
    FIELDS: ClassVar[tuple[tuple[str, str, bool, Any], ...]]
    """Of each field: name, type, whether it is mandatory, and its default."""

    def encoded(self) -> bytes:
        """As a described list, without the fields behind the last that is not null. Raises ValueError or TypeError for
        a value that does not fit: our mistake, not the peer's."""
        values = [_pushed(getattr(self, name), kind, default) for name, kind, _, default in self.FIELDS]
        while values and values[-1] == _NULL:
            values.pop()
        return b"\0\x53" + bytes((self.CODE,)) + encode_list(values)


_NULL: Final = b"\x40"
COMPOSITES: Final[dict[Any, type[Composite]]] = {}
"""By numeric and by symbolic descriptor."""
_C = TypeVar("_C", bound=type[Composite])


def _declare(name: str, code: int) -> Callable[[_C], _C]:
    """Enter the decorated class under its descriptors."""

    def enter(composite: _C) -> _C:
        hints = get_type_hints(composite, include_extras=True)
        composite.NAME, composite.CODE, composite.SYMBOL = name, code, f"amqp:{name}:list"
        composite.FIELDS = tuple(
            (one.name, _kind(hints[one.name]), one.required, None if one.required else one.default)
            for one in msgspec.structs.fields(composite)
        )
        COMPOSITES[UInt64(code)] = COMPOSITES[Symbol(composite.SYMBOL)] = composite
        return composite

    return enter


def _kind(declared: Any) -> str:
    """``uint`` of `UInt` and of `UInt | None`."""
    marked = declared if hasattr(declared, "__metadata__") else get_args(declared)[0]
    kind: str = marked.__metadata__[0]
    return kind


def _pushed(value: Any, kind: str, default: Any) -> bytes:
    if value is None or value == ():
        return _NULL
    if value == default and kind not in ("fields", "map", "*"):
        return _NULL
    if isinstance(value, Composite):
        return value.encoded()
    if kind == "fields":
        return encode_value({Symbol(key): _plain(item) for key, item in value.items()})
    if kind == "map":
        return encode_value({key: _plain(item) for key, item in value.items()})
    return encode_value(_KINDS[kind].wire(value))


def _plain(value: Any) -> Any:
    """Composite values inside maps (filters, unsettled) as values that `types.encode` knows."""
    return _as_described(value) if isinstance(value, Composite) else value


def _as_described(value: Composite) -> Described:
    described, _ = decode_value(value.encoded())
    assert isinstance(described, Described), "a composite is described"
    return described


def decode(frame: bytes, offset: int = 0) -> tuple[Composite, int]:
    """The composite that a frame's body begins with, and where its payload starts. Raises DecodeError, also for a type
    that is not declared here."""
    if (flow := _quick_flow(frame, offset)) is not None:
        return flow
    value, end = decode_value(frame, offset)
    found = composed(value)
    if not isinstance(found, Composite):
        raise DecodeError("a frame begins with no performative")
    return found, end


def composed(value: Any) -> Any:
    """Described values of the types that are declared here as these; all others as they are. Raises DecodeError."""
    if type(value) is not Described:
        return value
    kind = COMPOSITES.get(value.descriptor) if isinstance(value.descriptor, (UInt64, Symbol)) else None
    return value if kind is None else _composed(kind, value.value)


def _composed(kind: type[Composite], values: Any) -> Composite:
    if type(values) is not list:
        raise DecodeError(f"{kind.NAME} is no list")
    if len(values) > len(kind.FIELDS):
        raise DecodeError(f"{kind.NAME} has {len(values)} fields, not {len(kind.FIELDS)}")
    found = {}
    for place, (name, wire, mandatory, _) in enumerate(kind.FIELDS):
        value = values[place] if place < len(values) else None
        if value is None:
            if mandatory:
                raise DecodeError(f"{kind.NAME} without {name.replace('_', '-')}")
            continue
        found[name] = _taken(kind, name, wire, value)
    return kind(**found)


def _taken(kind: type[Composite], name: str, wire: str, value: Any) -> Any:
    """A field's value, of the type that it must have."""
    fits = type(value) is _KINDS[wire].type
    if wire == "symbols":
        several = (*value,) if isinstance(value, Array) else (value,)
        if all(type(one) is Symbol for one in several):
            return several
    elif wire == "*":
        return composed(value)
    elif fits:
        if wire == "fields" and not all(type(key) is Symbol for key in value):
            raise DecodeError(f"{name.replace('_', '-')} of {kind.NAME} has a key that is no symbol")
        return value
    raise DecodeError(f"{name.replace('_', '-')} of {kind.NAME} is of the wrong type")


UINT_MAX: Final = 2**32 - 1

# -- transport: performatives (2.7), and their parts (2.8)


@_declare("error", 0x1D)
class Error(Composite):
    condition: Name
    description: String | None = None
    info: Fields | None = None


@_declare("open", 0x10)
class Open(Composite):
    container_id: String
    hostname: String | None = None
    max_frame_size: UInt = UINT_MAX
    channel_max: UShort = 65535
    idle_time_out: UInt | None = None
    outgoing_locales: Names = ()
    incoming_locales: Names = ()
    offered_capabilities: Names = ()
    desired_capabilities: Names = ()
    properties: Fields | None = None


@_declare("begin", 0x11)
class Begin(Composite, kw_only=True):
    remote_channel: UShort | None = None
    next_outgoing_id: UInt
    incoming_window: UInt
    outgoing_window: UInt
    handle_max: UInt = UINT_MAX
    offered_capabilities: Names = ()
    desired_capabilities: Names = ()
    properties: Fields | None = None


@_declare("attach", 0x12)
class Attach(Composite):
    name: String
    handle: UInt
    role: Boolean
    snd_settle_mode: UByte = 2
    rcv_settle_mode: UByte = 0
    source: AnyValue | None = None
    target: AnyValue | None = None
    unsettled: Map | None = None
    incomplete_unsettled: Boolean = False
    initial_delivery_count: UInt | None = None
    max_message_size: ULong | None = None
    offered_capabilities: Names = ()
    desired_capabilities: Names = ()
    properties: Fields | None = None


@_declare("flow", 0x13)
class Flow(Composite, kw_only=True):
    """There is one for every few hundred transfers, so it has a quick way in and out."""

    next_incoming_id: UInt | None = None
    incoming_window: UInt
    next_outgoing_id: UInt
    outgoing_window: UInt
    handle: UInt | None = None
    delivery_count: UInt | None = None
    link_credit: UInt | None = None
    available: UInt | None = None
    drain: Boolean = False
    echo: Boolean = False
    properties: Fields | None = None

    def encoded(self) -> bytes:
        usual = None
        if self.properties is None:
            usual = flows.written(
                self.next_incoming_id, self.incoming_window, self.next_outgoing_id, self.outgoing_window, self.handle,
                self.delivery_count, self.link_credit, self.available, self.drain, self.echo,
            )  # fmt: skip
        return super().encoded() if usual is None else usual  # the first says in words which value does not fit


def _quick_flow(frame: bytes, offset: int) -> tuple[Flow, int] | None:
    """A flow in its usual form. None: it is another, and may be malformed."""
    read = flows.read(frame, offset)
    if read is None:
        return None
    (taken, window, given, sent, handle, delivered, credit, available, drain, echo), end = read
    flow = Flow(
        next_incoming_id=taken, incoming_window=window, next_outgoing_id=given, outgoing_window=sent, handle=handle,
        delivery_count=delivered, link_credit=credit, available=available, drain=drain, echo=echo,
    )  # fmt: skip
    return flow, end


@_declare("transfer", 0x14)
class Transfer(Composite):
    handle: UInt
    delivery_id: UInt | None = None
    delivery_tag: Binary | None = None
    message_format: UInt | None = None
    settled: Boolean | None = None
    more: Boolean = False
    rcv_settle_mode: UByte | None = None
    state: AnyValue | None = None
    resume: Boolean = False
    aborted: Boolean = False
    batchable: Boolean = False


@_declare("disposition", 0x15)
class Disposition(Composite):
    role: Boolean
    first: UInt
    last: UInt | None = None
    settled: Boolean = False
    state: AnyValue | None = None
    batchable: Boolean = False


@_declare("detach", 0x16)
class Detach(Composite):
    handle: UInt
    closed: Boolean = False
    error: AnyValue | None = None


@_declare("end", 0x17)
class End(Composite):
    error: AnyValue | None = None


@_declare("close", 0x18)
class Close(Composite):
    error: AnyValue | None = None


# -- messaging: sections (3.2), delivery states (3.4), sources and targets (3.5)


@_declare("header", 0x70)
class Header(Composite):
    durable: Boolean = False
    priority: UByte = 4
    ttl: UInt | None = None
    """Milliseconds."""
    first_acquirer: Boolean = False
    delivery_count: UInt = 0


@_declare("properties", 0x73)
class Properties(Composite):
    message_id: AnyValue | None = None
    user_id: Binary | None = None
    to: AnyValue | None = None
    subject: String | None = None
    reply_to: AnyValue | None = None
    correlation_id: AnyValue | None = None
    content_type: Name | None = None
    content_encoding: Name | None = None
    absolute_expiry_time: Timestamp | None = None
    creation_time: Timestamp | None = None
    group_id: String | None = None
    group_sequence: UInt | None = None
    reply_to_group_id: String | None = None


@_declare("received", 0x23)
class Received(Composite):
    section_number: UInt
    section_offset: ULong


@_declare("accepted", 0x24)
class Accepted(Composite):
    pass


@_declare("rejected", 0x25)
class Rejected(Composite):
    error: AnyValue | None = None


@_declare("released", 0x26)
class Released(Composite):
    pass


@_declare("modified", 0x27)
class Modified(Composite):
    delivery_failed: Boolean = False
    undeliverable_here: Boolean = False
    message_annotations: Fields | None = None


@_declare("source", 0x28)
class Source(Composite):
    address: AnyValue | None = None
    durable: UInt = 0
    expiry_policy: Name = "session-end"
    timeout: UInt = 0
    """Seconds."""
    dynamic: Boolean = False
    dynamic_node_properties: Fields | None = None
    distribution_mode: Name | None = None
    filter: Fields | None = None
    default_outcome: AnyValue | None = None
    outcomes: Names = ()
    capabilities: Names = ()


@_declare("target", 0x29)
class Target(Composite):
    address: AnyValue | None = None
    durable: UInt = 0
    expiry_policy: Name = "session-end"
    timeout: UInt = 0
    """Seconds."""
    dynamic: Boolean = False
    dynamic_node_properties: Fields | None = None
    capabilities: Names = ()


@_declare("delete-on-close", 0x2B)
class DeleteOnClose(Composite):
    pass


@_declare("delete-on-no-links", 0x2C)
class DeleteOnNoLinks(Composite):
    pass


@_declare("delete-on-no-messages", 0x2D)
class DeleteOnNoMessages(Composite):
    pass


@_declare("delete-on-no-links-or-messages", 0x2E)
class DeleteOnNoLinksOrMessages(Composite):
    pass


# -- transactions (4.5)


@_declare("coordinator", 0x30)
class Coordinator(Composite):
    capabilities: Names = ()


@_declare("declare", 0x31)
class Declare(Composite):
    global_id: AnyValue | None = None


@_declare("discharge", 0x32)
class Discharge(Composite):
    txn_id: Binary
    fail: Boolean = False


@_declare("declared", 0x33)
class Declared(Composite):
    txn_id: Binary


@_declare("transactional-state", 0x34)
class TransactionalState(Composite):
    txn_id: Binary
    outcome: AnyValue | None = None


# -- security (5.3.3)


@_declare("sasl-mechanisms", 0x40)
class SaslMechanisms(Composite):
    sasl_server_mechanisms: Names


@_declare("sasl-init", 0x41)
class SaslInit(Composite):
    mechanism: Name
    initial_response: Binary | None = None
    hostname: String | None = None


@_declare("sasl-challenge", 0x42)
class SaslChallenge(Composite):
    challenge: Binary


@_declare("sasl-response", 0x43)
class SaslResponse(Composite):
    response: Binary


@_declare("sasl-outcome", 0x44)
class SaslOutcome(Composite):
    code: UByte
    additional_data: Binary | None = None


OUTCOMES: Final = (Accepted, Rejected, Released, Modified)
"""Terminal delivery states (3.4)."""
TERMINI: Final = (Source, Target, Coordinator)
"""What a link has at its ends."""
