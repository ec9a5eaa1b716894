"""Messages of hearts on a control link: heads with tags of their own (pure)."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from clusterbroker.cluster.link.fields import Whole, Word
from clusterbroker.cluster.link.frames import decoder

from .beats import DATAGRAM_BYTES_MAX


class Posted(msgspec.Struct, frozen=True, array_like=True, tag=110):
    """What would have been a datagram."""

    data: Annotated[bytes, msgspec.Meta(max_length=DATAGRAM_BYTES_MAX)]


class GivenUp(msgspec.Struct, frozen=True, array_like=True, tag=111):
    """To the leader: this voter has given a member up, or takes that back (`contact`)."""

    name: Annotated[str, msgspec.Meta(max_length=64)]
    incarnation: Whole
    term: Word
    """Of the leader that it is for."""
    taken_back: bool = False


_FRAMES: Final[msgspec.msgpack.Decoder[Any]] = decoder(Posted, GivenUp)


def read(head: bytes | memoryview) -> Posted | GivenUp | None:
    """The message; None when it is none of these."""
    try:
        message: Posted | GivenUp = _FRAMES.decode(head)
    except msgspec.MsgspecError:
        return None
    return message
