"""Ledgers: what records say, what a torn file keeps, what is recognised."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clusterbroker.broker.bridges import file_ledger as files
from clusterbroker.broker.bridges.file_ledger import FileLedger
from clusterbroker.broker.bridges.ledger import (
    SESSION_SHIFT,
    BadLedger,
    Known,
    Recognition,
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
