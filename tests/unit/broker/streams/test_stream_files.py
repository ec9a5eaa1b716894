"""A copy of a stream on its disk: files, catalogue, what crashes leave, and made-up lives of it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.journal.check import check
from clusterbroker.journal.compact import compact
from clusterbroker.journal.errors import DamagedJournal
from clusterbroker.journal.index import Index
from clusterbroker.journal.inspect import JournalView
from clusterbroker.journal.record import DamagedRecord, read_records
from clusterbroker.journal.stream_catalogue import HEADER_BYTES, Wish, check_header, header
from tests.budget import examples
from tests.unit.broker.streams.stream_bench import QUEUE, Copy


def bodies(first: int, count: int, size: int = 50) -> list[bytes]:
    return [b"%d " % n + b"x" * size for n in range(first, first + count)]


def test_a_checkpoint_moves_all_that_is_written_into_files(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    copy.append(*bodies(0, 100))
    assert (copy.ring.ready, copy.ring.past.count) == (100, 0)
    copy.checkpoint()
    assert (copy.ring.ready, copy.ring.past.count) == (0, 100)
    copy.check()
    (part,) = copy.parts
    assert (part.first, part.end, part.first_ms, part.last_ms) == (1, 101, 1001, 1100)
    assert part.size == os.path.getsize(copy.files()[0])
    copy.append(*bodies(100, 10))
    copy.check()
    copy.crash()
    copy.check()
    copy.close()


def test_a_new_file_begins_when_one_is_full(tmp_path: Path) -> None:
    copy = Copy(tmp_path, file_bytes=4096)
    for n in range(0, 200, 20):
        copy.append(*bodies(n, 20))
        copy.checkpoint()
    assert len(copy.parts) > 2
    assert all(part.size >= 4096 for part in copy.parts[:-1])
    assert [part.first for part in copy.parts[1:]] == [part.end for part in copy.parts[:-1]]
    assert [int(path.stem) for path in copy.files()] == [part.first for part in copy.parts]
    assert check_header(copy.files()[1].read_bytes(), QUEUE) == copy.parts[1].first
    copy.check()
    copy.close()


def test_the_shared_log_gives_its_segments_up(tmp_path: Path) -> None:
    copy = Copy(tmp_path, file_bytes=1 << 20)
    for n in range(20):
        copy.append(*bodies(n, 40, 200))
        copy.checkpoint()
    copy.check()
    assert len(list((copy.directory / "segments").glob("*.seg"))) <= 3
    copy.close()


def test_what_is_read_while_a_checkpoint_copies_it(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    copy.append(*bodies(0, 50))
    done = copy.begin_checkpoint()
    assert copy.ring.past.moving, "the loop has not heard of the end"
    copy.check()
    copy.append(*bodies(50, 5))
    copy.loop.until(lambda: bool(done))
    assert not copy.ring.past.moving
    copy.check()
    copy.close()


def test_a_record_longer_than_what_is_read_at_once(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    copy.append(b"small", b"L" * (3 << 20), b"small")
    copy.checkpoint()
    assert copy.read(Wish(2, 100, 10, 1000)).next_seq == 3
    assert copy.content(bytes_max=512) == copy.model
    copy.close()


def test_where_a_file_is_read_from(tmp_path: Path) -> None:
    copy = Copy(tmp_path, file_bytes=1 << 30)
    copy.append(*bodies(0, 5000, 300))
    copy.checkpoint()
    for seq in (1, 4999, 2500, 5000, 3, 4000):
        assert copy.read(Wish(seq, 10**9, 1, 1 << 20))[:2] == (seq, seq + 1)
    assert copy.read(Wish(10, 20, 100, 1 << 20))[:2] == (10, 20)
    assert copy.read(Wish(10, 10**9, 4096, 1))[:2] == (10, 11), "one at least"
    assert copy.read(Wish(1, 10**9, 1, 1 << 20, since_ms=1000 + 3210))[:2] == (3210, 3211)
    assert copy.read(Wish(1, 10**9, 1, 1 << 20, since_ms=99999)).records == b""
    copy.close()


def test_dropped_files_go_when_no_catalogue_names_them(tmp_path: Path) -> None:
    copy = Copy(tmp_path, file_bytes=4096)
    for n in range(0, 200, 20):
        copy.append(*bodies(n, 20))
        copy.checkpoint()
    before = copy.files()
    middle = copy.parts[1].first + 3
    copy.drop(1, middle)
    assert copy.ring.past.first == middle + 1
    copy.check()
    copy.crash()
    copy.check()
    copy.checkpoint()
    copy.check()
    assert copy.files()[0].stem == before[1].stem
    copy.close()


def test_a_cut_shortens_a_file_and_what_comes_then_begins_another(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    copy.append(*bodies(0, 30))
    copy.checkpoint()
    copy.cut(11)
    copy.append(*bodies(1000, 5))
    copy.check()
    copy.crash()
    copy.check()
    copy.checkpoint()
    copy.check()
    assert [(part.first, part.end) for part in copy.parts] == [(1, 11), (11, 16)]
    assert copy.parts[0].size < os.path.getsize(copy.files()[0])
    copy.crash()
    copy.check()
    copy.close()


def test_what_a_crash_in_a_checkpoint_leaves_is_written_over_or_removed(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    copy.append(*bodies(0, 30))
    copy.checkpoint()
    copy.append(*bodies(30, 10))
    (path,) = copy.files()
    with open(path, "ab") as file:
        file.write(b"half of a record")
    (path.parent / f"{999:020d}.seg").write_bytes(header(QUEUE, 999))
    copy.crash()
    copy.check()
    assert [int(path.stem) for path in copy.files()] == [1]
    copy.checkpoint()
    copy.check()
    copy.crash()
    copy.check()
    copy.close()


def test_a_file_that_is_gone_or_cut_off_is_damage(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    copy.append(*bodies(0, 30))
    copy.checkpoint()
    (path,) = copy.files()
    whole = path.read_bytes()
    copy.close()
    path.write_bytes(whole[:-8])
    with pytest.raises(DamagedJournal, match=r"streams/7/0+1.seg.*of it count"):
        copy.open()
    path.unlink()
    with pytest.raises(DamagedJournal, match="the file is gone"):
        copy.open()
    path.write_bytes(whole)
    copy.open()
    copy.check()
    copy.close()


@pytest.mark.parametrize("at", [3, HEADER_BYTES + 40, HEADER_BYTES + 60])
def test_a_flipped_bit_is_found_when_it_is_read(tmp_path: Path, at: int) -> None:
    copy = Copy(tmp_path)
    copy.append(*bodies(0, 30))
    copy.checkpoint()
    (path,) = copy.files()
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)
    found = copy.read(Wish(1, 100, 4096, 1 << 20))
    assert isinstance(found, DamagedRecord)
    assert "streams/7" in str(found)
    copy.close()


def test_the_catalogue_is_what_a_reader_from_outside_finds(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    copy.append(*bodies(0, 30))
    copy.checkpoint()
    copy.drop(1, 4)
    copy.checkpoint()
    (part,) = copy.parts
    copy.close()
    index = Index(copy.directory)
    meta = dict(index.metas())[QUEUE]
    index.close()
    assert meta["first"] == 5
    assert meta["files"] == [[1, 31, part.size, 1001, 1030]]


DEEDS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 40), st.integers(0, 300)),
    st.tuples(st.just("append"), st.integers(1, 40), st.integers(0, 300)),
    st.tuples(st.just("checkpoint")),
    st.tuples(st.just("begin")),
    st.tuples(st.just("drop"), st.floats(0, 1)),
    st.tuples(st.just("hole"), st.floats(0, 1), st.floats(0, 0.3)),
    st.tuples(st.just("cut"), st.floats(0, 1)),
    st.tuples(st.just("crash")),
    st.tuples(st.just("check")),
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(DEEDS, min_size=3, max_size=25))
@pytest.mark.long
def test_made_up_lives(deeds: list[tuple[Any, ...]]) -> None:
    """Whatever is written, dropped and cut, and however often it crashes: what it has is what it must have."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Copy(Path(directory), file_bytes=1500)
        under_way: list[int] | None = None
        serial = 0
        for what, *how in deeds:
            low, high = min(copy.model, default=1), copy.ring.next_seq
            at = low + int((how[0] if how and isinstance(how[0], float) else 0) * (high - low))
            if what == "append":
                copy.append(*bodies(serial, how[0], how[1]))
                serial += how[0]
            elif what in ("checkpoint", "begin"):
                if under_way is not None:
                    copy.loop.until(lambda done=under_way: bool(done))
                under_way = copy.begin_checkpoint()
                if what == "checkpoint":
                    copy.loop.until(lambda done=under_way: bool(done))
                    under_way = None
            elif what == "drop" and at > low:
                copy.drop(1, at - 1)
            elif what == "hole" and at > low:
                copy.drop(at, at + int(how[1] * (high - low)))
            elif what == "cut":
                copy.cut(at)
            elif what == "crash":
                copy.crash()
                under_way = None
            copy.check()
        copy.crash()
        copy.check()
        copy.close()
        report = check(copy.directory)
        assert report.ok, report.broken
        if copy.model:
            assert seen(copy.directory) == copy.model
        compact(copy.directory)
        copy.open()
        copy.check()
        copy.append(*bodies(serial, 5))
        copy.checkpoint()
        copy.check()
        copy.close()


