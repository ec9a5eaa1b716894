"""Comparing, describing and storing argument tables; journal.values defines equality of values."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from clusterbroker.cluster.errors import NewerRelease, PreconditionFailed
from clusterbroker.journal.values import Timestamp, canonical, extended

NESTING_MAX: Final = 64


def equivalent(a: object, b: object) -> bool:
    """Whether two argument values are the same to the rules of redeclaration (amqp-rules.md 5.3)."""
    return canonical(a) == canonical(b)


def is_integer(value: object) -> bool:
    """Whether the value is an AMQP integer of any width; a bool is not, nor a timestamp."""
    return isinstance(value, int) and not isinstance(value, (bool, Timestamp))


def type_name(value: object) -> str:
    """RabbitMQ's name of the value's AMQP type, by its content (widths are one class)."""
    match value:
        case bool():
            return "bool"
        case Timestamp():
            return "timestamp"
        case int():
            return "signedint" if -(2**31) <= value < 2**31 else "long"
        case str() | bytes() | bytearray() | memoryview():
            return "longstr"
        case float():
            return "double"
        case None:
            return "void"
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


def check_same(where: str, argument: str, received: object, current: object) -> None:
    """Raise 406 `inequivalent arg 'durable' for queue 'q' in vhost '/': received 'true' but current is 'false'`."""
    if received is not current and not equivalent(received, current):
        raise PreconditionFailed(f"inequivalent arg '{argument}' for {where}: {difference_text(received, current)}")


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


ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=extended)
"""The one msgpack encoder of this floor: argument values of any width become plain ones."""

CANONICAL: Final = msgspec.msgpack.Encoder(enc_hook=extended, order="deterministic")
"""Like ENCODER, but with sorted tables: equal content gives equal bytes."""


def digest(arguments: Mapping[str, Any]) -> str:
    """Names arguments in a URL: equal ones alike, in 8 characters of its alphabet."""
    return base64.urlsafe_b64encode(hashlib.blake2b(CANONICAL.encode(arguments), digest_size=6).digest()).decode()


VERSION: Final = 1
"""The first byte of each stored command, and of each chunk of a snapshot."""


def decoded(stored: bytes | memoryview, what: str, name: str, decode: Callable[[bytes | memoryview], Any]) -> Any:
    """What follows the version byte, by `decode`. ValueError: the bytes are not `what`; NewerRelease: this release does
    not know it. `name`: of the version."""
    if not stored or stored[0] != VERSION:
        newer = bool(stored) and stored[0] > VERSION
        version = stored[0] if stored else "missing"
        older = ", an older release wrote it" if stored and 0 < stored[0] < VERSION else ""
        raise (NewerRelease if newer else ValueError)(f"{name} version {version} is not {VERSION}{older}")
    try:
        return decode(stored[1:])
    except (msgspec.ValidationError, KeyError) as error:
        raise NewerRelease(f"not {what}: {error}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not {what}: {error}") from error


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
