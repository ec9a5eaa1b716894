"""What a part of a node's data directory says of itself: whose it is, which one it is, and of which start (pure).

The journal's index and the wiring logs each keep one. What follows from them is decided in broker/server/binding.py.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Stamp(NamedTuple):
    """Stored as msgpack [disk_id, part_id, starts]."""

    disk_id: str
    """Of the data directory, as its identity has it."""
    part_id: str
    """Made with the part, so that one that was made anew is another one."""
    starts: int
    """The number of the last start of the node that used this part."""


def packed(stamp: Stamp) -> bytes:
    return msgspec.msgpack.encode(tuple(stamp))


def unpacked(payload: bytes) -> Stamp:
    """Raises msgspec.MsgspecError."""
    return Stamp(*msgspec.msgpack.decode(payload, type=tuple[str, str, int]))