def seen(directory: Path) -> dict[int, bytes]:
    """What somebody from outside finds."""
    with JournalView(directory) as view:
        (summary,) = view.queues()
        found = {seq: message.body for records in view.records(QUEUE) for seq, message, _, _ in read_records(records)}
    assert summary.ready == len(found)
    return found


def test_tools_see_what_the_tail_says_of_files(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    for n in range(0, 200, 20):
        copy.append(*bodies(n, 20))
        copy.checkpoint()
    copy.drop(1, 47)
    copy.cut(171)
    copy.append(*bodies(1000, 7))
    copy.close()
    assert seen(copy.directory) == copy.model
    assert check(copy.directory).ok
    compact(copy.directory)
    assert check(copy.directory).ok
    assert seen(copy.directory) == copy.model
    copy.open()
    copy.check()
    copy.append(*bodies(2000, 3))
    copy.checkpoint()
    copy.check()
    copy.close()


def test_the_check_finds_damage_in_files(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    copy.append(*bodies(0, 30))
    copy.checkpoint()
    copy.close()
    (path,) = copy.files()
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    (broken,) = check(copy.directory).broken
    assert (broken.file, broken.queue_id) == (f"streams/{QUEUE}/{path.name}", QUEUE)
    path.unlink()
    (broken,) = check(copy.directory).broken
    assert broken.what == "the file is gone"
