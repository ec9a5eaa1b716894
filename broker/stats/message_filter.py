"""Which messages of a queue an operator means: conditions on one message, all of which have to hold (pure).

    filter       condition (AND condition)*                     nothing at all: every message
    condition    FIELD OP VALUE
    OP           = != ~ !~      equal, contains; * and ? in a bare VALUE of = and != stand for any text, any character
                 < <= > >=      numbers: size, age, seq, delivery_count, priority, delivery_mode, timestamp
    VALUE        a word without blanks, or "text" with \\" and \\\\ in it

A filter is text from outside that runs on the loop of a queue's owner, once per message. So there is nothing in it that
takes more than linear time (no regular expressions of others: of a pattern with stars each piece is searched once, from
where the one before it ended), it is bounded in length and conditions, and properties are decoded once, when asked for.
And whoever walks over messages is told what it took (`Subject.work`), for a header may be an array of 10,000 elements.
A long payload is searched in steps (`Search`), between which the loop does other things.

What a message does not have equals nothing and contains nothing: `!=` and `!~` hold for it, and no comparison does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Any, Final, Protocol

from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.wire.amqp091.properties import Properties

LENGTH_MAX: Final = 4096
CONDITIONS_MAX: Final = 32
SLOW_CONDITIONS_MAX: Final = 4
"""On the payload, which may be long, or with a `?` between two stars."""
UNKNOWN_PIECE_MAX: Final = 32
"""Bytes between two stars, where a `?` stands among them: such a piece is tried at each place of the text. That is too
slow for a payload, where no such piece may be."""
ELEMENTS_MAX: Final = 1000
"""Of a header that is an array so many are looked at."""
WORK_BYTES: Final = 256
"""Of text that are searched as quickly as anything else of one piece of work is done: 1 to 2 us."""
STEP_BYTES: Final = 256 << 10
"""Of a payload so much is searched at once: 0.05 to 2 ms."""
WORK_DECODED_BYTES: Final = 8
WORK_UNKNOWN: Final = 16
"""A piece with `?` in it takes so many times as long as one without."""
STATES: Final = {1: "ready", 2: "unacknowledged", 5: "dead"}
"""Of a message in its queue, by the numbers that rings give them."""
_TEXTS: Final = tuple(name for name in Properties.__struct_fields__ if name != "headers")
_OF_PLACE: Final = ("seq", "redelivered", "delivery_count", "state")
_NUMBERS: Final = ("size", "age", "seq", "delivery_count", "priority", "delivery_mode", "timestamp")
_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_AGES_MS: Final = {"ms": 1, "": 1000, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
_CONDITION: Final = re.compile(
    rf"\s*(?P<field>header\.(?:{_QUOTED}|[^\s=!~<>\"]+)|[A-Za-z_]+)\s*(?P<op>!=|!~|<=|>=|=|~|<|>)\s*"
    rf'(?P<value>{_QUOTED}|[^\s"]*)(?P<end>\s+[Aa][Nn][Dd]\s+|\s*\Z)',
    re.DOTALL,
)
_AMOUNT: Final = re.compile(r"(\d{1,18})([a-z]*)\Z", re.ASCII | re.IGNORECASE)


class Content(Protocol):
    """A message, as journal and ring have it."""

    @property
    def exchange(self) -> bytes: ...

    @property
    def routing_key(self) -> bytes: ...

    @property
    def header(self) -> bytes: ...

    @property
    def format(self) -> int: ...

    @property
    def body(self) -> bytes: ...

    @property
    def body_length(self) -> int: ...

    @property
    def time_ms(self) -> int: ...


class BadFilter(ValueError):
    """The text is no filter; says where, and what would be one."""


class Subject:
    """One message at its place, as a filter asks for it. Without content only what its place tells can be asked.

    work    what has been done for it, in pieces of 1 to 2 us
    """

    __slots__ = ("_properties", "content", "delivery_count", "now_ms", "redelivered", "seq", "state", "work")

    def __init__(
        self, seq: int, state: int, redelivered: bool, delivery_count: int, content: Content | None, now_ms: int
    ) -> None:
        self.seq = seq
        self.state = STATES[state]
        self.redelivered = redelivered
        self.delivery_count = delivery_count
        self.content = content
        self.now_ms = now_ms
        self.work = 1
        self._properties: Properties | None = None

    @property
    def properties(self) -> Properties:
        """Decoded when first asked for."""
        if self._properties is None:
            assert self.content is not None, "a filter that asks for content gets it"
            self.work += len(self.content.header) // WORK_DECODED_BYTES
            self._properties = properties_of(self.content)
        return self._properties


Ask = Callable[[Subject], Any]
Holds = Callable[[Subject], bool]
Search = Generator[None, None, bool]
"""A look at a text in steps of STEP_BYTES; what it returns in the end is the answer."""
Look = Callable[[bytes], Search]


class Filter:
    """A filter that was understood.

    needs_content    more than its place in the queue has to be known of a message
    """

    __slots__ = ("_conditions", "_on_payload", "needs_content")

    def __init__(self, conditions: list[Holds], on_payload: list[Look], needs_content: bool) -> None:
        self._conditions = conditions
        self._on_payload = on_payload
        self.needs_content = needs_content

    @property
    def asks_payload(self) -> bool:
        """Whether there are conditions on the payload."""
        return bool(self._on_payload)

    def matches(self, subject: Subject) -> bool:
        """Whether all conditions hold."""
        if not self.fits(subject):
            return False
        if not self._on_payload:
            return True
        assert subject.content is not None, "a filter that asks for content gets it"
        body = subject.content.body
        subject.work += len(self._on_payload) * (1 + len(body) // WORK_BYTES)
        return finished(self.search(body))

    def fits(self, subject: Subject) -> bool:
        """Whether all conditions hold that are not on the payload."""
        return all(holds(subject) for holds in self._conditions)

    def search(self, body: bytes) -> Search:
        """Whether all conditions on the payload hold."""
        for look in self._on_payload:
            if not (yield from look(body)):
                return False
        return True


def finished(search: Search) -> bool:
    """The answer, at once."""
    while True:
        try:
            next(search)
        except StopIteration as end:
            return bool(end.value)


def parse(text: str) -> Filter:
    """The filter of a text. Raises BadFilter."""
    if len(text) > LENGTH_MAX:
        raise BadFilter(f"a filter has {LENGTH_MAX} characters at most")
    conditions: list[Holds] = []
    on_payload: list[Look] = []
    needs_content = False
    slow = at = 0
    while text[at:].strip():
        found = _CONDITION.match(text, at)
        if found is None:
            raise BadFilter(f"'{text[at : at + 60].strip()}' is no condition: FIELD=VALUE, with AND between conditions")
        glob = _glob(found["op"], found["value"])
        slow += found["field"] == "payload" or (glob is not None and glob.is_slow)
        if len(conditions) + len(on_payload) == CONDITIONS_MAX or slow > SLOW_CONDITIONS_MAX:
            raise BadFilter(
                f"a filter has {CONDITIONS_MAX} conditions at most, {SLOW_CONDITIONS_MAX} of them on the payload or "
                "with a '?' between two '*'"
            )
        if found["field"] == "payload":
            on_payload.append(_look(found["op"], found["value"], glob))
        else:
            conditions.append(_condition(found["field"], found["op"], found["value"], glob))
        needs_content = needs_content or found["field"] not in _OF_PLACE
        at = found.end()
        if found["end"].strip() and not text[at:].strip():
            raise BadFilter("nothing stands behind the last AND")
    return Filter(conditions, on_payload, needs_content)


def _glob(op: str, written: str) -> Glob | None:
    """The pattern of a condition, if it has one."""
    bare = op in ("=", "!=") and not written.startswith('"')
    return Glob(written) if bare and ("*" in written or "?" in written) else None


def _condition(field: str, op: str, written: str, glob: Glob | None) -> Holds:
    value = _unquoted(written) if written.startswith('"') else written
    ask = _field(field)
    if op in ("<", "<=", ">", ">="):
        return _comparison(ask, op, _amount(field, value))
    if field in ("size", "age"):
        if op not in ("=", "!="):
            raise BadFilter(f"'{field}' is a number: compare it with <, <=, >, >= or =")
        return _equality(ask, _equal_number(_amount(field, value)), op == "!=")
    if op in ("~", "!~"):
        return _equality(ask, _contained(value), op == "!~")
    if glob is not None:
        return _equality(ask, glob.matches, op == "!=", WORK_UNKNOWN if glob.is_slow else 1)
    return _equality(ask, _same(value), op == "!=")


def _look(op: str, written: str, glob: Glob | None) -> Look:
    """A condition on the payload."""
    value = _unquoted(written) if written.startswith('"') else written
    if op in ("<", "<=", ">", ">="):
        _amount("payload", value)
    if glob is not None and glob.is_slow:
        raise BadFilter("a '?' between two '*' is too slow on a payload: leave it out, or a '*'")
    wanted = value.encode(errors="surrogateescape")
    negated = op in ("!=", "!~")

    def look(body: bytes) -> Search:
        if op in ("~", "!~"):
            found = (yield from Piece(wanted, literal=True).search(body, 0, len(body))) >= 0
        elif glob is not None:
            found = yield from glob.search(body)
        else:
            found = body == wanted
        return found != negated

    return look


def _unquoted(written: str) -> str:
    return re.sub(r"\\(.)", r"\1", written[1:-1], flags=re.DOTALL)


def _field(field: str) -> Ask:
    if field.startswith("header."):
        name = field[len("header.") :]
        return _header(_unquoted(name) if name.startswith('"') else name)
    if field in _OF_PLACE:
        return lambda subject: getattr(subject, field)
    if field in _TEXTS:
        return lambda subject: getattr(subject.properties, field)
    if field in _CONTENT:
        return _CONTENT[field]
    known = ", ".join(("routing_key", "exchange", "header.NAME", "payload", "size", "age", *_OF_PLACE, *_TEXTS))
    raise BadFilter(f"there is no field '{field[:60]}': choose of {known}")


def _header(name: str) -> Ask:
    def ask(subject: Subject) -> Any:
        headers = subject.properties.headers
        return None if headers is None else headers.get(name)

    return ask


def _content(get: Callable[[Content, int], Any]) -> Ask:
    def ask(subject: Subject) -> Any:
        assert subject.content is not None, "a filter that asks for content gets it"
        return get(subject.content, subject.now_ms)

    return ask


_CONTENT: Final[dict[str, Ask]] = {
    "routing_key": _content(lambda content, _: content.routing_key),
    "exchange": _content(lambda content, _: content.exchange),
    "size": _content(lambda content, _: content.body_length),
    "age": _content(lambda content, now_ms: max(0, now_ms - content.time_ms)),
}


def _amount(field: str, value: str) -> int:
    """A number; of `size` in bytes, of `age` in ms."""
    found = _AMOUNT.match(value)
    units = {"size": _SIZES, "age": _AGES_MS}.get(field, {"": 1})
    if field not in _NUMBERS or found is None or found[2].lower() not in units:
        allowed = ", ".join(unit for unit in units if unit)
        kind = f"a whole number{f' with {allowed} behind it or nothing' if allowed else ''}"
        raise BadFilter(
            f"'{value[:60]}' is no {field}: {kind}"
            if field in _NUMBERS
            else f"'{field[:60]}' is no number: < and > compare {', '.join(_NUMBERS)}"
        )
    return int(found[1]) * units[found[2].lower()]


def _comparison(ask: Ask, op: str, amount: int) -> Holds:
    compare: Callable[[Any], bool] = {
        "<": lambda value: value < amount,
        "<=": lambda value: value <= amount,
        ">": lambda value: value > amount,
        ">=": lambda value: value >= amount,
    }[op]

    def holds(subject: Subject) -> bool:
        value = ask(subject)
        return value is not None and compare(value)

    return holds


def _equality(ask: Ask, fits: Callable[[bytes], bool], negated: bool, weight: int = 1) -> Holds:
    def holds(subject: Subject) -> bool:
        value = ask(subject)
        # of a header that is an array: one of its elements
        some = value[:ELEMENTS_MAX] if isinstance(value, list) else (value,)
        raws = [raw for each in some if (raw := octets(each)) is not None]
        subject.work += len(some) + weight * sum(map(len, raws)) // WORK_BYTES
        return any(map(fits, raws)) != negated

    return holds


def octets(value: Any) -> bytes | None:
    """How a value is written in a filter; None: it cannot be."""
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, str):
        return value.encode(errors="surrogateescape")
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if value is None or isinstance(value, dict | list):
        return None
    return str(value).encode()


def _same(value: str) -> Callable[[bytes], bool]:
    wanted = value.encode(errors="surrogateescape")
    return lambda raw: raw == wanted


def _contained(value: str) -> Callable[[bytes], bool]:
    wanted = value.encode(errors="surrogateescape")
    return lambda raw: wanted in raw


def _equal_number(amount: int) -> Callable[[bytes], bool]:
    wanted = b"%d" % amount
    return lambda raw: raw == wanted


class Glob:
    """A pattern in which `*` is any text and `?` any byte. Raises BadFilter.

    is_slow    a piece with `?` in it is searched for
    """

    __slots__ = ("_first", "_last", "_middle", "_whole", "is_slow")

    def __init__(self, pattern: str) -> None:
        pieces = [Piece(piece) for piece in pattern.encode(errors="surrogateescape").split(b"*")]
        self._whole = len(pieces) == 1
        self._first, self._last = pieces[0], pieces[-1]
        self._middle = [piece for piece in pieces[1:-1] if piece.length]
        self.is_slow = any(piece.is_unknown for piece in self._middle)

    def matches(self, raw: bytes) -> bool:
        """Whether it is all of the text."""
        return finished(self.search(raw))

    def search(self, raw: bytes) -> Search:
        """The same, in steps."""
        first, last = self._first, self._last
        if self._whole:
            return len(raw) == first.length and first.stands(raw, 0)
        at, end = first.length, len(raw) - last.length
        if end < at or not first.stands(raw, 0) or not last.stands(raw, end):
            return False
        for piece in self._middle:  # the first place of each leaves most room for the others
            found = yield from piece.search(raw, at, end)
            if found < 0:
                return False
            at = found + piece.length
        return True


class Piece:
    """What stands between two stars; `literal`: a `?` in it is one."""

    __slots__ = ("_known", "_unknown", "length")

    def __init__(self, piece: bytes, literal: bool = False) -> None:
        self.length = len(piece)
        self._known = piece
        self._unknown: re.Pattern[bytes] | None = None
        if b"?" in piece and not literal:
            if len(piece) > UNKNOWN_PIECE_MAX:
                raise BadFilter(f"a text with '?' in it has {UNKNOWN_PIECE_MAX} bytes at most between two '*'")
            escaped = (b"." if byte == ord("?") else re.escape(bytes((byte,))) for byte in piece)
            self._unknown = re.compile(b"".join(escaped), re.DOTALL)

    @property
    def is_unknown(self) -> bool:
        """Whether a `?` is in it."""
        return self._unknown is not None

    def stands(self, raw: bytes, at: int) -> bool:
        """Whether it is at this place."""
        if self._unknown is None:
            return raw.startswith(self._known, at)
        return self._unknown.match(raw, at) is not None

    def search(self, raw: bytes, at: int, end: int) -> Generator[None, None, int]:
        """Its first place from there on; -1: there is none."""
        while True:
            until = min(end, at + STEP_BYTES + self.length)  # a step begins before the last one's end by its length
            found = self._find(raw, at, until)
            if found >= 0 or until == end:
                return found
            at += STEP_BYTES
            yield

    def _find(self, raw: bytes, at: int, end: int) -> int:
        if self._unknown is None:
            return raw.find(self._known, at, end)
        found = self._unknown.search(raw, at, end)
        return -1 if found is None else found.start()
