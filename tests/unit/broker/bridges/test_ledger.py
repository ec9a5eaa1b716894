"""Ledgers: what records say, what a torn file keeps, what is recognised."""

from __future__ import annotations

import asyncio
import struct
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.bridges import file_ledger as files
from clusterbroker.broker.bridges.file_ledger import FileLedger
from clusterbroker.broker.bridges.ledger import (
    PAST_MAX,
    SESSION_SHIFT,
    BadLedger,
    Known,
    Recognition,
    State,
    begun,
    bodies,
    closed,
    dropped,
    framed,
    opened,
    state,
    summary,
    window,
)

A, B, C = b"a" * 8, b"b" * 8, b"c" * 8


def numbers(records: list[bytes]) -> list[int]:
    return [one.number for one in state(records).window if not one.closed]


def test_a_window_is_known_until_it_is_closed() -> None:
    records = [opened(b"p"), window(5, b"\0\1", A + B)]
    found = state(records)
    assert found == (b"p", 7, (Known(5, 0, A), Known(6, 1, B)), 0)
    assert numbers([*records, closed(7)]) == []
    assert numbers([*records, closed(7, [Known(6, 1, B)])]) == [6]
    assert numbers([*records, window(7, b"\0", C), dropped(7, [Known(6, 1, B)])]) == [6, 7]
    assert [one.closed for one in state([*records, closed(7)]).window] == [True, True]


def test_a_summary_says_the_same() -> None:
    found = state([opened(b"p"), window(5, b"\0\1\4", A + B + C), closed(8, [Known(6, 1, B)])])
    assert state(summary(found)) == found


def test_each_session_has_numbers_of_its_own() -> None:
    first = begun(state([opened(b"p")]), 1_700_000_000)
    assert first.next & 0xFFFFFFFF == 1
    again = begun(first, 1_600_000_000)
    assert again.next >> SESSION_SHIFT == (first.next >> SESSION_SHIFT) + 1, "a clock that went back hurts nothing"


@pytest.mark.parametrize("records", [[], [b"X"], [closed(5)], [opened(b"p"), b"W\0"], [opened(b"p"), b"Z"]])
def test_what_is_no_ledger_is_refused(records: list[bytes]) -> None:
    with pytest.raises(BadLedger):
        state(records)


def test_a_torn_record_and_all_behind_it_is_dropped() -> None:
    whole = framed(opened(b"p")) + framed(window(1, b"\0", A))
    for cut in range(len(whole)):
        assert len(list(bodies(whole[:cut]))) == (cut >= len(framed(opened(b"p"))))
    damaged = bytearray(whole)
    damaged[-1] ^= 1
    assert len(list(bodies(bytes(damaged)))) == 1


def test_flagged_messages_are_recognised_in_their_order() -> None:
    known = [Known(1, 0, A), Known(2, 0, B), Known(3, 0, A)]
    asked = Recognition(known)
    assert asked.known_as(1, B) == known[1], "what lies before is gone from the source"
    assert asked.known_as(1, A) == known[2]
    assert asked.is_over
    asked = Recognition(known)
    assert asked.known_as(0, A) is None, "it was never handed out"
    assert asked.known == [known[1]], "twins cannot come any more"


def test_closed_ones_are_known_until_something_new_comes() -> None:
    known = [Known(1, 0, A, True), Known(2, 0, B)]
    assert Recognition(known).known_as(1, A) == known[0]
    asked = Recognition(known)
    assert asked.known_as(1, C) is None
    assert asked.known_as(1, A) is None
    assert asked.known_as(1, B) == known[1]


def test_closed_ones_come_in_a_run_or_not_at_all() -> None:
    known = [Known(1, 0, A, True), Known(2, 0, B, True), Known(3, 0, C)]
    for prints, there in (([B, C], True), ([A, B, C, A], True), ([A, C], False), ([B], False), ([B, A], False)):
        asked = Recognition(known)
        asked.weigh(prints)
        assert (asked.known_as(1, prints[0]) is not None) is there, prints


def test_a_file_goes_on_and_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "q.ledger"
    first = FileLedger(path, "m")
    asyncio.run(first.append([window(first.state.next, b"\0\0", A + B)]))
    first.close()
    with path.open("ab") as file:
        file.write(framed(window(9, b"\0", C))[:-3])
    second = FileLedger(path, "m")
    assert second.state.producer == first.state.producer
    assert [one.print for one in second.state.window] == [A, B]
    assert second.state.next > first.state.next
    monkeypatch.setattr(files, "ANEW_BYTES", 10)
    second._anew_at = 10
    before = path.stat().st_size
    for _ in range(20):
        asyncio.run(second.append([closed(second.state.next)]))
    assert path.stat().st_size < before + 200
    second.close()
    third = FileLedger(path, "m")
    assert [one.closed for one in third.state.window] == [True, True]
    third.close()


def slow_state(records: list[bytes]) -> State:
    """The rule, said plainly: what `state` has to be, at the cost of a pass over all for each record."""
    known: dict[int, Known] = {}
    next_ = 1
    for body in records:
        if body[:1] == b"W":
            first, count = struct.unpack_from(">QI", body, 1)
            marks, prints = body[13 : 13 + count], body[13 + count :]
            for at in range(count):
                known[first + at] = Known(first + at, marks[at], prints[8 * at : 8 * at + 8])
            next_ = max(next_, first + count)
        elif body[:1] in b"CD":
            (upto,) = struct.unpack_from(">Q", body, 1)
            still = {one[0]: Known(*one) for one in struct.iter_unpack(">QB8s", body[9:])}
            known = {
                number: still.get(number, one._replace(closed=one.closed or (number < upto)))
                for number, one in known.items()
            } | still
            next_ = upto if body[:1] == b"C" else next_
    return State(b"p", next_, tuple(sorted(known.values())))


windows = st.integers(1, 30).flatmap(
    lambda first: st.integers(0, 4).map(lambda count: window(first, bytes(count), A * count))
)
overs = st.builds(
    lambda end, upto, still: end(upto, [Known(number, 0, B) for number in still]),
    st.sampled_from((closed, dropped)), st.integers(1, 30), st.sets(st.integers(1, 30), max_size=3),
)  # fmt: skip


@given(st.lists(windows | overs, max_size=12))
def test_the_fold_is_its_rule(records: list[bytes]) -> None:
    assert state([opened(b"p"), *records]) == slow_state(records)


def test_a_fold_costs_as_much_as_its_messages_and_not_as_its_windows() -> None:
    """10,000 windows of ten, all closed: a pass over what is known for each would be 500 million steps."""
    records = [opened(b"p")]
    for number in range(1, 100_000, 10):
        records += [window(number, bytes(10), A * 10), closed(number + 10)]
    began_s = time.process_time()
    found = state(records)
    assert len(found.window) == PAST_MAX
    assert time.process_time() - began_s < 5
