"""Comparing and describing the values of AMQP argument tables.

A table value arrives as a plain Python value (bool, int, float, str, bytes, None, list, dict, an aware
datetime) or as a subclass that remembers its width on the wire. Two values are the same argument when their
*class* and content agree: all integer widths are one class (amqp-rules.md 5.3, `type_class`: short 10 = long
10), text and bytes compare by content, a bool is never an int, an int is never a float. `frozen` turns a
value into a hashable that is equal exactly for the same argument, so that it also serves as the key of a
binding.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

NESTING_MAX: Final = 64


def frozen(value: object) -> Hashable:
    """A hashable that is equal for two values exactly when they are the same argument.

    The commonest value, an empty table, becomes the empty tuple. Floats go by their shortest text so that NaN
    is the same argument as NaN and 0.0 is not -0.0.
    """
    match value:
        case bool():
            return ("t", bool(value))
        case int():
            return ("i", int(value))
        case str():
            return ("s", value.encode("utf-8", "surrogatepass"))
        case bytes() | bytearray() | memoryview():
            return ("s", bytes(value))
        case None:
            return ("n",)
        case float():
            return ("d", repr(float(value)))
        case datetime():
            return ("T", value.timestamp())
        case Mapping():
            return tuple(sorted((str(name), frozen(item)) for name, item in value.items())) if value else ()
        case Sequence():
            return ("l", *[frozen(item) for item in value])
        case _:
            return ("?", str(value))


def equivalent(a: object, b: object) -> bool:
    """Whether two argument values are the same to the rules of redeclaration (amqp-rules.md 5.3)."""
    return frozen(a) == frozen(b)


def is_integer(value: object) -> bool:
    """Whether the value is an AMQP integer of any width; a bool is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def type_name(value: object) -> str:
    """RabbitMQ's name of the value's AMQP type, by its content (widths are one class)."""
    match value:
        case bool():
            return "bool"
        case int():
            return "signedint" if -(2**31) <= value < 2**31 else "long"
        case str() | bytes() | bytearray() | memoryview():
            return "longstr"
        case float():
            return "double"
        case None:
            return "void"
        case datetime():
            return "timestamp"
        case Mapping():
            return "table"
        case Sequence():
            return "array"
        case _:
            return "decimal"


def difference_text(received: object, current: object) -> str:
    """How RabbitMQ says that an argument differs: both values bare, or the one that is there with its type."""
    if received is not None and current is not None:
        return f"received '{_shown(received)}' but current is '{_shown(current)}'"
    return f"received {_typed(received)} but current is {_typed(current)}"


def _typed(value: object) -> str:
    return "none" if value is None else f"the value '{_shown(value)}' of type '{type_name(value)}'"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        shown = "true" if value else "false"
    elif isinstance(value, bytes):
        shown = value.decode("utf-8", "replace")
    else:
        shown = str(value)
    return shown[:255]


def storable(value: Any) -> Any:
    """The plain value behind a subclass that msgpack does not know; raises TypeError when there is none."""
    match value:
        case bool():
            return bool(value)
        case int():
            return int(value)
        case float():
            return float(value)
        case str():
            return str.__str__(value)
        case Mapping():
            return dict(value)
        case Sequence():
            return list(value)
        case _:
            raise TypeError(f"a value of type {type(value).__name__} cannot be stored in the wiring log")


ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=storable)
"""The one msgpack encoder of this floor: argument values of any width become plain ones."""

CANONICAL: Final = msgspec.msgpack.Encoder(enc_hook=storable, order="deterministic")
"""Like ENCODER, but with sorted tables: equal content gives equal bytes."""


def same(a: object, b: object) -> bool:
    """Whether two entities have the same stored content. (`==` would take True for 1 and 1 for 1.0.)"""
    return a is b or (a is not None and b is not None and CANONICAL.encode(a) == CANONICAL.encode(b))


def too_deep(value: object) -> bool:
    """Whether tables and arrays are nested deeper than NESTING_MAX; never recurses itself."""
    level: list[object] = [value]
    for _ in range(NESTING_MAX + 1):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, Mapping) else _items(container))
            if isinstance(item, (Mapping, list, tuple))
        ]
        if not level:
            return False
    return True


def _items(container: object) -> Sequence[object]:
    return container if isinstance(container, (list, tuple)) else ()
