"""What is told of a reader of a stream; apart from other rows, which a node without a management API never loads."""

from __future__ import annotations

import msgspec


class StoredOffset(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far a reader of a stream says that it is."""

    name: str
    offset: int
    """The next one that it reads."""
    lag: int
    """Messages from there to the stream's end."""
