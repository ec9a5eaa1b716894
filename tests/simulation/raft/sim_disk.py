"""A disk of the simulation: what was not synced is lost in a crash, or torn, or there, as chance will have it."""

from __future__ import annotations

import random


class Crash(BaseException):
    """The process dies inside a call to its disk."""


class SimDisk:
    """The port `cluster.raft.disk.Disk` in memory."""

    def __init__(self, path: str, rng: random.Random) -> None:
        self.path = path
        self.rng = rng
        self._durable: dict[str, bytes] = {}
        self._unsynced: dict[str, bytearray] = {}
        self.crash_after: int | None = None
        """The process dies in the so-many-th change from now on."""
        self.syncs = 0
        self.lies = False
        """A seeded bug: `sync` does nothing."""

    def read(self, name: str) -> bytes | None:
        if name not in self._durable and name not in self._unsynced:
            return None
        return self._durable.get(name, b"") + bytes(self._unsynced.get(name, b""))

    def append(self, name: str, data: bytes | bytearray) -> None:
        self._unsynced.setdefault(name, bytearray()).extend(data)
        self._maybe_crash()

    def sync(self, name: str) -> None:
        self._maybe_crash()
        self.syncs += 1
        if not self.lies:
            self._durable[name] = self._durable.get(name, b"") + bytes(self._unsynced.pop(name, b""))
        self._maybe_crash()

    def truncate(self, name: str, size: int) -> None:
        self._durable[name] = (self.read(name) or b"")[:size]
        self._unsynced.pop(name, None)

    def replace(self, name: str, data: bytes | bytearray) -> None:
        self._maybe_crash()
        self._durable[name] = bytes(data)
        self._unsynced.pop(name, None)
        self._maybe_crash()

    def close(self) -> None:
        return

    def crash(self) -> None:
        """The power goes: of what was not synced a part may be there, and its end may be rubbish."""
        self.crash_after = None
        for name in sorted(self._unsynced):
            data = self._unsynced[name]
            keep = self.rng.randrange(len(data) + 1)
            part = bytearray(data[:keep])
            if part and self.rng.random() < 0.3:
                part[-1] ^= 0xFF
            if part or name in self._durable:
                self._durable[name] = self._durable.get(name, b"") + bytes(part)
        self._unsynced.clear()

    def _maybe_crash(self) -> None:
        if self.crash_after is not None:
            self.crash_after -= 1
            if self.crash_after <= 0:
                self.crash_after = None
                raise Crash
