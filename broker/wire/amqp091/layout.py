"""How a method is declared, and how its declaration becomes bytes (specification 4.2.2).

A method's fields follow each other without names or padding. Its layout is compiled once per class into few steps:
neighbouring numbers share one ``struct``, neighbouring bits share octets ("if there are multiple bit fields in
sequence, they are packed", 4.2.5.2), strings and tables take a step each.

    queue.declare:  short ticket | shortstr queue | 5 bits in 1 octet | table arguments   =   4 steps for 8 fields

Pulling checks every length and raises ``syntax_error`` (502); pushing raises ``ValueError`` or ``TypeError`` for a
value that does not fit, which is a mistake of ours.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

import msgspec

from clusterbroker.broker.wire.amqp091.domains import (
    pull_bits,
    pull_longstr,
    pull_shortstr,
    push_bits,
    push_longstr,
    push_shortstr,
)
from clusterbroker.broker.wire.amqp091.errors import syntax_error
from clusterbroker.broker.wire.amqp091.fields import FieldLimits, pull_table, push_table

Pull: TypeAlias = Callable[[bytes, int, FieldLimits, list[Any]], int]
"""Appends the values it reads to the list; returns the offset behind them."""
Push: TypeAlias = Callable[[object, bytearray], None]
"""Appends the bytes of the fields that it reads from the object."""

_NUMBERS: Final = {"octet": "B", "short": "H", "long": "I", "longlong": "Q", "timestamp": "Q"}
_STRINGS: Final[dict[str, tuple[Callable[[bytes, int], tuple[Any, int]], Callable[[Any], bytes]]]] = {
    "shortstr": (pull_shortstr, push_shortstr),
    "longstr": (pull_longstr, push_longstr),
}


class Layout:
    """The order and domains of one method's fields, compiled."""

    __slots__ = ("_pulls", "_pushes", "fields")

    def __init__(self, fields: Iterable[tuple[str, str]]) -> None:
        """``fields``: names with their elementary domains, in the order of the wire."""
        self.fields = tuple(fields)
        steps = [
            step
            for kind, run in groupby(self.fields, key=lambda field: _kind(field[1]))
            for step in _steps(kind, tuple(run))
        ]
        self._pulls = tuple(pull for pull, _ in steps)
        self._pushes = tuple(push for _, push in steps)

    def pull(self, buf: bytes, offset: int, limits: FieldLimits) -> list[Any]:
        """All values in order. Raises ``syntax_error`` unless they end exactly where ``buf`` ends."""
        values: list[Any] = []
        for pull in self._pulls:
            offset = pull(buf, offset, limits, values)
        if offset != len(buf):
            raise syntax_error(f"{len(buf) - offset} bytes behind the last field")
        return values

    def push(self, record: object, out: bytearray) -> None:
        """Append the fields of ``record``, read by name."""
        for push in self._pushes:
            push(record, out)


class Method(msgspec.Struct, frozen=True):
    """What all methods have; each class says it once, in its decorator."""

    NAME: ClassVar[str]
    """As the specification writes it: ``queue.declare-ok``."""
    CLASS_ID: ClassVar[int]
    METHOD_ID: ClassVar[int]
    SYNCHRONOUS: ClassVar[bool]
    """An exchange of request and reply: its sender waits (unless ``nowait``)."""
    HAS_CONTENT: ClassVar[bool]
    """A content header and body frames follow."""
    LAYOUT: ClassVar[Layout]
    """The fields as bytes."""


METHODS: Final[dict[tuple[int, int], type[Method]]] = {}
"""Every method class by class id and method id."""

_M = TypeVar("_M", bound=type[Method])


def declare(
    name: str, class_id: int, method_id: int, synchronous: bool = False, has_content: bool = False
) -> Callable[[_M], _M]:
    """Enter the decorated class into the table under its name and ids, with its fields as they are declared."""

    def enter(method: _M) -> _M:
        domains = method.__annotations__
        method.NAME, method.CLASS_ID, method.METHOD_ID = name, class_id, method_id
        method.SYNCHRONOUS, method.HAS_CONTENT = synchronous, has_content
        method.LAYOUT = Layout((field, domains[field].__metadata__[0]) for field in method.__struct_fields__)
        assert (class_id, method_id) not in METHODS, f"{name} has the ids of another method"
        METHODS[class_id, method_id] = method
        return method

    return enter


def _kind(domain: str) -> str:
    """Neighbours of one kind share a step, or follow each other in steps of their own."""
    return "number" if domain in _NUMBERS else domain


def _steps(kind: str, run: tuple[tuple[str, str], ...]) -> list[tuple[Pull, Push]]:
    names = tuple(name for name, _ in run)
    if kind == "number":
        return [_numbers(names, struct.Struct(">" + "".join(_NUMBERS[domain] for _, domain in run)))]
    if kind == "bit":
        return [_bits(names)]
    if kind == "table":
        return [_table(name) for name in names]
    return [_string(name, *_STRINGS[kind]) for name in names]


def _numbers(names: tuple[str, ...], numbers: struct.Struct) -> tuple[Pull, Push]:
    def pull(buf: bytes, offset: int, _limits: FieldLimits, values: list[Any]) -> int:
        end = offset + numbers.size
        if end > len(buf):
            raise syntax_error(f"truncated before the end of {names[-1]}")
        values += numbers.unpack_from(buf, offset)
        return end

    def push(record: object, out: bytearray) -> None:
        values = [getattr(record, name) for name in names]
        try:
            out += numbers.pack(*values)
        except struct.error as error:
            raise ValueError(f"{dict(zip(names, values, strict=True))} do not fit: {error}") from None

    return pull, push


def _bits(names: tuple[str, ...]) -> tuple[Pull, Push]:
    def pull(buf: bytes, offset: int, _limits: FieldLimits, values: list[Any]) -> int:
        bits, end = pull_bits(buf, offset, len(names))
        values += bits
        return end

    def push(record: object, out: bytearray) -> None:
        out += push_bits(*[getattr(record, name) for name in names])

    return pull, push


def _string(
    name: str, pull_one: Callable[[bytes, int], tuple[Any, int]], push_one: Callable[[Any], bytes]
) -> tuple[Pull, Push]:
    def pull(buf: bytes, offset: int, _limits: FieldLimits, values: list[Any]) -> int:
        value, end = pull_one(buf, offset)
        values.append(value)
        return end

    def push(record: object, out: bytearray) -> None:
        out += push_one(getattr(record, name))

    return pull, push


def _table(name: str) -> tuple[Pull, Push]:
    def pull(buf: bytes, offset: int, limits: FieldLimits, values: list[Any]) -> int:
        table, end = pull_table(buf, offset, limits)
        values.append(table)
        return end

    def push(record: object, out: bytearray) -> None:
        out += push_table(getattr(record, name))

    return pull, push
