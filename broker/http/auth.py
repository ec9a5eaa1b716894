"""Who asks: HTTP Basic or the session cookie of the web page, checked against the replica's users; or a bearer's token.

Passwords are verified off the loop, and remembered for a while as the node does it (`broker.server.credentials`), or
every request would cost 50 ms of hashing. Attempts from one address are verified one after the other: who sends a
thousand at once is counted as who sends them in turn.

Users of this machine only (`guest`) must also have asked for it by a name of this machine. A page of another site can
make its own name point here, and what a browser then sends comes from loopback; it still bears the site's name.

A browser sends a cookie with whatever another site makes it ask, so a cookie is not enough for anything but reading:
who has one also sends `x-csrf: 1`, a header that no other site's page may send. A 401 to a request with that header
does not ask for a password: the browser would show its own window over the page.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import ipaddress
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

from starlette.requests import Request

from clusterbroker.broker.management.errors import Refused
from clusterbroker.broker.management.principals import MANAGEMENT, Principal, TokenPrincipal
from clusterbroker.broker.management.replica import Replica
from clusterbroker.broker.server.credentials import Credentials, Order, Rehashing, Throttle, network
from clusterbroker.cluster.passwords import COST_DEFAULT
from clusterbroker.cluster.wiring.entities import User

from .middleware.audit import PEER, PRINCIPAL, REFUSED
from .sessions import LIFE_MS, Sessions

if TYPE_CHECKING:
    from clusterbroker.broker.oauth2.tokens import Tokens

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
        replica: Replica,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        order: Order,
        loopback_users: tuple[str, ...] = ("guest",),
        tokens: Tokens | None = None,
        password_cost: int = COST_DEFAULT,
        knows_proxies: bool = True,
    ) -> None:
        """`order`: new hashes for those of other systems, of `password_cost`. `loopback_users` may sign in from a
        loopback address only, as over AMQP. `tokens`: None: none are taken. Not `knows_proxies`: what says where others
        come from may be anybody on this machine, and their failures are its own as well."""
        self._replica = replica
        self._now_ms = now_ms
        self._loop = loop
        self._loopback_users = frozenset(loopback_users)
        self._credentials = Credentials(loop, on_answer=lambda: None)
        self._rehashing = Rehashing(order, self._credentials.remember, password_cost)
        self._throttle = Throttle()
        self._knows_proxies = knows_proxies
        self._sessions = Sessions()
        self._tokens = tokens
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}  # by address: and how many hold it or wait for it
        replica.user_gone = self._sessions.end_of
        replica.rehashed = self._sessions.rehashed

    async def principal(self, request: Request) -> Principal:
        """Who asks. Refused: 401 without a good password, session, token or tag, 403 for a cookie without `x-csrf`, 429
        after too many bad passwords."""
        header = request.headers.get("authorization")
        if header is None:
            principal = self._principal_of_session(request)
        elif header[:7].lower() == "bearer ":
            principal = await self._principal_of_token(request, header[7:].strip())
        else:
            given = basic(header)
            if given is None:
                raise LoginFailed
            principal = self._allowed(request, Principal.of(self._replica.map, await self._user(request, *given)))
        return principal

    def _principal_of_session(self, request: Request) -> Principal:
        token = request.cookies.get(cookie_name(request), "")
        user = self._sessions.user(token, self._replica.map, self._now_ms())
        if user is None or not self._may_be_here(request, user.name):
            raise LoginFailed
        if request.method != "GET":  # HEAD comes as GET
            require_own_page(request)
        return self._allowed(request, Principal.of(self._replica.map, user))

    async def _principal_of_token(self, request: Request, given: str) -> Principal:
        if self._tokens is None:
            raise LoginFailed
        # who takes no tokens need not have what verifies them
        from clusterbroker.broker.oauth2.verifier import BadToken

        octets = given.encode("utf-8", "replace")
        try:
            token = await self._tokens.token(octets)
        except BadToken as bad:
            self._replica.attempts.count(_address(request), "", False)
            request.scope[REFUSED] = f"token: {bad}"
            raise LoginFailed from None
        self._replica.attempts.count(_address(request), token.name, True)
        return self._allowed(request, TokenPrincipal(self._replica.map, token.name, token.grants, octets))

    async def begin(self, request: Request, name: str, password: bytes) -> tuple[Principal, str]:
        """(who signed in, the cookie to set). Refused as `principal` does."""
        require_own_page(request)
        user = await self._user(request, name, password)
        principal = self._allowed(request, Principal.of(self._replica.map, user))
        token = secrets.token_urlsafe(32)
        self._sessions.begin(token, user, self._now_ms())
        return principal, _cookie(request, token, LIFE_MS // 1000)

    def end(self, request: Request) -> str:
        """The session of this request, if it has one; the cookie that takes it off."""
        require_own_page(request)
        token = request.cookies.get(cookie_name(request), "")
        user = self._sessions.user(token, self._replica.map, self._now_ms())
        request.scope[PRINCIPAL] = "" if user is None else user.name
        self._sessions.end(token)
        return _cookie(request, "", 0)

    def _allowed(self, request: Request, principal: Principal) -> Principal:
        request.scope[PRINCIPAL] = principal.audit_name
        principal.require(MANAGEMENT)
        return principal

    async def _user(self, request: Request, name: str, password: bytes) -> User:
        address = _address(request)
        through = None if self._knows_proxies else forwarder(request)
        async with self._turn(network(through or address)):
            waits_ms = self._throttle.waits_ms(name, address, self._now_ms())
            if through is not None:
                waits_ms = max(waits_ms, self._throttle.address_waits_ms(through, self._now_ms()))
            if waits_ms:
                left_s = -(-waits_ms // 1000)
                raise Refused(429, "too_many_requests", f"too many failed logins: try again in {left_s} s")
            here = self._may_be_here(request, name)
            good = await self._good(name, password, here)
            user = self._replica.map.user(name)
            if not good or user is None or not here:
                self._throttle.failed(name, address, self._now_ms())
                if through is not None:
                    self._throttle.failed_at(through, self._now_ms())
                self._replica.attempts.count(address, "" if user is None else name, False)
                request.scope[REFUSED] = f"login of '{name}' failed"
                raise LoginFailed
            self._throttle.succeeded(name, address)
            self._replica.attempts.count(address, name, True)
            return user

    @contextlib.asynccontextmanager
    async def _turn(self, where: str) -> AsyncIterator[None]:
        lock, holders = self._turns.get(where, (asyncio.Lock(), 0))
        self._turns[where] = lock, holders + 1
        try:
            async with lock:
                yield
        finally:
            lock, holders = self._turns[where]
            if holders == 1:
                del self._turns[where]
            else:
                self._turns[where] = lock, holders - 1

    def _may_be_here(self, request: Request, name: str) -> bool:
        return name not in self._loopback_users or from_here(request)

    async def _good(self, name: str, password: bytes, here: bool) -> bool:
        """Not `here`: refused whatever the password is, and as if there were no such user."""
        user = self._replica.map.user(name) if here else None
        stored, algorithm = (user.password_hash, user.hash_algorithm) if user is not None else ("", "")
        answer: asyncio.Future[bool] = self._loop.create_future()

        def then(ok: bool | None) -> None:
            if not answer.done():
                answer.set_result(ok is True)

        self._credentials.check(name, stored, algorithm, password, then)
        good = await answer
        if good and user is not None:
            self._rehashing.offer(user, password)
        return good

    def close(self) -> None:
        """Ends the threads."""
        self._rehashing.close()
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


def forwarder(request: Request) -> str | None:
    """The address that the socket comes from, where it has said that its client is another one."""
    peer: str = request.scope.get("state", {}).get(PEER, "")
    return peer if peer and peer != _address(request) else None


def from_here(request: Request) -> bool:
    """Whether it comes from this machine, and no page of another site made a browser send it."""
    return is_loopback(_address(request)) and is_own_name(request.headers.get("host", ""))


def is_own_name(host: str) -> bool:
    """Whether a Host header names this machine by what no other site can be called: an address, `localhost`, or the
    machine's own name. Programs may send none."""
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    name = name.rstrip(".").lower()
    if name in ("", "localhost", socket.gethostname().lower()) or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


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
