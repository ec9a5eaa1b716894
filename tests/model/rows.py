"""What a mover does with each row of a group: the specification of `broker/transactions/rows.pyx`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.model.headers import may_have_header
from tests.model.record import Message

Way = tuple[bytes, list[Any]]
"""The address of rows from now on, and the parts that they go into: objects with the lists `messages` and `seqs`."""


def next_rows(
    ring: Any, first: int, last: int, rows_max: int, bytes_max: int
) -> tuple[list[int], list[Message | None], list[tuple[int, int, int, int]]]:
    """The next rows of `first` to `last`: seqs, messages (None: on disk only), and the places of those on disk. At most
    `rows_max`, of `bytes_max`; one may be longer."""
    seqs: list[int] = []
    messages: list[Message | None] = []
    absent: list[tuple[int, int, int, int]] = []
    size = 0
    for place in ring.living(first, last, rows_max):
        seq = place[0]
        message = ring.message(seq)
        if message is None:
            location = ring.location(seq)
            size += location[3]
        else:
            size += message.size
        if seqs and size > bytes_max:
            break
        seqs.append(seq)
        messages.append(message)
        if message is None:
            absent.append(location)
    return seqs, messages, absent


def divide(
    seqs: list[int],
    messages: list[Message],
    ways: dict[bytes, Way],
    way_of: Callable[[Message, bool], Way],
    now_ms: int,
) -> list[int]:
    """Puts each row into its parts, with its address of then and the time of now; the seqs of those that have none.

    `ways`: by the addresses of rows whose headers do not matter; `way_of(message, alone)` finds what is not there, and
    puts it there if it holds for all rows of that address. What is not put there is asked for row by row.
    """
    lost = []
    for seq, message in zip(seqs, messages, strict=True):
        alone = looks_alone(message)
        way = None if alone else ways.get(message.address)
        if way is None:
            way = way_of(message, alone)
        if not way[1]:
            lost.append(seq)
            continue
        row = Message(
            way[0],
            message.payload,
            message.header_length,
            message.flags,
            message.priority,
            now_ms,
            message.ttl_ms,
            message.format,
        )
        for part in way[1]:
            part.messages.append(row)
            part.seqs.append(seq)
    return lost


def looks_alone(message: Message) -> bool:
    """Whether the row's own headers matter: copies, or a producer that numbers it. May err on the careful side."""
    return may_have_header(message, b"CC") or may_have_header(message, b"x-producer")


def settle_rows(ring: Any, seqs: list[int]) -> None:
    """They have left their segment."""
    for seq in seqs:
        ring.settle(seq)
