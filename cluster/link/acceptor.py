"""The cluster's port: accepts, does the TLS handshake, limits resources of strangers (waits).

Before TLS and the hello are complete, nothing is parsed or kept beyond the time limits. At most GREETING_MAX
connections are in that state (each costs some 0.3 MB of buffers), and a flood displaces itself (`door`).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

from .door import Door, listening_sockets
from .link import Link, lost_line

GREETING_MAX: Final = 32
TLS_TIMEOUT_S: Final = 5.0


class Acceptor(Door):
    """The cluster's listening sockets and the connections without a Hello."""

    def __init__(
        self,
        sockets: list[socket.socket],
        tls: ssl.SSLContext,
        make: Callable[[str], Link],
        refused: Callable[[str, str], None],
    ) -> None:
        """`make(address)` gives the protocol of a connection; `refused(host, why)` is called for those without TLS."""
        super().__init__(sockets, GREETING_MAX, refused)
        self._tls = tls
        self._make = make
        self.begin()

    @classmethod
    async def open(
        cls, host: str, port: int, tls: ssl.SSLContext, make: Callable[[str], Link], refused: Callable[[str, str], None]
    ) -> Acceptor:
        """Raises OSError with the address in its text when it cannot be had."""
        try:
            return cls(await listening_sockets(host, port), tls, make, refused)
        except OSError as error:
            raise OSError(
                error.errno, f"cannot listen for the cluster on {host or '*'}:{port}: {error.strerror or error}"
            ) from error

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._sockets[0].getsockname()[1]
        return port

    async def _greet(self, connection: socket.socket, host: str, where: str) -> None:
        """Until it is linked or over."""
        link = self._make(where)
        try:
            await self._loop.connect_accepted_socket(
                lambda: link, connection, ssl=self._tls, ssl_handshake_timeout=TLS_TIMEOUT_S
            )
            await link.settled.wait()
        except asyncio.CancelledError:
            link.end("too many connections that did not say who they are")
            raise
        except (ConnectionResetError, BrokenPipeError):
            pass  # gone before it sent anything: a probe, most often
        except ConnectionAbortedError:
            self._refused(host, f"no TLS handshake within {TLS_TIMEOUT_S:g} s")
        except (ssl.SSLError, OSError) as error:
            self._refused(host, lost_line(error))
        finally:
            if link.transport is None:
                connection.close()
