"""The frame in which everything between two nodes travels, once both have proved who they are.

     0  u32  length of the whole frame, this header included
     4  u32  length of the head
     8  u64  the sender's applied wiring index (data channel; 0 on the control channel)
    16  head: msgpack array [tag, field, ...]     then payload: raw bytes

A frame longer than FRAME_BYTES_MAX, or a head longer than its frame, ends the link.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

HEADER: Final = struct.Struct("<IIQ")
FRAME_BYTES_MAX: Final = 64 << 20
_ENCODER: Final = msgspec.msgpack.Encoder()


class BadFrame(ValueError):
    """The other side sent what no frame can be; the link ends."""


def encode(head: msgspec.Struct, index: int = 0, payload: Iterable[bytes | bytearray | memoryview] = ()) -> bytes:
    """One frame. The parts of the payload are joined."""
    raw = _ENCODER.encode(head)
    parts = tuple(payload)
    total = HEADER.size + len(raw) + sum(map(len, parts))
    assert total <= FRAME_BYTES_MAX, f"a frame of {total} bytes must be cut into several"
    return b"".join((HEADER.pack(total, len(raw), index), raw, *parts))


class FrameReader:
    """Bytes in, frames out: (index, head bytes, payload). Holds at most one frame that is not complete."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
        """The frames that are complete now; the views are valid for as long as they are kept. Raises BadFrame."""
        self._kept += data
        whole = bytes(self._kept) if len(self._kept) >= HEADER.size else b""
        view = memoryview(whole)
        at = 0
        while len(whole) - at >= HEADER.size:
            total, head, index = HEADER.unpack_from(whole, at)
            if total > FRAME_BYTES_MAX or HEADER.size + head > total:
                raise BadFrame(f"a frame of {total} bytes with a head of {head}")
            if len(whole) - at < total:
                break
            start = at + HEADER.size
            yield index, view[start : start + head], view[start + head : at + total]
            at += total
        del self._kept[:at]


def decoder(*kinds: Any) -> msgspec.msgpack.Decoder[Any]:
    """A decoder for heads of these message types (one union of tagged structs)."""
    union = kinds[0]
    for kind in kinds[1:]:
        union = union | kind
    return msgspec.msgpack.Decoder(union)
