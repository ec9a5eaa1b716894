"""Sessions of the web page: who holds a token is the user that signed in, until the session ends.

    begun    by a good password; the token goes to the browser once, here is only its digest
    ends     8 h later; when the user signs out; when the user is deleted, though it be made again at once; when its
             password is another one (any other stored hash, so setting the same password again ends it too, but not the
             hash that a login puts in the place of another system's: `broker.server.credentials`); when the node lost
             sight of the wiring for so long that it cannot say whom it has missed; when this process ends
    full     a user has 20 at most, all users together 2,000: the oldest makes room

A session belongs to the node where it began: its browser talks to that node. Nothing is renewed by use, so a token that
was stolen is good for 8 h at the most.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Final

import msgspec

from clusterbroker.cluster.wiring.entities import User
from clusterbroker.cluster.wiring.view import ClusterView

LIFE_MS: Final = 8 * 3600 * 1000
OF_USER_MAX: Final = 20
SESSIONS_MAX: Final = 2_000
TOKEN_CHARS_MAX: Final = 128


class Session(msgspec.Struct, frozen=True):
    """One sign-in."""

    user: str
    password_hash: str
    """As it was stored then."""
    ends_ms: int


class Sessions:
    """All of one process. Tokens are made by the caller: at least 128 random bits."""

    def __init__(self) -> None:
        self._by_digest: OrderedDict[bytes, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_digest)

    def begin(self, token: str, user: User, now_ms: int) -> None:
        """The user has just given its password."""
        self._forget_ended(now_ms)
        own = [digest for digest, session in self._by_digest.items() if session.user == user.name]
        for digest in own[: max(0, len(own) - OF_USER_MAX + 1)]:
            del self._by_digest[digest]
        while len(self._by_digest) >= SESSIONS_MAX:
            self._by_digest.popitem(last=False)
        self._by_digest[_digest(token)] = Session(user.name, user.password_hash, now_ms + LIFE_MS)

    def user(self, token: str, map_: ClusterView, now_ms: int) -> User | None:
        """Whose session this is; None: of nobody (any more)."""
        if not token or len(token) > TOKEN_CHARS_MAX:
            return None
        digest = _digest(token)
        session = self._by_digest.get(digest)
        if session is None:
            return None
        user = map_.user(session.user)
        if now_ms >= session.ends_ms or user is None or user.password_hash != session.password_hash:
            del self._by_digest[digest]
            return None
        return user

    def rehashed(self, user: str, before: str, after: str) -> None:
        """The hash of a user's password is another one, the password is the same."""
        for digest, session in self._by_digest.items():
            if session.user == user and session.password_hash == before:
                self._by_digest[digest] = msgspec.structs.replace(session, password_hash=after)

    def end_of(self, user: str | None) -> None:
        """All of a user; None: of everybody."""
        for digest in [one for one, session in self._by_digest.items() if user in (None, session.user)]:
            del self._by_digest[digest]

    def end(self, token: str) -> None:
        """Signed out. A token of nobody is no error."""
        self._by_digest.pop(_digest(token), None)

    def _forget_ended(self, now_ms: int) -> None:
        # they all live equally long, so those that ended are the first ones
        while self._by_digest and next(iter(self._by_digest.values())).ends_ms <= now_ms:
            self._by_digest.popitem(last=False)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
