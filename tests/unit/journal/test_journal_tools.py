"""check, inspect and compact: what they say of whole journals and of broken ones, and that they leave them alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from journal_bench import SMALL, Node, message_of

from clusterbroker.journal.check import Costs, check
from clusterbroker.journal.compact import compact
from clusterbroker.journal.errors import DamagedJournal, LockedJournal
from clusterbroker.journal.inspect import JournalView
from clusterbroker.journal.record import enqueued, verify_records
from tests.support import processes


def files_of(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def used(tmp_path: Path) -> Iterator[Node]:
    """Two queues, old segments, some reclaimed, a checkpoint, a tail; closed."""
    node = Node(tmp_path)
    for i in range(40):
        node.write(b"%d" % i * 100, queue_id=1)
        node.write(*[b"%d" % i] * 20, queue_id=2)
    node.settle(1, 30)
    node.checkpoint()
    node.write(b"tail", b"tail2")
    node.settle(31, 32)
    node.settle(1, 700, queue_id=2)
    writer = node.journal.begin_group()
    writer.reserve(1, 1, 35)
    writer.count_delivery(1, 1, 36, 4)
    node.commit(writer)
    node.segments()
    node.journal.close()
    yield node
    node.journal.close()


def test_a_whole_journal_is_proved_and_left_alone(used: Node) -> None:
    before = files_of(used.directory)
    steps: list[tuple[int, int]] = []
    report = check(used.directory, lambda done, of: steps.append((done, of)))
    assert report.broken == []
    assert report.ok
    assert not report.torn
    assert not report.running
    assert report.queues == 2
    assert report.indexed_messages == 10 + 800
    assert report.checkpoint is not None
    assert report.end == used.journal.position
    assert report.records["RSV"] == report.records["REQ"] == 1
    assert steps[-1][0] == steps[-1][1]
    assert files_of(used.directory) == before


def test_messages_come_as_their_records_in_any_range(used: Node) -> None:
    with JournalView(used.directory) as view:
        for first, last in ((0, 2**62), (701, 701), (500, 720), (250, 255), (256, 790), (801, 900)):
            wanted = [entry.seq for entry in view.entries(2) if first <= entry.seq <= last]
            assert [entry.seq for entry in view.entries(2, first, last)] == wanted
            data = b"".join(view.records(2, first, last))
            assert enqueued(data)[1] == verify_records(data, 2, 1) == len(wanted)
        assert view.bounds(2) == (701, 801)
    with JournalView(used.directory) as view:
        damaged = next(iter(view.entries(2)))
        path = used.directory / "segments" / f"{damaged.segment:08d}.seg"
        data = bytearray(path.read_bytes())
        data[damaged.offset + damaged.length - 1] ^= 1
        path.write_bytes(data)
        with pytest.raises(DamagedJournal):
            list(view.records(2))


def test_an_empty_and_a_missing_journal(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        check(tmp_path)
    with pytest.raises(FileNotFoundError):
        JournalView(tmp_path)
    Node(tmp_path).journal.close()
    assert check(tmp_path).ok
    with JournalView(tmp_path) as view:
        assert list(view.queues()) == []


@pytest.mark.long
def test_every_damaged_record_is_found(used: Node) -> None:
    """Live or not, before the checkpoint or after it: a changed byte in any group is reported with its file."""
    for path in sorted((used.directory / "segments").glob("*.seg"))[:-2]:
        data = bytearray(path.read_bytes())
        end = len(bytes(data).rstrip(b"\0"))
        for at in range(0, end, 211):
            damaged = bytearray(data)
            damaged[at] ^= 0x10
            path.write_bytes(damaged)
            report = check(used.directory)
            assert not report.ok, f"byte {at} of {path.name}"
            assert any(path.name in broken.file for broken in report.broken)
        path.write_bytes(data)
    assert check(used.directory).ok


def test_a_missing_segment_is_found(used: Node) -> None:
    segment = min(place.segment for place in used.memory.queues[2].values())
    path = used.directory / f"segments/{segment:08d}.seg"
    path.rename(path.with_suffix(".away"))
    report = check(used.directory)
    assert any("file is gone" in str(broken) and "queue 0x2" in str(broken) for broken in report.broken)


def test_an_index_that_lies_is_found(used: Node) -> None:
    used.start()
    places = used.memory.queues[2]
    seq = max(places)
    places[seq].offset, places[seq - 1].offset = places[seq - 1].offset, places[seq].offset
    used.checkpoint()
    used.journal.close()
    report = check(used.directory)
    assert [(broken.queue_id, broken.seq) for broken in report.broken] == [(2, seq - 1), (2, seq)]
    assert {broken.costs for broken in report.broken} == {Costs.MESSAGE}
    assert f"not message {seq - 1} of queue 2" in report.broken[0].what


def test_a_torn_tail_is_told_but_is_no_damage(used: Node) -> None:
    segment, offset, _ = used.journal.position
    path = used.directory / f"segments/{segment:08d}.seg"
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(b"CBJ1 and then the power went")
    report = check(used.directory)
    assert report.ok
    assert report.torn


def test_inspect_lists_queues_and_messages(used: Node) -> None:
    before = files_of(used.directory)
    with JournalView(used.directory) as view:
        one, two = view.queues()
        assert (one.queue_id, one.ready, one.oldest_seq, one.newest_seq) == (1, 10, 33, 42)
        assert (one.body_bytes, one.oldest_ms, one.newest_ms) == (8 * 200 + 9, 1000, 1000)
        assert one.redelivered == 4  # up to 35 by reservation, 36 by its count
        assert (two.ready, two.oldest_seq) == (100, 701)
        assert one.meta["next_seq"] == 41
        stored = list(view.messages(1))
        assert [m.entry.seq for m in stored] == list(range(33, 43))
        assert [m.message.body for m in stored[-2:]] == [b"tail", b"tail2"]
        assert [(m.entry.redelivered, m.entry.delivery_count) for m in stored[2:5]] == [
            (True, 0),
            (True, 4),
            (False, 0),
        ]
        assert len(list(view.messages(2))) == 100
    assert files_of(used.directory) == before


def test_inspect_says_which_message_is_damaged(used: Node) -> None:
    place = used.memory.queues[2][750]
    with open(used.directory / f"segments/{place.segment:08d}.seg", "r+b") as file:
        file.seek(place.offset + 40)
        file.write(b"###")
    with JournalView(used.directory) as view:
        list(view.messages(1))
        with pytest.raises(DamagedJournal) as damage:
            list(view.messages(2))
    assert (damage.value.queue_id, damage.value.offset) == (2, place.offset)


BESIDE = """
import json, sys
from clusterbroker.journal.check import check
from clusterbroker.journal.inspect import JournalView
from clusterbroker.journal.record import enqueued, verify_records
report = check(sys.argv[1])
with JournalView(sys.argv[1]) as view:
    ready = {q.queue_id: q.ready for q in view.queues()}
    read = sum(1 for q in view.queue_ids() for _ in view.messages(q))
