"""Files of streams, as those meet them who read a journal without its node, and copies that come and go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from journal_bench import Node, message_of

from clusterbroker.journal import stream_files
from clusterbroker.journal.compact import compact, disk_bytes
from clusterbroker.journal.inspect import JournalView
from clusterbroker.journal.layout import ENQ, ENQ_OVERHEAD_BYTES, GROUP_HEADER_BYTES, RECORD_HEADER, RECORD_HEADER_BYTES
from clusterbroker.journal.record import GroupWriter, read_records, seal
from clusterbroker.journal.stream_catalogue import Filing, Moved, StreamFile

QUEUE = 1
HEAD_BYTES = ENQ_OVERHEAD_BYTES + len(b"\x00\x03key") + len(b"\x10\x00\x02")
"""Of a record, before the body."""


def filing(node: Node, files: tuple[StreamFile, ...] = (), **more: Any) -> Filing:
    """What the node's ring has goes to files."""
    places = sorted(node.memory.queues.pop(QUEUE).items())
    spots = [(place.segment, place.offset, place.length + 7 & ~7) for _, place in places]
    moved = Moved(places[0][0], places[-1][0] + 1, spots)
    meta = {"next_seq": moved.end, "reserved": 0, "epoch": 1, "first": 1}
    given = {"gone": (), "segment_bytes": 1 << 20, "meta": meta, "done": lambda _: None, **more}
    cut, closed = given.pop("cut", frozenset()), given.pop("closed", frozenset())
    return Filing(QUEUE, files, (moved,), cut, closed, **given)


def checkpoint(node: Node, wanted: Filing, forgotten: tuple[int, ...] = ()) -> None:
    done: list[int] = []
    metas, runs = [(QUEUE, wanted.meta)], node.memory.runs()
    node.journal.checkpoint(runs, metas, forgotten, node.journal.position, lambda: done.append(1), [wanted])
    node.loop.until(lambda: bool(done))


def cut(node: Node, from_seq: int) -> None:
    """Another owner's messages come in the place of those from that seq on."""
    writer = node.journal.begin_group()
    writer.cut(QUEUE, 1, from_seq)
    node.commit(writer)
    node.seqs[QUEUE] = from_seq - 1


def told(directory: Path) -> list[tuple[int, bytes]]:
    with JournalView(directory) as view:
        found = [(seq, m.body) for data in view.records(QUEUE) for seq, m, _, _ in read_records(data)]
        assert [seq for seq, _ in found] == list(range(*view.bounds(QUEUE)))
    return found


def test_what_was_cut_off_and_what_retention_took_is_not_read_again(tmp_path: Path) -> None:
    """The log says it after the checkpoint; compaction makes that a checkpoint of its own."""
    node = Node(tmp_path)
    node.write(*[b"old"] * 10)
    checkpoint(node, filing(node))
    cut(node, 6)
    node.write(b"new", b"new")
    node.memory.queues[QUEUE] = dict(sorted(node.memory.queues[QUEUE].items()))
    writer = node.journal.begin_group()
    writer.settle(QUEUE, 1, [(1, 2)], 0)
    node.commit(writer)
    node.journal.close()
    left = [(3, b"old"), (4, b"old"), (5, b"old"), (6, b"new"), (7, b"new")]
    assert told(tmp_path) == left
    compact(tmp_path)
    assert told(tmp_path) == left
    node.start()
    (part,) = [StreamFile.of_entry(entry) for entry in node.memory.metas[QUEUE]["files"]]
    assert part.end == 6
    checkpoint(node, filing(node, (part,)))
    node.journal.close()
    assert told(tmp_path)[-5:] == left


@pytest.mark.parametrize("too", [None, 3, 30], ids=["body", "length", "seq"])
@pytest.mark.parametrize("damaged", [(1,), (3,), (1, 2, 3), (4, 5), (5,), (6,), (5, 6), (5, 6, 7), (2, 6, 7, 8, 9, 10)])
def test_a_file_of_which_something_is_damaged_is_cut_all_the_same(
    tmp_path: Path, damaged: tuple[int, ...], too: int | None
) -> None:
    """Seed 4000625 of the simulation: the checkpoint that cut it failed, and with it the node, at each start. What
    comes in the place of what was cut off stands behind it in the same file. A head that says a higher seq, or is
    longer than the file, was taken for the end: sound messages behind it were gone."""
    node = Node(tmp_path)
    node.write(*[b"old %d " % number * number for number in range(1, 11)])
    first = filing(node)
    checkpoint(node, first)
    (path,) = tmp_path.glob("streams/1/*.seg")
    data = bytearray(path.read_bytes())
    places = [data.index(b"old %d " % seq * seq) for seq in range(1, 11)]
    for seq in damaged:
        data[places[seq - 1]] ^= 4
        if too is not None:
            data[places[seq - 1] - HEAD_BYTES + too] ^= 0x3F
    path.write_bytes(data)
    (part,) = [StreamFile.of_entry(entry) for entry in first.meta["files"]]
    cut(node, 6)
    node.write(b"new", b"new")
    second = filing(node, (part._replace(end=6),), cut=frozenset((part.name,)))
    checkpoint(node, second)
    node.journal.close()
    (part,) = [StreamFile.of_entry(entry) for entry in second.meta["files"]]
    data = path.read_bytes()[: part.size]
    assert (part.first, part.end, data.count(b"new")) == (1, 8, 2)
    for seq in range(1, 11):
        counts = b"old %d " % seq * seq in data
        assert counts is (seq < 6 and seq not in damaged), "nothing sound is lost, and nothing that was cut off counts"


