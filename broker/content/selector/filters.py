"""Filters of a source (AMQP 1.0, 3.5.8; Filter Expressions 1.0): which messages a link takes.

    apache.org:selector-filter:string       a JMS selector
    amqp:sql-filter                         an SQL filter expression
    amqp:properties-filter                  a map: each property is equal to this, or begins or ends with it
    amqp:application-properties-filter      the same of application properties
    rabbitmq:stream-filter                  texts: the annotation x-stream-filter-value is one of them
    rabbitmq:stream-match-unfiltered        true, beside the one before: so are messages without that annotation

All filters of a link hold together. In the two maps a text `&p:x` is what begins with x, `&s:x` what ends with it, and
`&&x` is the text `&x` (RabbitMQ 4.1). A filter travels from node to node as the client sent it (`Filter.wire`), and
whoever judges by it makes it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.content.selector.evaluation import compiled, kind_of
from clusterbroker.broker.content.selector.subject import PROPERTIES, Subject, jms_name, plain, sql_name
from clusterbroker.broker.content.selector.syntax import BadSelector, parse
from clusterbroker.broker.wire.amqp10.types import DecodeError, Described, Symbol, Uuid, decode, encode
from clusterbroker.broker.wire.numbers import UInt64

if TYPE_CHECKING:
    from clusterbroker.journal.record import Message

JMS_SELECTOR: Final = "apache.org:selector-filter:string"
ENTRIES_MAX: Final = 16
"""Properties in one map."""
WIRE_BYTES_MAX: Final = 16 << 10
"""Of all filters of a link."""

STREAM_FILTER: Final = "rabbitmq:stream-filter"
MATCH_UNFILTERED: Final = "rabbitmq:stream-match-unfiltered"
FILTER_VALUE: Final = "x-stream-filter-value"
_VALUE_FILTERS: Final = frozenset((STREAM_FILTER, MATCH_UNFILTERED))
VALUES_MAX: Final = 64
WORK_LEAST: Final = 20
WORK_WIRE_BYTES: Final = 4
"""Of a filter: the shortest part of a selector, `a=1`, is judged in less than 1 us."""
WORK_HEADER_BYTES: Final = 4
"""Of a message's header: values are decoded one by one."""
Holds = Callable[[Subject], Any]
"""True: the message is taken."""


class BadFilter(ValueError):
    """A filter that is known and is not well-formed; says what is wrong."""


class Filter:
    """What is in force of a source's filters."""

    __slots__ = ("_holds", "_weight", "digest", "wire")

    def __init__(self, holds: tuple[Holds, ...], wire: bytes, digest: bytes = b"") -> None:
        self._holds = holds
        self._weight = WORK_LEAST + len(wire) // WORK_WIRE_BYTES
        self.wire = wire
        self.digest = digest
        """The same for filters that say the same, in whatever order and under whatever names."""

    def work(self, message: Message) -> int:
        """About how long it takes to judge the message, in us."""
        return self._weight + len(message.header) // WORK_HEADER_BYTES

    def takes(self, subject: Subject) -> bool | None:
        """Whether the link takes the message; of one that cannot be read nobody knows, so it does not. None: this node
        has no memory to judge by, which says nothing of the message: it is judged later (decision 057)."""
        try:
            return all(holds(subject) is True for holds in self._holds)
        except MemoryError:
            return None
        except Exception:
            return False


def filter_of(filters: Mapping[Any, Any]) -> tuple[Filter | None, dict[Symbol, Described]]:
    """The filter that a source's filter map asks for, and those of its entries that are in force: what is not known
    here is left out (3.5.8). Raises BadFilter."""
    taken: dict[Symbol, Described] = {}
    holds, said = [], []
    for name, told in filters.items():
        made = _KINDS.get(told.descriptor) if isinstance(told, Described) and _is_name(told.descriptor) else None
        if made is not None:
            holds.append(made(told.value))
            said.append(encode([_CODES[told.descriptor], told.value]))
            taken[Symbol(name)] = told
    by_value = _by_value(filters)
    if by_value is not None:
        holds.append(by_value)
        taken.update({Symbol(name): told for name, told in filters.items() if _descriptor(told) in _VALUE_FILTERS})
    if not holds:
        return None, {}
    wire = encode(taken)
    if len(wire) > WIRE_BYTES_MAX:
        raise BadFilter(f"filters have at most {WIRE_BYTES_MAX} bytes")
    return Filter(tuple(holds), wire, blake2b(b"".join(sorted(said)), digest_size=16).digest()), taken


def selects_as(filters: Mapping[Any, Any], wanted: Filter | None) -> bool:
    """Whether a source's filter map asks for this filter."""
    try:
        found, _ = filter_of(filters)
    except BadFilter:
        return False
    return (found and found.digest) == (wanted and wanted.digest)


def selector_of(text: str) -> Filter:
    """The filter that a JMS selector is. Raises BadFilter."""
    made, _ = filter_of({Symbol(JMS_SELECTOR): Described(Symbol(JMS_SELECTOR), text)})
    assert made is not None, "it is known"
    return made


