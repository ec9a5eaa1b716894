"""What a message carries when a queue gives it up: the rules of dead-lettering, without any queue.

A queue gives a message up because a consumer `rejected` it, because it `expired`, because the queue was longer
than its `maxlen`, or because the `delivery_limit` was reached. If the queue has a dead-letter exchange, the
message is published there, with its history in its headers (amqp-rules 5.6; RabbitMQ, "dead letter exchanges"):

    x-death               array of tables, the newest death first; one table per {queue, reason}:
      original-expiration   longstr     the message's own TTL in milliseconds; only if it had one
      count                 signed 64   how often it died in this queue for this reason
      reason, queue         longstr
      time                  timestamp   of the first such death, seconds
      exchange              longstr     to which it had been published
      routing-keys          array       of longstr: with which it had been published; with CC, without BCC
    x-first-death-{queue,reason,exchange}   set by the first death, never changed afterwards
    x-last-death-{queue,reason,exchange}    set by every death

A further death for the same {queue, reason} raises the count of its table and moves it to the front; the table
keeps what else it says. The `expiration` property is cleared, lest the message expire again in the queue that
collects the dead.

*Cycles.* Queues may dead-letter in a circle. A message is dropped before it enters a queue in which it died
before, unless a client rejected it on the way round: a circle that only timers and limits drive would never
end. Only the deaths since the last one in that queue are on the way round. An older rejection does not excuse
the circle; if it did, one rejection would make all later circles of that message endless.

*Bounded.* A history is decoded and encoded at each death, and stands in a content header, which cannot be cut. So it
has at most DEATHS_MAX tables, of about HISTORY_BYTES_MAX bytes: when there are more bytes, the oldest tables lose all
but queue, reason and count. Of older deaths a digest of the queue's name is left, in the bytes of `x-death-older`, so
that circles of any size are seen: a chain may have OLDER_MAX queues more, and what is longer is taken for a circle.

Headers come from clients, who republish dead messages with `x-death` changed or turned into text. What is not a
table of the form above is dropped from the history; nothing here raises because of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final, Literal

from msgspec.structs import replace

from clusterbroker.broker.routing.carbon_copy import COPIES_MAX
from clusterbroker.broker.wire.amqp091.fields import FieldTable, FieldValue
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.journal.values import Timestamp

Reason = Literal[
    "rejected", "expired", "maxlen", "delivery_limit", "due", "moved", "answered", "invalid_key", "key_refused",
    "no_capacity", "start_failed", "cancelled", "pool_deleted", "due_unbound",
]  # fmt: skip
"""`due`: a delayed message goes on its way; `due_unbound`: a request of later goes to its pool's orphans, for no queue
of its key is bound. They have not died, and their headers do not say so."""

COUNT_MAX: Final = 2**63 - 1
"""What the wire type of `count` can hold; a client may have written it."""
DEATHS_MAX: Final = 128
OLDER: Final = "x-death-older"
OLDER_MAX: Final = 4096
DIGEST_BYTES: Final = 8
HISTORY_BYTES_MAX: Final = 32 << 10
KEYS_MAX: Final = 1 + COPIES_MAX
"""Of one death: with more, no message is accepted any more."""


def death(
    properties: Properties,
    queue: str,
    reason: Reason,
    exchange: str,
    routing_keys: Sequence[str],
    now_s: int,
    *,
    key_replaced: bool = False,
) -> Properties:
    """The properties of a message that has just died; the given ones stay as they are.

    `exchange` and `routing_keys` are those with which the message had come into `queue`; the keys are its
    routing key and its CC keys, without BCC. `now_s` is the time in seconds since 1970. `key_replaced` says
    that the queue has a dead-letter routing key: then the CC header goes, because its keys are not used any
    more.
    """
    headers: FieldTable = dict(properties.headers or {})
    deaths = _history(headers)
    if not deaths:
        _note(headers, "first", queue, reason, exchange)
    _note(headers, "last", queue, reason, exchange)
    same = [entry for entry in deaths if _is_of(entry, queue, reason)]
    if same:
        # a client may have doubled the table: the newest one speaks for all
        entry = {**same[0], "count": min(_count(same) + 1, COUNT_MAX)}
    else:
        keys: list[FieldValue] = list(routing_keys[:KEYS_MAX])
        entry = {
            "count": 1,
            "reason": reason,
            "queue": queue,
            "time": Timestamp(now_s),
            "exchange": exchange,
            "routing-keys": keys,
        }
        if properties.expiration is not None:
            entry["original-expiration"] = properties.expiration
    deaths = [entry, *(old for old in deaths if not _is_of(old, queue, reason))]
    headers["x-death"] = _bounded(deaths)
    if len(deaths) > DEATHS_MAX:
        headers[OLDER] = _older_by(_older(headers), deaths[DEATHS_MAX:])
    # "BCC always removed; DLRK set => CC removed"
    headers.pop("BCC", None)
    if key_replaced:
        headers.pop("CC", None)
    return replace(properties, headers=headers, expiration=None)


def is_cycle(headers: Mapping[str, object] | None, target_queue: str) -> bool:
    """Whether a dead message must not enter `target_queue`.

    `headers` are those after `death`, so the newest death is the one that sends the message on its way. When
    that was a rejection, there is no cycle.
    """
    deaths = _history(headers)
    for entry in deaths:
        # "without a client explicitly rejecting the message somewhere in the cycle"
        if entry["reason"] == "rejected":
            return False
        if entry["queue"] == target_queue:
            return True
    older = _older(headers)
    digest = _digest(target_queue)
    return len(older) >= OLDER_MAX * DIGEST_BYTES or any(
        older[at : at + DIGEST_BYTES] == digest for at in range(0, len(older), DIGEST_BYTES)
    )


def dead_letter_keys(
    dead_letter_routing_key: str | None,
    routing_keys: Sequence[str],
    cc_keys: Sequence[str] = (),
    bcc_keys: Sequence[str] = (),
) -> tuple[str, ...]:
    """The keys with which a dead message is published, each once.

    The queue's dead-letter routing key alone, if it has one ("" is one); otherwise all keys with which the
    message had been published, those of CC and BCC included (amqp-rules 5.6).
    """
    if dead_letter_routing_key is not None:
        return (dead_letter_routing_key,)
    return tuple(dict.fromkeys((*routing_keys, *cc_keys, *bcc_keys)))


def _history(headers: Mapping[str, object] | None) -> list[FieldTable]:
    """The tables of `x-death` that name a queue and a reason, newest first; whatever else is there is dropped."""
    deaths = None if headers is None else headers.get("x-death")
    if not isinstance(deaths, list):
        return []
    return [
        entry
        for entry in deaths
        if isinstance(entry, dict) and isinstance(entry.get("queue"), str) and isinstance(entry.get("reason"), str)
    ]


def _bounded(deaths: list[FieldTable]) -> list[FieldValue]:
    """The history, newest first, as far as it may be told."""
    kept: list[FieldValue] = list(deaths[:DEATHS_MAX])
    sizes = [_size(entry) for entry in kept]
    excess = sum(sizes) - HISTORY_BYTES_MAX
    for place in range(len(kept) - 1, 0, -1):  # the newest is what consumers read: it stays
        if excess <= 0:
            break
        old = deaths[place]
        entry: FieldTable = {"count": _count([old]), "reason": old["reason"], "queue": old["queue"]}
        kept[place] = entry
        excess += _size(entry) - sizes[place]
    return kept


def _older(headers: Mapping[str, object] | None) -> bytes:
    """Digests of the queues in which it died before all that `x-death` tells."""
    older = None if headers is None else headers.get(OLDER)
    return older if isinstance(older, bytes) and len(older) % DIGEST_BYTES == 0 else b""


def _older_by(older: bytes, deaths: Sequence[FieldTable]) -> bytes:
    """With these deaths, newest first, which are told no more. What lies before a rejection is on no way round."""
    for entry in reversed(deaths):
        older = b"" if entry["reason"] == "rejected" else older + _digest(str(entry["queue"]))
    return older


def _digest(queue: str) -> bytes:
    return blake2b(queue.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def _size(value: FieldValue) -> int:
    """About the bytes of a value in a field table."""
    if isinstance(value, str | bytes):
        return 8 + len(value)
    if isinstance(value, dict):
        return 8 + sum(len(name) + _size(item) for name, item in value.items())
    if isinstance(value, list | tuple):
        return 8 + sum(_size(item) for item in value)
    return 8


def _is_of(entry: FieldTable, queue: str, reason: str) -> bool:
    return entry["queue"] == queue and entry["reason"] == reason


def _count(same: Sequence[FieldTable]) -> int:
    """How many deaths tables of one {queue, reason} stand for; a plain int, whose wire type is signed 64 bits."""
    count = same[0].get("count")
    if isinstance(count, int) and not isinstance(count, bool) and count >= 1:
        return int(count)
    # a table without a count stands for one death, as RabbitMQ wrote it before it counted
    return len(same)


def _note(headers: FieldTable, which: str, queue: str, reason: str, exchange: str) -> None:
    headers[f"x-{which}-death-queue"] = queue
    headers[f"x-{which}-death-reason"] = reason
    headers[f"x-{which}-death-exchange"] = exchange
