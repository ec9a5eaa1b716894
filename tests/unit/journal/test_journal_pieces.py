"""Segments are read in pieces: no group is lost at an edge, never-written space is not read, memory stays small."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from journal_bench import SMALL, Node

from clusterbroker.journal import segments as segments_module
from clusterbroker.journal.errors import DamagedJournal
from clusterbroker.journal.layout import GROUP_HEADER, GROUP_HEADER_BYTES, RUN_ENTRY
from clusterbroker.journal.replay import group_head
from clusterbroker.journal.segments import SegmentFile, Segments

PIECES = [32, 40, 64, 100, 1000]


def tells_holes(directory: Path) -> bool:
    path = directory / "probe"
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
    with SegmentFile(path) as file:
        return file.written(0) == []


def starts_of(data: bytes) -> list[int]:
    starts, at = [], 0
    while data[at : at + 4] == b"CBJ1":
        starts.append(at)
        at += GROUP_HEADER.unpack_from(data, at)[2]
    return [*starts, at]


@pytest.fixture(params=PIECES)
def piece_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    size: int = request.param
    monkeypatch.setattr(segments_module, "PIECE_BYTES", size)
    return size


def test_groups_longer_than_a_piece_and_across_its_edges_come_back(tmp_path: Path, piece_bytes: int) -> None:
    node = Node(tmp_path)
    for i in range(40):
        node.write(*[b"%d" % i * (7 * i % 90)] * (i % 5 + 1))
    places = node.memory.queues
    node.restart()
    assert node.memory.queues == places
    assert node.tail.groups == 40
    node.checkpoint()
    node.settle(1, 30)
    got: list = []
    node.journal.survivors(1, got.append)
    node.loop.until(lambda: bool(got))
    live = {seq: p.offset for seq, p in node.memory.queues[1].items() if p.segment == 1}
    assert live
    assert live.items() <= {s.seq: s.offset for s in got[0]}.items()
    node.journal.close()


def test_a_later_group_is_found_wherever_its_header_stands(tmp_path: Path, piece_bytes: int) -> None:
    """Its header may stand across two pieces; the hole before it is damage all the same."""
    for filler in range(0, 64, 8):
        directory = tmp_path / str(filler)
        node = Node(directory)
        node.write(b"first")
        node.write(b"lost" + b"-" * filler)
        node.write(b"last")
        node.journal.close()
        path = node.directory / "segments/00000001.seg"
        data = path.read_bytes()
        starts = starts_of(data)
        path.write_bytes(data[: starts[1]] + bytes(starts[2] - starts[1]) + data[starts[2] :])
        with pytest.raises(DamagedJournal, match="group 3 follows"):
            node.start()


def test_bytes_are_found_whatever_the_file_system_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without SEEK_DATA everything counts as written."""
    node = Node(tmp_path)
    node.write(b"x" * 50)
    places = node.memory.queues

    def lseek(*_: object) -> int:
        raise OSError(errno.EINVAL, "not here")

    monkeypatch.setattr(os, "lseek", lseek)
    node.restart()
    assert node.memory.queues == places
    assert not node.tail.torn
    with Segments(tmp_path).open(1) as file:
        assert file.written(100) == [(100, SMALL.segment_bytes)]
        assert file.any_byte(0)
        assert not file.any_byte(node.journal.position.offset)
    node.journal.close()
    monkeypatch.undo()


def test_a_copy_with_holes_in_bodies_is_the_same_journal(tmp_path: Path) -> None:
    """`cp --sparse=always` turns zeros inside of bodies into holes."""
    node = Node(tmp_path, replace(SMALL, segment_bytes=1 << 20))
    node.write(b"before", bytes(200_000), b"after")
    node.write(b"next")
    places = node.memory.queues
    node.journal.close()
    path = tmp_path / "segments/00000001.seg"
    copy = path.with_suffix(".copy")
    subprocess.run(["cp", "--sparse=always", str(path), str(copy)], check=True)
    copy.rename(path)
    node.start()
    assert node.memory.queues == places
    assert not node.tail.torn
    node.journal.close()


