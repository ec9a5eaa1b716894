"""One connection to another node: handshake, then frames (waits: a protocol of asyncio, behind TLS).

A connection is given up after HELLO_TIMEOUT_S without a finished handshake. The kernel finds a peer whose machine is
gone, by keep-alives and by a limit on how long sent bytes may stay unacknowledged; a peer that is only paused for a
moment keeps its link.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, cast

import msgspec

from .certificates import common_name
from .frames import FRAME_BYTES_MAX, BadFrame, FrameReader
from .hello import HELLO_BYTES_MAX, LINK_INDEX, BrokenHandshake, Handshake, Handshaking, Hello, late, refusal

HELLO_TIMEOUT_S: Final = 3.0
FAREWELL_S: Final = 1.0
PIECE_BYTES: Final = 1 << 20
JOINED_BYTES_MAX: Final = 16 << 10
"""As much as one TLS record holds."""
_KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 10_000))
"""Seconds, seconds, count, milliseconds: a machine that vanished is noticed within 5 s, 10 s with bytes on the way."""


class LinkOwner(Protocol):
    """The owner of the links; all calls on the loop's thread."""

    def greeting(self, link: Link, channel: str) -> Hello:
        """The Hello of this node."""

    def wanted(self, link: Link, hello: Hello) -> str | None:
        """The objection to the other's Hello, None: there is none."""

    def stands(self, link: Link) -> str | None:
        """Both sides are content. An objection that came up since ends the link."""

    def frame(self, link: Link, index: int, head: memoryview, payload: memoryview) -> None:
        """A frame came on a link that stands."""

    def drained(self, link: Link) -> None:
        """Less than the low-water mark waits again."""

    def ended(self, link: Link, why: str) -> None:
        """The connection is over, whether it stood or not; called once."""


