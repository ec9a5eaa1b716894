"""A simulated publisher of delayed messages: numbered, so that what it publishes again is taken once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.simulation.publishers import NamedPublisher, Route
from tests.simulation.sockets import Socket
from tests.simulation.workload import DELAYED, DELAYING, DUE

if TYPE_CHECKING:
    from tests.simulation.world import World

ROUTES: Final[list[Route]] = [(DELAYED, "one", {}, (DELAYING,)), (DELAYED, "both", {}, (DELAYING,))]
"""A confirm says that the delay queue has the message."""
TARGETS: Final = {"one": DUE[:1], "both": DUE[1:]}
AT_STEP_MS: Final = 500
"""Times that are said are multiples of it, so that several messages have the same one."""


class Delayer(NamedPublisher):
    """Says a delay, or the time itself; what is published again is due when its header says so."""

    def __init__(self, world: World, name: str) -> None:
        self._asks: dict[int, dict[str, Any]] = {}
        super().__init__(world, name, ROUTES)

    def _send(self, socket: Socket, sequence: int, exchange: str, key: str, queues: tuple[str, ...]) -> bytes:
        now_ms = socket.site.now_ms()
        asks = self._asks.get(sequence)
        if asks is None:
            wait_ms = self.rng.choice((1, 100, 700, 2500, 5000))
            at_ms = (now_ms + wait_ms) // AT_STEP_MS * AT_STEP_MS
            asks = self._asks[sequence] = self.rng.choice(({"x-delay": wait_ms}, {"x-deliver-at": at_ms}))
        self._tag_of[self._tags + 1] = sequence
        body = b"%s:%d" % (self.name.encode(), sequence)
        due_ms = asks["x-deliver-at"] if "x-deliver-at" in asks else now_ms + asks["x-delay"]
        self.world.checkers.delayed(body, due_ms, TARGETS[key], exact="x-deliver-at" in asks and due_ms > now_ms)
        return self.put(socket, exchange, key, {"x-producer": self.name, "x-seq": sequence, **asks}, queues, body)
