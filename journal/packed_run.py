"""A run as the index stores it: the entries turned into columns, and only columns that vary, deflated.

Entries of one run differ in their seq and their offset and agree in almost everything else. 256 messages of one
size take about 500 bytes instead of 5,120, so LMDB puts several runs on a page instead of one on two pages.

    0  u32  varying: bit i is set when byte i is not the same in all entries
    4  the first entry
   24  the varying bytes, one column after the other, as a raw deflate stream; nothing when no byte varies

Nothing here proves that the bytes are what was written; the index keeps a checksum of them.
"""

from __future__ import annotations

import struct
import zlib

from clusterbroker.journal.layout import RUN_ENTRY, RUN_LENGTH

HEAD = struct.Struct("<I20s")
ENTRY_BYTES = RUN_ENTRY.size
WINDOW_BITS = -13
"""No header and no checksum of zlib's own; a window of 8 KiB holds the longest run."""
LEVEL, MEMORY_LEVEL = 2, 5
"""A third of the time of zlib's defaults, and the same size."""

assert HEAD.size == 4 + ENTRY_BYTES, "the head holds one entry"


def pack_run(entries: bytes) -> bytes:
    """`entries` are 1 to layout.RUN_LENGTH run entries."""
    count, rest = divmod(len(entries), ENTRY_BYTES)
    assert not rest, "a run is whole entries"
    assert 0 < count <= RUN_LENGTH, "a run is no more than what shares the high bits of its seqs"
    varying, columns = 0, []
    for i in range(ENTRY_BYTES):
        column = entries[i::ENTRY_BYTES]
        if column.count(column[0]) != count:
            varying |= 1 << i
            columns.append(column)
    head = HEAD.pack(varying, entries[:ENTRY_BYTES])
    if not varying:
        assert count == 1, "entries of one run differ in their seq"
        return head
    deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, WINDOW_BITS, MEMORY_LEVEL)
    return head + deflate.compress(b"".join(columns)) + deflate.flush()


def unpack_run(packed: bytes) -> bytes:
    """The entries. Raises ValueError for anything that is no packed run; never takes more memory than one."""
    if len(packed) < HEAD.size:
        raise ValueError(f"{len(packed)} bytes are no packed run")
    varying, first = HEAD.unpack_from(packed)
    if not varying:
        if len(packed) != HEAD.size:
            raise ValueError("a run of one entry is followed by something else")
        return bytes(first)
    width = varying.bit_count()
    inflate = zlib.decompressobj(WINDOW_BITS)
    try:
        columns = inflate.decompress(packed[HEAD.size :], width * RUN_LENGTH + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    count, rest = divmod(len(columns), width)
    if varying >> ENTRY_BYTES or rest or not 1 < count <= RUN_LENGTH or not inflate.eof or inflate.unused_data:
        raise ValueError(f"{len(columns)} bytes or more in {width} columns are no run")
    entries = bytearray(first * count)
    at = 0
    for i in range(ENTRY_BYTES):
        if varying >> i & 1:
            entries[i::ENTRY_BYTES] = columns[at : at + count]
            at += count
    return bytes(entries)
