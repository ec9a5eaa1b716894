"""Headers of the protocol: how they are read, whoever wrote them (text, byte array or number), and written."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

STATUS: Final = "x-status"
POOL: Final = "x-pool"
DETAIL: Final = "x-detail"
PATH: Final = "x-rpc-path"
DEADLINE: Final = "x-deadline"
ATTEMPT: Final = "x-attempt"
DELAY: Final = "x-delay"
EVENT: Final = "x-event"
WORKER: Final = "x-worker-id"
STICKY: Final = "x-sticky"
TRACE: Final = "traceparent"
_OF_ONE_PUBLISH: Final = frozenset((
    "x-producer", "x-seq",  # numbered: the same again is no new request
    "x-deliver-at", "x-opt-delivery-time", "x-delay-key",  # another delay than this one
    "cc", "bcc",  # it is for this key alone
    "x-death", "x-death-older", "x-last-return", "x-delivery-count",  # of its life so far; and _OF_ITS_LIFE
))  # fmt: skip
_OF_ITS_LIFE: Final = ("x-first-death-", "x-last-death-", "x-lost-")
NUMBER_MAX: Final = 2**62
"""One more of it, too, is an integer of AMQP."""


def text(headers: Mapping[str, Any], name: str) -> str | None:
    """A header as text; None: it is not there."""
    value = headers.get(name)
    if value is None:
        return None
    return bytes(value).decode(errors="replace") if isinstance(value, (bytes, bytearray)) else str(value)


def number(headers: Mapping[str, Any], name: str) -> int | None:
    """A header as an integer; None: it is not there, unreadable, or beyond what a header could have."""
    found = text(headers, name)
    try:
        value = None if found is None else int(float(found))
    except (ValueError, OverflowError):
        return None
    return None if value is None or abs(value) > NUMBER_MAX else value


def is_of_one_publish(name: str) -> bool:
    """Whether a header says something of one publish, or of what came of it, and not of the request."""
    return name.lower() in _OF_ONE_PUBLISH or name.lower().startswith(_OF_ITS_LIFE)


def octets(value: str) -> bytearray:
    """A byte array of AMQP, as OSRD's clients demand for `x-status`."""
    return bytearray(value.encode())


def new_trace() -> str:
    """`traceparent` (W3C Trace Context, 3.2): that of OpenTelemetry's current span if there is one, or a new one."""
    try:
        from opentelemetry.propagate import inject
    except ImportError:
        pass
    else:
        carrier: dict[str, str] = {}
        inject(carrier)
        if TRACE in carrier:
            return carrier[TRACE]
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