def test_restarts_do_not_read_what_was_never_written(tmp_path: Path) -> None:
    """Reading fills the page cache with zeros, which the file system then calls written: the next restart would
    have more to read, up to whole segments."""
    if not tells_holes(tmp_path):
        pytest.skip("this file system does not tell holes")
    node = Node(tmp_path, replace(SMALL, segment_bytes=16 << 20))
    node.write(b"x")
    for _ in range(4):
        node.restart()
    node.journal.close()
    for number in Segments(tmp_path).numbers():
        with Segments(tmp_path).open(number) as file:
            assert sum(end - first for first, end in file.written(0)) <= 256 << 10


def test_a_header_that_lies_about_its_length_takes_no_memory(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write(b"x")
    end = node.journal.position.offset
    node.journal.close()
    path = tmp_path / "segments/00000001.seg"
    with open(path, "r+b") as file:
        file.seek(end)
        file.write(GROUP_HEADER.pack(0x314A4243, 0, 2**32 - 8, 1, 2, 0))
        os.ftruncate(file.fileno(), 256 << 20)
    with Segments(tmp_path).open(1) as opened:
        assert group_head(opened.read(end, end + GROUP_HEADER_BYTES), 0) is None
    node.start()
    assert node.tail.torn
    node.journal.close()


RESTART = """
import json, sys, time
from pathlib import Path
from journal_bench import Loop
from clusterbroker.journal.journal import Journal
from clusterbroker.journal.options import JournalOptions
seen = [0, 0, 0]
def resident():
    lines = (line.split() for line in open("/proc/self/status"))
    return {words[0]: int(words[1]) for words in lines if words[0] in ("RssFile:", "RssAnon:")}
before = resident()
most = dict(before)
class Sink:
    def look(self):
        for key, value in resident().items():
            most[key] = max(most[key], value)
    def meta(self, queue_id, meta): pass
    def run(self, queue_id, first_seq, entries):
        seen[0] += len(entries) // 20
        seen[2] += 1
        if seen[2] % 500 == 0: self.look()
    def enqueued(self, queue_id, segment, record):
        seen[1] += 1
        if seen[1] % 20 == 0: self.look()
    settled = reserved = counted = dead = cut = set_attribute = began = lambda *_: None
sink = Sink()
start_s = time.process_time()
journal = Journal.open(Path(sys.argv[1]), JournalOptions(reserve_bytes=0), Loop().calls.put, print)
journal.recover(sink)
took_s = time.process_time() - start_s
sink.look()
journal.close()
grown = {key[:-1]: (most[key] - before[key]) / 1024 for key in most}
print(json.dumps([seen[:2], took_s, grown]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
@pytest.mark.long
def test_a_million_messages_and_a_long_tail_take_little_memory(tmp_path: Path) -> None:
    """Bounds that a busy machine keeps, and that neither a whole segment in memory nor the pages of a whole index
    would: either alone is 32 MiB and more here. The runs are such as deflate finds nothing in."""
    node = Node(tmp_path, replace(SMALL, segment_bytes=64 << 20))
    node.write(b"x")
    done: list[int] = []
    runs = []
    chance = random.Random(3)
    for block in range(4000):
        entries = bytearray(chance.randbytes(256 * RUN_ENTRY.size))
        entries[:: RUN_ENTRY.size] = bytes(range(256))
        for at, byte in enumerate((1).to_bytes(4, "little"), start=4):
            entries[at :: RUN_ENTRY.size] = bytes([byte]) * 256
        runs.append((7, 256 * block, bytes(entries)))
    node.journal.checkpoint(runs, [(7, {})], [], node.journal.position, lambda: done.append(1))
    node.loop.until(lambda: bool(done))
    for _ in range(40):
        node.write(*[b"y" * 100_000] * 10, sync=False)
    node.journal.close()
    assert (tmp_path / "index/data.mdb").stat().st_size > 30 << 20
    found = subprocess.run(
        [sys.executable, "-c", RESTART, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    seen, took_s, grown_mib = json.loads(found.stdout)
    assert seen == [1_024_000, 400]
    assert took_s < 10
    assert grown_mib["RssFile"] < 20
    assert grown_mib["RssAnon"] < 24
