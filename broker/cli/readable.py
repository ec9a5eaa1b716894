"""Stored bytes as text for a person or a JSON reader, so that nothing a stranger published drives the terminal.

Two audiences. `visible` is for the terminal: every character that does not print (controls, escape sequences,
direction marks, line separators) becomes a backslash escape, and the backslash itself is doubled, so that the text
says exactly what was stored. `plain` and `jsonable` are for files: AMQP values become the JSON value that means the
same, and what JSON cannot say becomes an object with one key that names the type:

    bytes, byte strings that are not UTF-8   {"$binary": base64}      timestamp   {"$timestamp": seconds}
    decimal                                  {"$decimal": "1.25"}     inf, nan    {"$float": "inf"}
"""

from __future__ import annotations

import base64
import math
from decimal import Decimal
from typing import Any, Final

from clusterbroker.broker.content import properties as content
from clusterbroker.broker.content.formats import UnknownFormatError
from clusterbroker.broker.visible import visible as visible
from clusterbroker.broker.wire.amqp091.errors import ConnectionFault
from clusterbroker.broker.wire.amqp091.fields import FieldLimits
from clusterbroker.broker.wire.amqp091.properties import PROPERTIES
from clusterbroker.journal.values import Timestamp

LIMITS: Final = FieldLimits(depth_max=200, entries_max=10_000_000)
"""What lies in a journal was within the node's limits when it came, whatever those were."""


def plain(text: str | bytes) -> str:
    """Valid Unicode for files: bytes that are not UTF-8 appear as backslash escapes."""
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    return raw.decode("utf-8", "backslashreplace")


def body_text(body: bytes) -> tuple[str, str]:
    """A body as (text, encoding): the text when it is UTF-8, else hexadecimal digits; encoding "utf-8" or "hex"."""
    try:
        return body.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        return body.hex(), "hex"


def jsonable(value: Any) -> Any:
    """An AMQP field value as the JSON value that means the same; see the module's table for the others."""
    if isinstance(value, dict):
        return {plain(name): jsonable(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(inner) for inner in value]
    if isinstance(value, Timestamp):
        return {"$timestamp": int(value)}
    if isinstance(value, bytes):
        return {"$binary": base64.b64encode(value).decode("ascii")}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(float(value))}
    if isinstance(value, str):
        return plain(value)
    return value


def properties_of(message: content.Content) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """(properties that are there, headers) of a stored message, both ready for JSON.

    Bytes that cannot be decoded, as those of a format that this release does not know, are shown as
    `{"undecodable": hex}`.
    """
    try:
        found = content.properties_of(message, LIMITS)
    except (ConnectionFault, UnknownFormatError):
        return {"undecodable": message.header.hex()}, None
    properties = {
        name: jsonable(value)
        for name, _ in PROPERTIES
        if name != "headers" and (value := getattr(found, name)) is not None
    }
    return properties, None if found.headers is None else jsonable(found.headers)
