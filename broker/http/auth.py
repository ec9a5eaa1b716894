"""Who asks: HTTP Basic or the session cookie of the web page, checked against the mirror's users.

Passwords are verified off the loop, and remembered for a while as the node does it (`broker.server.credentials`), or
every request would cost 50 ms of hashing.

A browser sends a cookie with whatever another site makes it ask, so a cookie is not enough for anything but reading:
who has one also sends `x-csrf: 1`, a header that no other site's page may send. A 401 to a request with that header
does not ask for a password: the browser would show its own window over the page.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import secrets
from collections.abc import Callable
from typing import Final

from starlette.requests import Request

from broker.management.errors import Refused
from broker.management.mirror import Mirror
from broker.management.rights import MANAGEMENT, Seer
from broker.management.throttle import Throttle
from broker.server.credentials import Credentials
from cluster.entities import User

from .sessions import LIFE_MS, Sessions

REALM: Final = 'Basic realm="clusterbroker management"'
HEADER_BYTES_MAX: Final = 8192
_OWN_SITE: Final = ("none", "same-origin")


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
        self._sessions = Sessions()

    async def seer(self, request: Request) -> Seer:
        """Who asks. Refused: 401 without a good password, session or tag, 403 for a cookie without `x-csrf`, 429 after
        too many bad passwords."""
        if "authorization" not in request.headers:
            return self._seer_of_session(request)
        given = basic(request.headers["authorization"])
        if given is None:
            raise LoginFailed
        return self._allowed(await self._user(*given, _address(request)))

    def _seer_of_session(self, request: Request) -> Seer:
        token = request.cookies.get(cookie_name(request), "")
        user = self._sessions.user(token, self._mirror.map, self._now_ms())
        if user is None or (user.name in self._loopback_users and not is_loopback(_address(request))):
            raise LoginFailed
        if request.method != "GET":  # HEAD comes as GET
            require_own_page(request)
        return self._allowed(user)

    async def begin(self, request: Request, name: str, password: bytes) -> tuple[Seer, str]:
        """(who signed in, the cookie to set). Refused as `seer` does."""
        require_own_page(request)
        user = await self._user(name, password, _address(request))
        seer = self._allowed(user)
        token = secrets.token_urlsafe(32)
        self._sessions.begin(token, user, self._now_ms())
        return seer, _cookie(request, token, LIFE_MS // 1000)

    def end(self, request: Request) -> str:
        """The session of this request, if it has one; the cookie that takes it off."""
        require_own_page(request)
        self._sessions.end(request.cookies.get(cookie_name(request), ""))
        return _cookie(request, "", 0)

    def _allowed(self, user: User) -> Seer:
        seer = Seer.of(self._mirror.map, user)
        seer.require(MANAGEMENT)
        return seer

    async def _user(self, name: str, password: bytes, address: str) -> User:
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
        return user

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


def require_own_page(request: Request) -> None:
    """Refused (403) unless a page of this node, or a program, asks: another site's page cannot send the header."""
    if request.headers.get("x-csrf") != "1" or request.headers.get("sec-fetch-site", "none") not in _OWN_SITE:
        raise Refused(403, "forbidden", "a session changes things only with the header 'x-csrf: 1', from its own page")


def cookie_name(request: Request) -> str:
    """Cookies of one host are shared by all its ports: several nodes on a machine need a name each."""
    server = request.scope.get("server")
    return f"clusterbroker-{server[1] if server else 0}"


def _cookie(request: Request, token: str, life_s: int) -> str:
    secure = "; Secure" if request.url.scheme == "https" else ""
    return f"{cookie_name(request)}={token}; Path=/; Max-Age={life_s}; HttpOnly; SameSite=Strict{secure}"


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else ""


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
