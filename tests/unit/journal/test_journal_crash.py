"""What a crash or a bad disk leaves, byte by byte, and what recovery makes of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from journal_bench import SMALL, Node

from clusterbroker.journal.errors import DamagedJournal
from clusterbroker.journal.layout import GROUP_HEADER, WINDOW_SHIFT
from tests.support import processes


def file_of(node: Node, segment: int = 1) -> Path:
    return node.directory / f"segments/{segment:08d}.seg"


def group_starts(data: bytes) -> list[int]:
    starts, at = [], 0
    while data[at : at + 4] == b"CBJ1":
        starts.append(at)
        at += GROUP_HEADER.unpack_from(data, at)[2]
    return [*starts, at]


def three_groups(directory: Path, **groups: bool) -> tuple[Node, bytes, list[int]]:
    sync = groups.get("sync", True)
    node = Node(directory, replace(SMALL, flush_interval_s=SMALL.flush_interval_s if sync else 600.0))
    for i in range(3):
        node.write(b"%d" % i * 20, b"last", sync=sync)
    node.journal.close()
    data = file_of(node).read_bytes()
    return node, data, group_starts(data)


@pytest.mark.long
def test_the_last_group_torn_at_every_byte_is_cut(tmp_path: Path) -> None:
    node, data, starts = three_groups(tmp_path)
    for cut in range(starts[2], starts[3]):
        torn = data[:cut] + bytes(len(data) - cut)
        file_of(node).write_bytes(torn)
        node.start()
        whole = data[cut : starts[3]] == bytes(starts[3] - cut)
        assert sorted(node.memory.queues[1]) == list(range(1, 7 if whole else 5))
        assert node.tail.torn == (not whole and any(torn[starts[2] :]))
        node.write(b"x")
        node.restart()
        assert len(node.memory.queues[1]) == (7 if whole else 5)
        assert not node.tail.torn
        node.journal.close()


def test_the_last_group_with_every_sector_missing_is_cut(tmp_path: Path) -> None:
    """Power failed: the sectors of one write may arrive in any order, the header's may be the missing one."""
    node, data, starts = three_groups(tmp_path)
    for at in range(starts[2], starts[3], 8):
        file_of(node).write_bytes(data[:at] + bytes(8) + data[at + 8 :])
        node.start()
        assert len(node.memory.queues[1]) in (4, 6)
        node.journal.close()


def test_what_stands_behind_a_cut_never_comes_back(tmp_path: Path) -> None:
    """A shorter group takes the torn one's place; the torn one's rest must not look like its successor."""
    node, data, starts = three_groups(tmp_path, sync=False)
    file_of(node).write_bytes(data[: starts[1]] + bytes(8) + data[starts[1] + 8 :])
    node.start()
    assert node.tail.torn
    assert sorted(node.memory.queues[1]) == [1, 2]
    assert not any(file_of(node).read_bytes()[starts[1] :])
    assert file_of(node).stat().st_size == SMALL.segment_bytes
    node.journal.close()


@pytest.mark.long
def test_every_bit_flip_in_an_older_group_is_damage_and_nothing_is_changed(tmp_path: Path) -> None:
    node, data, starts = three_groups(tmp_path)
    for bit in range(0, 8 * starts[2], 5):
        flipped = bytearray(data)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        file_of(node).write_bytes(flipped)
        with pytest.raises(DamagedJournal, match=r"00000001.seg at byte \d+.*clusterbroker journal check"):
            node.start()
        assert file_of(node).read_bytes() == flipped


