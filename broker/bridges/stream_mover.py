"""Moves what is in a stream: what came in, what is to be done next. Nothing here waits.

A stream keeps what is read, so nothing is settled there, and its offsets name its messages: a message is published
under its offset + 1, and the destination does not store a number that it knows. So whatever comes again after an
interruption is there once, from wherever reading begins. Where that is stands in a file (`stream_carrier`), or reading
would begin at the first message each time.

Events are methods, each returns effects, to be carried out in their order. What nobody asked for raises Malformed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from clusterbroker.broker.bridges.confirms import Confirms
from clusterbroker.broker.bridges.errors import Malformed
from clusterbroker.broker.bridges.mover import End, Publish, Settle
from clusterbroker.broker.bridges.rewriting import Parcel

QUIET_S: Final = 2.0
"""Nothing came for so long: the end of the stream is reached."""
CHUNK_MAX: Final = 1 << 16
"""Messages that RabbitMQ stores together, and may hand out together."""
PLACE_S: Final = 1.0
"""Between two places that are told."""


@dataclass(frozen=True, slots=True)
class Read:
    """basic.qos with this prefetch count, then basic.consume from this offset on."""

    count: int
    offset: int


@dataclass(frozen=True, slots=True)
class Reached:
    """All below this offset is confirmed by the destination."""

    offset: int


StreamEffect = Read | Publish | Settle | Reached | End


class StreamMover:
    """One stream, from an offset to its end. A lost connection ends it: the next one begins where this one was."""

    def __init__(self, window: int, offset: int, *, numbered: bool, rate_per_s: float = 0.0) -> None:
        """`numbered`: the destination knows numbers. `rate_per_s`: at most; 0: as fast as it goes."""
        self.again = self.doubtful = 0
        """As of `Mover`: numbers that a stream has not."""
        self.is_over = False
        self._window, self._numbered, self._rate_per_s = window, numbered, rate_per_s
        self._offset = self._told = offset
        self._came = self._settled = 0
        self._confirms = Confirms()
        self._ends: list[tuple[int, int]] = []  # (messages that came until then, offset behind them), not confirmed
        self._last_s = self._told_s = inf
        self._began_s = 0.0

    @property
    def moved(self) -> int:
        """Confirmed by the destination."""
        return self._confirms.upto

    def begin(self) -> list[StreamEffect]:
        """Reading begins."""
        return [Read(self._window, self._offset)]

    def begun(self, now_s: float) -> list[StreamEffect]:
        """The answer to Read."""
        if self._last_s == inf:
            self._last_s = self._told_s = self._began_s = now_s
        return []

    def delivered(self, parcel: Parcel, now_s: float) -> list[StreamEffect]:
        """Messages came."""
        if self._came + parcel.count - self._settled > self._window + CHUNK_MAX:
            raise Malformed(f"more messages than the {self._window} that were asked for")
        known = self._ends[-1][1] if self._ends else self._offset
        for offset in parcel.offsets:
            if offset < known:
                raise Malformed("messages of a stream out of their order")
            known = offset + 1
        if self._numbered:
            parcel.number_each([offset + 1 for offset in parcel.offsets])
        self._came += parcel.count
        self._ends.append((self._came, known))
        self._last_s = now_s
        return [Publish(parcel)]

    def confirmed(self, tag: int, multiple: bool, now_s: float) -> list[StreamEffect]:
        """basic.ack of the destination. Raises Malformed, see `Confirms`."""
        self._confirms.take(tag, multiple, self._came)
        while self._ends and self._ends[0][0] <= self.moved:
            self._offset = self._ends.pop(0)[1]
        self._last_s = now_s
        return [*self._settle(now_s), *self._tell(now_s, PLACE_S)]

    def _settle(self, now_s: float) -> list[StreamEffect]:
        """What was confirmed makes room, as much as the rate lets."""
        upto = self.moved
        if self._rate_per_s:
            upto = min(upto, int((now_s - self._began_s) * self._rate_per_s))
        if upto <= self._settled or (2 * (upto - self._settled) < self._window and upto < self._came):
            return []
        self._settled = upto
        return [Settle(upto, sync=False)]

    def _tell(self, now_s: float, every_s: float) -> list[StreamEffect]:
        if self._offset == self._told or now_s < self._told_s + every_s:
            return []
        self._told, self._told_s = self._offset, now_s
        return [Reached(self._offset)]

    def tick(self, now_s: float) -> list[StreamEffect]:
        """Time has passed."""
        if self.is_over:
            return []
        if now_s < self._last_s + QUIET_S or self.moved < self._came or self._settled < self._came:
            return self._settle(now_s)
        self.is_over = True
        return [*self._tell(now_s, 0.0), End()]
