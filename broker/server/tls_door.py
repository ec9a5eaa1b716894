"""TLS handshakes of clients, counted as connections (waits).

A socket before its handshake has the buffers of a TLS connection, without a sign-in. It counts as a connection from
the moment of its acceptance: handshakes and connections together stay below the connections' limit, and handshakes
alone below HANDSHAKES_MAX (`cluster.link.door` chooses the one to end). A failure before the end of the handshake is
reported to its peer only: probes, and clients that do not trust the certificate.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

from clusterbroker.cluster.link.door import Door

HANDSHAKES_MAX: Final = 4096
"""Some 54 KiB each."""
PATIENCE_S: Final = 1.0
"""After so long a handshake has to make room for another one."""


class TlsDoor(Door):
    """Some listening sockets of one protocol."""

    def __init__(
        self,
        sockets: list[socket.socket],
        tls: ssl.SSLContext,
        serve: Callable[[], asyncio.BaseProtocol],
        room: Callable[[], int],
        refused: Callable[[str, str], None],
        *,
        handshake_s: float,
        goodbye_s: float | None = None,
    ) -> None:
        """`room()`: so many connections there may be besides those whose handshake is done."""
        super().__init__(sockets, HANDSHAKES_MAX, refused, room, PATIENCE_S)
        self._tls = tls
        self._serve = serve
        self._handshake_s = handshake_s
        self._goodbye_s = goodbye_s

    async def _greet(self, connection: socket.socket, host: str, where: str) -> None:  # noqa: ARG002
        protocol = self._serve()
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._tls, ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=self._goodbye_s,
            )  # fmt: skip
        except (OSError, ssl.SSLError):
            connection.close()

    async def wait_closed(self) -> None:
        """Nothing is left to wait for (as of `asyncio.Server`)."""