def values_filter(values: Any, unfiltered: bool) -> Filter:
    """RabbitMQ's filter of streams: a text, or a list of them. Raises BadFilter."""
    filters = {STREAM_FILTER: values, MATCH_UNFILTERED: unfiltered}
    made, _ = filter_of({Symbol(name): Described(Symbol(name), told) for name, told in filters.items()})
    assert made is not None, "it is known"
    return made


def filter_on_wire(wire: bytes) -> Filter | None:
    """The filter that another node made. Raises BadFilter."""
    if not wire:
        return None
    try:
        filters, _ = decode(wire, 0)
    except DecodeError as error:
        raise BadFilter(str(error)) from error
    if not isinstance(filters, dict):
        raise BadFilter("filters are a map")
    made, _ = filter_of(filters)
    if made is None or len(made.wire) != len(wire):
        raise BadFilter("a filter that this release does not know")
    return made


def _descriptor(told: Any) -> Any:
    return told.descriptor if isinstance(told, Described) and _is_name(told.descriptor) else None


def _by_value(filters: Mapping[Any, Any]) -> Holds | None:
    """RabbitMQ's filter of streams, which passes over whole chunks there and single messages here."""
    told = {_descriptor(entry): entry.value for entry in filters.values() if _descriptor(entry) in _VALUE_FILTERS}
    if STREAM_FILTER not in told:
        return None
    given = told[STREAM_FILTER]
    values = given if isinstance(given, list) else [given]
    if not 1 <= len(values) <= VALUES_MAX or not all(isinstance(value, str) for value in values):
        raise BadFilter(f"a stream filter is a text, or a list of 1 to {VALUES_MAX} of them")
    wanted, unfiltered = frozenset(map(str, values)), told.get(MATCH_UNFILTERED, False)
    if not isinstance(unfiltered, bool):
        raise BadFilter(f"{MATCH_UNFILTERED} is a boolean")

    def holds(subject: Subject) -> bool:
        value = (subject.parts.annotations or {}).get(FILTER_VALUE)
        return unfiltered if value is None else value in wanted

    return holds


def _is_name(descriptor: Any) -> bool:
    return isinstance(descriptor, (int, str))


def _selector(names: Callable[[str], Any], *, orders_texts: bool) -> Callable[[Any], Holds]:
    def make(text: Any) -> Holds:
        if not isinstance(text, str):
            raise BadFilter("a selector is a text")
        try:
            return compiled(parse(text), names, orders_texts=orders_texts)
        except BadSelector as error:
            raise BadFilter(f"the selector is wrong: {error}") from error

    return make


def _matching(of: Callable[[Any], Callable[[Subject], Any]]) -> Callable[[Any], Holds]:
    def make(entries: Any) -> Holds:
        if not isinstance(entries, dict) or not entries:
            raise BadFilter("a properties filter is a map with an entry")
        if len(entries) > ENTRIES_MAX:
            raise BadFilter(f"a properties filter has at most {ENTRIES_MAX} entries")
        pairs = tuple((of(name), _match(wanted)) for name, wanted in entries.items())
        return lambda subject: all(match(ask(subject)) for ask, match in pairs)

    return make


def _property(name: Any) -> Callable[[Subject], Any]:
    field = str(name).replace("-", "_")
    if not isinstance(name, str) or field not in PROPERTIES:
        raise BadFilter(f"there is no property '{str(name)[:60]}'")
    return lambda subject: subject.property_of(field)


def _application_property(name: Any) -> Callable[[Subject], Any]:
    if not isinstance(name, str):
        raise BadFilter("an application property's name is a text")
    return lambda subject: subject.application_property(name)


def _match(wanted: Any) -> Callable[[Any], bool]:
    if isinstance(wanted, str) and wanted.startswith("&"):
        kind, rest = wanted[1:3], wanted[3:]
        if kind == "p:":
            return lambda value: isinstance(value, str) and value.startswith(rest)
        if kind == "s:":
            return lambda value: isinstance(value, str) and value.endswith(rest)
        if kind[:1] != "&":
            raise BadFilter(f"'{wanted[:60]}': a text that begins with '&' is '&p:', '&s:' or '&&' and a text")
        wanted = wanted[1:]
    if plain(wanted) is None:
        raise BadFilter("a property is compared with a text, a number, a boolean, a uuid or bytes")
    kind = _kind(wanted)
    return lambda value: _kind(value) == kind and bool(value == wanted)


def _kind(value: Any) -> str:
    return "uuid" if isinstance(value, Uuid) else kind_of(value)


_BY_NAME: Final[dict[str, tuple[int, Callable[[Any], Holds]]]] = {
    JMS_SELECTOR: (0x468C00000004, _selector(jms_name, orders_texts=False)),
    "amqp:sql-filter": (0x120, _selector(sql_name, orders_texts=True)),
    "amqp:properties-filter": (0x173, _matching(_property)),
    "amqp:application-properties-filter": (0x174, _matching(_application_property)),
}
_CODES: Final[dict[Any, UInt64]] = {
    **{name: UInt64(code) for name, (code, _) in _BY_NAME.items()},
    **{UInt64(code): UInt64(code) for code, _ in _BY_NAME.values()},
}
_KINDS: Final[dict[Any, Callable[[Any], Holds]]] = {
    **{name: made for name, (_, made) in _BY_NAME.items()},
    **{UInt64(code): made for code, made in _BY_NAME.values()},
}
