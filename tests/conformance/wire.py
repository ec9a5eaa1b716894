"""A small blocking AMQP client that can also misbehave.

`Connection` and `Channel` (channel.py) give every method of the protocol as a Python method named after it:

    channel.queue_declare("q", durable=True)             waits for queue.declare-ok and returns it
    channel.basic_publish("", "q", b"body", priority=3)  properties by name; publishes never wait
    with channel.closes(406, "inequivalent arg"):        the block must end in this channel.close,
        channel.queue_declare("q", durable=False)        whose class and method ids name the last method sent
    with connection.closes(540, "immediate=true"): ...   the same for connection.close, then the socket ends

What the server says without being asked is kept by kind (`deliveries`, `returns`, confirms, cancels) and, in the order
of arrival, in `channel.log`. Every wait has a deadline. A close that nobody expected raises `ChannelClosed` or
`ConnectionClosed`, both of which fail a test with the server's own words.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

from .channel import (
    ANY,
    TIMEOUT_S,
    Channel,
    ChannelClosed,
    ConnectionClosed,
    Method,
    Silence,
    check_close,
    offender_ids,
)
from .encoding import (
    CARRIES_CONTENT,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    PROTOCOL_HEADER,
    decode_header,
    decode_method,
    encode_frame,
    encode_method,
)

CLIENT_CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}


class Connection:
    """One TCP connection. `Connection.socket_only` stops before the protocol header, `open=False` before tune-ok."""

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        password: str | None = None,
        vhost: str = "/",
        capabilities: dict[str, Any] | None = None,
        channel_max: int | None = None,
        frame_max: int | None = None,
        heartbeat: int = 0,
        stop_before: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        parts = urlsplit(url)
        self.url = url
        self.user = user if user is not None else unquote(parts.username or "guest")
        self.password = password if password is not None else unquote(parts.password or "guest")
        self.socket = socket.create_connection((parts.hostname or "", parts.port or 5672), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.buffer = bytearray()
        self.channels: dict[int, Channel] = {}
        self.replies: deque[Method] = deque()
        self.blocked: list[Method] = []
        self.log: list[Method] = []
        self.heartbeats = 0
        self.closed: Method | None = None
        self.ended = False
        self.partial: dict[int, tuple[Method, int]] = {}
        self.frame_max = 4096
        self.last_sent: str | None = None
        self.auto_heartbeat_s = 0.0
        self.last_write = time.monotonic()
        if stop_before == "header":
            return
        self.send_bytes(PROTOCOL_HEADER)
        self.start = self.reply("connection.start")
        if stop_before == "start-ok":
            return
        self.start_ok(capabilities)
        if stop_before == "tune":
            return
        self.tune = self.reply("connection.tune")
        if stop_before == "tune-ok":
            return
        self.tune_ok(channel_max, frame_max, heartbeat)
        if stop_before == "open":
            return
        self.open(vhost)

    def start_ok(
        self, capabilities: dict[str, Any] | None = None, mechanism: str = "PLAIN", response: bytes | None = None
    ) -> None:
        wanted = CLIENT_CAPABILITIES if capabilities is None else capabilities
        if response is None:
            response = f"\0{self.user}\0{self.password}".encode()
        properties = {"product": "conformance", "capabilities": wanted}
        self.send(
            "connection.start-ok",
            client_properties=properties,
            mechanism=mechanism,
            response=response,
            locale="en_US",
        )

    def tune_ok(self, channel_max: int | None = None, frame_max: int | None = None, heartbeat: int = 0) -> None:
        channel_max = self.tune.channel_max if channel_max is None else channel_max
        frame_max = self.tune.frame_max if frame_max is None else frame_max
        self.send("connection.tune-ok", channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat)
        self.frame_max = frame_max or 131072

    def open(self, vhost: str = "/") -> None:
        self.send("connection.open", virtual_host=vhost)
        self.reply("connection.open-ok")

    def send(self, name: str, **arguments: Any) -> None:
        self.last_sent = name
        self.send_method(0, name, **arguments)

    def send_method(self, channel: int, name: str, **arguments: Any) -> None:
        self.send_bytes(encode_frame(FRAME_METHOD, channel, encode_method(name, **arguments)))

    def send_frame(self, kind: int, channel: int, payload: bytes, end: int = FRAME_END) -> None:
        self.send_bytes(encode_frame(kind, channel, payload, end))

    def send_bytes(self, octets: bytes) -> None:
        """A server that has already closed may refuse the bytes; the test then reads why."""
        self.last_write = time.monotonic()
        try:
            self.socket.settimeout(TIMEOUT_S)
            self.socket.sendall(octets)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def _fill(self, deadline: float) -> bool:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return False
        if self.auto_heartbeat_s:
            remaining = min(remaining, self.auto_heartbeat_s)
            if time.monotonic() - self.last_write >= self.auto_heartbeat_s:
                self.send_frame(FRAME_HEARTBEAT, 0, b"")
        self.socket.settimeout(remaining)
        try:
            octets = self.socket.recv(1 << 16)
        except TimeoutError:
            return bool(self.auto_heartbeat_s) and time.monotonic() < deadline
        except ConnectionResetError:
            octets = b""
        if not octets:
            self.ended = True
        self.buffer += octets
        return True

    def pump(self, deadline: float) -> bool:
        """Handle one frame, or wait for bytes until `deadline` (monotonic); False when it has passed."""
        if len(self.buffer) >= 7:
            size = int.from_bytes(self.buffer[3:7], "big")
            if len(self.buffer) >= size + 8:
                frame = bytes(self.buffer[: size + 8])
                del self.buffer[: size + 8]
                assert frame[-1] == FRAME_END, "the server's frame lacks its end octet"
                assert size + 8 <= self.frame_max or self.frame_max == 4096, "the server's frame is too large"
                self._handle(frame[0], int.from_bytes(frame[1:3], "big"), frame[7:-1])
                return True
        if self.ended:
            raise ConnectionClosed(self.closed)
        return self._fill(deadline)

    def _handle(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == FRAME_HEARTBEAT:
            assert (channel, payload) == (0, b""), "the server's heartbeat has a channel or a payload"
            self.heartbeats += 1
        elif kind == FRAME_METHOD:
            assert channel not in self.partial, "the server sent a method inside a content"
            name, arguments = decode_method(payload)
            method = Method(name, channel, arguments)
            if name in CARRIES_CONTENT:
                self.partial[channel] = (method, -1)
            else:
                self._accept(method)
        elif kind == FRAME_HEADER:
            method, left = self.partial[channel]
            assert left == -1, "the server sent two content headers"
            size, method.properties = decode_header(payload)
            method.raw_properties = payload[14:]
            self._content(method, size)
        else:
            assert kind == FRAME_BODY, f"the server sent a frame of type {kind}"
            method, left = self.partial[channel]
            method.body += payload
            self._content(method, left - len(payload))

    def _content(self, method: Method, left: int) -> None:
        assert left >= 0, "the server's body is longer than its header says"
        self.partial[method.channel] = (method, left)
        if left == 0:
            del self.partial[method.channel]
            self._accept(method)

    def _accept(self, method: Method) -> None:
        self.log.append(method)
        if method.channel:
            assert method.channel in self.channels, f"a method on a channel that is not open: {method}"
            self.channels[method.channel].accept(method)
        elif method.name == "connection.close":
            self.closed = method
            self.send_method(0, "connection.close-ok")
        elif method.name in ("connection.blocked", "connection.unblocked"):
            self.blocked.append(method)
        else:
            self.replies.append(method)

    def wait(self, ready: Callable[[], Any], what: str, timeout_s: float = TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.pump(deadline):
                raise Silence(f"no {what} within {timeout_s} s")

    def reply(self, name: str, timeout_s: float = TIMEOUT_S) -> Method:
        self.wait(lambda: self.replies, name, timeout_s)
        method = self.replies.popleft()
        assert method.name == name, f"expected {name}, got {method}"
        return method

    def read_for(self, seconds: float) -> None:
        """Read whatever comes for a while."""
        deadline = time.monotonic() + seconds
        while self.pump(deadline):
            pass

    def channel(self, number: int | None = None) -> Channel:
        """Open a channel, by default with the lowest free number."""
        channel = self.unopened_channel(number)
        channel.channel_open()
        return channel

    def unopened_channel(self, number: int | None = None) -> Channel:
        if number is None:
            number = next(n for n in range(1, 65536) if n not in self.channels)
        channel = self.channels[number] = Channel(self, number)
        return channel

    def is_usable(self) -> None:
        """A fresh channel opens and closes: the connection lives."""
        number = max(self.channels, default=0) + 1
        channel = self.channel(number)
        channel.channel_close(200, "")
        del self.channels[number]

    @contextmanager
    def closes(
        self, code: int, text: str = "", method: str | None = ANY, timeout_s: float = TIMEOUT_S
    ) -> Iterator[None]:
        """The block ends in this connection.close and then in the end of the socket."""
        try:
            yield
            self.wait(lambda: False, f"connection.close {code}", timeout_s)
        except ConnectionClosed as closed:
            if closed.close is None:
                raise
            last = next((c.last_sent for c in reversed(self.channels.values()) if c.last_sent), self.last_sent)
            check_close(closed.close, code, text, offender_ids(method, last))

    def drops(self, timeout_s: float = TIMEOUT_S) -> Method | None:
        """The server ends the socket within the deadline; returns the connection.close, if it said one."""
        try:
            self.wait(lambda: False, "end of the socket", timeout_s)
        except ConnectionClosed as closed:
            return closed.close
        raise AssertionError("unreachable")

    def publish_until_blocked(self, channel: Channel, exchange: str, key: str, body: bytes) -> int:
        """Publish until connection.blocked comes (a publish that overtakes the alarm does not bring it); how often."""
        deadline = time.monotonic() + TIMEOUT_S
        count = 0
        while not self.blocked:
            assert time.monotonic() < deadline, "no connection.blocked came"
            channel.basic_publish(exchange, key, body)
            count += 1
            self.read_for(0.05)
        return count

    def close(self) -> None:
        """Close politely and wait until the server has let go (exclusive queues are then gone)."""
        if not self.ended and self.closed is None:
            self.send("connection.close", reply_code=200, reply_text="")
            self.reply("connection.close-ok")
        self.socket.close()

    def abandon(self) -> None:
        """Cut the socket without a word."""
        self.socket.close()


def raw_reply(connection: Connection, count: int, timeout_s: float = TIMEOUT_S) -> bytes:
    """The next `count` octets as they are (for protocol headers); fewer if the socket ends."""
    deadline = time.monotonic() + timeout_s
    while len(connection.buffer) < count and not connection.ended:
        if not connection._fill(deadline):
            raise Silence(f"fewer than {count} octets within {timeout_s} s: {bytes(connection.buffer)!r}")
    octets = bytes(connection.buffer[:count])
    del connection.buffer[:count]
    return octets


def eventually(condition: Callable[[], Any], timeout_s: float = TIMEOUT_S, pause_s: float = 0.01) -> None:
    """Wait for a condition that another round trip may make true; fails with its deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not true within {timeout_s} s: {condition}"
        time.sleep(pause_s)


__all__ = ["ANY", "Channel", "ChannelClosed", "Connection", "ConnectionClosed", "Method", "Silence"]
