"""A client of the toy in the tests' worlds (`World`, `Cluster`): it connects as a listener has it connect."""

from __future__ import annotations

from typing import Any

from clusterbroker.broker.fronts.amqp091.connection import HEADER_0_9, HEADER_0_9_1, Connection
from clusterbroker.broker.fronts.opening import Fronts, Opening
from clusterbroker.broker.node.clients import Accepted
from tests.fronts.toy import FIRST, Toy

FRONTS = Fronts({HEADER_0_9_1: Connection, HEADER_0_9: Connection, FIRST: Toy}, otherwise=Connection)


class ToyClient:
    """Speaks lines. `ended` is how the server ended the connection, None while it lives."""

    def __init__(self, world: Any, fronts: Fronts = FRONTS) -> None:
        self.world = world
        accepted = Accepted("192.0.2.9:7", True, world.now_ms)
        self.core: Any = Opening(world.node, accepted, fronts, self._become)
        self.ended: str | None = None
        self.unsent = b""
        self._heard: list[str] = []
        world.clients[self.core] = self

    def _become(self, core: Any) -> None:
        del self.world.clients[self.core]
        self.core = core
        self.world.clients[core] = self

    def enter(self, user: str = "guest", password: str = "guest") -> ToyClient:
        assert self.say(f"TOY {user} {password} /") == ["READY"]
        return self

    def say(self, *lines: str) -> list[str]:
        """Says the lines, lets the node work, and returns what was heard since."""
        self.unsent += b"".join(line.encode() + b"\n" for line in lines)
        self.deliver()
        self.world.turn()
        heard, self._heard = self._heard, []
        return heard

    def deliver(self) -> bool:
        """Hands over what waits in the socket; True when the node took something."""
        if not self.unsent or not self.core.reading or self.ended is not None:
            return False
        data, self.unsent = self.unsent, b""
        self.core.receive(self.core.undecoded + data, self.world.now_ms)
        return True

    def flush(self) -> None:
        """The shell sends what is in the buffer."""
        if self.core.out.size and not self.core.out.paused:
            self._heard += self.core.out.take().decode().splitlines()
            self.core.sent(self.world.now_ms)
        if self.core.ending is not None and self.ended is None:
            self.ended = self.core.ending
            self.leave()

    def leave(self) -> None:
        """The socket is closed."""
        self.world.clients.pop(self.core, None)
        self.core.lost(self.world.now_ms)
