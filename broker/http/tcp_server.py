"""The server on TCP, with and without TLS, and its patience with clients (waits).

    TLS handshake          HANDSHAKE_S
    head of a request      HEAD_S from its first octet, or from the beginning of the connection
    between two requests   IDLE_S
    connections            CONNECTIONS_MAX; more are closed at once
    an answer              TAKEN_BYTES of it, or all that is left, every TAKING_S
    answers                UNREAD_BYTES_MAX of them that clients have not taken; then who has left the most is cut

Who sends a request a byte at a time, or nothing at all, holds a socket for no longer than that; who asks for long lists
and does not read them holds little memory, and not for long. Bodies have their own limits of size and time
(`broker.http.app`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from clusterbroker.broker.http.middleware.audit import PEER
from clusterbroker.broker.server.management import PROXIES
from clusterbroker.broker.server.tls import Chain, TlsDoor

HANDSHAKE_S: Final = 5.0
GOODBYE_S: Final = 2.0
HEAD_S: Final = 15.0
IDLE_S: Final = 30
HEAD_BYTES_MAX: Final = 32 << 10
CONNECTIONS_MAX: Final = 2_000
TAKING_S: Final = 15.0
TAKEN_BYTES: Final = 256 << 10
UNREAD_BYTES_MAX: Final = 256 << 20


class Strict(h11.Connection):
    """Requests as they come, but for two that h11 lets pass.

    A head is HEAD_BYTES_MAX at most; h11 asks only for heads that are not whole yet. And a request that says both
    Content-Length and Transfer-Encoding is refused, and its connection ends (RFC 9112, 6.1 and 6.3): a proxy that goes
    by the other one sees another end of it, and what follows is a request that the proxy has not seen.
    """

    def next_event(self) -> Any:
        """As h11's. Raises RemoteProtocolError."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            size = len(event.target) + sum(len(name) + len(value) + 4 for name, value in event.headers)
            if size > HEAD_BYTES_MAX:
                raise h11.RemoteProtocolError(f"a head of {size} bytes", 431)
            names = {name for name, _ in event.headers}
            if b"content-length" in names and b"transfer-encoding" in names:
                raise h11.RemoteProtocolError("Content-Length and Transfer-Encoding")
        return event


class Impatient(H11Protocol):
    """One connection: cut when the head of a request takes too long, or the client does not take its answer."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.conn = Strict(h11.SERVER, HEAD_BYTES_MAX)

    _head: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, PEER: self.client[0] if self.client else ""}
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
            return
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget_head()  # a request is being answered
        elif self._head is None and not self.transport.is_closing():
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        self._taken()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """More is to be sent than the client takes at once."""
        super().pause_writing()
        if self._taking is None:
            self._wait_for_taking()
        slow = [one for one in self.connections if isinstance(one, Impatient) and one._taking is not None]
        if sum(one._unread_bytes for one in slow) > UNREAD_BYTES_MAX:
            max(slow, key=lambda one: one._unread_bytes).transport.abort()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._taken()

    @property
    def _unread_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def _wait_for_taking(self) -> None:
        self._taking = self.loop.call_later(TAKING_S, self._look, self._unread_bytes)

    def _look(self, before_bytes: int) -> None:
        if self._unread_bytes > before_bytes - TAKEN_BYTES:
            self._taking = None
            self.transport.abort()
        else:
            self._wait_for_taking()

    def _taken(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP. If a request is being answered, that answer has nobody to go to any more."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # an answer has begun, or this was said already
            self.transport.abort()

    def _wait_for_head(self) -> None:
        self._head = self.loop.call_later(HEAD_S, self._late)

    def _forget_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _late(self) -> None:
        self._head = None
        self.transport.abort()


def _unheard(_host: str, _why: str) -> None:
    """Who is turned away hears it, and the log of requests has no line for it."""


class TcpServer(uvicorn.Server):
    """`serve(sockets=...)` those without TLS; those with it are given here."""

    def __init__(
        self, app: Any, proxies: Sequence[str] | None, tls: Chain | None, tls_sockets: Sequence[socket.socket]
    ) -> None:
        """`proxies`: addresses that are believed what they say of their clients (`X-Forwarded-For`, `-Proto`); None:
        nobody has set any."""
        proxies = PROXIES if proxies is None else proxies
        super().__init__(
            uvicorn.Config(
                app,
                http=Impatient,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=bool(proxies),
                forwarded_allow_ips=list(proxies),
                h11_max_incomplete_event_size=HEAD_BYTES_MAX,
                timeout_keep_alive=IDLE_S,
                timeout_graceful_shutdown=1,
                ws="none",
            )
        )
        assert tls is not None or not tls_sockets, "who serves TLS has a certificate"
        self._tls = tls
        self._tls_sockets = tuple(tls_sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to accept."""
        await super().startup(sockets=sockets)
        for one in self._tls_sockets:
            assert self._tls is not None, "checked when it was made"
            one.setblocking(False)
            one.listen(self.config.backlog)
            door = TlsDoor(
                [one], self._tls.context, self._protocol, self._room, _unheard,
                handshake_s=HANDSHAKE_S, goodbye_s=GOODBYE_S,
            )  # fmt: skip
            door.begin()
            self.servers.append(door)  # type: ignore[arg-type]

    def _room(self) -> int:
        return CONNECTIONS_MAX - len(self.server_state.connections)

    def _protocol(self) -> asyncio.Protocol:
        return Impatient(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
