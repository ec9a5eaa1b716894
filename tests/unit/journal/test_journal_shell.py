"""The journal as its owner sees it: groups, recovery, checkpoints, reclaim, page-in."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from journal_bench import SMALL, Loop, Memory, Node, message_of

from clusterbroker.journal import writer as writing
from clusterbroker.journal.errors import DamagedJournal, ForeignJournal, LockedJournal
from clusterbroker.journal.index import Index
from clusterbroker.journal.journal import BUSY_BYTES, SPARE_SEGMENTS, Journal
from clusterbroker.journal.layout import RUN_ENTRY
from clusterbroker.journal.packed_run import pack_run
from clusterbroker.journal.record import DamagedRecord


@pytest.fixture(params=[False, True], ids=["there", "here"])
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    node = Node(tmp_path, here=request.param)
    yield node
    node.journal.close()


def test_an_empty_journal_recovers_nothing(node: Node) -> None:
    assert (node.tail.groups, node.tail.torn, node.memory.queues) == (0, False, {})
    node.restart()
    assert (node.tail.groups, node.tail.torn, node.memory.queues) == (0, False, {})


def test_groups_come_back_after_a_restart(node: Node) -> None:
    for i in range(60):
        node.write(b"%d" % i * 50, b"second", sync=i % 3 == 0)
    writer = node.journal.begin_group()
    writer.reserve(1, 1, 40)
    writer.count_delivery(1, 1, 30, 7)
    node.commit(writer)
    node.settle(3, 20)
    places = {seq: vars(place) for seq, place in node.memory.queues[1].items()}
    places[30]["delivery_count"] = 7
    node.restart()
    assert {seq: vars(place) for seq, place in node.memory.queues[1].items()} == places
    assert node.memory.upto == {1: 40}
    assert (node.tail.groups, node.tail.torn) == (62, False)
    assert [m.body for m in node.read(1, 2, 119, 21)] == [b"0" * 50, b"second", b"59" * 50, b"10" * 50]
    node.write(b"more")
    node.restart()
    assert node.tail.position.lsn == 63


def test_a_sync_group_is_flushed_before_it_is_answered_and_others_soon_after(node: Node) -> None:
    node.write(b"x", sync=True)
    writer = node.journal._writer
    assert writer is not None
    assert writer.durable_lsn == 1
    node.write(b"x", sync=False)
    node.loop.until(lambda: writer.durable_lsn == 2)


def test_one_group_at_a_time_and_answers_in_order(node: Node) -> None:
    answers: list[int] = []
    assert node.journal.idle

    def again() -> None:
        assert node.journal.idle
        answers.append(1)
        if len(answers) < 50:
            node.submit(b"x", done=again)

    node.submit(b"x", done=again)
    assert not node.journal.idle
    node.loop.until(lambda: len(answers) == 50)


def test_a_small_group_is_written_on_the_loop_while_the_disk_is_quick(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = node.journal._writer
    assert writer is not None
    monkeypatch.setattr(writing, "SLOW_S", 100.0)
    monkeypatch.setattr(writing, "STALL_S", 100.0)
    written = node.submit(b"quick")
    assert writer._here is node.here
    node.loop.until(lambda: node.journal.idle)
    node.submit(b"large" * writing.HERE_BYTES_MAX)
    assert not writer._here
    node.loop.until(lambda: node.journal.idle)
    written += node.write(b"the segment's first is not written there, the next one is")
    monkeypatch.setattr(writing, "STALL_S", 0.0)
    written += node.write(b"slow")
    assert (writer._slow_until_s > 0) is node.here
    written += node.submit(b"left to the thread")
    assert not writer._here
    node.loop.until(lambda: node.journal.idle)
    node.restart()
    assert len(node.read(*written)) == 4


def test_a_group_that_waits_for_the_loop_is_written_when_the_journal_is_closed(node: Node) -> None:
    node.write(b"first")
    (seq,) = node.submit(b"last")
    node.restart()
    assert [message.body for message in node.read(seq)] == [b"last"]


def test_a_group_larger_than_a_segment_gets_its_own(node: Node) -> None:
    node.write(b"before")
    node.write(b"large" * 3000)
    node.write(b"after")
    assert {1, 2, 3} <= set(node.segments())
    assert (node.directory / "segments/00000002.seg").stat().st_size > 15000
    node.restart()
    assert [m.body for m in node.read(1, 2, 3)] == [b"before", b"large" * 3000, b"after"]


def test_recovery_after_a_checkpoint_reads_runs_and_tail(node: Node) -> None:
    node.write(*[b"a" * 10] * 300)
    node.settle(1, 10)
    node.checkpoint()
    node.write(*[b"b"] * 5)
    node.settle(290, 302)
    places = node.memory.queues
    node.restart()
    assert node.memory.queues == places
    assert node.memory.metas == {1: {"next_seq": 301, "reserved": 0}}
    assert node.tail.groups == 2
    assert [m.body for m in node.read(11, 303)] == [b"a" * 10, b"b"]


def test_a_forgotten_queue_leaves_nothing(node: Node) -> None:
    for queue_id in (1, 2, 3):
        node.write(*[b"x"] * 300, queue_id=queue_id)
    node.checkpoint()
    for place in node.memory.queues.pop(2).values():
        node.journal.use.release(place.segment, place.length)
    node.checkpoint(forgotten=(2,))
    node.restart()
    assert sorted(node.memory.queues) == sorted(node.memory.metas) == [1, 3]


def test_checkpoint_is_due_by_bytes_or_age(tmp_path: Path) -> None:
    node = Node(tmp_path, replace(SMALL, checkpoint_bytes=1000, checkpoint_interval_s=1e9))
    node.write(b"x")
    assert not node.journal.checkpoint_due
    node.write(b"x" * 1000)
    assert node.journal.checkpoint_due
    node.checkpoint()
    assert not node.journal.checkpoint_due
    node.journal.close()
    node = Node(tmp_path, replace(SMALL, checkpoint_bytes=1000, checkpoint_interval_s=0.0))
    assert not node.journal.checkpoint_due
    node.write(b"x")
    assert node.journal.checkpoint_due
    node.journal.close()


def test_segments_without_live_messages_go_after_a_checkpoint(node: Node) -> None:
    for _ in range(20):
        node.write(b"x" * 1000)
    ahead = node.journal.position.segment + 1
    node.loop.until(lambda: ahead in node.segments())  # its writer allocates it behind the last group
    segments = node.segments()
    assert len(segments) > 6
    node.settle(1, 10)
    assert node.segments() == segments
    node.checkpoint()
    left = node.segments()
    assert left == segments[-len(left) :]
    assert left[0] == node.memory.queues[1][11].segment
    node.restart()
    assert [m.body for m in node.read(*range(11, 21))] == [b"x" * 1000] * 10


def test_a_segment_that_was_live_when_the_checkpoint_was_taken_stays(node: Node) -> None:
    for _ in range(8):
        node.write(b"x" * 1000)
    done: list[int] = []
    node.journal.checkpoint(node.memory.runs(), [], [], node.journal.position, lambda: done.append(1))
    for place in node.memory.queues[1].values():
        node.journal.use.release(place.segment, place.length)
    node.loop.until(lambda: bool(done))
    assert node.segments()[0] == 1
    node.restart()
    assert len(node.memory.queues[1]) == 8


def copy_forward(node: Node, segment: int, sync: bool = True) -> int:
    """Writes again what lives in a segment; how many messages that were."""
    got: list = []
    node.journal.survivors(segment, got.append)
    node.loop.until(lambda: bool(got))
    writer = node.journal.begin_group(sum(s.message.size for s in got[0]))
    moved = 0
    for survivor in got[0]:
        place = node.memory.queues[survivor.queue_id].get(survivor.seq)
        if place is not None and (place.segment, place.offset) == (segment, survivor.offset):
            node.put(writer, survivor.queue_id, survivor.seq, survivor.message)
            moved += 1
    node.commit(writer, sync)
    return moved


def test_sparse_segments_are_copied_forward(node: Node) -> None:
    for i in range(12):
        node.write(b"%d" % i * 700, b"keep%d" % i)
    for i in range(12):
        node.settle(2 * i + 1, 2 * i + 1)
    node.checkpoint()
    sparse = node.journal.sparse_segments()
    assert sparse
    assert 1 in sparse
    assert sum(copy_forward(node, segment) for segment in sparse) >= len(sparse)
    node.restart()  # the move alone, without a checkpoint
    node.checkpoint()
    assert not set(sparse) & set(node.segments())
    node.restart()
    assert [m.body for m in node.read(*range(2, 25, 2))] == [b"keep%d" % i for i in range(12)]


def test_survivors_are_what_the_index_knows_there(node: Node) -> None:
    """Several queues in turn, runs that are settled as a whole, messages that were moved or settled since."""
    rng = random.Random(7)
    for i in range(700):
        queue_id = rng.choice((1, 1, 2, 1 << 40))
        node.write(b"%d" % i, b"z" * rng.randrange(30), queue_id=queue_id, sync=False)
    for queue_id, seqs in node.seqs.items():
        node.settle(3, seqs // 2, queue_id=queue_id)
        for seq in range(seqs // 2 + 1, seqs, 3):
            node.settle(seq, seq, queue_id=queue_id)
    node.checkpoint()
    known = {q: dict(places) for q, places in node.memory.queues.items()}
    assert copy_forward(node, 1) > 0
    node.settle(1, 1)
    found = 0
    for segment in node.segments():
        if segment >= node.journal.position.segment:
            break
        got: list = []
        node.journal.survivors(segment, got.append)
        node.loop.until(lambda got=got: bool(got))
        lives = [
            (q, seq, p.offset) for q in sorted(known) for seq, p in sorted(known[q].items()) if p.segment == segment
        ]
        assert [(s.queue_id, s.seq, s.offset) for s in got[0]] == lives
        for queue_id, seq, offset, message in got[0]:
            length = known[queue_id][seq].length
            node.journal.read(queue_id, [(seq, segment, offset, length)], got.append)
            node.loop.until(lambda got=got: len(got) == 2)
            assert message.body == got.pop()[0].body
        found += len(lives)
    assert found > 100


def test_a_segment_is_copied_forward_when_it_stays_sparse(tmp_path: Path) -> None:
    """Not when its last messages leave by the next checkpoint; and no more at once than twice a checkpoint's bytes."""
    node = Node(tmp_path, replace(SMALL, checkpoint_bytes=SMALL.segment_bytes, checkpoint_interval_s=0.0))
    for _ in range(6):
        node.write(b"x" * 3500, b"stays")
    for _ in range(6):
        node.write(b"x" * 3500, b"leaves")
    node.write(b"x" * 3500)
    for seq in range(1, 25, 2):
        node.settle(seq, seq)
    node.checkpoint()
    assert node.journal.sparse_segments() == list(range(1, 13))
    assert node.journal.lingering_segments() == []
    assert node.journal.checkpoint_due, "though nothing was written: what stays is to be found out"
    for seq in range(14, 26, 2):
        node.settle(seq, seq)
    node.checkpoint()
    assert node.journal.lingering_segments() == [1, 2]
    node.checkpoint()
    assert node.journal.lingering_segments() == [3, 4]
    for segment in (1, 2, 3, 4, 5, 6):
        copy_forward(node, segment)
    node.checkpoint()
    assert node.journal.lingering_segments() == []
    assert not node.journal.checkpoint_due, "nothing is sparse any more"
    assert node.segments()[0] == 13
    node.journal.close()


