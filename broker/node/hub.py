"""Frames between this node and the others: who may look at one, and when.

A frame is looked at once this node has applied the wiring index that its sender had applied, and never before an
earlier frame of the same link. So whoever handles it finds every queue, epoch and member that the sender knew. What a
node sends to itself (a proxy to the owner next door) goes round here as well, without being encoded.

    out      frames for each peer, in order; the shell takes them after the group that they belong to is on its way
    held     frames that wait for the wiring, per peer; they are bounded by what a link may have under way

A link that is lost takes its frames with it, those that wait here too: the cores attach and sync again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from broker.node.requests import AnyRequest
from broker.proxy.messages import AnyProxy
from cluster.link.frames import decoder, encode
from replication.messages import AnyReplication

Payload = bytes | bytearray | memoryview
Handler = Callable[[str, Any, memoryview], None]

HEADS: Final = decoder(AnyReplication, AnyProxy, AnyRequest)
ROUNDS_MAX: Final = 10_000


class Hub:
    """The data channel of one node. `handlers` maps each type of head to the core that handles it."""

    def __init__(self, name: str, applied: Callable[[], int]) -> None:
        self.name = name
        self._applied = applied
        self.handlers: dict[type, Handler] = {}
        self.linked: dict[str, int] = {}
        """Session number of the link to each peer that has one; this node is always linked to itself."""
        self.out: dict[str, list[bytes]] = {}
        self.held_bytes: dict[str, int] = {}
        self._held: dict[str, deque[tuple[int, Any, memoryview]]] = {}
        self._round: deque[tuple[Any, memoryview]] = deque()

    # -- out

    def send(self, peer: str, head: msgspec.Struct, payload: Iterable[Payload] = ()) -> bool:
        """False: there is no link, and whoever sends will hear of it when there is one again."""
        if peer == self.name:
            self._round.append((head, memoryview(b"".join(payload))))
            return True
        if peer not in self.linked:
            return False
        self.out.setdefault(peer, []).append(encode(head, self._applied(), payload))
        return True

    def take(self) -> dict[str, list[bytes]]:
        """The frames that wait to be sent, by peer."""
        out, self.out = self.out, {}
        return out

    # -- links

    def link(self, peer: str, session: int) -> None:
        """A new link: nothing of the old one counts any more."""
        self.unlink(peer)
        self.linked[peer] = session
        self._held[peer] = deque()
        self.held_bytes[peer] = 0

    def unlink(self, peer: str) -> None:
        self.linked.pop(peer, None)
        self.out.pop(peer, None)
        self._held.pop(peer, None)
        self.held_bytes.pop(peer, None)

    # -- in

    def received(self, peer: str, index: int, head: Payload, payload: memoryview) -> None:
        """A frame came over the peer's present link. Raises msgspec.DecodeError for one that is none."""
        held = self._held.get(peer)
        if held is None:
            return
        message = HEADS.decode(head)
        if held or index > self._applied():
            held.append((index, message, payload))
            self.held_bytes[peer] += len(payload)
        else:
            self.handlers[type(message)](peer, message, payload)

    def advanced(self) -> None:
        """The wiring went on: what waited for it may be looked at."""
        for peer in tuple(self._held):
            held = self._held.get(peer)
            while held and held[0][0] <= self._applied():
                _, message, payload = held.popleft()
                self.held_bytes[peer] -= len(payload)
                self.handlers[type(message)](peer, message, payload)

    def turn(self) -> bool:
        """Hands over what this node sent to itself; True when there was something."""
        moved = bool(self._round)
        rounds = 0
        while self._round:
            head, payload = self._round.popleft()
            self.handlers[type(head)](self.name, head, payload)
            rounds += 1
            assert rounds < ROUNDS_MAX, "what a node says to itself comes to an end"
        return moved
