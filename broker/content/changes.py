"""Annotations that a consumer gives a message which it returns or rejects (AMQP 1.0, 3.4.5 and 3.4.3), bounded.

A change is a map of AMQP 1.0 in its bytes, as it goes from node to node. Taken are keys `x-...` with simple values, but
for those by which the broker itself knows a message: a consumer decides neither who published it nor where it died.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final

from clusterbroker.broker.content.formats import format_of
from clusterbroker.broker.wire.amqp10.types import Array, DecodeError, Described, Symbol, decode, encode
from clusterbroker.journal.record import Message

BYTES_MAX: Final = 4096
"""Of a change."""
HEADER_BYTES_MAX: Final = 64 << 10
"""Of a message's header with its annotations; beyond it the message stays as it is."""
CONDITION: Final = "x-opt-rejected-condition"
DESCRIPTION: Final = "x-opt-rejected-description"
INFO: Final = "x-opt-rejected-info"
"""Annotations of a message that was rejected with an error."""
CONDITION_MAX, DESCRIPTION_MAX = 255, 512
"""Characters."""
INFO_MAX, INFO_BYTES_MAX = 64, 1024
"""Entries, and their bytes."""
OWN: Final = frozenset({
    "x-acquired-count", "x-basic-type", "x-cc", "x-correlation-id-type", "x-death", "x-delivery-count", "x-exchange",
    "x-message-id-type", "x-opt-deaths", "x-opt-producer", "x-opt-seq", "x-producer", "x-queue-seq", "x-routing-key",
    "x-seq", "x-stream-offset",
})  # fmt: skip


def change_of(annotations: Mapping[Any, Any]) -> bytes:
    """The change that a consumer asks for, empty without any. Raises ValueError for more than BYTES_MAX."""
    taken = {
        Symbol(key): value
        for key, value in annotations.items()
        if isinstance(key, str) and key.startswith("x-") and key.isascii() and key not in OWN and _is_simple(value)
    }
    change = encode(taken) if taken else b""
    if len(change) > BYTES_MAX:
        raise ValueError(
            f"annotations of {len(change)} bytes are more than the {BYTES_MAX} that a message may be given"
        )
    return change


def rejection_of(condition: str, description: str, info: Mapping[Any, Any]) -> bytes:
    """The change that says with which error a consumer has rejected a message. A long description is cut; what is long
    in the error's info, or is no simple value, is left out. All names are written, so that none of an earlier rejection
    stays."""
    told, left = {}, INFO_BYTES_MAX
    for key, value in itertools.islice(info.items(), INFO_MAX):
        if isinstance(key, str) and _is_simple(value) and _length(key) + _length(value) <= left:
            entry = encode(Symbol(key) if key.isascii() else key) + encode(value)
            if len(entry) <= left:
                left -= len(entry)
                told[key] = value
    return encode({
        Symbol(CONDITION): Symbol(condition[:CONDITION_MAX]),
        Symbol(DESCRIPTION): description[:DESCRIPTION_MAX],
        Symbol(INFO): told,
    })  # fmt: skip


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes)) else 0


def _is_simple(value: Any) -> bool:
    return not isinstance(value, (list, dict, Array, Described))


def with_change(message: Message, change: bytes) -> Message | None:
    """The message as it is from now on; None: it stays as it was, for it would be too long, or the change is none."""
    try:
        annotations, _ = decode(change, 0)
    except DecodeError:
        return None
    if len(message.header) + len(change) > HEADER_BYTES_MAX or not isinstance(annotations, dict):
        return None
    header = format_of(message.format).changed(message.header, annotations)
    return Message(
        message.address, header + message.body, len(header), message.flags, message.priority, message.time_ms,
        message.ttl_ms, message.format,
    )  # fmt: skip
