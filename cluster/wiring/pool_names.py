"""Names of a pool's exchanges and queues.

    P          the pool's name, percent-encoded: letters and digits of ASCII stay, each other byte is `%` and two digits
    P-req-K    the queue of a key, K encoded alike; `P-req-~` and 40 digits of SHA-256 when that were too long

No encoded name has a `-` or a `~`, so names of two pools, or of two keys, are never the same.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final
from urllib.parse import unquote_to_bytes

from .entities import LATER_REQUESTS
from .queue_rules import NAME_BYTES_MAX

POOL_BYTES_MAX: Final = 100
"""Of an encoded pool's name."""
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_HASH_DIGITS: Final = 40


def encoded(text: str) -> str:
    """The text percent-encoded. Raises UnicodeEncodeError for what is no UTF-8."""
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in text.encode())


class PoolNames:
    """Of one pool."""

    __slots__ = ("_prefix", "activity", "dead", "delayed", "events", "exchange", "orphans", "poison", "requests")

    def __init__(self, pool: str) -> None:
        prefix = encoded(pool)
        self._prefix = prefix
        self.exchange: Final = prefix
        """Fanout, to the requests exchange."""
        self.requests: Final = f"{prefix}-req-xchg"
        """Direct, with a queue per key."""
        self.delayed: Final = prefix + LATER_REQUESTS
        self.orphans: Final = f"{prefix}-orphan"
        self.dead: Final = f"{prefix}-dl"
        self.activity: Final = f"{prefix}-activity"
        self.poison: Final = f"{prefix}-poison"
        self.events: Final = f"{prefix}-events"
        """Of a pool that has told events; any queue may have this name where there is none."""

    def exchange_of(self, queue: str) -> str:
        """The fanout exchange before the queue of orphans, of the dead, or of activity."""
        return f"{queue}-xchg"

    def request_queue(self, key: str) -> str:
        """The queue of a key."""
        name = f"{self._prefix}-req-{encoded(key)}"
        if len(name) <= NAME_BYTES_MAX:
            return name
        return f"{self._prefix}-req-~{sha256(key.encode()).hexdigest()[:_HASH_DIGITS]}"

    def has_queue(self, name: str, tells: bool = False) -> bool:
        """Whether a queue of this name is the pool's, or would be. `tells`: it has a stream of events."""
        return name in self.queues or name.startswith(f"{self._prefix}-req-") or (tells and name == self.events)

    def key_of(self, queue: str) -> str | None:
        """The key of a request queue's name; None: it is no such name, or a hash, which does not tell."""
        prefix = f"{self._prefix}-req-"
        if not queue.startswith(prefix):
            return None
        try:
            key = unquote_to_bytes(queue.removeprefix(prefix)).decode()
        except UnicodeDecodeError:
            return None
        return key if "\0" not in key and self.request_queue(key) == queue else None

    @property
    def exchanges(self) -> tuple[str, ...]:
        """All exchanges."""
        others = (self.exchange_of(queue) for queue in (self.orphans, self.dead, self.activity))
        return (self.exchange, self.requests, self.delayed, *others)

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that begin with the pool, but that of the delayed exchange."""
        return (self.orphans, self.dead, self.activity, self.poison)
