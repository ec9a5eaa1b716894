"""The memory of routes already found: (exchange, routing key) -> route.

Routing keys come from clients, who may invent a new one for every message. So the cache is bounded, and the
bound counts the bytes that an entry holds on to, not entries: ten thousand keys that all lead to the same ten
thousand queues must not fill the memory.

It has two halves. New entries go into the young half; when that is full it becomes the old half and the
former old half is dropped. An entry found in the old half moves to the young one. So a key in use survives a
flood of strangers as long as it is used once while half a cache of them passes, every operation is O(1), and
nothing is ever searched for a victim. In all at most twice `half_bytes_max` is held.
"""

from __future__ import annotations

from typing import Generic, TypeVar

R = TypeVar("R")


class RouteCache(Generic[R]):
    """A bounded dictionary that forgets what is no longer used."""

    __slots__ = ("_bytes", "_half_bytes_max", "_old", "_young")

    def __init__(self, half_bytes_max: int) -> None:
        assert half_bytes_max >= 1, "a cache holds something"
        self._half_bytes_max = half_bytes_max
        self._bytes = 0
        self._young: dict[tuple[str, ...], tuple[R, int]] = {}
        self._old: dict[tuple[str, ...], tuple[R, int]] = {}

    def __len__(self) -> int:
        return len(self._young) + sum(1 for key in self._old if key not in self._young)

    def get(self, key: tuple[str, ...]) -> R | None:
        """What was put under the key, if it is still known."""
        entry = self._young.get(key)
        if entry is not None:
            return entry[0]
        entry = self._old.get(key)
        if entry is None:
            return None
        self._keep(key, entry)
        return entry[0]

    def put(self, key: tuple[str, ...], route: R, size_bytes: int) -> None:
        """Remember a route that holds on to so many bytes; one larger than half the cache is not kept."""
        assert size_bytes >= 1, "an entry that counts for nothing could be kept without end"
        if size_bytes <= self._half_bytes_max:
            self._keep(key, (route, size_bytes))

    def clear(self) -> None:
        """Forget everything."""
        self._young = {}
        self._old = {}
        self._bytes = 0

    def size_bytes(self) -> int:
        """What both halves hold together; at most twice `half_bytes_max`."""
        return self._bytes + sum(size_bytes for _, size_bytes in self._old.values())

    def _keep(self, key: tuple[str, ...], entry: tuple[R, int]) -> None:
        known = self._young.pop(key, None)
        if known is not None:
            self._bytes -= known[1]
        if self._bytes + entry[1] > self._half_bytes_max:
            self._old = self._young
            self._young = {}
            self._bytes = 0
        self._young[key] = entry
        self._bytes += entry[1]
