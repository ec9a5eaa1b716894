"""A stream's catalogue, made from its files alone."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.journal.record import Message, RecordBuffer
from clusterbroker.journal.segments import Segments
from clusterbroker.journal.stream_catalogue import HEADER_BYTES, StreamFile, Wish, header
from clusterbroker.journal.stream_files import PIECE_BYTES, StreamFiles
from clusterbroker.journal.stream_salvage import Run, Told, anew, chosen

QUEUE = 7


def records(first: int, bodies: Sequence[bytes], epoch: int = 1) -> list[bytes]:
    found = []
    for seq, body in enumerate(bodies, first):
        buffer = RecordBuffer()
        buffer.enqueue(QUEUE, epoch, seq, Message(b"\x01e\x01k", b"\0\0" + body, 2, 1, 0, 1000 + seq, -1), 0, False)
        found.append(buffer.take())
    return found


def make(directory: Path, first: int, parts: Sequence[bytes], name: int = 0, head: bytes = b"") -> Path:
    path = directory / "streams" / str(QUEUE) / f"{name or first:020d}.seg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((head or header(QUEUE, first)) + b"".join(parts))
    return path


def told(directory: Path, known: Sequence[int] = (), **more: Any) -> tuple[Told, dict[int, bytes | str]]:
    """And what is read by that catalogue: seq to the record, or what is wrong there."""
    streams = StreamFiles(directory, Segments(directory))
    found = anew(streams, QUEUE, known, **more)
    for before, after in zip(found.files, found.files[1:], strict=False):
        assert before.end <= after.first, "no message stands in two files"
    read: dict[int, bytes | str] = {}
    for part in found.files:
        for seq in range(part.first, part.end):
            taken = streams.take(QUEUE, part, Wish(seq, seq + 1, 1, PIECE_BYTES))
            read[seq] = taken.records if hasattr(taken, "records") else "damaged"
    streams.close()
    return found, read


def bodies(word: bytes, count: int) -> list[bytes]:
    return [word + b" %d" % number * 20 for number in range(count)]


def test_all_files_with_all_that_is_in_them(tmp_path: Path) -> None:
    one, two = records(1, bodies(b"one", 10)), records(11, bodies(b"two", 5))
    make(tmp_path, 1, one)
    make(tmp_path, 11, two, name=12)
    make(tmp_path, 16, ())  # a crash came before its first message
    found, read = told(tmp_path)
    assert found == Told(
        [
            StreamFile(1, 11, HEADER_BYTES + len(b"".join(one)), 1001, 1010, 1),
            StreamFile(11, 16, HEADER_BYTES + len(b"".join(two)), 1011, 1015, 12),
        ],
        [],
        16,
        [],
    )
    assert list(read.values()) == one + two
    assert told(tmp_path / "nothing")[0] == Told([], [], 1, [])


@pytest.mark.parametrize("newer", ["shorter", "longer"])
def test_what_was_cut_off_does_not_count_beside_what_came_in_its_place(tmp_path: Path, newer: str) -> None:
    """The file whose end was cut keeps its bytes; those of the newer epoch count."""
    old, new = records(1, bodies(b"old", 20)), records(11, bodies(b"new", 5 if newer == "shorter" else 30), epoch=2)
    make(tmp_path, 1, old)
    make(tmp_path, 11, new)
    found, read = told(tmp_path)
    assert list(read.values()) == old[:10] + new
    assert found.files[0].size == HEADER_BYTES + len(b"".join(old[:10])), "what is added comes behind what counts"
    assert found.next_seq == (21 if newer == "shorter" else 41), "no number is given twice"


def test_a_file_that_a_crash_left_behind_does_not_count_beside_what_was_written_since(tmp_path: Path) -> None:
    """Its stream was cut before it, and goes on in the file before."""
    make(tmp_path, 6, records(6, bodies(b"old", 5)))
    now = records(1, bodies(b"now", 20), epoch=2)
    make(tmp_path, 1, now)
    found, read = told(tmp_path)
    assert list(read.values()) == now
    assert [part.name for part in found.files] == [1]


def test_a_file_that_was_cut_off_and_goes_on_counts_as_far_as_it_goes(tmp_path: Path) -> None:
    """Three files with the same messages: the order of their epochs decides."""
    make(tmp_path, 1, records(1, bodies(b"a", 30)))
    make(tmp_path, 11, records(11, bodies(b"b", 20), epoch=2))
    newest = records(21, bodies(b"c", 3), epoch=3)
    make(tmp_path, 21, newest)
    _, read = told(tmp_path)
    assert list(read.values()) == records(1, bodies(b"a", 10)) + records(11, bodies(b"b", 10), epoch=2) + newest


@pytest.mark.parametrize("where", ["length", "queue", "body"])
@pytest.mark.parametrize("size", [1, 4000])
@pytest.mark.parametrize("hurt", [(0,), (4,), (4, 5, 9), (0, 1, 2)])
def test_a_damaged_record_keeps_its_place(tmp_path: Path, size: int, hurt: tuple[int, ...], where: str) -> None:
    """Of any size: in the middle of what is read at once, and across it."""
    content = records(1, [b"m %d" % number * size for number in range(150)])
    at = {"length": 3, "queue": 17, "body": 64}[where]
    wrong = [
        one[:at] + bytes([one[at] ^ 4]) + one[at + 1 :] if number in hurt else one for number, one in enumerate(content)
    ]
    assert sum(map(len, content)) > 2 * PIECE_BYTES or size == 1
    make(tmp_path, 1, wrong)
    found, read = told(tmp_path)
    first = next(number for number in range(150) if number not in hurt) + 1 if 0 in hurt else 1
    assert [(part.first, part.end) for part in found.files] == [(first, 151)]
    assert (len(found.whats), "at byte" in found.whats[0]) == (1, True)
    if where != "body":
        return  # a reader does not get beyond a head that is damaged
    lost = [seq for seq, one in read.items() if one == "damaged"]
    assert lost == [number + 1 for number in hurt if number + 1 > first]
    assert all(one == content[seq - 1] for seq, one in read.items() if seq not in lost)


def test_of_a_damaged_end_no_number_is_given_again(tmp_path: Path) -> None:
    content = records(1, bodies(b"m", 10))
    data = b"".join(content[:6]) + bytes(len(one) * byte % 256 for one in content[6:] for byte in range(len(one)))
    make(tmp_path, 1, [data])
    found, read = told(tmp_path)
    assert list(read.values()) == content[:6]
    assert found.next_seq >= 11
    assert len(found.whats) == 1


def test_a_damaged_header_costs_no_message_a_place_and_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    content = records(1, bodies(b"m", 10))
    make(tmp_path, 1, content, head=b"\1" * HEADER_BYTES)
    found, _ = told(tmp_path, known=(1, 11))
    assert [(part.first, part.end) for part in found.files] == [(1, 11)]
    assert sorted(found.whats) == [
        "streams/7/00000000000000000001.seg: the header of a stream's file has a wrong checksum",
        "streams/7/00000000000000000011.seg: the file is gone",
    ]


def test_what_only_looks_like_a_record_is_none(tmp_path: Path) -> None:
    """A message whose body is a file of the same stream, behind damage."""
    inner = b"".join(records(500, bodies(b"inner", 3)))
    content = records(1, [b"before", b"damaged", bytes(6) + inner, b"after"])
    content[1] = content[1][:-9] + b"\xff" + content[1][-8:]
    make(tmp_path, 1, content)
    found, read = told(tmp_path)
    assert [(part.first, part.end) for part in found.files] == [(1, 5)]
    assert read[4] == content[3]


def test_the_logs_tail_counts_and_nothing_else_of_a_file_goes(tmp_path: Path) -> None:
    """A sync brings messages out of their order: what stands behind those in files stays."""
    content = records(1, bodies(b"m", 100))
    make(tmp_path, 1, content[:20])
    make(tmp_path, 41, content[40:60])
    make(tmp_path, 81, content[80:])
    found, read = told(tmp_path, tail=dict.fromkeys([*range(16, 44), *range(61, 81)], 1))
    assert found.logged == [(16, 44), (61, 81)]
    assert [(part.first, part.end, part.name) for part in found.files] == [(1, 16, 1), (44, 61, 41), (81, 101, 81)]
    assert list(read.values()) == content[:15] + content[43:60] + content[80:]


def test_a_file_goes_on_behind_one_that_a_sync_brought_again(tmp_path: Path) -> None:
    content = records(1, bodies(b"m", 90))
    make(tmp_path, 1, content)
    make(tmp_path, 1, content[:40], name=2)
    _, read = told(tmp_path)
    assert list(read.values()) == content


def test_what_a_cut_took_back_does_not_stand_in_the_place_of_what_the_log_has(tmp_path: Path) -> None:
    """The owner's messages 91 to 98 are not in a file yet; 99 and 100 were cut off with those before them."""
    make(tmp_path, 1, records(1, bodies(b"old", 100)))
    log = dict.fromkeys(range(91, 99), 2)
    found, _ = told(tmp_path, logged={**log, **dict.fromkeys(range(80, 91), 1)})
    assert ([part.end for part in found.files], found.logged, found.next_seq) == ([91], [(91, 99)], 101)
    found, _ = told(tmp_path, epochs=[(1, 1), (2, 91)])
    assert ([part.end for part in found.files], found.logged) == ([91], []), "a later epoch is known to begin there"


