"""Names of the exchanges and queues of a pool, as the broker and osrdyne make them."""

from __future__ import annotations

import hashlib
from typing import Final
from urllib.parse import unquote

NAME_BYTES_MAX: Final = 255
PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


def encoded(text: str) -> str:
    """Percent-encoded UTF-8: all but letters and digits."""
    return "".join(chr(byte) if byte in PLAIN else f"%{byte:02X}" for byte in text.encode())


def requests_exchange(pool: str) -> str:
    return f"{encoded(pool)}-req-xchg"


def delayed_exchange(pool: str) -> str:
    return f"{encoded(pool)}-delayed"


def activity_exchange(pool: str) -> str:
    return f"{encoded(pool)}-activity-xchg"


def requests_queue(pool: str, key: str) -> str:
    """The queue of a key; hashed when the name would be longer than AMQP has."""
    name = f"{encoded(pool)}-req-{encoded(key)}"
    if len(name) <= NAME_BYTES_MAX:
        return name
    return f"{encoded(pool)}-req-~{hashlib.sha256(key.encode()).hexdigest()[:40]}"


def key_of(pool: str, queue: str) -> str | None:
    """The key of a name that `requests_queue` made; None: it is another name, or one that is hashed."""
    key = unquote(queue.removeprefix(f"{encoded(pool)}-req-"))
    return key if requests_queue(pool, key) == queue else None
