"""Replacement of foreign password hashes by scrypt at the next good login (waits).

Imports of RabbitMQ's definitions bring salted SHA-256 hashes, which are quick to guess at when a backup is stolen. A
good login is the one moment with the password at hand: it is hashed anew, and the new hash ordered on the condition
that the verified one is still there (`PutUser.only_if_hash`). A password that was changed, or a user that was
deleted, meanwhile stays as it is; tags and limits are not touched.

One at a time, in a thread, so that many simultaneous logins do not wait for it; at most one for each user, and
WAITING_MAX in all. A failed one, or one without room, is tried again at the user's next login, and does not affect
the present one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from clusterbroker.cluster import passwords
from clusterbroker.cluster.wiring.commands import PutUser
from clusterbroker.cluster.wiring.entities import User

WAITING_MAX: Final = 64
"""Passwords that are kept for the moment until their turn comes."""

Order = Callable[[PutUser], Awaitable[object]]
"""Orders the command, and comes back when it was carried out or refused. Does not raise."""


class Rehashing:
    """Belongs to one loop; `close` in the end."""

    def __init__(self, order: Order, remember: Callable[[str, str, str, bytes], None], cost: int) -> None:
        """`remember`: is told of each user, its new hash, the algorithm and the password. `cost`: of scrypt."""
        self._order = order
        self._remember = remember
        self._cost = cost
        self._waiting: dict[str, tuple[User, bytes]] = {}  # by name, the one under way among them
        self._task: asyncio.Task[None] | None = None

    def offer(self, user: User, password: bytes) -> None:
        """The user has just signed in with this password."""
        if user.hash_algorithm == passwords.SCRYPT or user.name in self._waiting or len(self._waiting) >= WAITING_MAX:
            return
        self._waiting[user.name] = user, password
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._waiting:
                name, (user, password) = next(iter(self._waiting.items()))
                try:
                    with contextlib.suppress(ValueError, MemoryError):  # scrypt finds no memory
                        await self._replace(user, password)
                finally:
                    del self._waiting[name]
        finally:
            self._task = None

    async def _replace(self, user: User, password: bytes) -> None:
        stored = await asyncio.to_thread(passwords.hashed, password, cost=self._cost)
        # known before the fold says so: clients that come at once need not be verified again
        self._remember(user.name, stored, passwords.SCRYPT, password)
        command = PutUser(
            name=user.name, password_hash=stored, hash_algorithm=passwords.SCRYPT, only_if_hash=user.password_hash
        )
        await self._order(command)

    def close(self) -> None:
        """What was not done is done at another login."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()


__all__ = ["Rehashing"]
