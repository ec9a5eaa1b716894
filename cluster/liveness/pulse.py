"""The part of a heart in a thread, beside a busy loop: heartbeats, words for others', leases (waits).

A thread with a loop and a UDP socket of its own. A node that works at one thing for a second thus loses neither its
lease nor its contact, and withholds no word from others. The thread beats for a living loop only: a beat
carries the time since the node's loop turned, and after `loop_s` of that no beat leaves; a flush longer than
`stuck_s` silences the node too. A stopped process has no running thread.

    node's loop     facts: members, addresses, term, index ...      gates read `keeper.lease_until`, `contact.until`
      |  ^
      v  | urgent items of a leader (call_soon_threadsafe); beats for a follower wait for its next turn: waking costs
    the thread      beats, words; keeper, contact, hearing, paths

Both sides use the pure parts, under one lock, and never wait while holding it. A message to a peer goes as a
datagram, and, unless its arrival is known, over the peer's link by the node's loop as well.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from msgspec.structs import replace

from .beats import Beat, BeatCodec, ReplayGuard
from .contact import Contact, Hearing
from .datagrams import Datagrams, Where
from .lease import LeaseKeeper, LeaseOptions
from .paths import Paths

INBOX_MAX: Final = 4096


class Member(NamedTuple):
    """A member of the cluster as the map has it."""

    address: str
    """HOST:PORT of its cluster port: TCP for links, UDP for beats."""
    incarnation: int
    alive: bool


@dataclass(slots=True)
class Facts:
    """Facts for the thread from the node's loop; each field is replaced as a whole."""

    members: Mapping[str, Member]
    """All of the map that registered once, this node among them."""
    where: Mapping[str, Where]
    """Addresses of the others, as far as they are known."""
    links: frozenset[str]
    """Peers with a link, perhaps: known also to a node that knows no map yet."""
    term: int = 0
    applied: int = 0
    turned: float = 0.0
    """When the node's loop last turned."""
    relies: bool = False
    """Clients may be written to: the node asks for the voters' words."""
    flush_since: float | None = None
    """Since when the oldest flush that is not done has been waiting."""


class PulseEvents(Protocol):
    """Listener of the pulse, on the node's loop."""

    def beaten(self, beat: Beat, came: float) -> None:
        """A new beat of a member, or of this node itself; `came`: when."""

    def asked(self, beat: Beat) -> None:
        """A beat of a node that is not registered yet, perhaps of this one."""

    def answered(self, beat: Beat) -> None:
        """The leader's answer; the lease knows of it."""

    def contact(self) -> None:
        """Contact lasts for longer now, and `held` was set."""

    def post(self, peer: str, data: bytes) -> None:
        """To be sent over the link, if there is one."""


