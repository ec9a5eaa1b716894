"""When two AMQP field values are the same value.

A field table says of each value which of some twenty wire types it has, and clients choose among them by
accident: one library writes 10 as a short, the next one as a long. RabbitMQ therefore compares by *type
class* (amqp-rules 5.3): integers of every width are one class, both float widths are one class, and every
other type is a class by itself. So short 10 equals long 10, while 10, 10.0, "10" and true are four different
values; a timestamp is no integer either.

`canonical` maps a value to a hashable tuple, (class, value), such that two values are the same exactly when
their tuples are equal. Headers exchanges match with it, and bindings take their identity from it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from decimal import Decimal

from broker.amqp.fields import LongBytes, Timestamp

Canonical = tuple[str, Hashable]

VOID: Canonical = ("void", None)


def canonical(value: object) -> Canonical:
    """The (type class, value) of one field value; nested tables and arrays are followed.

    A longstr is one class whether it holds text or other bytes; a byte array (tag `x`) is another. Recursion
    is as deep as the value, which the frame decoder has limited (64 by default).
    """
    if isinstance(value, str):
        return ("string", value)
    # bool before int, and Timestamp before int: Python derives both from int, AMQP does not
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, Timestamp):
        return ("timestamp", int(value))
    if isinstance(value, int):
        return ("integer", int(value))
    if value is None:
        return VOID
    if isinstance(value, float):
        # NaN differs from itself, and a binding made with it could never be removed
        return ("float", "nan" if math.isnan(value) else float(value))
    if isinstance(value, LongBytes):
        return ("string", bytes(value))
    if isinstance(value, bytes):
        return ("bytes", value)
    if isinstance(value, Decimal):
        return ("decimal", value)
    if isinstance(value, Mapping):
        return ("table", canonical_table(value))
    if isinstance(value, Sequence):
        return ("array", tuple(canonical(item) for item in value))
    return (type(value).__name__, repr(value))


def canonical_table(table: Mapping[str, object]) -> tuple[tuple[str, Canonical], ...]:
    """A table as a hashable value; the order in which its keys were written does not matter."""
    return tuple((key, canonical(table[key])) for key in sorted(table))
