"""Payloads beyond the length of a frame: cut, and put together again.

A group commit holds the publishes of all nodes since the last one, so the payload of one Append to a backup has no
better bound than the windows of all proxies together; and a message may be as long as the configuration says. The
surplus goes ahead in frames with nothing but `More`: the payload of the next frame of this link begins with it. Only
a lost link can come between, and takes all of it along.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from clusterbroker.replication.errors import BadMessage

PIECE_BYTES: Final = 16 << 20
"""So much goes into one frame; the rest of a frame's 64 MiB is for its head."""
PAYLOAD_BYTES_MAX: Final = 2 << 30
"""More than any node has under way to another one."""


class More(msgspec.Struct, frozen=True, array_like=True, tag=51):
    """The next frame's payload begins with this one's."""


def pieces(payload: memoryview) -> Iterator[memoryview]:
    """What goes into one frame each, in order; the last is the rest."""
    at = 0
    while len(payload) - at > PIECE_BYTES:
        yield payload[at : at + PIECE_BYTES]
        at += PIECE_BYTES
    yield payload[at:]


class Joining:
    """The beginnings of one link's next payload."""

    __slots__ = ("_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: list[memoryview] = []
        self._size = 0

    def add(self, piece: memoryview) -> None:
        """Raises BadMessage when it becomes longer than any payload is."""
        self._size += len(piece)
        if self._size > PAYLOAD_BYTES_MAX:
            raise BadMessage(f"a payload of more than {PAYLOAD_BYTES_MAX} bytes")
        self._pieces.append(piece)

    def end(self, rest: memoryview) -> memoryview:
        """The whole payload."""
        if not self._pieces:
            return rest
        joined, self._pieces, self._size = memoryview(b"".join((*self._pieces, rest))), [], 0
        return joined