print(json.dumps([report.running, [str(b) for b in report.broken], ready, read]))
"""


def test_beside_a_running_node(used: Node) -> None:
    """A second process proves and reads the journal while this one writes, settles and reclaims."""
    used.start()
    process = processes.popen([sys.executable, "-c", BESIDE, str(used.directory)], stdout=subprocess.PIPE, text=True)
    while process.poll() is None:
        used.write(*[b"y" * 100] * 20)
        oldest = min(used.memory.queues[1])
        used.settle(oldest, oldest + 18)
        used.checkpoint()
    assert process.stdout is not None
    running, broken, ready, read = json.loads(process.stdout.read())
    assert (running, broken) == (True, [])
    assert ready["2"] == 100
    assert read >= 100


def test_compact_moves_what_lives_and_shrinks_the_rest(used: Node) -> None:
    used.start()
    for i in range(30):
        used.write(b"%d" % i * 700, b"keep%d" % i, queue_id=3)
    for i in range(30):
        used.settle(2 * i + 1, 2 * i + 1, queue_id=3)
    with pytest.raises(LockedJournal):
        compact(used.directory)
    used.journal.close()
    with JournalView(used.directory) as view:
        before = {q: [(m.entry.seq, m.message.body) for m in view.messages(q)] for q in (1, 2, 3)}
    report = compact(used.directory, SMALL)
    assert report.messages_moved >= 20
    assert report.segments_removed > 5
    assert report.bytes_after < report.bytes_before
    assert check(used.directory).broken == []
    with JournalView(used.directory) as view:
        assert {q: [(m.entry.seq, m.message.body) for m in view.messages(q)] for q in (1, 2, 3)} == before
        counts = {m.entry.seq: (m.entry.redelivered, m.entry.delivery_count) for m in view.messages(1)}
        assert (counts[35], counts[36]) == ((True, 0), (True, 4))
    used.start()
    assert used.memory.metas[3]["next_seq"] == 61
    assert set(used.memory.queues[3]) == {seq for seq, _ in before[3]}


def test_compact_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        compact(tmp_path)
    assert message_of(b"").size > 0


def flipped(directory: Path, segment: int, at: int) -> None:
    path = directory / f"segments/{segment:08d}.seg"
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_damage_of_one_record_names_its_message_and_what_it_costs(used: Node) -> None:
    """A start goes on with it. Before, the group was named, and only where the index knew the message its queue."""
    old, live = used.memory.queues[2][750], used.memory.queues[1][max(used.memory.queues[1])]
    for place in (old, live):
        flipped(used.directory, place.segment, place.offset + place.length - 1)
    whole = check(used.directory, knows=lambda queue_id: queue_id == 1)
    found = {(broken.queue_id, broken.seq, broken.offset, broken.costs) for broken in whole.broken}
    assert found == {
        (2, 750, old.offset, Costs.MESSAGE),
        (1, max(used.memory.queues[1]), live.offset, Costs.MESSAGE),
    }
    assert len(whole.broken) == 2, "each is said once"
    assert "(message 750 of queue 0x2)" in " ".join(map(str, whole.broken))
    unknown = check(used.directory, knows=lambda queue_id: queue_id == 2)
    assert Costs.JOURNAL in {broken.costs for broken in unknown.broken}, "what a damaged head says of nobody"


def test_damage_of_what_no_start_reads_costs_nothing(used: Node) -> None:
    """A record before the checkpoint, of a message that is settled."""
    used.start()
    place = used.memory.queues[2][701]
    used.settle(701, 701, queue_id=2)
    used.checkpoint()
    used.journal.close()
    flipped(used.directory, place.segment, place.offset + place.length - 1)
    report = check(used.directory)
    assert [(b.queue_id, b.seq, b.costs) for b in report.broken] == [(2, 701, Costs.NOTHING)]
    flipped(used.directory, place.segment, place.offset + place.length - 1)
    assert check(used.directory).ok
