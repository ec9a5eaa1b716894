"""Verification of passwords: off the loop, once per answer (waits).

A verification is slow on purpose (cluster.passwords). Clients that open a thousand connections with one password
would keep a core busy for a minute, so results are remembered for a while, under a digest keyed with a random key of
this process: neither the password nor anything that helps to guess it is kept. The digest covers the stored hash, so
a changed password is verified again. Equal questions from one place that come during a verification wait for its
answer. Wrong passwords are remembered for a moment only.

The time of a refusal reveals nothing about existing users. An unknown user costs the same as a known one, `verify`.
The digest covers the name, so a result for one name answers for no other: all unknown users have the same stored
hash, none. And a remembered refusal is given after the time of a verification.

THREADS questions are verified at a time, in turns of their places: a place with a thousand questions delays another
place by one of them. In its turn a question is verified only if it is still wanted (`wanted`): not after its client's
departure, or after too many failures of others from there. Simultaneous guesses are thus held up like successive
ones, except for the THREADS that run already.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from clusterbroker.cluster import passwords

VERIFIED_MAX = 4096
VERIFIED_S = 600.0
REFUSED_S = 1.0
THREADS = 2
TOOK_S = 0.05
"""About what a verification takes, before one was made."""

Answer = Callable[[bool | None], None]
"""Whether it is the password; None: nobody looked, for it was not wanted any more."""
Question = tuple[bytes, str]
"""(its digest, where it came from)."""


def verify(stored_hash: str, algorithm: str, password: bytes) -> bool:
    """Slow. What is refused takes the time of scrypt, whatever is stored and given: nothing (an unknown user), a hash
    of another system, a password that nobody can have. Or the time would tell who exists."""
    if not stored_hash or not 0 < len(password) <= passwords.PASSWORD_BYTES_MAX:
        return passwords.verified_nobody(password)
    good = passwords.verified(password, stored_hash, algorithm)
    return good or (algorithm != passwords.SCRYPT and passwords.verified_nobody(password))


def always() -> bool:
    """Whatever has happened meanwhile."""
    return True


class _Asked(NamedTuple):
    stored_hash: str
    algorithm: str
    password: bytes
    askers: list[tuple[Answer, Callable[[], bool]]]


class Credentials:
    """Belongs to one loop; `close` in the end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        told: Callable[[], None],
        verify: Callable[[str, str, bytes], bool] = verify,
    ) -> None:
        """`told()` is called after an answer was given: the node may have something to send."""
        self.took_s = TOOK_S
        """What the last verification took, or about so much."""
        self._loop = loop
        self._told = told
        self._verify = verify
        self._key = os.urandom(32)
        self._known: OrderedDict[bytes, tuple[bool, float]] = OrderedDict()
        self._asked: dict[Question, _Asked] = {}
        self._waiting: OrderedDict[str, deque[Question]] = OrderedDict()  # by place; the first one has its turn
        self._running = 0
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False

    def check(
        self,
        name: str,
        stored_hash: str,
        algorithm: str,
        password: bytes,
        then: Answer,
        place: str = "",
        wanted: Callable[[], bool] = always,
    ) -> None:
        """`then(ok)` comes on the loop, at once when the password is known to be good."""
        digest = self._digest(name, stored_hash, algorithm, password)
        known = self._answer_to(digest)
        if known is not None:
            self._recall([(then, wanted)], known)
            return
        question = digest, place
        asked = self._asked.get(question)
        if asked is not None:
            asked.askers.append((then, wanted))
            return
        self._asked[question] = _Asked(stored_hash, algorithm, password, [(then, wanted)])
        self._waiting.setdefault(place, deque()).append(question)
        self._next()

    def remember(self, name: str, stored_hash: str, algorithm: str, password: bytes) -> None:
        """This process made the hash itself."""
        self._keep(self._digest(name, stored_hash, algorithm, password), True)

    def _recall(self, askers: list[tuple[Answer, Callable[[], bool]]], known: bool) -> None:
        """An answer that is remembered; a refusal takes its time."""
        if known:
            self._tell(askers, True)
        else:
            self._loop.call_later(self.took_s, self._tell, askers, False)

    def _answer_to(self, digest: bytes) -> bool | None:
        known = self._known.get(digest)
        return known[0] if known is not None and known[1] > self._loop.time() else None

    def _digest(self, name: str, stored_hash: str, algorithm: str, password: bytes) -> bytes:
        digest = hashlib.blake2b(key=self._key, digest_size=32)
        for part in (name.encode("utf-8", "surrogatepass"), stored_hash.encode(), algorithm.encode(), password):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.digest()

    def _next(self) -> None:
        while self._waiting and self._running < THREADS and not self._closed:
            place, questions = self._waiting.popitem(last=False)
            question = questions.popleft()
            if questions:
                self._waiting[place] = questions  # behind all others
            self._begin(question)

    def _begin(self, question: Question) -> None:
        asked = self._asked[question]
        known = self._answer_to(question[0])  # it may have been answered for another place
        if known is not None or not any(wanted() for _, wanted in asked.askers):
            del self._asked[question]
            # not from in here: whoever hears of it may ask again
            if known is None:
                self._loop.call_soon(self._tell, asked.askers, None)
            else:
                self._loop.call_soon(self._recall, asked.askers, known)
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "passwords")
        self._running += 1
        work = self._loop.run_in_executor(
            self._threads, self._verify, asked.stored_hash, asked.algorithm, asked.password
        )
        work.add_done_callback(partial(self._verified, question, self._loop.time()))

    def _verified(self, question: Question, begun_s: float, work: asyncio.Future[bool]) -> None:
        self._running -= 1
        self.took_s = self._loop.time() - begun_s
        ok = not work.cancelled() and work.exception() is None and work.result()
        self._keep(question[0], ok)
        self._tell(self._asked.pop(question).askers, ok)
        self._next()

    def _tell(self, askers: list[tuple[Answer, Callable[[], bool]]], ok: bool | None) -> None:
        for then, _ in askers:
            then(ok)
        self._told()

    def _keep(self, digest: bytes, ok: bool) -> None:
        self._known[digest] = (ok, self._loop.time() + (VERIFIED_S if ok else REFUSED_S))
        self._known.move_to_end(digest)
        if len(self._known) > VERIFIED_MAX:
            self._known.popitem(last=False)

    def close(self) -> None:
        self._closed = True
        self._waiting.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


__all__ = ["Credentials", "always", "verify"]
