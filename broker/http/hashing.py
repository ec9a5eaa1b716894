"""Passwords in the clear become hashes before anything is ordered: off the loop, a few at a time, and for nobody who
has gone (waits).

A hash takes some 50 ms of a processor and 16 MiB, on purpose. So requests take turns, password by password: an import
with very many of them keeps nobody else waiting for longer than one, and ends when its connection does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from clusterbroker.broker.management.errors import Refused, bad_request
from clusterbroker.broker.management.writes import Planned
from clusterbroker.cluster import passwords
from clusterbroker.cluster.wiring.commands import PutUser

AT_ONCE_MAX: Final = 2


class Hashing:
    """Belongs to one loop."""

    def __init__(self, cost: int) -> None:
        """`cost`: base-2 logarithm of scrypt's n."""
        self._cost = cost
        self._room = asyncio.Semaphore(AT_ONCE_MAX)

    async def complete(self, planned: Planned, gone: Callable[[], Awaitable[bool]]) -> None:
        """Puts a hash into each command that waits for one. Refused (408) when who asked is `gone`."""
        for place, password in planned.passwords:
            command = planned.commands[place]
            assert isinstance(command, PutUser), "a password belongs to a user"
            async with self._room:
                if await gone():
                    raise Refused(408, "request_timeout", "who asked has gone: nothing was done")
                try:
                    stored = await asyncio.to_thread(passwords.hashed, password, cost=self._cost)
                except ValueError as error:
                    raise bad_request(str(error)) from None
            planned.commands[place] = msgspec.structs.replace(
                command, password_hash=stored, hash_algorithm=passwords.SCRYPT
            )