class Pulse:
    """`open`, then `facts` are kept up to date until `close`."""

    def __init__(
        self,
        name: str,
        codec: BeatCodec,
        options: LeaseOptions,
        stuck_s: float,
        loop_s: float,
        clock: Callable[[], float],
        time_ms: Callable[[], int],
        events: PulseEvents,
    ) -> None:
        self._name = name
        self._codec = codec
        self._options = options
        self._stuck_s, self._loop_s = stuck_s, loop_s
        self._clock = clock
        self._time_ms = time_ms
        self._events = events
        self._seq = 0
        self._guard = ReplayGuard()
        self._datagrams: Datagrams | None = None
        self._node_loop: asyncio.AbstractEventLoop
        self._own_loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None
        self._beating: asyncio.TimerHandle | None = None
        self._over = False
        self.lock = threading.Lock()
        self.facts = Facts({}, {}, frozenset(), turned=clock())
        self.keeper = LeaseKeeper(options)
        self.contact = Contact(name, options)
        self.hearing = Hearing(options, clock())
        self.paths = Paths()
        self.held = False
        """Something waits for contact."""
        self.prompt = False
        """The node's loop leads: a beat that brings its sender a lease is told at once, and not when it is fetched."""
        self.lasting: frozenset[str] = frozenset()
        """Members whose leases last for a while: their beats can wait."""
        self._inbox: deque[tuple[Beat, float]] = deque(maxlen=INBOX_MAX)

    # opening and closing, on the node's loop

    async def open(self, host: str, port: int) -> None:
        """The socket, and the first beat. Raises OSError with the address in its text."""
        assert self._thread is None, "it is opened once"
        self._node_loop = asyncio.get_running_loop()
        self._own_loop = type(self._node_loop)()  # of the same kind
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._thread.start()
        try:
            opening = asyncio.run_coroutine_threadsafe(self._open(host, port), self._own_loop)
            await asyncio.wrap_future(opening)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """No more beats, and no more events."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._over = True
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._close(), self._own_loop))
        self._own_loop.call_soon_threadsafe(self._own_loop.stop)
        await asyncio.to_thread(thread.join)
        self._own_loop.close()

    @property
    def is_open(self) -> bool:
        """There is a socket."""
        return self._thread is not None and not self._over

    @property
    def port(self) -> int:
        """The UDP port."""
        assert self._datagrams is not None, "it is open"
        return self._datagrams.port

    @property
    def family(self) -> int:
        """Of the socket's addresses."""
        assert self._datagrams is not None, "it is open"
        return self._datagrams.family

    # the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._own_loop)
        self._own_loop.run_forever()

    async def _open(self, host: str, port: int) -> None:
        self._datagrams = await Datagrams.open(host, port, self._datagram)
        self._turn()

    async def _close(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        if self._datagrams is not None:
            await self._datagrams.close()

    def _turn(self) -> None:
        if not self._over:
            self._beating = self._own_loop.call_later(self._options.beat_s, self._turn)
            self.beat()

    def _datagram(self, data: bytes, _where: Where) -> None:
        self.received(data, None)

    def _emit(self, call: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the node's loop is closed
            self._node_loop.call_soon_threadsafe(self._deliver, call, arguments)

    def _deliver(self, call: Callable[..., object], arguments: tuple[object, ...]) -> None:
        if not self._over:
            call(*arguments)

    # either side

    def beat(self) -> None:
        """To everybody, now."""
        facts, now = self.facts, self._clock()
        flush_since = facts.flush_since
        flush_s = now - flush_since if flush_since is not None else 0.0
        loop_s = max(0.0, now - facts.turned - self._options.beat_s)
        if flush_s > self._stuck_s or loop_s > self._loop_s:
            return
        relies = facts.relies  # what the beat says, and what is counted on: the loop may change it meanwhile
        with self.lock:
            incarnation = self.keeper.incarnation
            self._seq += 1
            rely_s = self.contact.rely_s if relies else 0.0
            beat = Beat(
                self._name,
                incarnation,
                facts.term,
                self._seq,
                facts.applied,
                int(max(flush_s, loop_s) * 1000),
                time_ms=self._time_ms(),
                rely_ms=math.ceil(rely_s * 1000),
            )
            if incarnation:
                self.keeper.sent(beat.seq, now)
                if relies:
                    self.contact.sent(beat.seq, now)
        for peer in sorted(facts.links | facts.where.keys()):
            self.send(peer, beat)
        if not incarnation:
            self._emit(self._events.asked, beat)
        elif self.prompt:
            self._beaten(beat, now)

    def send(self, peer: str, beat: Beat) -> None:
        """As a datagram, and by link as long as those are not known to arrive."""
        with self.lock:
            now = self._clock()
            stamped = replace(beat, heard_ms=self.paths.heard_ms(peer, now))
            arrives = self.paths.arrives(peer, now)
        data = self._codec.encode(stamped, peer)
        where = self.facts.where.get(peer)
        if where is not None and self._datagrams is not None and not self._over:
            if threading.current_thread() is self._thread:
                self._datagrams.send(data, where)
            else:
                self._own_loop.call_soon_threadsafe(self._datagrams.send, data, where)
        if not arrives:
            self._emit(self._events.post, peer, data)

    def received(self, data: bytes, by_link: str | None) -> None:
        """What came: over the link of a peer, or as a datagram."""
        beat = self._codec.decode(data)
        facts = self.facts
        if beat is None or self._over or beat.name == self._name or by_link not in (None, beat.name):
            return
        if beat.name not in facts.members and beat.name not in facts.links:
            return
        now = self._clock()
        word = new = contact = news = False
        with self.lock:
            self.paths.came(beat.name, beat.heard_ms, by_link is not None, now)
            if beat.word:
                if beat.incarnation == self.keeper.incarnation:
                    contact = self.contact.confirmed(beat.name, beat.seq, now) and self.held
            elif beat.answer:
                if beat.incarnation:
                    self.keeper.answered(beat.incarnation, beat.seq, now)
                news = not beat.incarnation or self.keeper.changed(now)
            elif beat.incarnation and beat.name in facts.members and self._guard.is_new(beat):
                new = True
                member = facts.members[beat.name]
                if member.alive and member.incarnation == beat.incarnation:
                    leased = self.keeper.leased(now)
                    word = self.hearing.heard(beat.name, beat.incarnation, beat.rely_ms / 1000, now, leased)
                    word = word and beat.rely_ms > 0
        if word:
            self.send(beat.name, Beat(self._name, beat.incarnation, facts.term, beat.seq, 0, word=True))
        if new:
            self._beaten(beat, now)
        elif contact:
            self._emit(self._events.contact)
        elif beat.answer:
            if news:
                self._emit(self._events.answered, beat)
        elif not beat.incarnation and not beat.word:
            self._emit(self._events.asked, beat)

    def _beaten(self, beat: Beat, now: float) -> None:
        if self.prompt and beat.name not in self.lasting:
            self._emit(self._events.beaten, beat, now)
        else:
            self._inbox.append((beat, now))

    def fetch(self) -> None:
        """On the node's loop: delivers the beats that came and were not delivered."""
        while self._inbox:
            self._events.beaten(*self._inbox.popleft())

    def keep(self, names: set[str]) -> None:
        """Forget all but these, which the map has."""
        with self.lock:
            self._guard.keep(names)
            self.hearing.keep(names)
            self.paths.keep(names | self.facts.links)
