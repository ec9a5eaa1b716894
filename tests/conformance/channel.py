"""One channel of the test client, what the server said on it, and how its end is expected (see wire.py)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .encoding import (
    ERROR_NAMES,
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    METHODS,
    encode_frame,
    encode_header,
    encode_method,
)

if TYPE_CHECKING:
    from .wire import Connection

TIMEOUT_S = 15.0
QUIET_S = 0.12
ANY = "any method"


@dataclass
class Method:
    """A method from the server, its arguments as attributes; with content, `properties` and `body` too."""

    name: str
    channel: int
    arguments: dict[str, Any]
    properties: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""
    raw_properties: bytes = b""
    """The content header's payload after its flags, octet for octet."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["arguments"][name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def headers(self) -> dict[str, Any]:
        headers: dict[str, Any] = self.properties.get("headers", {})
        return headers


class Closed(AssertionError):
    """The server closed something; fails the test unless `closes` expects it."""

    def __init__(self, close: Method | None) -> None:
        self.close = close
        if close is None:
            super().__init__("the server ended the socket without a connection.close")
        else:
            super().__init__(f"{close.name} {close.reply_code} {close.reply_text!r}")


class ChannelClosed(Closed):
    pass


class ConnectionClosed(Closed):
    pass


class Silence(AssertionError):
    """The deadline passed."""


def _offender(close: Method) -> tuple[int, int]:
    return close.class_id, close.method_id


def check_close(close: Method | None, code: int, text: str, expected: tuple[int, int] | None) -> None:
    """Each error has the form `NAME - explanation` and names the class and method that caused it."""
    assert close is not None, f"the block ended without the expected close {code} {text!r}"
    assert close.reply_code == code, f"expected {code} {text!r}, got {close.reply_code} {close.reply_text!r}"
    assert close.reply_text.startswith(f"{ERROR_NAMES[code]} - "), close.reply_text
    assert text in close.reply_text, f"expected {text!r} in {close.reply_text!r}"
    if expected is not None:
        assert _offender(close) == expected, f"{close.reply_text!r} blames {_offender(close)}, not {expected}"


def offender_ids(method: str | None, last: str | None) -> tuple[int, int] | None:
    if method == ANY:
        return None
    name = last if method == "" else method
    return METHODS[name][:2] if name else (0, 0)


