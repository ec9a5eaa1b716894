"""Old segments are read piece by piece, and what cannot be read is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from journal_bench import Node

from clusterbroker.journal import scrub
from clusterbroker.journal.scrub import Piece


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """Some segments of small groups, known to the index."""
    monkeypatch.setattr(scrub, "PIECE_BYTES", 1000)
    node = Node(tmp_path)
    for number in range(40):
        node.write(b"%d" % number * 100, b"y" * 200)
    node.checkpoint()
    yield node
    node.journal.close()


def step(node: Node, segment: int, at: int) -> Piece:
    found: list[Piece] = []
    node.journal.scrub(segment, at, found.append)
    node.loop.until(lambda: bool(found))
    return found[0]


def scrubbed(node: Node) -> list[tuple[int, int]]:
    """(queue, seq) of all that was found in one pass."""
    hurt: list[tuple[int, int]] = []
    for segment, size in node.journal.scrubbable():
        at, over = 0, False
        while not over:
            end, over, found = step(node, segment, at)
            assert over or end > at, "it goes on"
            assert end <= size
            hurt += [(one.queue_id, one.seq) for one in found]
            at = end
    return hurt


def hit(node: Node, seq: int, at: int) -> None:
    """Another byte stands there, of the record from its beginning on."""
    place = node.memory.queues[1][seq]
    path = node.directory / f"segments/{place.segment:08d}.seg"
    data = bytearray(path.read_bytes())
    data[place.offset + at] ^= 0x10
    path.write_bytes(data)


def test_a_sound_journal_is_sound(node: Node) -> None:
    assert len(node.journal.scrubbable()) > 2
    assert scrubbed(node) == []


@pytest.mark.parametrize("at", [0, 5, 60], ids=["length", "head", "body"])
def test_the_message_is_named_whatever_was_hit_of_its_record(node: Node, at: int) -> None:
    hit(node, 7, at)
    assert scrubbed(node) == [(1, 7)]


def test_a_hit_head_of_a_group_hurts_no_message(node: Node) -> None:
    place = node.memory.queues[1][1]
    path = node.directory / f"segments/{place.segment:08d}.seg"
    data = bytearray(path.read_bytes())
    data[4] ^= 1
    path.write_bytes(data)
    hit(node, 9, 60)
    assert (1, 9) in scrubbed(node), "and those behind it are read all the same"
    assert (1, 1) not in scrubbed(node)


def test_what_has_left_is_not_looked_for(node: Node) -> None:
    hit(node, 7, 60)
    node.settle(7, 7)
    node.checkpoint()
    assert scrubbed(node) == []


def test_a_segment_that_is_gone_is_over(node: Node) -> None:
    segment, _ = node.journal.scrubbable()[0]
    (node.directory / f"segments/{segment:08d}.seg").rename(node.directory / "elsewhere")
    assert step(node, segment, 0) == Piece(0, True)