class Run:
    """Messages 1, 2 ... of the stream in a file of nothing else; and all that is read and summed of it, counted."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, *bodies: bytes) -> None:
        writer = GroupWriter(1, 0)
        self.places: list[int] = []
        for seq, body in enumerate(bodies, 1):
            self.places.append(writer.enqueue(QUEUE, 1, seq, message_of(body), 0) - GROUP_HEADER_BYTES)
        group = writer.finish(1, 1)
        seal(group)
        self.data = bytearray(group)[GROUP_HEADER_BYTES:]
        self.path = path
        self.reads: list[int] = []
        self.summed = 0
        pread, prove = os.pread, stream_files.prove_run

        def counted_read(fd: int, size: int, offset: int) -> bytes:
            self.reads.append(size)
            return pread(fd, size, offset)

        def counted_sum(data: bytes, queue_id: int, first: int) -> tuple[int, int, int]:
            self.summed += len(data)
            return prove(data, queue_id, first)

        monkeypatch.setattr(os, "pread", counted_read)
        monkeypatch.setattr(stream_files, "prove_run", counted_sum)

    def end_beside(self, end: int) -> int:
        self.path.write_bytes(self.data)
        with open(self.path, "rb") as source:
            return stream_files.end_beside(source.fileno(), 0, len(self.data), QUEUE, end)


@pytest.mark.parametrize("part", [1, 2, 20, 100, 500])
def test_heads_that_a_client_wrote_beside_damage_are_proved_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """Each of them was summed to where it says that it ends: 5.6 GB of a file of 0.7 MB."""
    count, after = 10_000, 400_000
    heads = bytearray()
    for number in range(count):
        left = (count - number) * RECORD_HEADER_BYTES + after
        heads += RECORD_HEADER.pack(left // part, 0, ENQ, 0, 0, 0, 1, QUEUE, 3)
    run = Run(tmp_path / "run", monkeypatch, b"first", heads, *[b"x" * 1000] * (after // 1000), b"last")
    run.data[run.places[1]] ^= 0x40  # its length
    last = len(run.places)
    assert run.data.find(heads) % 8 == 0, "a head begins where a record might"
    for end, wanted in ((last, run.places[last - 1 :]), (3, run.places[1:3])):
        run.reads.clear()
        run.summed = 0
        assert run.end_beside(end) in wanted, "nothing that was cut off counts"
        assert run.summed <= 3 * len(run.data)
        assert sum(run.reads) <= 5 * len(run.data)


def test_a_long_file_beside_damage_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path / "run", monkeypatch, *[b"body %d" % number * (number * 7 % 40) for number in range(1, 60)])
    run.data[run.places[4] + 50] ^= 1
    run.data[run.places[40] + 50] ^= 1
    wanted = [run.end_beside(end) for end in range(1, 62)]
    assert wanted[:4] + wanted[5:40] + wanted[41:59] == run.places[:4] + run.places[5:40] + run.places[41:]
    for piece in (RECORD_HEADER_BYTES, 40, 256, 4096):
        monkeypatch.setattr(stream_files, "PIECE_BYTES", piece)
        run.reads.clear()
        assert [run.end_beside(end) for end in range(1, 62)] == wanted
        assert max(run.reads) <= max(piece, 400), "a piece, or one record"


def test_a_copy_that_begins_anew_leaves_the_files_of_the_one_before_alone_until_it_counts(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write(*[b"old"] * 10)
    checkpoint(node, filing(node))
    (old,) = tmp_path.glob("streams/1/*.seg")
    before = old.read_bytes()
    cut(node, 1)
    node.write(b"new")
    again = filing(node)
    for _ in range(2):  # the disk was full
        (part,) = node.journal._streams.file(again)
        assert old.read_bytes() == before
        assert part.name == 2
    assert len(list(tmp_path.glob("streams/1/*.seg"))) == 2
    checkpoint(node, again, (QUEUE,))
    assert not old.exists()
    node.journal.close()
    assert told(tmp_path) == [(1, b"new")]


def test_sizes_count_the_files_of_streams(tmp_path: Path) -> None:
    def stored(pattern: str) -> int:
        return sum(path.stat().st_size for path in tmp_path.glob(pattern))

    node = Node(tmp_path)
    node.write(*[b"x" * 1000] * 100)
    on_disk = disk_bytes(tmp_path)
    checkpoint(node, filing(node))
    assert stored("streams/1/*.seg") > 100_000
    assert node.journal.size()[1] == stored("segments/*.seg") + stored("streams/1/*.seg")
    assert disk_bytes(tmp_path) >= on_disk + 100_000
    node.journal.close()
    node.start()
    assert node.journal.size()[1] >= stored("streams/1/*.seg") > 100_000, "a start counts them too"
    done: list[int] = []
    node.journal.checkpoint([], [], (QUEUE,), node.journal.position, lambda: done.append(1), [])
    node.loop.until(lambda: bool(done))
    assert node.journal.size()[1] == stored("segments/*.seg")
    node.journal.close()