class Channel:
    """One channel. `log` holds everything that the server sent on it, in order."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection, self.number = connection, number
        self.log: list[Method] = []
        self.replies: deque[Method] = deque()
        self.delivered: deque[Method] = deque()
        self.returned: deque[Method] = deque()
        self.cancelled: deque[Method] = deque()
        self.confirmed: dict[int, str] = {}
        self.confirm_floor = 0
        self.closed: Method | None = None
        self.last_sent: str | None = None

    def __getattr__(self, name: str) -> Any:
        wire_name = name.replace("_", ".", 1).replace("_", "-")
        if wire_name not in METHODS:
            raise AttributeError(name)
        fields = [f for f, _ in METHODS[wire_name][2] if not f.startswith("_")]

        def call(*positional: Any, **named: Any) -> Method | None:
            arguments = dict(zip(fields, positional, strict=False)) | named
            self.send(wire_name, **arguments)
            if arguments.get("nowait") or f"{wire_name}-ok" not in METHODS:
                return None
            return self.reply(f"{wire_name}-ok")

        return call

    def send(self, name: str, **arguments: Any) -> None:
        """Send a method and wait for nothing."""
        self.last_sent = name
        self.connection.send_method(self.number, name, **arguments)

    def accept(self, method: Method) -> None:
        self.log.append(method)
        match method.name:
            case "basic.deliver":
                self.delivered.append(method)
            case "basic.return":
                self.returned.append(method)
            case "basic.cancel":
                self.cancelled.append(method)
            case "basic.ack" | "basic.nack":
                self._confirm(method)
            case "channel.close":
                self.closed = method
                self.connection.send_method(self.number, "channel.close-ok")
            case _:
                self.replies.append(method)

    def _confirm(self, method: Method) -> None:
        first = self.confirm_floor + 1 if method.multiple else method.delivery_tag
        for tag in range(first, method.delivery_tag + 1):
            known = self.confirmed.get(tag)
            assert known is None or method.multiple, f"{tag} is confirmed twice: {known}, then {method.name}"
            self.confirmed.setdefault(tag, method.name.removeprefix("basic."))
        while self.confirm_floor + 1 in self.confirmed:
            self.confirm_floor += 1

    def wait(self, ready: Callable[[], Any], what: str, timeout_s: float = TIMEOUT_S) -> None:
        """Read until `ready()`; a close in between raises it."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if self.closed is not None:
                raise ChannelClosed(self.closed)
            if not self.connection.pump(deadline):
                raise Silence(f"no {what} within {timeout_s} s on channel {self.number}")

    def reply(self, name: str, timeout_s: float = TIMEOUT_S) -> Method:
        """The next answer, which must be `name`."""
        self.wait(lambda: self.replies, name, timeout_s)
        method = self.replies.popleft()
        assert method.name == name, f"expected {name}, got {method}"
        return method

    def answered(self) -> bool:
        """Wait for an answer of whatever kind: true for a reply, which is forgotten, false for a channel.close."""
        deadline = time.monotonic() + TIMEOUT_S
        while not self.replies and self.closed is None:
            if not self.connection.pump(deadline):
                raise Silence(f"no answer within {TIMEOUT_S} s on channel {self.number}")
        self.replies.clear()
        return self.closed is None

    def deliveries(self, count: int, timeout_s: float = TIMEOUT_S) -> list[Method]:
        """Exactly the next `count` deliveries."""
        self.wait(lambda: len(self.delivered) >= count, f"{count} deliveries", timeout_s)
        return [self.delivered.popleft() for _ in range(count)]

    def bodies(self, count: int, timeout_s: float = TIMEOUT_S) -> list[bytes]:
        return [delivery.body for delivery in self.deliveries(count, timeout_s)]

    def delivery(self, timeout_s: float = TIMEOUT_S) -> Method:
        return self.deliveries(1, timeout_s)[0]

    def returns(self, count: int = 1) -> list[Method]:
        self.wait(lambda: len(self.returned) >= count, f"{count} returns")
        return [self.returned.popleft() for _ in range(count)]

    def cancel_notice(self, timeout_s: float = TIMEOUT_S) -> Method:
        self.wait(lambda: self.cancelled, "basic.cancel", timeout_s)
        return self.cancelled.popleft()

    def confirms(self, count: int, timeout_s: float = TIMEOUT_S) -> list[str]:
        """ "ack" or "nack" for the publishes 1 to `count`, in the order of publishing."""
        self.wait(lambda: self.confirm_floor >= count, f"confirms up to {count}", timeout_s)
        return [self.confirmed[tag] for tag in range(1, count + 1)]

    def nothing_delivered(self, quiet_s: float = QUIET_S) -> None:
        """A round trip and a quiet moment pass without a delivery."""
        self.basic_qos_probe()
        deadline = time.monotonic() + quiet_s
        while self.connection.pump(deadline):
            pass
        assert not self.delivered, f"unexpected delivery: {self.delivered[0]}"

    def basic_qos_probe(self) -> None:
        """A round trip that changes nothing: channel.flow active=true is a no-op."""
        self.send("channel.flow", active=True)
        self.reply("channel.flow-ok")

    def basic_publish(
        self,
        exchange: str = "",
        routing_key: str = "",
        body: bytes = b"",
        *,
        mandatory: bool = False,
        immediate: bool = False,
        **properties: Any,
    ) -> None:
        self.last_sent = "basic.publish"
        connection, n = self.connection, self.number
        room = connection.frame_max - 8
        frames = [
            encode_frame(
                FRAME_METHOD,
                n,
                encode_method(
                    "basic.publish",
                    exchange=exchange,
                    routing_key=routing_key,
                    mandatory=mandatory,
                    immediate=immediate,
                ),
            ),
            encode_frame(FRAME_HEADER, n, encode_header(len(body), properties)),
        ]
        frames += [encode_frame(FRAME_BODY, n, body[i : i + room]) for i in range(0, len(body), room)]
        connection.send_bytes(b"".join(frames))

    def basic_get(self, queue: str = "", no_ack: bool = False) -> Any:
        """The message as a `Method`, or None for get-empty (which fails a test that looks into it)."""
        self.send("basic.get", queue=queue, no_ack=no_ack)
        self.wait(lambda: self.replies, "basic.get-ok")
        method = self.replies.popleft()
        assert method.name in ("basic.get-ok", "basic.get-empty"), method
        return method if method.name == "basic.get-ok" else None

    def consume(self, queue: str, tag: str = "", **arguments: Any) -> str:
        return str(self.basic_consume(queue, tag, **arguments).consumer_tag)

    def message_count(self, queue: str) -> int:
        return int(self.queue_declare(queue, passive=True).message_count)

    @contextmanager
    def closes(self, code: int, text: str = "", method: str | None = "") -> Iterator[None]:
        """The block ends in this channel.close, and the connection lives on.

        `method` is the offender: by default the last one sent on the channel; None for 0/0; `ANY` to leave it open.
        """
        try:
            yield
            self.wait(lambda: False, f"channel.close {code}")
        except ChannelClosed:
            pass
        check_close(self.closed, code, text, offender_ids(method, self.last_sent))
        self.connection.is_usable()
