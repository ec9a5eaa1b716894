"""What a message's headers say of a delay, for exchanges of type `x-delayed-message`.

    x-deliver-at              ms since 1970 (a timestamp of AMQP 0-9-1: seconds); goes before all others
    x-opt-delivery-time       the same, as clients of AMQP 1.0 and JMS annotate it
    x-delay                   ms from the publish on
    x-opt-delivery-delay      the same, as an annotation of AMQP 1.0

A number is an integer of any width, a float, or the text of one. What cannot be read, 0, and what is negative is no
delay: a message that was delayed carries its `x-delay` negated, and passes the next delayed exchange.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from math import isfinite
from typing import Any, Final

from clusterbroker.broker.content.numbers import is_numbered
from clusterbroker.cluster.wiring.delays import DELAY_MS_MAX as DELAY_MS_MAX
from clusterbroker.journal.values import LongBytes, Timestamp

DELAY: Final = "x-delay"
DELAY_KEY: Final = "x-delay-key"
DELIVER_AT: Final = "x-deliver-at"
TIMES: Final = (DELIVER_AT, "x-opt-delivery-time")
DELAYS: Final = (DELAY, "x-opt-delivery-delay")
TARGETS: Final = "x-delay-to"
"""Queues that still want a message which others behind its exchange have (`broker.delay`)."""
NUMBER_CHARS_MAX: Final = 32
"""Of a number as text."""
KEY_BYTES_MAX: Final = 255


def number(value: object) -> int | None:
    """The whole number that a header's value is; None: it is none."""
    if isinstance(value, bytes | bytearray | LongBytes):
        value = bytes(value).decode("latin-1")
    if isinstance(value, str):
        if len(value) > NUMBER_CHARS_MAX:
            return None
        try:
            value = int(value)
        except ValueError:
            try:
                value = float(value)
            except ValueError:
                return None
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if isfinite(value) else None
    return int(value) if isinstance(value, int) else None


def due_ms(headers: Mapping[str, Any] | None, taken_ms: int, numbered: bool = False) -> int | None:
    """When a message that was taken at `taken_ms` is due, by its headers; None: at once. Both in ms since 1970.

    A numbered message whose time is over is due now, and not at once: sent again after its time it has to meet the
    queue that knows its number. `numbered`: it has one besides its headers.
    """
    if not headers:
        return None
    for name in TIMES:
        value = headers.get(name)
        if (at := number(value)) is not None:
            if isinstance(value, Timestamp):
                at = at * 1000 + value.more_ms
            if at > taken_ms:
                return at
            return taken_ms if numbered or is_numbered(headers) else None
    for name in DELAYS:
        if (delay := number(headers.get(name))) is not None:
            return taken_ms + delay if delay > 0 else None
    return None


def negated(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The headers of a message that is due: its delays are over, and say how long they were."""
    after = dict(headers)
    for name in DELAYS:
        if (delay := number(after.get(name))) is not None and delay > 0:
            after[name] = -min(delay, DELAY_MS_MAX)  # one that `x-deliver-at` went before may be of any size
    return after


def undelayed(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The headers by which a message that is due is routed: no exchange on its way delays it."""
    return {name: value for name, value in headers.items() if name not in TIMES and name not in DELAYS}


@cache
def _bits(count: int) -> re.Pattern[str]:
    return re.compile(rf"((?:[01]\.){{{count}}}).+", re.DOTALL)


def key_delay_s(key: str, bits: int) -> int:
    """The seconds that a routing key of the form `b.b. ... .b.KEY` says by so many bits, the highest first; 0 also of a
    key of another form, and of one with nothing behind the bits."""
    found = _bits(bits).fullmatch(key)
    return 0 if found is None else int(found[1].replace(".", ""), 2)


def delay_key(headers: Mapping[str, Any] | None) -> str:
    """The key under which a message waits; empty: none."""
    key = headers.get(DELAY_KEY) if headers else None
    return key if isinstance(key, str) and len(key.encode("utf-8", "surrogatepass")) <= KEY_BYTES_MAX else ""
