"""Epochs, producers and the dead set of a replicated queue: the fold, and its way through meta, tail, inspection and
compaction."""

from __future__ import annotations

from pathlib import Path

from journal_bench import SMALL, Node

from clusterbroker.journal.check import check
from clusterbroker.journal.compact import compact
from clusterbroker.journal.inspect import JournalView
from clusterbroker.journal.queue_state import LAST_DEAD, QueueState


def test_an_epoch_that_never_came_to_be_is_forgotten() -> None:
    state = QueueState()
    state.began(1, 1)
    state.began(2, 10)
    state.began(4, 20)
    state.cut(15)
    assert state.epochs == [(1, 1), (2, 10)]
    state.began(5, 15)
    state.began(5, 15)
    assert state.epochs == [(1, 1), (2, 10), (5, 15)]
    state.began(6, 10)
    assert state.epochs == [(1, 1), (6, 10)]


def test_the_dead_leave_with_what_settles_or_cuts_them() -> None:
    state = QueueState()
    for seq in range(1, 9):
        state.died(seq, seq << 8 | 2)
    state.settled(2, 3)
    state.settled(0, 2**63)
    assert state.dead == {}
    assert state.attributes == {LAST_DEAD: 8}
    state.died(20, 9 << 8)
    state.died(3, 10 << 8)
    state.cut(20)
    assert state.dead == {3: 10 << 8}


def test_a_meta_keeps_it_and_an_old_meta_has_none() -> None:
    assert QueueState.of_meta({"next_seq": 5, "reserved": 2, "epoch": 1}).epochs == []
    state = QueueState()
    meta = {"next_seq": 5, "epochs": [[1, 1]], "producers": [[b"gone", 2]]}
    state.into(meta)
    assert meta == {"next_seq": 5}
    state.began(3, 4)
    state.set_attribute(b"node/2", 9)
    state.set_attribute(b"other", 1)
    state.set_attribute(b"other", 0)
    state.died(2, 1 << 8 | 4)
    state.into(meta)
    again = QueueState.of_meta(meta)
    assert (again.epochs, again.dead) == ([(3, 4)], {2: 1 << 8 | 4})
    assert again.attributes == {b"node/2": 9, LAST_DEAD: 1}


def test_the_new_records_through_tail_inspection_and_compaction(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write(*[b"%d" % n for n in range(20)], queue_id=1)
    node.checkpoint()
    writer = node.journal.begin_group()
    writer.begin_epoch(1, 1, 1)
    writer.begin_epoch(1, 3, 11)
    writer.dead(1, 3, 2, 1 << 8 | 2)
    writer.dead(1, 3, 18, 2 << 8 | 2)
    writer.set_attribute(1, 3, b"node/1", 40)
    writer.cut(1, 3, 16)
    node.commit(writer)
    node.journal.close()
    assert check(tmp_path).ok
    assert check(tmp_path).records["DEAD"] == 2
    for _ in range(2):
        with JournalView(tmp_path) as view:
            (queue,) = view.queues()
            assert (queue.ready, queue.newest_seq, queue.dead) == (15, 15, 1)
            assert [entry.seq for entry in view.entries(1)] == list(range(1, 16))
        compact(tmp_path, SMALL)
    node.start()
    assert sorted(node.memory.queues[1]) == list(range(1, 16))
    meta = node.memory.metas[1]
    assert (meta["next_seq"], meta["epoch"]) == (16, 3)
    state = QueueState.of_meta(meta)
    assert state.epochs == [(1, 1), (3, 11)]
    assert state.dead == {2: 1 << 8 | 2}
    assert state.attributes == {b"node/1": 40, LAST_DEAD: 2}
    node.journal.close()
