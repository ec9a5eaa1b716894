"""Connections of simulated clients: real AMQP frames both ways, with a delay, in order.

What a node writes is taken apart at the moment when it is written: that is when a message counts as handed over. The
client hears of it when it arrives, unless the connection broke meanwhile.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from clusterbroker.broker.fronts.amqp091.connection import Connection
from clusterbroker.broker.node.clients import Accepted
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091 import properties as codec
from clusterbroker.broker.wire.amqp091.codec import OutBuffer
from clusterbroker.broker.wire.amqp091.layout import Method
from clusterbroker.broker.wire.amqp091.properties import Properties
from tests.unit.broker.fronts.amqp091.harness import CAPABILITIES, HEADER, Content

if TYPE_CHECKING:
    from clusterbroker.broker.node.core import Node
    from tests.simulation.clients import Actor
    from tests.simulation.site import Site

FRAME_BYTES = 131072


def properties_of(said: Content) -> Properties:
    """Of what a client was sent: their bytes are looked at where they matter."""
    return codec.decode(said.properties)  # type: ignore[arg-type]


class Socket:
    """Both ends of one connection. `closed`: nothing goes through it any more."""

    def __init__(self, site: Site, actor: Actor) -> None:
        assert site.node is not None, "a node that runs has clients"
        self.site = site
        self.actor = actor
        self.life = site.life
        self.connection: Any = self.open(site.node)
        self.closed = False
        self.unread = b""
        self.writing = OutBuffer(FRAME_BYTES)
        self._last_s = [0.0, 0.0]
        self._contents: dict[int, list[Any]] = {}
        site.sockets[self.connection] = self

    def open(self, node: Node) -> Any:
        """The core of the node's end."""
        return Connection(node, Accepted(f"{self.actor.name}:1", True, self.site.now_ms()))

    # -- the client's end

    def say(self, *methods: Method, channel: int = 1) -> None:
        for method in methods:
            self.writing.method(channel, m.encode(method))
        self.send(bytes(self.writing.take()))

    def hello(self, channels: int = 1) -> None:
        """The handshake and the channels, all in one go."""
        out = self.writing
        out.method(0, m.encode(m.ConnectionStartOk({"capabilities": {**CAPABILITIES}}, "PLAIN", b"\0guest\0guest")))
        out.method(0, m.encode(m.ConnectionTuneOk(2047, FRAME_BYTES, 0)))
        out.method(0, m.encode(m.ConnectionOpen("/")))
        for number in range(1, channels + 1):
            out.method(number, m.encode(m.ChannelOpen()))
        self.send(HEADER + bytes(out.take()))

    def content(self, exchange: str, key: str, body: bytes, channel: int = 1, **properties: Any) -> bytes:
        out = self.writing
        out.method(channel, m.encode(m.BasicPublish(0, exchange, key, False, False)))
        properties.setdefault("delivery_mode", 2)
        out.frame(2, channel, struct.pack(">HHQ", 60, 0, len(body)) + codec.encode(Properties(**properties)))
        if body:
            out.frame(3, channel, body)
        return bytes(out.take())

    def send(self, data: bytes) -> None:
        if not self.closed:
            self._later(0, self._reach, data)

    def leave(self) -> None:
        """The client closes its socket without a word."""
        if not self.closed:
            self.closed = True
            self.site.do(self.life, self._lost)

    def turned_away(self) -> None:
        """The node closes it."""
        self.cut()
        self._lost()

    def _lost(self) -> None:
        if self.site.sockets.pop(self.connection, None) is not None:
            self.connection.lost(self.site.now_ms())

    # -- the node's end

    def _reach(self, data: bytes) -> None:
        if not self.closed:
            self.site.do(self.life, self._received, data)

    def _received(self, data: bytes) -> None:
        self.unread += data
        self.site.unread[self] = None
        self.feed()

    def feed(self) -> None:
        """The node reads what waits, if it wants to."""
        if self.closed:
            self.site.unread.pop(self, None)
        elif self.connection.reading:
            del self.site.unread[self]
            data, self.unread = self.unread, b""
            self.connection.receive(self.connection.undecoded + data, self.site.now_ms())

    def flush(self) -> None:
        """The node writes what it may."""
        connection = self.connection
        if connection.out.size and not self.closed:
            full = connection.out.size >= connection.out.size_max
            data = bytes(connection.out.take())
            connection.sent(self.site.now_ms())
            if full:
                connection.mark_consumers()
            self.site.world.schedule.traced(data)
            heard = self._parse(data)
            if heard:
                self.site.world.checkers.written(self, heard)
                self._later(1, self._hear, heard)
        if connection.ending is not None:
            self.cut()

    def cut(self) -> None:
        """The connection breaks at the node's end: the client hears of it."""
        if self.site.sockets.pop(self.connection, None) is not None and self.site.life == self.life:
            self.connection.lost(self.site.now_ms())
        if not self.closed:
            self.closed = True
            self._later(1, self.actor.lost, self)

    # -- on the way

    def _later(self, way: int, call: Any, *arguments: Any) -> None:
        schedule = self.site.world.schedule
        at_s = max(schedule.now_s + 0.0002 + schedule.rng.random() * 0.0008, self._last_s[way])
        self._last_s[way] = at_s
        schedule.at(at_s, call, *arguments)

    def _hear(self, heard: list[tuple[int, Any]]) -> None:
        if self.actor.socket is self:
            self.actor.heard(heard)

    def _parse(self, data: bytes) -> list[tuple[int, Any]]:
        """Whole methods and contents; a node writes whole frames."""
        heard: list[tuple[int, Any]] = []
        at = 8 if data[:4] == b"AMQP" else 0
        while at < len(data):
            kind, channel, size = struct.unpack_from(">BHI", data, at)
            payload = data[at + 7 : at + 7 + size]
            assert data[at + 7 + size] == 0xCE, "a frame ends with its octet"
            at += size + 8
            if kind == 1:
                assert channel not in self._contents, "a content is not interrupted on its own channel"
                method = m.decode(payload)
                if method.HAS_CONTENT:
                    self._contents[channel] = [method, None, b"", -1]
                else:
                    heard.append((channel, method))
            elif kind in (2, 3):
                content = self._contents[channel]
                if kind == 2:
                    content[3] = int.from_bytes(payload[4:12], "big")
                    content[1] = payload[12:]
                else:
                    content[2] += payload
                if len(content[2]) == content[3]:
                    del self._contents[channel]
                    heard.append((channel, Content(content[0], content[1], content[2])))
        return heard
