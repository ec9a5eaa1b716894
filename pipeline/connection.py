"""A connection with one channel to one node, on a socket that is read while it is written (waits).

    PublisherError
    +-- ConnectionLost      the line is gone, or none of the endpoints answers: another attempt may do better
    +-- Refused             the broker said no, with a code and a text: who asks again hears the same
    |   +-- (bulk) Nacked, Unroutable
    +-- (bulk) ConfirmTimeout

A broker that is told much and read little stops reading. So `send` reads whenever the socket takes no more, and what it
hears is kept for `receive`.

Heartbeats, if they are asked for, are sent and missed by who waits in `receive`: nobody else is there. A line that was
left alone for longer may have been ended by the broker, which is heard before anything new is said.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import ssl
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

from clusterbroker.pipeline import advice, wire
from clusterbroker.pipeline.option_values import Endpoint
from clusterbroker.pipeline.options import BadOption, Options
from clusterbroker.pipeline.wire import Heard

_log: Final = logging.getLogger(__name__)
CHANNEL: Final = 1
CLOSE_PATIENCE_S: Final = 2.0
READ_BYTES: Final = 1 << 18
KEEPALIVE: Final = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4))
"""A host that vanished is noticed after 40 s, while nothing else would."""
GOING_AWAY: Final = 320
"""connection.close of a node that is shut down or drained, or on an operator's behalf: others are there."""
PASSWORD_VARIABLE: Final = "CLUSTERBROKER_PASSWORD"  # noqa: S105 - a name
_PROPERTIES: Final[dict[str, Any]] = {
    "product": "clusterbroker-spark",
    "platform": "Python",
    "capabilities": {
        "publisher_confirms": True,
        "basic.nack": True,
        "connection.blocked": True,
        "consumer_cancel_notify": True,
        "authentication_failure_close": True,
    },
}


class PublisherError(Exception):
    """Root of what a publisher raises. Only texts stand in it: Spark pickles and prints it."""


class ConnectionLost(PublisherError):
    """The line is gone, or there is none to be had."""


class Refused(PublisherError):
    """The broker closed the channel or the connection: `args` are its code and its text."""

    def __str__(self) -> str:
        text = str(self.args[1]).removesuffix(".")
        return f"the broker refused: {self.args[0]} {text}{advice.of_refusal(text)}"


def password_of(options: Options) -> str:
    """Raises BadOption when its file cannot be read."""
    if options.password is not None:
        return options.password
    if options.password_file is not None:
        try:
            return (Path(options.password_file).read_text(encoding="utf-8").splitlines() or [""])[0]
        except (OSError, UnicodeDecodeError) as error:
            raise BadOption(
                f"option 'passwordFile' is '{options.password_file}', which cannot be read: {error}"
            ) from None
    return os.environ.get(PASSWORD_VARIABLE, "guest")


