"""Messages between a newcomer and a member on a "control" link, before the newcomer is a member (pure).

    newcomer -> JoinAsked(name, address, witness)
    member   -> JoinAnswered("", members)      it is a member now, and may start; or the reason of a refusal

The newcomer has proved by TLS that it holds the join secret, and has learned the cluster's id from the member's
Hello. A member's messages on it are of the wiring log only; these heads therefore have tags of their own on that link.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from .frames import decoder

Name = Annotated[str, msgspec.Meta(max_length=64)]
Where = Annotated[str, msgspec.Meta(max_length=300)]


class JoinAsked(msgspec.Struct, frozen=True, array_like=True, tag=100):
    """Make me a member."""

    name: Name
    address: Where
    """HOST:PORT where the others will reach it."""
    witness: bool = False


class JoinAnswered(msgspec.Struct, frozen=True, array_like=True, tag=101):
    """You are one, and these are the members; or why not."""

    refused: str
    members: tuple[tuple[str, str], ...] = ()
    """(name, cluster address)."""


ASKED: Final[msgspec.msgpack.Decoder[Any]] = decoder(JoinAsked)
ANSWERED: Final[msgspec.msgpack.Decoder[Any]] = decoder(JoinAnswered)
