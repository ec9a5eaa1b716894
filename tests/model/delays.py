"""What headers say of a delay: the specification of `broker/content/delays.pyx`, by decoding them.

Where the compiled module says None this model may say something: `agrees` in the property test allows that, and
nothing else.
"""

from __future__ import annotations

from clusterbroker.broker.content.formats import BASIC, format_of
from clusterbroker.broker.routing.delays import DELAY_KEY, DELAY_MS_MAX, delay_key, due_ms, negated
from clusterbroker.broker.wire.amqp091.fields import STORED_LIMITS
from clusterbroker.journal.layout import ANSWERABLE, HAS_BCC, HAS_REPLY_TO, HAS_USER_ID, PERSISTENT
from tests.model.codec import make_message
from tests.model.due_index import DueIndex
from tests.model.record import Message


def due_of(message: Message, taken_ms: int) -> tuple[int, str] | None:
    if message.format != BASIC:
        return None
    headers = format_of(BASIC).properties(message.header, STORED_LIMITS).headers
    return due_ms(headers, taken_ms) or 0, delay_key(headers)


def note_waiting(
    seqs: list[int], messages: list[Message], at: int, index: DueIndex, bytes_max: int
) -> tuple[int, int]:  # fmt: skip
    looked = 0
    while at < len(messages) and looked < bytes_max:
        said = due_of(messages[at], 0)
        if said is None or said[1]:
            break
        looked += messages[at].header_length
        index.add(messages[at].ttl_ms, seqs[at])
        at += 1
    return at, looked


def fired_header(message: Message) -> bytes | None:
    if message.format != BASIC or message.flags & HAS_BCC:
        return None
    properties = format_of(BASIC).properties(message.header, STORED_LIMITS)
    if properties.headers and {"CC", "BCC", "x-delay-to"} & set(properties.headers):
        return None
    if properties.headers:
        properties.headers = negated(properties.headers)
    return format_of(BASIC).header(message.header, properties)


def key_delay_s(message: Message, bits: int) -> int:
    words = message.address[message.address[0] + 2 :].split(b".", bits)
    if len(words) <= bits or not words[bits] or any(word not in (b"0", b"1") for word in words[:bits]):
        return 0
    return sum((word == b"1") << place for place, word in enumerate(reversed(words[:bits])))


def kept_header(message: Message) -> bytes | None:
    if message.format != BASIC:
        return None
    properties = format_of(BASIC).properties(message.header, STORED_LIMITS)
    return None if properties.headers and "x-delay-to" in properties.headers else message.header


def fired(messages: list[Message], now_ms: int) -> tuple[list[Message | None], int]:
    made: list[Message | None] = []
    for message in messages:
        if (header := fired_header(message)) is None:
            made.append(None)
            continue
        again = make_message(message.address, header, message.body, now_ms)
        assert isinstance(again, Message), "what was accepted is well-formed"
        again.flags |= message.flags & ANSWERABLE
        made.append(again)
    return made, sum(message.header_length for message in messages)


def alike(messages: list[Message], bytes_max: int) -> tuple[int, int]:
    looked = count = 0
    for message in messages:
        if looked >= bytes_max or message.address != messages[0].address or fired_header(message) is None:
            break
        looked += message.header_length
        count += 1
    return count, looked


def waiting(message: Message, now_ms: int, due_ms: int) -> Message:
    return Message(
        message.address, message.payload, message.header_length, message.flags | PERSISTENT, 0,
        message.time_ms or now_ms, max(1, min(due_ms, now_ms + DELAY_MS_MAX)), message.format,
    )  # fmt: skip


def runs(messages: list[Message], now_ms: int) -> list[tuple[bool, list[Message]]] | None:
    made: list[tuple[bool, list[Message]]] = []
    for message in messages:
        said = due_of(message, now_ms)
        headers = format_of(BASIC).properties(message.header, STORED_LIMITS).headers or {}
        own_way = message.flags & (HAS_BCC | HAS_USER_ID | HAS_REPLY_TO)
        if said is None or own_way or {"CC", "BCC", "x-delay-to"} & set(headers):
            return None
        if said[0] - now_ms > DELAY_MS_MAX or (DELAY_KEY in headers and not said[1]):
            return None
        if not made or made[-1][0] != bool(said[0]):
            made.append((bool(said[0]), []))
        made[-1][1].append(message)
    return made