def tls_context(options: Options) -> ssl.SSLContext | None:
    """None without TLS. Raises BadOption when a file is no good."""
    if not options.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=options.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise BadOption(f"option 'tls.caFile' is '{options.ca_file}', which cannot be used: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if options.cert_file is not None:
        try:
            context.load_cert_chain(options.cert_file, options.key_file)
        except (OSError, ssl.SSLError) as error:
            raise BadOption(f"options 'tls.certFile' and 'tls.keyFile' cannot be used: {error}") from None
    return context


class Connection:
    """Open when it is made. Raises ConnectionLost, Refused, BadOption."""

    def __init__(self, endpoint: Endpoint, options: Options, name: str) -> None:
        self.endpoint = endpoint
        self.frame_bytes_max = 0
        self.blocked: str | None = None
        """Why the broker takes no publishes now."""
        self._decoder = wire.Decoder()
        self._heard: deque[Heard] = deque()
        self._patience_s = options.confirm_timeout_ms / 1000
        self.heartbeat_s = 0
        """Negotiated; 0: none."""
        self._sent_s = self._heard_s = time.monotonic()
        deadline_s = time.monotonic() + options.connect_timeout_ms / 1000
        password, context = password_of(options), tls_context(options)
        try:
            self._socket = self._connected(endpoint, context, options.connect_timeout_ms / 1000)
        except (OSError, ssl.SSLError) as error:
            raise ConnectionLost(f"{endpoint}: {error}") from None
        try:
            self._poll = select.poll()
            self._poll.register(self._socket, select.POLLIN)
            self._handshake(options, password, name, deadline_s)
        except BaseException:
            self._socket.close()
            raise

    def _connected(self, endpoint: Endpoint, context: ssl.SSLContext | None, timeout_s: float) -> socket.socket:
        raw = socket.create_connection(endpoint, timeout_s)
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEPALIVE:
                if hasattr(socket, option):
                    raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
            if context is not None:
                raw = context.wrap_socket(raw, server_hostname=endpoint.host)
            raw.setblocking(False)
        except BaseException:
            raw.close()
            raise
        return raw

    def _handshake(self, options: Options, password: str, name: str, deadline_s: float) -> None:
        self.send(wire.PROTOCOL_HEADER)
        start = self._await("connection.start", deadline_s)
        if "PLAIN" not in wire.words(start.fields[3]):
            raise Refused(530, f"{self.endpoint} offers no mechanism PLAIN")
        properties = {**_PROPERTIES, "connection_name": name}
        response = wire.plain(options.username, password)
        self._say("connection.start-ok", 0, properties, "PLAIN", response, "en_US")
        channels, frame_bytes, heartbeat_s = self._await("connection.tune", deadline_s).fields
        self.frame_bytes_max = min(frame_bytes or options.frame_bytes_max, options.frame_bytes_max)
        if options.heartbeat_s:
            self.heartbeat_s = min(options.heartbeat_s, heartbeat_s or options.heartbeat_s)
        self._say("connection.tune-ok", 0, min(channels or 2, 2), self.frame_bytes_max, self.heartbeat_s)
        self._say("connection.open", 0, options.vhost, "", False)
        self._await("connection.open-ok", deadline_s)
        self._say("channel.open", CHANNEL, "")
        self._await("channel.open-ok", deadline_s)
        self._say("confirm.select", CHANNEL, False)
        self._await("confirm.select-ok", deadline_s)

    # -- saying -------------------------------------------------------------------------------------------------------

    def _say(self, name: str, channel: int, *values: Any) -> None:
        self.send(wire.method(name, channel, *values))

    def call(self, name: str, *values: Any, answer: str, timeout_s: float) -> Heard:
        """Says a method on the channel and waits for its answer."""
        self._say(name, CHANNEL, *values)
        return self._await(answer, time.monotonic() + timeout_s)

    def send(self, data: bytes) -> None:
        """Returns when the kernel has all of it. Raises ConnectionLost, Refused.

        Who takes not one byte for as long as a confirm may take is lost, unless it has said that it is blocked.
        """
        view = memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view) :]
                self._sent_s = time.monotonic()
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                self._poll.modify(self._socket, select.POLLIN | select.POLLOUT)
                idle = not self._poll.poll(self._patience_s * 1000)
                self._poll.modify(self._socket, select.POLLIN)
                self._read()
                if idle and self.blocked is None:
                    raise ConnectionLost(f"{self.endpoint}: took nothing for {self._patience_s:g} s") from None
            except (OSError, ssl.SSLError) as error:
                self._read()  # what it said before it went is the better reason
                raise ConnectionLost(f"{self.endpoint}: {error}") from None

    # -- hearing ------------------------------------------------------------------------------------------------------

    def receive(self, timeout_s: float) -> list[Heard]:
        """What has been heard, after at most so long. Raises ConnectionLost, Refused."""
        self._read()
        if not self._heard and timeout_s > 0:
            if self.heartbeat_s:
                self._wait_alive(timeout_s)
            else:
                self._poll.poll(timeout_s * 1000)
                self._read()
        heard = list(self._heard)
        self._heard.clear()
        return heard

    def _wait_alive(self, timeout_s: float) -> None:
        """As a poll and a read, with heartbeats. Raises ConnectionLost when two were missed."""
        deadline_s = time.monotonic() + timeout_s
        while not self._heard and (now_s := time.monotonic()) < deadline_s:
            if now_s - self._heard_s > 2 * self.heartbeat_s:
                raise ConnectionLost(f"{self.endpoint}: silent for two heartbeats of {self.heartbeat_s} s")
            if now_s - self._sent_s >= self.heartbeat_s / 2:
                self.send(wire.HEARTBEAT_FRAME)
            self._poll.poll(min(deadline_s - now_s, self.heartbeat_s / 2) * 1000)
            self._read()

    def _await(self, name: str, deadline_s: float) -> Heard:
        """The next method of this name; others that came before it stay to be received."""
        passed: list[Heard] = []
        try:
            while (left_s := deadline_s - time.monotonic()) > 0:
                heard = self.receive(left_s)
                for place, one in enumerate(heard):
                    if one.name == name:
                        passed += heard[:place]
                        self._heard.extend(heard[place + 1 :])
                        return one
                passed += heard
        finally:
            self._heard.extendleft(reversed(passed))
        raise ConnectionLost(f"{self.endpoint}: no {name} in time")

    def _read(self) -> None:
        """All that is there now."""
        while True:
            try:
                data = self._socket.recv(READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except (OSError, ssl.SSLError) as error:
                raise ConnectionLost(f"{self.endpoint}: {error}") from None
            if not data:
                raise ConnectionLost(f"{self.endpoint}: closed by the other side without a word")
            self._heard_s = time.monotonic()
            try:
                for heard in self._decoder.feed(data):
                    self._take(heard)
            except wire.BadFrame as error:
                raise ConnectionLost(f"{self.endpoint}: {error}") from None

    def _take(self, heard: Heard) -> None:
        if heard.name == "connection.close":
            code, text = heard.fields[:2]
            self._answer(wire.method("connection.close-ok", 0))
            if code == GOING_AWAY:
                raise ConnectionLost(f"{self.endpoint}: {code} {text}")
            raise Refused(code, text)
        if heard.name == "channel.close":
            self._answer(wire.method("channel.close-ok", CHANNEL))
            raise Refused(*heard.fields[:2])
        if heard.name == "connection.blocked":
            self.blocked = heard.fields[0] or "no reason given"
            _log.warning("%s takes no publishes now (%s): rows wait until it does", self.endpoint, self.blocked)
        elif heard.name == "connection.unblocked":
            self.blocked = None
        else:
            self._heard.append(heard)

    def _answer(self, data: bytes) -> None:
        """A last word, as far as the kernel takes it."""
        try:
            self._socket.send(data)
        except (OSError, ssl.SSLError):
            pass

    def is_usable(self) -> bool:
        """Whether it stood until now, with nothing said that nobody waits for."""
        try:
            return not self.receive(0)
        except PublisherError:
            return False

    def close(self) -> None:
        """With a good-bye, for which the other side is given a moment."""
        try:
            self._say("connection.close", 0, 200, "", 0, 0)
            self._await("connection.close-ok", time.monotonic() + CLOSE_PATIENCE_S)
        except PublisherError:
            pass
        self._socket.close()

    def abandon(self) -> None:
        """At once."""
        self._socket.close()
