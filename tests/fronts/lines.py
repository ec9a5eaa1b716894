"""The output of the toy: deliveries leave the ring as frames of 0-9-1, and become lines when they are sent."""

from __future__ import annotations

import struct

from clusterbroker.broker.queues.ticket import Outcome
from clusterbroker.broker.wire.amqp091.codec import OutBuffer

WORDS = {Outcome.ACCEPTED: b"OK", Outcome.REJECTED: b"FULL", Outcome.RELEASED: b"NO"}
"""Of a publish."""


class Lines:
    """Lines, and frames of deliveries."""

    def __init__(self) -> None:
        self.frames = OutBuffer(0)  # a body is one frame
        self.size_max = self.frames.size_max
        self._lines: list[bytes] = []

    @property
    def size(self) -> int:
        return self.frames.size + sum(map(len, self._lines))

    @property
    def paused(self) -> bool:
        return self.frames.paused

    def add(self, *words: object) -> None:
        self._convert()
        self._add(*words)

    def _add(self, *words: object) -> None:
        self._lines.append(b" ".join(word if isinstance(word, bytes) else str(word).encode() for word in words) + b"\n")

    def take(self) -> bytes:
        self._convert()
        lines, self._lines = self._lines, []
        return b"".join(lines)

    def _convert(self) -> None:
        """Deliveries up to here become lines."""
        data, at, tag, redelivered = bytes(self.frames.take()), 0, 0, 0
        while at < len(data):
            kind, _, size = struct.unpack_from(">BHI", data, at)
            payload = data[at + 7 : at + 7 + size]
            at += size + 8
            if kind == 1:
                tag, redelivered = struct.unpack_from(">QB", payload, 5 + payload[4])
            elif kind == 3 or not any(payload[4:12]):
                self._add(b"MSG", tag, redelivered, payload if kind == 3 else b"")