class Link(asyncio.Protocol):
    """A connection, dialled or accepted. After `ended` nothing more is called."""

    def __init__(self, owner: LinkOwner, where: str, dialled: tuple[str, str, int] | None, high_bytes: int) -> None:
        """`dialled`: (peer, channel, number of the dial), None: accepted. `where`: the address, for log lines."""
        self._owner = owner
        self._high_bytes = high_bytes
        self._reader = FrameReader(HELLO_BYTES_MAX)
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        self._handshake: Handshake | None = None
        self.transport: asyncio.Transport | None = None
        """None until TLS is up."""
        self.where = where
        self.dialled = dialled
        self.certified: str | None = None
        self.session = 0
        """Given by the owner when the link stands."""
        self.sent_bytes = 0
        """Of frames since it stands."""
        self.received_bytes = 0
        self.writable = True
        self._waiting: deque[bytes | memoryview] = deque()
        self._waiting_bytes = 0
        self._pumps = False  # the next piece is due
        self.refused = False
        """One side did not want the other."""
        self.settled = asyncio.Event()
        """Set when it stands or is over."""
        self.closed = asyncio.Event()
        """Set when it is over."""

    @property
    def hello(self) -> Hello | None:
        """The other side's Hello, once it was found good."""
        return self._handshake.hello if self._handshake is not None else None

    @property
    def linked(self) -> bool:
        """It stands."""
        return self._handshake is not None and self._handshake.state is Handshaking.LINKED and not self._over

    @property
    def ready(self) -> bool:
        """What is written goes to the transport at once."""
        return self.writable and not self._waiting

    @property
    def backlog(self) -> int:
        """Bytes that wait here for the peer or the network."""
        if self.transport is None or self._over:
            return 0
        return self.transport.get_write_buffer_size() + self._waiting_bytes

    def write(self, frames: bytes | Iterable[bytes]) -> None:
        """Frames in order; the caller watches `backlog`. To encrypt very much takes long, and what the transport cannot
        pass on it copies again with each write: so it gets a piece at a time, and none while it is full."""
        assert self.linked, "frames go over a link that stands"
        assert self.transport is not None, "a link that stands has a transport"
        parts = (frames,) if isinstance(frames, bytes) else tuple(frames)
        size = sum(map(len, parts))
        self.sent_bytes += size
        if not self.ready or self._pumps or size > PIECE_BYTES:
            self._waiting.extend(parts)
            self._waiting_bytes += size
            self._pump()
        elif len(parts) == 1:
            self.transport.write(parts[0])
        elif size <= JOINED_BYTES_MAX:
            # each write is a TLS record of its own, and costs more than copying small frames together
            self.transport.write(b"".join(parts))
        else:
            self.transport.writelines(parts)

    def _pump(self) -> None:
        """Hands a piece of what waits to the transport, if that has room, and the next in a later event of the loop."""
        if self._over or self._pumps or not self._waiting or not self.writable:
            return
        assert self.transport is not None, "a link that stands has a transport"
        pieces: list[memoryview] = []
        room = PIECE_BYTES
        while room and self._waiting:
            whole = memoryview(self._waiting.popleft())
            pieces.append(whole[:room])
            if len(whole) > room:
                self._waiting.appendleft(whole[room:])
            room -= len(pieces[-1])
        self._waiting_bytes -= PIECE_BYTES - room
        self._pumps = True
        asyncio.get_running_loop().call_soon(self._pump_on)
        self.transport.write(b"".join(pieces))

    def _pump_on(self) -> None:
        self._pumps = False
        self._pump()
        if self.linked and self.ready:
            self._owner.drained(self)

    def end(self, why: str, farewell: bytes | None = None) -> None:
        """Give it up: at once, or after a farewell (perhaps empty) and what waits to be sent, within 1 s."""
        if self._over:
            return
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if self.transport is not None:
            if farewell is None:
                self.transport.abort()
            else:
                self.transport.writelines((*self._waiting, farewell))
                self.transport.close()
                # close waits until all is sent and answered; a peer that does not is cut
                asyncio.get_running_loop().call_later(FAREWELL_S, self.transport.abort)
        self._waiting.clear()
        self.settled.set()
        self.closed.set()
        self._owner.ended(self, why)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """TLS is up: both certificates are verified."""
        self.transport = stream = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        if self._over:
            stream.abort()
            return
        self._tune(stream)
        self.certified = common_name(transport.get_extra_info("peercert"))
        self._handshake = Handshake(
            self.dialled[1] if self.dialled is not None else None,
            partial(self._owner.greeting, self),
            partial(self._owner.wanted, self),
        )
        self._timer = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self._too_slow)
        if first := self._handshake.begin():
            stream.write(first)

    def _tune(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=self._high_bytes, low=self._high_bytes // 4)
        connection = transport.get_extra_info("socket")
        if connection is None:
            return
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEP_ALIVE:
                if hasattr(socket, option):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def _too_slow(self) -> None:
        self.end(f"no hello within {HELLO_TIMEOUT_S:g} s")

    def data_received(self, data: bytes) -> None:
        """Bytes of the peer."""
        if self._over:
            return
        self.received_bytes += len(data)
        try:
            for index, head, payload in self._reader.feed(data):
                if self.linked:
                    if index == LINK_INDEX:
                        self.end(late(head))
                        return
                    self._owner.frame(self, index, head, payload)
                else:
                    self._shake(index, head)
                if self.closed.is_set():
                    return
        except BadFrame as error:
            self.end(f"it sent {error}")
        except BrokenHandshake as error:
            self.refused = True
            self.end(error.line, None if error.known else refusal(error.line))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self.end(f"it sent a message that cannot be read: {error}")

    def _shake(self, index: int, head: memoryview) -> None:
        assert self._handshake is not None, "data comes after connection_made"
        assert self.transport is not None, "data comes after connection_made"
        if answer := self._handshake.received(index, head):
            self.transport.write(answer)
        if self._handshake.state is Handshaking.LINKED:
            if self._timer is not None:
                self._timer.cancel()
            self._reader.bytes_max = FRAME_BYTES_MAX
            if (why := self._owner.stands(self)) is not None:
                raise BrokenHandshake(why)
            self.settled.set()

    def eof_received(self) -> bool:
        """The peer sends no more: the connection is of no use."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The transport is gone."""
        self.end(lost_line(error))

    def pause_writing(self) -> None:
        """More than the high-water mark waits."""
        self.writable = False

    def resume_writing(self) -> None:
        """Less than the low-water mark waits."""
        self.writable = True
        self._pump()
        if self.linked and self.ready:
            self._owner.drained(self)


_TRUST: Final = "give both nodes the same join secret"


def lost_line(error: BaseException | None) -> str:
    """Why a connection ended or never stood, in words for the log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not signed by this cluster's authority ({error.verify_message}): {_TRUST}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        if "UNKNOWN_CA" in reason or "CERTIFICATE" in reason or "DECRYPT_ERROR" in reason:
            return f"it does not trust this node's certificate, or shows none ({reason}): {_TRUST}"
        return f"it does not speak TLS 1.3 as nodes do ({reason}): the cluster's port is for nodes only"
    if error is None:
        return "it closed the connection"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
