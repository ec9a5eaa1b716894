"""The number that a producer gave its message: the specification of `broker/content/numbers.pyx`, by decoding headers.

Where the compiled `runs` says None this model may say something: the property test allows that, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from clusterbroker.broker.content.formats import BASIC, format_of
from clusterbroker.broker.wire.amqp091.fields import STORED_LIMITS
from clusterbroker.journal.layout import HAS_BCC, HAS_REPLY_TO, HAS_USER_ID
from tests.model.record import Message

PRODUCER_BYTES_MAX: Final = 255
NUMBER_MAX: Final = 2**62
Run = tuple[bytes | None, list[int] | None, list[Message]]


def named_in(headers: Mapping[str, Any] | None) -> tuple[bytes, int] | None:
    producer = (headers or {}).get("x-producer")
    if headers is None or producer is None:
        return None
    raw = producer.encode() if isinstance(producer, str) else b""
    if not 1 <= len(raw) <= PRODUCER_BYTES_MAX or raw.startswith(b"\0"):
        raise ValueError(f"invalid header 'x-producer': expected a text of 1 to {PRODUCER_BYTES_MAX} bytes")
    number = headers.get("x-seq")
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= NUMBER_MAX:
        raise ValueError(f"invalid header 'x-seq' beside 'x-producer': expected an integer of 1 to {NUMBER_MAX}")
    return raw, int(number)


def is_numbered(headers: Mapping[str, Any]) -> bool:
    return headers.get("x-producer") is not None


def runs(messages: Sequence[Message]) -> list[Run] | None:
    made: list[Run] = []
    for message in messages:
        if message.format != BASIC or message.flags & (HAS_BCC | HAS_USER_ID | HAS_REPLY_TO):
            return None
        headers = format_of(BASIC).properties(message.header, STORED_LIMITS).headers or {}
        if {"CC", "BCC"} & set(headers):
            return None
        try:
            named = named_in(headers)
        except ValueError:
            return None
        producer, number = named or (None, None)
        if made and producer == made[-1][0] and (number is None or number > made[-1][1][-1]):
            run = made[-1]
        else:
            run = (producer, None if number is None else [], [])
            made.append(run)
        if number is not None:
            run[1].append(number)
        run[2].append(message)
    return made


def are_rising(numbers: Sequence[int]) -> bool:
    return all(before < number for before, number in pairwise(numbers))
