"""What there is of a stream in its files: the words that queues and files have for it, and a file's header.

    DIR/streams/<queue id>/<first seq, 20 digits>.seg
        0  u32 magic "CBS1"   4  u32 crc32c of bytes 8..64   8  u32 version 1   12  u32 0
       16  u64 queue id      24  u64 first seq              32  zeros to 64
       64  ENQ records as in layout.py, ascending seq without a gap, padded to 8

The catalogue stands in the queue's meta:

    first   seq: all below it is gone, also where a file still has it
    files   [[first, end, bytes, first_ms, last_ms], ...] ascending; `end` and `bytes` are what counts of the file. A
            sixth item is the file's name, where that is not its first seq
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from clusterbroker.journal.record import DamagedRecord, checksum

MAGIC: Final = 0x31534243
VERSION: Final = 1
HEADER: Final = struct.Struct("<IIIIQQ")
HEADER_BYTES: Final = 64

Place = tuple[int, int, int]
"""(segment, offset, bytes) in the shared log"""


class StreamFile(NamedTuple):
    """What counts of a file: messages `first` to before `end`, in its first `size` bytes."""

    first: int
    end: int
    size: int
    first_ms: int
    """When the first of them was taken."""
    last_ms: int
    """When the latest was."""
    name: int
    """The seq in its name."""

    def entry(self) -> list[int]:
        """As it stands in a catalogue."""
        return list(self[:5] if self.name == self.first else self)

    @classmethod
    def of_entry(cls, entry: Sequence[int]) -> StreamFile:
        first, end, size, first_ms, last_ms, *name = entry
        return cls(first, end, size, first_ms, last_ms, name[0] if name else first)


class Moved(NamedTuple):
    """Messages `first` to before `end`, which stand at these places of the shared log."""

    first: int
    end: int
    places: Sequence[Place]


class Wish(NamedTuple):
    """What is to be read: messages from `seq` on, or from the first that is not older than `since_ms`, up to before
    `end`; at most so many and so many bytes, or one."""

    seq: int
    end: int
    count_max: int
    bytes_max: int
    since_ms: int = -1


class Taken(NamedTuple):
    """Records of messages `first` to before `next_seq`, none left out; b"" with zeros: there are none."""

    first: int
    next_seq: int
    records: bytes


NOTHING: Final = Taken(0, 0, b"")


class Filing(NamedTuple):
    """What a checkpoint has to do for one stream; `meta` is completed with the catalogue."""

    queue_id: int
    files: tuple[StreamFile, ...]
    moved: tuple[Moved, ...]
    cut: frozenset[int]
    """Names of files whose end was cut off: how much of them counts is to be found."""
    closed: frozenset[int]
    """Names of files to which nothing is added."""
    gone: tuple[int, ...]
    """Names of files that the new catalogue does not name."""
    segment_bytes: int
    meta: dict[str, Any]
    done: Callable[[Sequence[StreamFile]], object]
    """Told the new catalogue when it is durable."""


def header(queue_id: int, first: int) -> bytes:
    """The first 64 bytes of a file."""
    rest = struct.pack("<IIQQ", VERSION, 0, queue_id, first) + bytes(HEADER_BYTES - 32)
    return struct.pack("<II", MAGIC, checksum(rest)) + rest


def check_header(data: bytes, queue_id: int) -> int:
    """The seq in a file's header. Raises DamagedRecord."""
    if len(data) < HEADER_BYTES:
        raise DamagedRecord(0, "the header of a stream's file is cut off")
    magic, crc, version, _, owner, first = HEADER.unpack_from(data)
    if magic != MAGIC or crc != checksum(data[8:HEADER_BYTES]):
        raise DamagedRecord(0, "the header of a stream's file has a wrong checksum")
    if version != VERSION or owner != queue_id:
        raise DamagedRecord(0, f"a file of queue {owner} in format {version}, not of {queue_id} in format {VERSION}")
    return int(first)
