"""Passwords of sign-ins: verified off the loop, throttled after failures, hashed anew by scrypt (waits).

*Verification* is slow on purpose (cluster.passwords): a thousand connections with one password would keep a core busy
for a minute. Results are therefore remembered for a while, under a digest keyed with a random key of this process:
neither the password nor any help to guess it is kept. The digest covers the stored hash, so a changed password is
verified again. Equal questions from one place during a verification wait for its answer. Wrong passwords are remembered
for a moment only.

The time of a refusal reveals nothing about existing users. An unknown user costs the same as a known one, `verify`. The
digest covers the name, so a result for one name answers for no other: all unknown users have the same stored hash,
none. A remembered refusal is given after the time of a verification.

THREADS questions are verified at a time, in turns of their places: a place with a thousand questions delays another
place by one of them. In its turn a question is verified only if it is still wanted (`wanted`): not after its client's
departure, or after too many failures of others from there. Simultaneous guesses are thus held up like successive ones,
except for the THREADS that run already.

*Throttling*, until the minute is over:

    a user at an address     10 failures within a minute
    an address               100, under any names

The pair and not the user alone: a guesser elsewhere must not lock a name's owner out. The address as well, by ten times
as much: a client that tries one password with many names is held up too, and many people behind one address are not
held up by the mistakes of one. Of IPv6 the network of 64 bits counts, because a holder of one address there has them
all. At most REMEMBERED_MAX of each kind are remembered, the youngest: a guesser with as many networks is not held up.

*Rehashing.* Imports of RabbitMQ's definitions bring salted SHA-256 hashes, quick to guess at when a backup is stolen. A
good login is the one moment with the password at hand: the new hash is ordered on the condition that the verified one
is still there (`PutUser.only_if_hash`), so a change meanwhile is kept; tags and limits are not touched. One at a time,
in a thread; one for each user at most, and WAITING_MAX in all. A failed one, or one without room, waits for the user's
next login and does not affect the present one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import os
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from clusterbroker.cluster import passwords
from clusterbroker.cluster.wiring.commands import PutUser
from clusterbroker.cluster.wiring.entities import User

VERIFIED_MAX = 4096
VERIFIED_S = 600.0
REFUSED_S = 1.0
THREADS = 2
TOOK_S = 0.05
"""About what a verification takes, before one was made."""
WAITING_MAX: Final = 64
"""Passwords that wait in memory for their turn."""
FAILURES_MAX: Final = 10
FAILURES_OF_ADDRESS_MAX: Final = 100
WINDOW_MS: Final = 60_000
REMEMBERED_MAX: Final = 10_000
NETWORK_BITS: Final = 64
NAME_MAX: Final = 255
"""So much of a name is remembered: no user has a longer one, guessers may try any."""

Answer = Callable[[bool | None], None]
"""Whether the password is right; None: not verified, for the answer was not wanted any more."""
Question = tuple[bytes, str]
"""(digest, place)."""


def verify(stored_hash: str, algorithm: str, password: bytes) -> bool:
    """Slow. A refusal takes the time of scrypt, whatever is stored and given: nothing (an unknown user), a hash of
    another system, a password that nobody can have. Else the time would reveal existing users."""
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
        on_answer: Callable[[], None],
        verify: Callable[[str, str, bytes], bool] = verify,
    ) -> None:
        """`on_answer()` is called after each answer: the node may have something to send."""
        self.took_s = TOOK_S
        """Duration of the last verification, or an estimate."""
        self._loop = loop
        self._on_answer = on_answer
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
        """`then(ok)` is called on the loop, at once for a password known to be good."""
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
        """A remembered answer; a refusal takes its time."""
        if known:
            self._answer(askers, True)
        else:
            self._loop.call_later(self.took_s, self._answer, askers, False)

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
        known = self._answer_to(question[0])  # perhaps answered for another place
        if known is not None or not any(wanted() for _, wanted in asked.askers):
            del self._asked[question]
            # not from in here: the asker may ask again at once
            if known is None:
                self._loop.call_soon(self._answer, asked.askers, None)
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
        self._answer(self._asked.pop(question).askers, ok)
        self._next()

    def _answer(self, askers: list[tuple[Answer, Callable[[], bool]]], ok: bool | None) -> None:
        for then, _ in askers:
            then(ok)
        self._on_answer()

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


Order = Callable[[PutUser], Awaitable[object]]
"""Orders the command, and returns when it was carried out or refused. Does not raise."""


class Rehashing:
    """Belongs to one loop; `close` in the end."""

    def __init__(self, order: Order, remember: Callable[[str, str, str, bytes], None], cost: int) -> None:
        """`remember(user, hash, algorithm, password)` for each new hash. `cost`: of scrypt."""
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
        # before the fold has it: clients that come at once need not be verified again
        self._remember(user.name, stored, passwords.SCRYPT, password)
        command = PutUser(
            name=user.name, password_hash=stored, hash_algorithm=passwords.SCRYPT, only_if_hash=user.password_hash
        )
        await self._order(command)

    def close(self) -> None:
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()


class _Failures:
    """Since when, and how many."""

    def __init__(self, most: int) -> None:
        self._failed: OrderedDict[Hashable, tuple[int, int]] = OrderedDict()
        self._most = most

    def waits_ms(self, who: Hashable, now_ms: int) -> int:
        since_ms, count = self._failed.get(who, (0, 0))
        left_ms = since_ms + WINDOW_MS - now_ms
        if count and left_ms <= 0:
            del self._failed[who]
            return 0
        return left_ms if count >= self._most else 0

    def failed(self, who: Hashable, now_ms: int) -> None:
        since_ms, count = self._failed.get(who, (now_ms, 0))
        if now_ms - since_ms >= WINDOW_MS:
            since_ms, count = now_ms, 0
            self._failed.pop(who, None)  # it is among the youngest now
        self._failed[who] = (since_ms, count + 1)
        if len(self._failed) > REMEMBERED_MAX:
            self._failed.popitem(last=False)

    def forget(self, who: Hashable) -> None:
        self._failed.pop(who, None)


class Throttle:
    """Failed attempts of the last minute."""

    def __init__(self) -> None:
        self._pairs = _Failures(FAILURES_MAX)
        self._addresses = _Failures(FAILURES_OF_ADDRESS_MAX)

    def waits_ms(self, user: str, address: str, now_ms: int) -> int:
        """For how long this user has to wait at this address; 0: not at all."""
        where = network(address)
        return max(self._pairs.waits_ms((user[:NAME_MAX], where), now_ms), self._addresses.waits_ms(where, now_ms))

    def failed(self, user: str, address: str, now_ms: int) -> None:
        self._pairs.failed((user[:NAME_MAX], network(address)), now_ms)
        self.failed_at(address, now_ms)

    def address_waits_ms(self, address: str, now_ms: int) -> int:
        """For how long clients by way of this address have to wait."""
        return self._addresses.waits_ms(network(address), now_ms)

    def failed_at(self, address: str, now_ms: int) -> None:
        """An attempt by way of this address failed, under any name."""
        self._addresses.failed(network(address), now_ms)

    def succeeded(self, user: str, address: str) -> None:
        """A good attempt clears the pair's failures. Those of the address stay, or the holder of one account could
        guess at all others for ever."""
        self._pairs.forget((user[:NAME_MAX], network(address)))


def network(address: str) -> str:
    """One place: an IPv4 address, an IPv6 network, or the text when it is neither."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        if not parsed.is_loopback:
            return str(ipaddress.ip_network((parsed, NETWORK_BITS), strict=False))
    return str(parsed)