def test_a_file_that_cannot_be_read_at_all_is_damage_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = records(1, bodies(b"m", 10))
    path = make(tmp_path, 1, content)
    make(tmp_path, 11, records(11, bodies(b"m", 5)))
    read = os.pread

    def broken(fd: int, size: int, at: int) -> bytes:
        if os.path.samestat(os.fstat(fd), os.stat(path.with_suffix(".seg" if path.exists() else ".damaged"))):
            raise OSError(errno.EIO, "Input/output error")
        return read(fd, size, at)

    monkeypatch.setattr(os, "pread", broken)
    found, _ = told(tmp_path)
    assert [part.first for part in found.files] == [11]
    assert "Input/output error" in found.whats[0]
    assert path.with_suffix(".damaged").exists()


def test_what_the_log_has_of_a_file_that_is_gone_is_the_logs(tmp_path: Path) -> None:
    content = records(1, bodies(b"m", 30))
    make(tmp_path, 1, content[:10])
    make(tmp_path, 21, content[20:])
    found, _ = told(tmp_path, known=(1, 11, 21), logged=dict.fromkeys(range(8, 24), 1))
    assert found.logged == [(11, 21)]
    assert [(part.first, part.end) for part in found.files] == [(1, 11), (21, 31)]


RUNS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(1, 3)), max_size=4)


