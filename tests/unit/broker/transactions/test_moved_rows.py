"""What a mover does with each row: the compiled module against its model."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.transactions import rows as rows_compiled
from clusterbroker.journal.layout import HAS_HEADERS
from clusterbroker.journal.record import Message
from tests.model import rows as rows_model

HEADERS = st.sampled_from([b"", b"\x02CC", b"\x0ax-producer", b"C", b"x-produce", b"kind", b"xx-producer!", b"cCC"])
ROWS = st.lists(
    st.tuples(st.sampled_from([b"\1t\1a", b"\1t\1b", b"\1t\2cc", b"\1t\0"]), HEADERS, st.booleans(), st.booleans()),
    max_size=30,
)


class Ring:
    """Messages by their seqs; those that are None are on disk, 50 bytes each."""

    def __init__(self, messages: dict[int, Message | None]) -> None:
        self.messages = messages
        self.settled: list[int] = []

    def living(self, first: int, last: int, count: int) -> list[Any]:
        return [(seq, 1, False, 0, 0) for seq in self.messages if first <= seq <= last][:count]

    def message(self, seq: int) -> Message | None:
        return self.messages[seq]

    def location(self, seq: int) -> tuple[int, int, int, int]:
        return seq, 1, seq * 50, 50

    def settle(self, seq: int) -> None:
        self.settled.append(seq)


class Part:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.seqs: list[int] = []

    def told(self) -> Any:
        return self.seqs, [(m.address, m.payload, m.flags, m.priority, m.time_ms, m.ttl_ms) for m in self.messages]


def message(address: bytes, header: bytes, flagged: bool, shared: bool = False) -> Message:
    # equal addresses may be the same object, or not
    own = address if shared else bytes(bytearray(address))
    return Message(own, header + b"CC in the body", len(header), HAS_HEADERS if flagged else 0, 3, 7, 9)


def divided(half: Any, found: list[Message]) -> Any:
    parts = [Part(), Part()]
    asked: list[tuple[bytes, bool]] = []
    ways: dict[bytes, Any] = {}

    def way_of(one: Message, alone: bool) -> Any:
        asked.append((one.address, alone))
        into = {b"a": parts[:1], b"b": parts, b"cc": parts[1:], b"": []}[one.routing_key]
        if not alone and into and one.routing_key != b"b":  # where rows of that key go, their headers say
            ways[one.address] = b"new" + one.address, into
        return b"new" + one.address, into

    lost = half.divide(list(range(10, 10 + len(found))), found, ways, way_of, 1000)
    return [part.told() for part in parts], [one for one in asked if one[0] in ways or one[1]], lost


@given(ROWS, st.booleans())
def test_rows_are_divided_alike(rows: list[Any], shared: bool) -> None:
    found = [message(address, header, flagged, shared) for address, header, flagged, _ in rows]
    assert [rows_compiled.looks_alone(one) for one in found] == [rows_model.looks_alone(one) for one in found]
    assert divided(rows_compiled, found) == divided(rows_model, found)


@given(ROWS, st.integers(0, 9), st.integers(1, 12), st.integers(1, 300))
def test_the_next_rows_are_the_same(rows: list[Any], first: int, rows_max: int, bytes_max: int) -> None:
    messages = {seq: message(a, h, f) if there else None for seq, (a, h, f, there) in enumerate(rows, 1)}
    ring = Ring(messages)
    answers = [half.next_rows(ring, first, len(rows), rows_max, bytes_max) for half in (rows_compiled, rows_model)]
    assert answers[0] == answers[1]


def test_rows_are_settled_alike() -> None:
    for half in (rows_compiled, rows_model):
        ring = Ring({})
        half.settle_rows(ring, [3, 4, 9])
        assert ring.settled == [3, 4, 9]
