"""Runs as the index stores them: every run comes back, everything else is refused."""

from __future__ import annotations

import random
import struct
import tracemalloc
import zlib
from pathlib import Path

import pytest
from journal_bench import Node

from clusterbroker.journal.errors import DamagedJournal
from clusterbroker.journal.index import CRC, RUN_KEY, Index
from clusterbroker.journal.layout import RUN_ENTRY
from clusterbroker.journal.packed_run import HEAD, WINDOW_BITS, pack_run, unpack_run
from clusterbroker.journal.record import checksum

BIG = 2**32 - 1


def deflated(data: bytes) -> bytes:
    deflate = zlib.compressobj(9, zlib.DEFLATED, WINDOW_BITS)
    return deflate.compress(data) + deflate.flush()


def regular(count: int = 256) -> bytes:
    return b"".join(RUN_ENTRY.pack(i, 0, 0, 0, 7, 4096 + 184 * i, 182, 100) for i in range(count))


def test_a_full_run_of_equal_messages_is_small() -> None:
    packed = pack_run(regular())
    assert unpack_run(packed) == regular()
    assert len(packed) < 600


@pytest.mark.parametrize("count", [1, 2, 3, 255, 256])
def test_extreme_values_come_back(count: int) -> None:
    for fill in (0, BIG):
        small = fill & 255
        run = b"".join(RUN_ENTRY.pack(i, small, small, small, fill, fill, fill, fill) for i in range(count))
        assert unpack_run(pack_run(run)) == run
    last_only = b"".join(RUN_ENTRY.pack(256 - count + i, 255, 255, 255, BIG, BIG, BIG, i) for i in range(count))
    assert unpack_run(pack_run(last_only)) == last_only


def test_a_run_without_any_order_comes_back() -> None:
    chance = random.Random(5)
    run = b"".join(bytes([i]) + chance.randbytes(19) for i in range(256))
    packed = pack_run(run)
    assert unpack_run(packed) == run
    assert len(packed) < len(run) + 100


def test_what_is_no_run_is_not_packed() -> None:
    for entries in (b"", bytes(19), bytes(21), regular() + regular(1)):
        with pytest.raises(AssertionError):
            pack_run(entries)


def test_what_is_no_packed_run_is_refused() -> None:
    one, many = pack_run(regular(1)), pack_run(regular(5))
    first = regular(1)
    refused = [
        b"",
        one[:-1],
        one + b"\0",
        many[: HEAD.size],
        many[:-1],
        many + b"\0",
        many[: HEAD.size] + b"\xff" * 20,
        HEAD.pack(1 << 20 | 1, first) + deflated(bytes(range(4))),  # a column that no entry has
        HEAD.pack(1, first) + deflated(b"\0"),  # one entry has nothing that varies
        HEAD.pack(3, first) + deflated(bytes(5)),  # two columns of different length
        HEAD.pack(1, first) + deflated(bytes(257)),  # more entries than a run has
        HEAD.pack(1, first) + deflated(bytes(1 << 24)),  # much more
    ]
    for packed in refused:
        tracemalloc.start()
        with pytest.raises(ValueError, match=r"\w"):
            unpack_run(packed)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()


def test_every_changed_bit_of_a_stored_run_is_damage(tmp_path: Path) -> None:
    """Through the index: the checksum is over what is stored, so no flip ever reaches the unpacking."""
    node = Node(tmp_path)
    node.write(*[b"x"] * 40)
    node.checkpoint()
    node.journal.close()
    index = Index(tmp_path)
    key = RUN_KEY.pack(1, 0)
    with index._env.begin(index._queues) as txn:
        stored = bytes(txn.get(key))
    assert stored[CRC.size :] == pack_run(node.memory.runs()[0][2])
    for bit in range(8 * len(stored)):
        flipped = bytearray(stored)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        with index._env.begin(index._queues, write=True) as txn:
            txn.put(key, bytes(flipped))
        with pytest.raises(DamagedJournal, match="wrong checksum") as damage:
            list(index.scan())
        assert damage.value.queue_id == 1
    index.close()


def test_a_stored_value_with_a_right_checksum_that_is_no_run_is_damage(tmp_path: Path) -> None:
    Node(tmp_path).journal.close()
    index = Index(tmp_path)
    key, bomb = RUN_KEY.pack(9, 256), HEAD.pack(1, bytes(20)) + deflated(bytes(1 << 24))
    for payload in (b"", bytes(20), bomb, struct.pack("<I", BIG)):
        with index._env.begin(index._queues, write=True) as txn:
            txn.put(key, CRC.pack(checksum(key + payload)) + payload)
        with pytest.raises(DamagedJournal, match="the run of key") as damage:
            list(index.scan())
        assert damage.value.queue_id == 9
    index.close()
