"""Links of AMQP 1.0 by their identity, and those whose client is away (specification 2.6.1, 3.5.5).

An identity is one link's. One that is attached stands here so that a later attach finds it, on whichever connection;
one that is suspended has what it holds until its client comes again, or its time is over. What that is, and what it
holds, is its front's affair.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from clusterbroker.broker.stats.links import SuspendedRow

LINKS_MAX: Final = 65_536
"""Links of a node, attached or about to be: each takes about 2 KB."""
SUSPENDED_MAX: Final = 10_000
"""Links of a node whose clients are away. A user who is no administrator has half of what others leave at most."""
REVIEW_MS: Final = 1000


class Name(NamedTuple):
    """Unique between two containers, in each direction (2.6.1)."""

    vhost: str
    container: str
    link: str
    role: bool
    """As the client says it; True: it receives."""


class Identity(NamedTuple):
    """A link's; what survives its connection is its user's alone."""

    name: Name
    user: str


class Link(Protocol):
    """A link, attached or suspended."""

    @property
    def identity(self) -> Identity: ...

    @property
    def is_lasting(self) -> bool:
        """What it holds survives its connection: nobody else may have its name."""


class Suspended(Link, Protocol):
    """What a link has left."""

    @property
    def bytes_kept(self) -> int:
        """Of deliveries that are not whole."""

    @property
    def row(self) -> SuspendedRow:
        """For operators."""

    def end(self) -> None:
        """It is not here any more, and what it holds returns."""

    def expire(self) -> None:
        """Its time is over: what it holds returns. It is not here any more."""

    def review(self, now_ms: int) -> None:
        """Called about each second."""


class Links:
    """Of one node."""

    __slots__ = (
        "_attached", "_by_user", "_count", "_deadlines", "_lasting", "_review_ms", "_suspended", "bytes_kept",
        "handles",
    )  # fmt: skip

    def __init__(self) -> None:
        self._attached: dict[Identity, Link] = {}
        self._suspended: dict[Identity, Suspended] = {}
        self._by_user: Counter[str] = Counter()  # how many of them
        self._lasting: dict[Name, Identity] = {}
        self._deadlines: list[tuple[int, int, Suspended]] = []
        self._count = 0
        self._review_ms = 0
        self.bytes_kept = 0
        """Of deliveries that are not whole, of suspended links."""
        self.handles = 0
        """Of links that are attached, or about to be."""

    @property
    def has_no_room(self) -> bool:
        return self.handles >= LINKS_MAX

    def owner(self, name: Name) -> str | None:
        """Whose the name is; None: anybody's."""
        identity = self._lasting.get(name)
        return None if identity is None else identity.user

    def _forget(self, identity: Identity) -> None:
        if identity not in self._attached and identity not in self._suspended:
            self._lasting.pop(identity.name, None)

    # -- attached

    def attached(self, identity: Identity) -> Link | None:
        """Whose the identity is now."""
        return self._attached.get(identity)

    def enter(self, link: Link) -> None:
        """It is attached."""
        self._attached[link.identity] = link
        if link.is_lasting:
            self._lasting[link.identity.name] = link.identity

    def leave(self, link: Link) -> None:
        """It is not attached any more."""
        if self._attached.get(link.identity) is link:
            del self._attached[link.identity]
            self._forget(link.identity)

    # -- suspended

    def __len__(self) -> int:
        return len(self._suspended)

    def __iter__(self) -> Iterator[Suspended]:
        return iter(tuple(self._suspended.values()))

    def find(self, identity: Identity) -> Suspended | None:
        return self._suspended.get(identity)

    def has_room(self, user: str, administers: bool) -> bool:
        """For one more of this user."""
        count, own = len(self._suspended), self._by_user.get(user, 0)
        if administers or 2 * (count + 1) <= SUSPENDED_MAX:
            return count < SUSPENDED_MAX
        return 2 * (own + 1) <= SUSPENDED_MAX - (count - own)

    def suspend(self, link: Suspended, now_ms: int) -> None:
        """Its client is away."""
        assert link.identity not in self._suspended, "an identity is one link's"
        self._suspended[link.identity] = link
        self._by_user[link.identity.user] += 1
        if link.is_lasting:
            self._lasting[link.identity.name] = link.identity
        self.bytes_kept += link.bytes_kept
        self._review_ms = self._review_ms or now_ms + REVIEW_MS

    def take(self, link: Suspended) -> None:
        """It goes on, or ends."""
        if self._suspended.get(link.identity) is link:
            del self._suspended[link.identity]
            self._by_user[link.identity.user] -= 1
            if not self._by_user[link.identity.user]:
                del self._by_user[link.identity.user]
            self._forget(link.identity)
            self.bytes_kept -= link.bytes_kept
        if not self._suspended:
            self._deadlines.clear()
            self._review_ms = 0

    def expires(self, link: Suspended, at_ms: int) -> None:
        """If it is suspended still."""
        self._count += 1
        heapq.heappush(self._deadlines, (at_ms, self._count, link))

    @property
    def next_ms(self) -> int | None:
        """When `turn` is due; None: nothing is."""
        if not self._review_ms:
            return None
        return min(self._review_ms, self._deadlines[0][0]) if self._deadlines else self._review_ms

    def turn(self, now_ms: int, guarded: Callable[[Callable[[], None]], None]) -> None:
        """Ends those whose time is over, and lets the others look around. `guarded`: calls one; what it raises is that
        link's."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            link = heapq.heappop(self._deadlines)[2]
            if self._suspended.get(link.identity) is link:
                self.take(link)
                guarded(link.expire)
        if self._review_ms and self._review_ms <= now_ms:
            self._review_ms = now_ms + REVIEW_MS if self._suspended else 0
            for link in self:
                guarded(lambda link=link: link.review(now_ms))  # type: ignore[misc]
