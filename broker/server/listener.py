"""Accepting clients: addresses, TLS, and as many descriptors as the system allows (waits)."""

from __future__ import annotations

import asyncio
import os
import re
import resource
from collections.abc import Awaitable, Callable, Sequence
from socket import gaierror
from typing import Any, NamedTuple

from clusterbroker.broker.server.tls import Chain, TlsDoor
from clusterbroker.cluster.link.door import listening_sockets

BACKLOG = 4096
TLS_HANDSHAKE_TIMEOUT_S = 10.0
_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.%\w]+)\]|(?P<host>[^:\[\]\s]*)):(?P<port>\d{1,5})")


class Address(NamedTuple):
    """Where to listen; port 0 is any free one, an empty host all addresses."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: str) -> Address:
    """HOST:PORT, with IPv6 addresses in brackets. Raises ValueError."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"'{text}' is not HOST:PORT (IPv6 addresses in brackets, port at most 65535)")
    host = match["six"] or match["host"] or ""
    return Address("" if host == "*" else host, int(match["port"]))


_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "emailAddress": "EMAILADDRESS",
    "domainComponent": "DC",
    "userId": "UID",
    "streetAddress": "STREET",
}


def peer_identity(transport: asyncio.BaseTransport, kind: str) -> str | None:
    """The user name in a verified client certificate: the common name, or the subject as RFC 4514 writes it
    (last part first, "CN=client,O=example"); None without a certificate."""
    certificate = transport.get_extra_info("peercert")
    if not certificate:
        return None
    parts = [pair for part in certificate.get("subject", ()) for pair in part]
    if kind == "common_name":
        return next((value for name, value in reversed(parts) if name == "commonName"), None)
    return ",".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in reversed(parts)) or None


def _escaped(value: str) -> str:
    escaped = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    return "\\" + escaped if escaped[:1] in ("#", " ") else escaped


def raise_descriptor_limit() -> int:
    """Raises the limit of open descriptors as far as the system allows; the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft
    return hard


def refused(protocol: str, where: Address, error: OSError) -> OSError:
    """The error with the address in its text."""
    of_the_system = (error.errno or 0) > 0 and not isinstance(error, gaierror)
    why = os.strerror(error.errno or 0) if of_the_system else error.strerror or str(error)
    return OSError(error.errno, f"cannot listen on {protocol} {where}: {why}")


class Listener:
    """Listening sockets of one protocol ("amqp", "amqps")."""

    def __init__(
        self,
        protocol: str,
        server: asyncio.Server | TlsDoor,
        sockets: Sequence[Any],
        begin: Callable[[], Awaitable[None]],
        tls: Chain | None = None,
    ) -> None:
        self.protocol = protocol
        self.tls = tls
        """The certificate for clients; None: no TLS."""
        self._server = server
        self._begin = begin
        self.addresses = [Address(*bound.getsockname()[:2]) for bound in sockets]

    @classmethod
    async def open(cls, protocol: str, where: Address, serve: Callable[[], asyncio.BaseProtocol]) -> Listener:
        """Takes the address, and accepts no client before `listen`. Raises OSError with the address in its text."""
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(
                serve, where.host or None, where.port, backlog=BACKLOG, reuse_address=True, start_serving=False
            )
        except OSError as error:
            raise refused(protocol, where, error) from error
        return cls(protocol, server, server.sockets, server.start_serving)

    @classmethod
    async def open_tls(
        cls,
        protocol: str,
        where: Address,
        serve: Callable[[], asyncio.BaseProtocol],
        tls: Chain,
        room: Callable[[], int],
        turned_away: Callable[[str, str], None],
    ) -> Listener:
        """As `open`. `room()`: how many more connections there may be; `turned_away(peer, why)` for each one
        refused."""
        try:
            sockets = await listening_sockets(where.host, where.port, begin=False)
        except OSError as error:
            raise refused(protocol, where, error) from error
        door = TlsDoor(sockets, tls.context, serve, room, turned_away, handshake_s=TLS_HANDSHAKE_TIMEOUT_S)

        async def begin() -> None:
            for bound in sockets:
                bound.listen(BACKLOG)
            door.begin()

        return cls(protocol, door, sockets, begin, tls)

    async def listen(self) -> None:
        """Accepts clients. Raises OSError: another process may have taken the address meanwhile."""
        try:
            await self._begin()
        except OSError as error:
            raise refused(self.protocol, self.addresses[0], error) from error

    def close(self) -> None:
        """Accepts no more clients; connected ones stay."""
        self._server.close()
