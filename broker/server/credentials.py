"""Passwords are verified here: off the loop, once, and never twice for the same answer (waits).

A verification is slow on purpose (cluster.passwords). Clients that open a thousand connections with one password
would keep a core busy for a minute, so what was verified is remembered for a while, under a digest keyed with a
random key of this process: neither the password nor anything that helps to guess it is kept. The digest covers the
stored hash, so a changed password is asked again. Equal questions that come while one is being answered wait for
that answer. Wrong passwords are remembered for a moment only, and unknown users cost what known ones cost.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from cluster import passwords

VERIFIED_MAX = 4096
VERIFIED_S = 600.0
REFUSED_S = 1.0
THREADS = 2

Answer = Callable[[bool], None]


def verify(stored_hash: str, algorithm: str, password: bytes) -> bool:
    """Slow. Nothing stored (an unknown user) takes the time of a wrong password."""
    if not stored_hash:
        return passwords.verified_nobody(password)
    return passwords.verified(password, stored_hash, algorithm)


class Credentials:
    """Belongs to one loop; `close` in the end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        told: Callable[[], None],
        verify: Callable[[str, str, bytes], bool] = verify,
    ) -> None:
        """`told()` is called after an answer was given: the node may have something to send."""
        self._loop = loop
        self._told = told
        self._verify = verify
        self._key = os.urandom(32)
        self._known: OrderedDict[bytes, tuple[bool, float]] = OrderedDict()
        self._asked: dict[bytes, list[Answer]] = {}
        self._waiting: deque[tuple[bytes, str, str, bytes]] = deque()
        self._running = 0
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False

    def check(self, stored_hash: str, algorithm: str, password: bytes, then: Answer) -> None:
        """`then(ok)` comes on the loop, at once when the answer is known."""
        question = self._digest(stored_hash, algorithm, password)
        known = self._known.get(question)
        if known is not None and known[1] > self._loop.time():
            then(known[0])
            self._told()
            return
        answers = self._asked.get(question)
        if answers is not None:
            answers.append(then)
            return
        self._asked[question] = [then]
        self._waiting.append((question, stored_hash, algorithm, password))
        self._next()

    def remember(self, stored_hash: str, algorithm: str, password: bytes) -> None:
        """This process made the hash itself."""
        self._keep(self._digest(stored_hash, algorithm, password), True)

    def _digest(self, stored_hash: str, algorithm: str, password: bytes) -> bytes:
        digest = hashlib.blake2b(key=self._key, digest_size=32)
        for part in (stored_hash.encode(), algorithm.encode(), password):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.digest()

    def _next(self) -> None:
        while self._waiting and self._running < THREADS and not self._closed:
            question, stored_hash, algorithm, password = self._waiting.popleft()
            if self._threads is None:
                self._threads = ThreadPoolExecutor(THREADS, "passwords")
            self._running += 1
            work = self._loop.run_in_executor(self._threads, self._verify, stored_hash, algorithm, password)
            work.add_done_callback(partial(self._verified, question))

    def _verified(self, question: bytes, work: asyncio.Future[bool]) -> None:
        self._running -= 1
        ok = not work.cancelled() and work.exception() is None and work.result()
        self._keep(question, ok)
        for then in self._asked.pop(question, ()):
            then(ok)
        self._told()
        self._next()

    def _keep(self, question: bytes, ok: bool) -> None:
        self._known[question] = (ok, self._loop.time() + (VERIFIED_S if ok else REFUSED_S))
        self._known.move_to_end(question)
        if len(self._known) > VERIFIED_MAX:
            self._known.popitem(last=False)

    def close(self) -> None:
        self._closed = True
        self._waiting.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


__all__ = ["Credentials", "verify"]
