"""Who asks: HTTP Basic, checked against the mirror's users. Passwords are verified off the loop, and remembered for a
while as the node does it (`broker.server.credentials`), or every request would cost 50 ms of hashing."""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
from collections.abc import Callable
from typing import Final

from starlette.requests import Request

from broker.management.errors import Refused
from broker.management.mirror import Mirror
from broker.management.rights import MANAGEMENT, Seer
from broker.management.throttle import Throttle
from broker.server.credentials import Credentials

REALM: Final = 'Basic realm="clusterbroker management"'
HEADER_BYTES_MAX: Final = 8192


class LoginFailed(Refused):
    """Nobody signed in: the client is asked to."""

    def __init__(self) -> None:
        super().__init__(401, "not_authorized", "Login failed")


class SignIn:
    """Belongs to one loop; `close` in the end."""

    def __init__(
        self,
        mirror: Mirror,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        loopback_users: tuple[str, ...] = ("guest",),
    ) -> None:
        """`loopback_users` may sign in from a loopback address only, as over AMQP."""
        self._mirror = mirror
        self._now_ms = now_ms
        self._loop = loop
        self._loopback_users = frozenset(loopback_users)
        self._credentials = Credentials(loop, told=lambda: None)
        self._throttle = Throttle()

    async def seer(self, request: Request) -> Seer:
        """Who asks. Refused: 401 without a good password or a tag, 429 after too many bad ones."""
        given = basic(request.headers.get("authorization", ""))
        if given is None:
            raise LoginFailed
        name, password = given
        address = request.client.host if request.client is not None else ""
        waits_ms = self._throttle.waits_ms(name, address, self._now_ms())
        if waits_ms:
            raise Refused(429, "too_many_requests", f"too many failed logins: try again in {-(-waits_ms // 1000)} s")
        if not await self._good(name, password) or (name in self._loopback_users and not is_loopback(address)):
            self._throttle.failed(name, address, self._now_ms())
            raise LoginFailed
        self._throttle.succeeded(name, address)
        user = self._mirror.map.user(name)
        if user is None:
            raise LoginFailed
        seer = Seer.of(self._mirror.map, user)
        seer.require(MANAGEMENT)
        return seer

    async def _good(self, name: str, password: bytes) -> bool:
        user = self._mirror.map.user(name)
        stored, algorithm = (user.password_hash, user.hash_algorithm) if user is not None else ("", "")
        answer: asyncio.Future[bool] = self._loop.create_future()

        def then(ok: bool) -> None:
            if not answer.done():
                answer.set_result(ok)

        self._credentials.check(stored, algorithm, password, then)
        return await answer

    def close(self) -> None:
        """Ends the threads."""
        self._credentials.close()


def basic(header: str) -> tuple[str, bytes] | None:
    """User and password of an Authorization header; None: it has none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic" or len(encoded) > HEADER_BYTES_MAX:
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (name.decode(), password) if colon and name else None
    except (ValueError, binascii.Error):
        return None


def is_loopback(address: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback
