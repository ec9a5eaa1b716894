"""Heads of frames between nodes that belong to no queue: requests, facts, links through a third node.

Nothing of them is answered: what came of a request stands in the map. So one may be lost, come twice or come late, and
what it asks for must be harmless then. Those of relayed links are handled on arrival, at any wiring index of their
sender: their content has its own.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from clusterbroker.cluster.link.fields import Whole

Named = dict[Annotated[str, msgspec.Meta(max_length=255)], Whole]


class HandOver(msgspec.Struct, frozen=True, array_like=True, tag=50):
    """To a queue's owner: hand it to this member, if you still own it and can."""

    queue_id: Annotated[int, msgspec.Meta(ge=0)]
    to: Annotated[str, msgspec.Meta(max_length=64)]


class Occupied(msgspec.Struct, frozen=True, array_like=True, tag=55):
    """Connections at the sender, of vhosts and users that have a limit: those counts that changed."""

    vhosts: Named
    users: Named
    whole: bool = False
    """All counts: what is not named has none."""


AnyRequest = HandOver | Occupied


class RelayMessage(msgspec.Struct, frozen=True, array_like=True):
    """Root of these heads."""


class Reach(RelayMessage, frozen=True, tag=100):
    """To each neighbour, on change and every second: whom the sender has a direct link with."""

    names: tuple[str, ...]


class Passing(RelayMessage, frozen=True):
    """From one end of a relayed link to the other, passed on by the relay as it is."""

    source: str
    target: str
    number: int
    """The opener's number of this link, rising over its starts."""


class RelayOpen(Passing, frozen=True, tag=101):
    """The lower name of a pair without a link asks for one."""


class RelayAccept(Passing, frozen=True, tag=102):
    """The higher name agrees: the link stands at its side."""


class RelayClose(Passing, frozen=True, tag=103):
    """The link is over, or cannot be. Also said by the relay, for the end that cannot be reached."""

    why: str


class Relayed(Passing, frozen=True, tag=104):
    """Payload: the next bytes of the stream of frames."""


class RelayTook(Passing, frozen=True, tag=105):
    """The sender has taken so many bytes of the stream: as many more may be sent."""

    upto: int


AnyRelay = Reach | RelayOpen | RelayAccept | RelayClose | Relayed | RelayTook


class More(msgspec.Struct, frozen=True, array_like=True, tag=51):
    """The next frame's payload begins with this one's."""