@pytest.mark.parametrize("spare", [SPARE_SEGMENTS, SPARE_SEGMENTS + 1])
def test_a_few_sparse_segments_wait_until_the_load_is_over(tmp_path: Path, spare: int) -> None:
    node = Node(tmp_path, replace(SMALL, segment_bytes=16384, checkpoint_interval_s=0.0))
    for _ in range(spare):
        seqs = node.write(b"x" * 15000, b"stays")
        node.settle(seqs[0], seqs[0])
    node.write(b"x" * 15000)
    node.checkpoint()
    assert len(node.journal.sparse_segments()) == spare
    assert node.journal.lingering_segments() == []
    node.checkpoint()
    for _ in range(BUSY_BYTES // 15000 + 1):
        node.write(b"x" * 15000)
    under_load = node.journal.lingering_segments()
    assert node.journal.checkpoint_due
    node.checkpoint()  # and nothing is written meanwhile
    quiet = node.journal.lingering_segments()
    assert (len(under_load), len(quiet)) == ((0, spare) if spare == SPARE_SEGMENTS else (spare, 0))
    node.journal.close()


@pytest.mark.long
def test_thin_segments_keep_a_bounded_part_of_the_disk(tmp_path: Path) -> None:
    """One message in fifty stays for good: all else is given back while it goes on."""
    options = replace(SMALL, segment_bytes=16384, checkpoint_bytes=16384, checkpoint_interval_s=1e9)
    node = Node(tmp_path, options)
    for i in range(400):
        seqs = node.write(b"x" * 3500, b"%d" % i, sync=False)  # a flush of each takes a slow disk ten minutes
        node.settle(seqs[0], seqs[0], sync=False)
        if node.journal.checkpoint_due:
            node.checkpoint()
            for segment in node.journal.lingering_segments():
                copy_forward(node, segment, sync=False)
        live = sum(place.length for place in node.memory.queues[1].values())
        filled = live * 100 // options.sparse_percent // options.segment_bytes + 1
        # one is in use, one ahead, and 4 are not known to linger yet, or not given back yet
        assert len(node.segments()) <= filled + 6
    assert node.journal.position.segment > 100
    node.restart()
    assert [m.body for m in node.read(*range(2, 802, 2))] == [b"%d" % i for i in range(400)]
    node.journal.close()


def test_read_joins_neighbours_across_segments_and_reports_damage(node: Node) -> None:
    seqs = [seq for i in range(30) for seq in node.write(b"%d" % i * 100, b"y" * 200)]
    assert len(node.segments()) > 3
    assert [m.body for m in node.read(*seqs)] == [b for i in range(30) for b in (b"%d" % i * 100, b"y" * 200)]
    assert [m.body for m in node.read(seqs[40], seqs[0])] == [b"20" * 100, b"0" * 100]
    place = node.memory.queues[1][seqs[7]]
    with open(node.directory / f"segments/{place.segment:08d}.seg", "r+b") as file:
        file.seek(place.offset + 60)
        file.write(b"#")
    damage = node.read(*seqs)
    assert isinstance(damage, DamagedRecord)
    assert "wrong checksum" in str(damage)
    assert f"{place.segment:08d}.seg" in str(damage)
    assert "queue 0x1" in str(damage)


def test_a_vanished_segment_under_a_read_is_damage(node: Node) -> None:
    node.write(b"x")
    os.unlink(node.directory / "segments/00000001.seg")
    assert isinstance(node.read(1), DamagedRecord)


def test_a_second_process_is_refused(node: Node) -> None:
    with pytest.raises(LockedJournal):
        Journal.open(node.directory, SMALL, Loop().calls.put, print)


def test_another_format_is_refused(node: Node) -> None:
    node.journal.close()
    index = Index(node.directory)
    with index._env.begin(write=True) as txn:
        index._put(txn, index._journal, b"format", b"\x81\xa7version\x04")
    index.close()
    with pytest.raises(ForeignJournal, match="format 4"):
        node.start()


def test_a_flipped_byte_in_the_index_is_damage(node: Node) -> None:
    node.write(*[b"x"] * 40)
    node.checkpoint()
    node.journal.close()
    path = node.directory / "index/data.mdb"
    raw = bytearray(path.read_bytes())
    packed = pack_run(node.memory.runs()[0][2])
    raw[raw.rindex(packed) + 30] ^= 4
    path.write_bytes(raw)
    with pytest.raises(DamagedJournal, match="clusterbroker journal check") as damage:
        node.start()
    assert damage.value.queue_id == 1


def test_a_run_into_a_missing_segment_is_damage(node: Node) -> None:
    for _ in range(9):
        node.write(b"x" * 1000)
    node.checkpoint()
    node.journal.close()
    os.unlink(node.directory / "segments/00000002.seg")
    with pytest.raises(DamagedJournal, match="file is gone"):
        node.start()


def test_a_missing_segment_of_the_log_is_damage(node: Node) -> None:
    for _ in range(9):
        node.write(b"x" * 1000)
    node.journal.close()
    for segment in (1, 2):
        path = node.directory / f"segments/{segment:08d}.seg"
        away = path.with_suffix(".away")
        path.rename(away)
        with pytest.raises(DamagedJournal):
            node.start()
        away.rename(path)
    node.start()


def test_five_million_messages_are_cheap_to_load(node: Node) -> None:
    """Not a timed test: that runs go through whole, without a call per message."""
    run = b"".join(RUN_ENTRY.pack(i, 0, 0, 0, 1, 32, 80, 3) for i in range(256))
    node.write(b"x")
    done: list[int] = []
    runs = [(7, 256 * i, run) for i in range(200)]
    node.journal.checkpoint(runs, [(7, {})], [], node.journal.position, lambda: done.append(1))
    node.loop.until(lambda: bool(done))
    node.journal.close()
    calls: list[int] = []
    sink = Memory()
    sink.run = lambda queue_id, first_seq, entries: calls.append(len(entries))  # type: ignore[method-assign]
    node.journal = Journal.open(node.directory, SMALL, node.loop.calls.put, print)
    node.journal.recover(sink)
    assert calls == [256 * RUN_ENTRY.size] * 200


def test_free_bytes_is_what_the_file_system_says(node: Node) -> None:
    found = os.statvfs(node.directory)
    assert abs(node.journal.free_bytes() - found.f_bavail * found.f_frsize) < 1 << 30


def test_message_of_is_what_the_tests_think() -> None:
    assert message_of(b"abc").body == b"abc"
