"""The walk over a segment's groups: which runs they belong to, where it ends, what it refuses. The model beside it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_bench import message_of

from clusterbroker.journal import walk as walk_compiled
from clusterbroker.journal.layout import GROUP_HEADER_BYTES, RUN_LENGTH
from clusterbroker.journal.record import DamagedRecord, GroupWriter, checksum, seal
from tests.budget import examples
from tests.model import walk as walk_model
from tests.model.walk import Seqs, merged


def group_of(*records: tuple[int, int], lsn: int = 1, settles: bool = False) -> bytes:
    """Messages (queue id, seq), and among them a record of each kind that joins nothing."""
    writer = GroupWriter(1, 0)
    for queue_id, seq in records:
        writer.enqueue(queue_id, 1, seq, message_of(b"%d" % seq), 0)
    if settles:
        writer.settle(99, 1, [(1, 10_000)])
        writer.reserve(98, 1, 7)
        writer.count_delivery(97, 1, 8, 2)
        writer.dead(96, 1, 8, 1 << 8)
        writer.cut(95, 1, 9)
        writer.set_attribute(94, 1, b"p", 9)
        writer.begin_epoch(93, 1, 9)
    data = writer.finish(lsn, 0)
    seal(data)
    return bytes(data)


def block(queue_id: int, first: int, last: int) -> Seqs:
    return queue_id, first * RUN_LENGTH, (last + 1) * RUN_LENGTH - 1


def answer(module: Any, data: bytes, at: int = 0, base: int = 0) -> object:
    try:
        return module.walk_groups(data, at, base)
    except DamagedRecord as damage:
        return damage.args


def test_messages_name_their_blocks_and_nothing_else_does() -> None:
    first = group_of((7, 1), (7, 255), (3, 256), (7, 256), settles=True)
    second = group_of((7, 1024), (7, 700), (3, 255), lsn=2)
    data = first + second
    blocks = [block(3, 0, 1), block(7, 0, 2), block(7, 4, 4)]
    assert walk_compiled.walk_groups(data, 0) == (len(data), blocks)
    assert walk_compiled.walk_groups(data, len(first)) == (len(data), [block(3, 0, 0), block(7, 2, 2), block(7, 4, 4)])
    assert walk_compiled.walk_groups(data, len(data)) == (len(data), [])


def test_it_ends_where_nothing_was_written() -> None:
    data = group_of((1, 1))
    for zeros in (1, 3, 4, 100):
        assert walk_compiled.walk_groups(data + bytes(zeros), 0) == (len(data), [block(1, 0, 0)])
        assert walk_compiled.walk_groups(bytes(zeros), 0) == (0, [])


def test_a_group_that_is_cut_off_is_left_to_the_next_piece_unless_it_is_the_first() -> None:
    first, second = group_of((1, 1)), group_of((1, 300), lsn=2)
    for end in range(1, len(second)):
        if any(second[: min(4, end)]):
            assert walk_compiled.walk_groups(first + second[:end], 0) == (len(first), [block(1, 0, 0)])
            with pytest.raises(DamagedRecord, match="cut off") as damage:
                walk_compiled.walk_groups(second[:end], 0, 1000)
            assert damage.value.offset == 1000


def test_every_changed_byte_is_damage_with_its_place_in_the_segment() -> None:
    first, second = group_of((1, 1)), group_of((1, 300), (2, 5), settles=True, lsn=2)
    for at in range(len(second)):
        data = bytearray(first + second + first)
        data[len(first) + at] ^= 0x10
        with pytest.raises(DamagedRecord) as damage:
            walk_compiled.walk_groups(data, 0, 1 << 40)
        assert (1 << 40) + len(first) <= damage.value.offset < (1 << 40) + len(first) + len(second)


def test_many_queues_in_turn() -> None:
    """More of them than the compiled walk_compiled has at hand."""
    data = group_of(*[(queue, seq) for seq in (5, 600, 300, 5000) for queue in range(1, 2000)])
    found = walk_compiled.walk_groups(data, 0)[1]
    assert found == [blocks for queue in range(1, 2000) for blocks in (block(queue, 0, 2), block(queue, 19, 19))]


def test_a_place_outside_of_the_data_is_refused() -> None:
    with pytest.raises(ValueError, match="is not one of"):
        walk_compiled.walk_groups(b"abc", 4)
    with pytest.raises(ValueError, match="is not one of"):
        walk_compiled.walk_groups(b"abc", -1)


def test_ranges_that_touch_or_overlap_become_one() -> None:
    assert merged([]) == []
    found = [block(1, 4, 4), block(1, 0, 1), block(2, 5, 5), block(1, 2, 2), block(1, 0, 0)]
    assert merged(found) == [block(1, 0, 2), block(1, 4, 4), block(2, 5, 5)]


groups = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2000) | st.integers(0, 2**64 - 1)), max_size=12),
    min_size=1,
    max_size=5,
)


@settings(max_examples=examples(300))
@given(groups, st.data())
def test_the_model_says_the_same(made: list[list[tuple[int, int]]], data: st.DataObject) -> None:
    """Whole, cut off anywhere, with bytes that lie behind good header checksums."""
    parts = [bytearray(group_of(*records, lsn=lsn, settles=lsn % 2 == 0)) for lsn, records in enumerate(made, 1)]
    whole = bytes(b"".join(parts))
    named = {(queue_id, seq // RUN_LENGTH) for records in made for queue_id, seq in records}
    blocks = merged([block(queue_id, number, number) for queue_id, number in named])
    assert answer(walk_model, whole) == answer(walk_compiled, whole) == (len(whole), blocks)
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    assert answer(walk_model, cut, 0, 64) == answer(walk_compiled, cut, 0, 64)
    liar = parts[data.draw(st.integers(0, len(parts) - 1))]
    for _ in range(data.draw(st.integers(1, 3))):
        liar[data.draw(st.integers(8, len(liar) - 1))] = data.draw(st.integers(0, 255))
    liar[4:8] = checksum(liar[8:GROUP_HEADER_BYTES]).to_bytes(4, "little")
    lies = bytes(b"".join(parts))
    assert answer(walk_model, lies, 0, 64) == answer(walk_compiled, lies, 0, 64)