@given(st.lists(RUNS, max_size=4), RUNS, RUNS, st.lists(st.tuples(st.integers(1, 3), st.integers(1, 40)), max_size=2))
def test_of_each_message_the_newest_counts_and_nothing_older_behind_it(
    files: list[list[tuple[int, int, int]]],
    logged: list[tuple[int, int, int]],
    tail: list[tuple[int, int, int]],
    epochs: list[tuple[int, int]],
) -> None:
    """Message by message, in the plainest way."""
    sources: list[list[Run]] = []
    for runs in files:
        row: list[Run] = []
        for first, count, epoch in sorted(runs):  # in a file they neither overlap nor fall
            begin = max(first, row[-1].end if row else 0)
            row.append(Run(begin, begin + count, max(epoch, row[-1].epoch if row else 0)))
        sources.append(row)
    log = [Run(first, first + count, epoch) for first, count, epoch in logged]
    log += [Run(first, first + count, epoch, True) for first, count, epoch in tail]
    sources.append(log)
    wanted, newest = {}, 0
    for seq in range(1, 200):
        newest = max([newest, *(epoch for epoch, first in epochs if first <= seq)])
        here = [(run, n == len(files)) for n, runs in enumerate(sources) for run in runs if run.first <= seq < run.end]
        best = max((run[2:] for run, _ in here), default=(0, False))
        if here and best[0] >= newest:
            newest = best[0]
            wanted[seq] = {in_log for run, in_log in here if run[2:] == best}
    found = chosen(sources, epochs)
    assert [one[1] for one in found] == sorted(one[1] for one in found)
    got = {seq: source == len(files) for source, first, end in found for seq in range(first, end)}
    assert got.keys() == wanted.keys()
    assert sum(end - first for _, first, end in found) == len(got), "each once"
    for seq, in_log in got.items():
        assert in_log in wanted[seq]
        assert not in_log or wanted[seq] == {True}, "a file before the log"
