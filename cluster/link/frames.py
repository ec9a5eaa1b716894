"""The frame of all traffic between two nodes, after both have proved their identity.

     0  u32  length of the whole frame, this header included
     4  u32  length of the head
     8  u64  the sender's applied wiring index (data channel; 0 on the control channel; LINK_INDEX in hello.py)
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
    """Bytes in, frames out: (index, head bytes, payload).

    Invariants: (1) it holds less than one whole frame between two calls, and never more than `bytes_max`: what
    comes after a header that says more is refused before it is kept; (2) every byte is copied a constant number
    of times, however the stream is cut: what is kept only grows (amortised) until a frame is complete, and is
    then frozen once; (3) what is handed out is a view of frozen bytes: it stays as it is for as long as
    somebody holds it.
    """

    __slots__ = ("_kept", "_wanted", "bytes_max")

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        """The longest frame that is taken; may be raised once the other side is known."""
        self._kept = bytearray()
        self._wanted = HEADER.size
        """How many bytes must be there before it is worth looking."""

    def __len__(self) -> int:
        """Bytes of the frame that is not complete."""
        return len(self._kept)

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
        """The frames that are complete now, in order; the rest of `data` is kept, also when the caller stops early.

        Raises BadFrame after the last good frame.
        """
        if self._kept:
            if len(self._kept) + len(data) < self._wanted:
                self._kept += data
                return
            self._kept += data
            whole = bytes(self._kept)
            self._kept = bytearray()
        else:
            whole = bytes(data)  # the same object if it is bytes
        view = memoryview(whole)
        at, end = 0, len(whole)
        self._wanted = HEADER.size
        try:
            while end - at >= HEADER.size:
                total, head, index = HEADER.unpack_from(whole, at)
                if total > self.bytes_max or HEADER.size + head > total:
                    at = end  # nothing of it is kept
                    raise BadFrame(f"a frame of {total} bytes with a head of {head} (at most {self.bytes_max} taken)")
                if end - at < total:
                    self._wanted = total
                    break
                start, at = at, at + total
                body = start + HEADER.size
                yield index, view[body : body + head], view[body + head : at]
        finally:
            if at < end:
                self._kept += view[at:]


def decoder(*kinds: Any) -> msgspec.msgpack.Decoder[Any]:
    """A decoder for heads of these message types (one union of tagged structs)."""
    union = kinds[0]
    for kind in kinds[1:]:
        union = union | kind
    return msgspec.msgpack.Decoder(union)
