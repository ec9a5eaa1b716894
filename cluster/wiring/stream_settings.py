"""What a stream can be, and the form of the age of its messages. Its arguments are rows of `queue_settings`."""

from __future__ import annotations

import re
from typing import Any, Final

from .arguments import type_name

STREAM: Final = "stream"
"""The value of `x-queue-type`."""
SEGMENT_BYTES: Final = 64 << 20
SEGMENT_BYTES_MIN: Final = 1 << 20
SEGMENT_BYTES_MAX: Final = 3_000_000_000

_AGE: Final = re.compile(r"([0-9]{1,12})([YMDhms])")
_UNIT_S: Final = {"Y": 365 * 86400, "M": 30 * 86400, "D": 86400, "h": 3600, "m": 60, "s": 1}


def age_ms(text: str) -> int | None:
    """`7D` in milliseconds: a whole number and Y, M, D, h, m or s; None: it is no age."""
    found = _AGE.fullmatch(text)
    return None if found is None else int(found[1]) * _UNIT_S[found[2]] * 1000


def check_age(value: Any) -> str | None:
    """What is wrong with an x-max-age, None: nothing."""
    if not isinstance(value, str):
        return f"unacceptable type '{type_name(value)}', expected a string"
    if age_ms(value) is None:
        return f"'{value[:255]}' is no age: a whole number and Y, M, D, h, m or s, as in 7D"
    return None


def unfit(durable: bool, exclusive: bool, auto_delete: bool, server_named: bool) -> str | None:
    """What keeps a declaration from being a stream's, in RabbitMQ's words; None: nothing."""
    if exclusive:
        return "exclusive-owner"
    if auto_delete:
        return "auto-delete"
    if not durable:
        return "non-durable"
    return "server-named" if server_named else None
