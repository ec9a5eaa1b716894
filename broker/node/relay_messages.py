"""Messages about links through a third node: heads of frames on the data channel.

They are handled on arrival, at any wiring index of their sender: their content has its own.
"""

from __future__ import annotations

import msgspec


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