def test_damage_is_seen_across_segments(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for _ in range(9):
        node.write(b"x" * 1000)
    node.journal.close()
    starts = group_starts(file_of(node).read_bytes())
    with open(file_of(node), "r+b") as file:
        file.seek(starts[-2] + 100)
        file.write(b"#")
    with pytest.raises(DamagedJournal):
        node.start()


def test_unflushed_groups_may_be_missing_in_any_order(tmp_path: Path) -> None:
    """Durability `disk` and a power failure: a later group reached the disk, the one before it did not, and
    neither had been flushed. That is a torn tail. The same hole under a flushed group is damage."""
    node, data, starts = three_groups(tmp_path, sync=False)
    windows = [GROUP_HEADER.unpack_from(data, start)[5] >> WINDOW_SHIFT for start in starts[:3]]
    assert windows[2] > 1, "the three groups were written within one flush interval"
    file_of(node).write_bytes(data[: starts[1]] + bytes(starts[2] - starts[1]) + data[starts[2] :])
    node.start()
    assert sorted(node.memory.queues[1]) == [1, 2]
    assert node.tail.torn
    node.journal.close()

    shutil.rmtree(tmp_path / "segments")
    shutil.rmtree(tmp_path / "index")
    node, data, starts = three_groups(tmp_path, sync=True)
    file_of(node).write_bytes(data[: starts[1]] + bytes(starts[2] - starts[1]) + data[starts[2] :])
    with pytest.raises(DamagedJournal, match="it was durable, because group 3 follows"):
        node.start()


def test_a_checkpoint_beyond_the_log_is_damage(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write(b"x" * 100)
    node.checkpoint()
    node.journal.close()
    os.truncate(file_of(node), 64)
    with pytest.raises(DamagedJournal, match="before the checkpoint"):
        node.start()


def test_a_failing_flush_is_for_ever(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write(b"x")
    writer = node.journal._writer
    assert writer is not None
    os.close(writer._fd)
    answered: list[int] = []
    node.submit(b"y", done=lambda: answered.append(1))
    node.loop.until(lambda: node.states == ["failed"])
    assert not answered
    writer._fd = -1
    node.journal.close()
    assert not answered


CRASHER = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from dataclasses import replace
from journal_bench import SMALL, Node
node = Node(Path(sys.argv[1]), replace(SMALL, segment_bytes=65536))
places = node.memory.queues.get(1, {})
print("start", min(places, default=0), max(places, default=0), len(places), flush=True)
n = 0
while True:
    n += 1
    seqs = node.write(*[b"%d" % i * (n % 90 + 1) for i in range(n % 7 + 1)], sync=n % 4 > 0)
    print("wrote", seqs[-1], flush=True)
    if n % 5 == 0 and len(node.memory.queues[1]) > 40:
        first = min(node.memory.queues[1])
        print("settling", first + 20, flush=True)
        node.settle(first, first + 19)
        print("settled", first + 20, flush=True)
    if n % 11 == 0:
        node.checkpoint()
"""


@pytest.mark.faults
@pytest.mark.faults
def test_twenty_kills_lose_and_resurrect_nothing(tmp_path: Path) -> None:
    """A writer is killed in the middle of it, over and over, in the same directory. What it said to be written is
    there, what it said to be settled is gone, in one row of seqs without a hole."""
    wrote = settling = settled = 0
    for kill in range(22):
        process = processes.popen(
            [sys.executable, "-c", CRASHER, str(tmp_path), str(Path(__file__).parent)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        line = process.stdout.readline().split()
        assert line[0] == "start"
        first, last, count = map(int, line[1:])
        assert count == (last - first + 1 if count else 0)
        if kill:
            assert last >= wrote
            assert settled <= first <= settling or first == 1
        deadline_s = time.monotonic() + 0.05 + 0.01 * kill
        for lines, text in enumerate(process.stdout, 1):
            if not text.endswith("\n"):
                break  # the kill came in the midst of a line
            word, seq = text.split()
            if word == "wrote":
                wrote = int(seq)
            elif word == "settling":
                settling = int(seq)
            else:
                settled = int(seq)
            if process.returncode is None and time.monotonic() > deadline_s and lines > 20:
                process.send_signal(signal.SIGKILL)
                process.returncode = None
                deadline_s = float("inf")
        assert process.wait() == -signal.SIGKILL
    node = Node(tmp_path, replace(SMALL, segment_bytes=65536))
    places = node.memory.queues[1]
    assert sorted(places) == list(range(min(places), max(places) + 1))
    assert max(places) >= wrote
    messages = node.read(*sorted(places))
    assert len(messages) == len(places)
    node.journal.close()


@pytest.fixture
def small_disk(tmp_path: Path):
    directory = tmp_path / "small"
    directory.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)], capture_output=True
        ).returncode
    ):
        pytest.skip("mounting a tmpfs is not permitted")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


DISK = replace(SMALL, segment_bytes=64 * 1024, reserve_bytes=32 * 1024, map_bytes=1 << 30)


def fill(directory: Path, leave: int = 0) -> Path:
    ballast = directory / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    if leave:
        os.truncate(ballast, ballast.stat().st_size - leave)
    return ballast


def test_a_full_disk_is_told_early_waited_for_and_left_without_loss(small_disk: Path) -> None:
    node = Node(small_disk, DISK)
    node.write(b"a" * 1000)
    ballast = fill(small_disk)
    answered: list[int] = []
    rolled = node.journal.position.segment + 1
    while node.journal.position.segment <= rolled and node.states != ["full"]:
        node.write(b"x" * 8000)  # still fits what is allocated
    node.loop.until(lambda: node.states == ["full"])
    while True:
        answered.clear()
        segment = node.journal.position.segment
        node.submit(b"y" * 8000, done=lambda: answered.append(1))
        if node.journal.position.segment > segment:
            break
        node.loop.until(lambda: bool(answered))
    end = time.monotonic() + 0.2
    node.loop.until(lambda: time.monotonic() > end)
    assert not answered, "a group without a place was acknowledged"
    ballast.unlink()
    node.loop.until(lambda: bool(answered))
    node.loop.until(lambda: node.states == ["full", "ok"])
    count = len(node.memory.queues[1])
    node.restart()
    assert len(node.memory.queues[1]) == count
    node.journal.close()


def test_a_group_that_found_no_space_is_given_up_at_close(small_disk: Path) -> None:
    node = Node(small_disk, DISK)
    written = node.write(b"a")
    answered: list[int] = []
    fill(small_disk)
    node.submit(b"b" * 500_000, done=lambda: answered.append(1))
    node.loop.until(lambda: "full" in node.states)
    node.journal.close()
    assert not answered
    (small_disk / "ballast").unlink()
    node.start()
    assert sorted(node.memory.queues[1]) == written
    node.journal.close()


def test_settling_frees_a_full_disk(small_disk: Path) -> None:
    """The way out: publishers stopped, acknowledgements still fit, a checkpoint gives segments back."""
    node = Node(small_disk, DISK)
    for _ in range(20):
        node.write(b"z" * 8000)
    node.loop.until(lambda: node.journal._writer is not None and node.journal._writer._ahead >= 0)
    fill(small_disk)
    while "full" not in node.states:
        node.write(b"z" * 8000)
        end = time.monotonic() + 0.02
        node.loop.until(lambda end=end: time.monotonic() > end or "full" in node.states)
    node.settle(1, max(node.memory.queues[1]))
    node.checkpoint()
    node.loop.until(lambda: node.states[-1] == "ok")
    node.restart()
    assert not node.memory.queues.get(1)
    node.journal.close()


def test_the_replayed_tail_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel whose write-back has failed calls the pages clean: a flush alone would make nothing durable."""
    node, data, starts = three_groups(tmp_path)
    written: list[tuple[int, bytes]] = []
    pwrite = os.pwrite

    def noted(fd: int, piece: bytes, offset: int) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("00000001.seg"):
            written.append((offset, bytes(piece)))
        return pwrite(fd, piece, offset)

    monkeypatch.setattr(os, "pwrite", noted)
    node.start()
    tail = bytearray(starts[3])
    for offset, piece in written:
        tail[offset : offset + len(piece)] = piece
    assert bytes(tail) == data[: starts[3]], "all of it, and nothing else"
    node.checkpoint()
    written.clear()
    node.restart()
    assert written == [], "behind a checkpoint there is nothing to be written"
    node.journal.close()


def test_a_disk_that_does_not_keep_the_tail_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was flushed is read again: other bytes are there."""
    node, _, starts = three_groups(tmp_path)
    fsync = os.fsync

    def lies(fd: int) -> None:
        fsync(fd)
        if os.readlink(f"/proc/self/fd/{fd}").endswith("00000001.seg"):
            os.pwrite(fd, b"rot", starts[1] + 50)

    monkeypatch.setattr(os, "fsync", lies)
    with pytest.raises(DamagedJournal, match=r"00000001\.seg.*written anew, and others are read"):
        node.start()
