"""The first bytes of a connection choose its protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from clusterbroker.broker.fronts.amqp091.connection import HEADER_0_9, HEADER_0_9_1, Connection
from clusterbroker.broker.node.clients import Accepted, ClientCore
from clusterbroker.broker.node.core import Node
from clusterbroker.broker.wire.amqp091.codec import OutBuffer
from clusterbroker.broker.wire.amqp091.errors import connection_forced

OUT_BYTES: Final = 8192

Front = Callable[[Node, Accepted], ClientCore]
"""Makes the core of a connection in its protocol."""


class Fronts:
    """The protocols of a listener: first bytes -> front. Bytes of none of them go to `otherwise`, which answers them as
    its protocol wants."""

    def __init__(self, fronts: Mapping[bytes, Front], otherwise: Front) -> None:
        self._fronts = fronts
        self._otherwise = otherwise

    def choose(self, data: bytes) -> Front | None:
        """None: more bytes decide."""
        possible = {front for first, front in self._fronts.items() if first.startswith(data[: len(first)])}
        if len(possible) > 1:
            return None
        return possible.pop() if possible else self._otherwise


HEADER_1_0: Final = b"AMQP\x00\x01\x00\x00"
HEADER_1_0_SASL: Final = b"AMQP\x03\x01\x00\x00"


def open_amqp10(node: Node, accepted: Accepted) -> ClientCore:
    """AMQP 1.0, imported with its first client."""
    from clusterbroker.broker.fronts.amqp10.connection import Connection

    return Connection(node, accepted)


FRONTS: Final = Fronts(
    {
        HEADER_0_9_1: Connection,
        HEADER_0_9: Connection,
        HEADER_1_0: open_amqp10,
        HEADER_1_0_SASL: open_amqp10,
    },
    otherwise=Connection,
)


class Opening:
    """The core of a connection before its protocol is known. `become` gets the core that takes its place."""

    user = ""
    trusted = owed = False

    __slots__ = ("_accepted", "_become", "_fronts", "_node", "ending", "out", "peer", "reading", "undecoded")

    def __init__(self, node: Node, accepted: Accepted, fronts: Fronts, become: Callable[[ClientCore], None]) -> None:
        self._node = node
        self._accepted = accepted
        self._fronts = fronts
        self._become = become
        self.peer = accepted.peer
        self.out = OutBuffer(OUT_BYTES)
        self.reading = True
        self.ending: str | None = None
        self.undecoded = b""

    def receive(self, data: bytes | bytearray | memoryview, now_ms: int) -> None:
        front = self._fronts.choose(bytes(data[:16]))
        if front is None:
            self.undecoded = bytes(data)
            return
        core = front(self._node, self._accepted)
        self._become(core)
        core.receive(data, now_ms)

    def sent(self, now_ms: int) -> None:
        pass

    def paused(self, paused: bool, now_ms: int) -> None:
        pass

    def mark_consumers(self) -> None:
        pass

    def tick(self, now_ms: int, wall_ms: int = 0) -> None:  # noqa: ARG002
        limit_s = self._node.options.handshake_timeout_s
        if self.ending is None and now_ms - self._accepted.at_ms > limit_s * 1000:
            self._node.log_cut(self, f"no protocol header within {limit_s:g} s")
            self._end("abort")

    def lost(self, now_ms: int) -> None:
        pass

    def dismiss(self) -> None:
        self.reading = False

    def force_close(self, text: str) -> None:
        if self.ending is None:
            self._node.log_fault(self, connection_forced(text), 0)
            self._end("flush")

    def crashed(self, error: Exception) -> None:
        self._node.log.crashed(self.peer, error)
        self._end("abort")

    def _end(self, how: str) -> None:
        self.ending = how
        self._node.sending[self] = None
