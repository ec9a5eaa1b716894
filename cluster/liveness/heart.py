"""Beats out and in, leases, suspicion: the shell around the pure parts (waits).

Each 0.1 s the loop itself sends a beat to every member, so a loop that is stuck is silent and loses its lease. So does
a node whose progress has been stuck for more than 1 s in a flush: it looks alive and serves nobody. The leader, which
is a member like the others, hears its own beats without the network and gives itself a lease by the same rules.

The clock is read here and handed in everywhere else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, Protocol

from .beats import Beat, BeatCodec, ReplayGuard
from .clocks import Clocks
from .datagrams import Datagrams, Where, resolve
from .detector import Detector, DetectorOptions
from .lease import Grant, LeaseGranter, LeaseKeeper, LeaseOptions, LeaseState

OVERDUE_AGAIN_S: Final = 1.0
RESOLVE_AGAIN_S: Final = 30.0
RESOLVE_RETRY_S: Final = 1.0

Clock = Callable[[], float]


def boottime() -> float:
    """Seconds since the machine started, also those it slept. Elsewhere than on Linux: the monotonic clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def wall_ms() -> int:
    """Milliseconds since 1970, by the machine."""
    return time.time_ns() // 1_000_000


class HeartOwner(Protocol):
    """What the heart asks, and who hears of it; all calls on the loop's thread. None of them may wait."""

    def applied_index(self) -> int:
        """The wiring log is applied here so far."""

    def committed_index(self) -> int:
        """The wiring log is committed so far, as known here."""

    def term(self) -> int:
        """The Raft term that is known here."""

    def stuck_since(self) -> float | None:
        """Since when (boottime) the oldest flush of journal or Raft log that is not done has been waiting."""

    def quorum_round(self, then: Callable[[], None]) -> None:
        """`then` when a majority has answered a probe sent after this call, in the current term; else never."""

    def on_lease(self, state: LeaseState) -> None:
        """The node's lease changed."""

    def on_suspected(self, peer: str, suspected: bool) -> None:
        """A peer seems gone, or back. A hint, no more."""

    def on_overdue(self, peer: str, incarnation: int) -> None:
        """This node leads and shall propose FailNode; told again each second until the map says so."""


class Member(NamedTuple):
    """A member of the cluster as the map has it."""

    address: str
    """HOST:PORT of its cluster port: TCP for links, UDP for beats."""
    incarnation: int
    alive: bool


@dataclass(frozen=True, slots=True)
class HeartOptions:
    """The same on every node of a cluster."""

    lease: LeaseOptions = field(default_factory=LeaseOptions)
    detector: DetectorOptions = field(default_factory=DetectorOptions)

    stuck_s: float = 1.0
    """Who is stuck in a flush for longer stops beating."""


class Heart:
    """One node's heart: `open`, `set_members`, `registered`; then it beats by itself."""

    def __init__(
        self,
        name: str,
        codec: BeatCodec,
        owner: HeartOwner,
        options: HeartOptions | None = None,
        clock: Clock = boottime,
        time_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """`time_ms`: the time by which this node dates things, ms since 1970; it travels in beats."""
        self._name = name
        self._codec = codec
        self._owner = owner
        self._options = options or HeartOptions()
        self._clock = clock
        self._time_ms = time_ms
        self._beat_s = self._options.lease.beat_s
        self._datagrams: Datagrams | None = None
        self._members: dict[str, Member] = {}
        self._resolved: dict[str, tuple[str, Where]] = {}
        self._resolver: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._turned = 0.0
        self._seq = 0
        self._guard = ReplayGuard()
        self._granter = LeaseGranter(self._options.lease)
        self._detector = Detector(self._options.detector)
        self._told_overdue: dict[tuple[str, int], float] = {}
        self._asking: Callable[[], object] | None = None
        self.keeper = LeaseKeeper(self._options.lease)
        """For the gates: `keeper.lease_until` is on this heart's clock."""
        self.heard: dict[str, tuple[float, Beat]] = {}
        """The last beat of each member, and when it came; for status."""
        self.clocks = Clocks()
        """How far the members' time is from this node's."""

    # life

    async def open(self, host: str, port: int) -> None:
        """The UDP socket, and the first turn. Raises OSError with the address in its text."""
        assert self._datagrams is None, "it is opened once"
        self._datagrams = await Datagrams.open(host, port, self._received)
        self._turned = self._clock()
        self._resolver = asyncio.get_running_loop().create_task(self._resolve())
        self._turn()

    async def close(self) -> None:
        """No more beats; nothing is told any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._resolver is not None:
            self._resolver.cancel()
            with suppress(asyncio.CancelledError):
                await self._resolver
        if self._datagrams is not None:
            await self._datagrams.close()

    @property
    def port(self) -> int:
        """The UDP port."""
        assert self._datagrams is not None, "it is open"
        return self._datagrams.port

    # what the node tells

    def set_members(self, members: Mapping[str, Member]) -> None:
        """The members of the map, this node among them."""
        now = self._clock()
        others = [name for name in sorted(members) if name != self._name]
        self._members = {name: members[name] for name in sorted(members)}
        self._resolved = {
            name: entry
            for name, entry in self._resolved.items()
            if name in members and members[name].address == entry[0]
        }
        self.heard = {name: entry for name, entry in self.heard.items() if name in members}
        self._guard.keep(set(members))
        self.clocks.keep(set(others))
        self._detector.watch(others, now)
        self._granter.set_members({name: m.incarnation for name, m in self._members.items() if m.alive}, now)
        if any(name not in self._resolved for name in others) and self._resolver is not None:
            self._resolver.cancel()
            self._resolver = asyncio.get_running_loop().create_task(self._resolve())

    def registered(self, incarnation: int) -> None:
        """RegisterNode of this node was applied here: it beats from now on."""
        self.keeper.registered(incarnation, self._clock())
        self._tell_lease()
        if self._timer is not None:
            self._beat(self._clock())

    def failed(self, incarnation: int) -> None:
        """FailNode of this node was applied here."""
        self.keeper.failed(incarnation)
        self._tell_lease()

    def elected(self, term: int) -> None:
        """This node leads, and has applied the first entry of its term."""
        self._granter.elected(term, self._clock())

    def stepped_down(self) -> None:
        """This node does not lead any more."""
        self._granter.stepped_down()

    def ask(self, then: Callable[[], object]) -> None:
        """Before this node registers: `then` when a leader has answered a beat of incarnation 0, which counts for
        nothing else. A node whose beats would not be answered had better not register."""
        self._asking = then
        if self._timer is not None:
            self._ask(self._clock())

    def condemn(self, peer: str, incarnation: int) -> None:
        """To be called before FailNode is proposed for another reason than `on_overdue`: no lease for it any more."""
        self._granter.condemn(peer, incarnation)

    # what the node asks

    def leased(self) -> bool:
        """Whether the node may write to clients at this moment."""
        return self.keeper.leased(self._clock())

    def lease_left_ms(self) -> int:
        """Until the lease ends if no answer comes any more; 0: there is none."""
        return max(0, int((self.keeper.lease_until - self._clock()) * 1000)) if self.leased() else 0

    def lease_state(self) -> LeaseState:
        """Where the node stands at this moment."""
        return self.keeper.state(self._clock())

    def clocks_ahead_ms(self) -> dict[str, int]:
        """How far the clocks of others are ahead of this node's, of those whose beats came lately."""
        return self.clocks.ahead_ms(self._clock())

    def suspected(self, peer: str) -> bool:
        """Whether its beats have been missing for longer than chance explains."""
        return self._detector.suspected(peer)

    # one turn

    def _turn(self) -> None:
        now = self._clock()
        self._timer = asyncio.get_running_loop().call_later(self._beat_s, self._turn)
        stood_still = now - self._turned - self._beat_s
        self._turned = now
        if stood_still > 2 * self._beat_s:
            self._detector.stalled(stood_still, now)
        self._tell_lease()
        self._beat(now)
        for peer, suspected in self._detector.changes(now):
            self._owner.on_suspected(peer, suspected)
        self._tell_overdue(now)

    def _ask(self, now: float) -> None:
        self._seq += 1
        beat = Beat(self._name, 0, self._owner.term(), self._seq, self._owner.applied_index())
        assert self._datagrams is not None, "it asks when it is open"
        for name, (_, where) in self._resolved.items():
            self._datagrams.send(self._codec.encode(beat, name), where)
        if self._granter.term is not None:  # it leads
            self._answered(beat, now)

    def _beat(self, now: float) -> None:
        if self._asking is not None:
            self._ask(now)
        stuck_since = self._owner.stuck_since()
        stuck_s = now - stuck_since if stuck_since is not None else 0.0
        if self.keeper.incarnation == 0 or stuck_s > self._options.stuck_s:
            return
        self._seq += 1
        beat = Beat(
            self._name,
            self.keeper.incarnation,
            self._owner.term(),
            self._seq,
            self._owner.applied_index(),
            max(0, int(stuck_s * 1000)),
            time_ms=self._time_ms(),
        )
        self.keeper.sent(self._seq, now)
        assert self._datagrams is not None, "it beats when it is open"
        for name, (_, where) in self._resolved.items():
            self._datagrams.send(self._codec.encode(beat, name), where)
        self._hear(beat, now)

    def _tell_overdue(self, now: float) -> None:
        overdue = self._granter.tick(now)
        self._told_overdue = {key: at for key, at in self._told_overdue.items() if key in overdue}
        for key in overdue:
            if now >= self._told_overdue.get(key, now):
                self._told_overdue[key] = now + OVERDUE_AGAIN_S
                self._owner.on_overdue(*key)

    def _tell_lease(self) -> None:
        if (state := self.keeper.change(self._clock())) is not None:
            self._owner.on_lease(state)

    # what comes

    def _received(self, data: bytes, _where: Where) -> None:
        beat = self._codec.decode(data)
        if beat is None or self._timer is None:
            return
        now = self._clock()
        if beat.answer:
            self._answered(beat, now)
        elif beat.incarnation == 0:
            self._reassure(beat)
        elif beat.name in self._members and beat.name != self._name and self._guard.is_new(beat):
            self.heard[beat.name] = now, beat
            self.clocks.heard(beat.name, beat.time_ms - self._time_ms(), now)
            self._detector.heard(beat.name, now)
            self._hear(beat, now)

    def _reassure(self, beat: Beat) -> None:
        """A node that wants to register hears whether the leader and it can hear each other."""
        known = self._resolved.get(beat.name)
        if self._granter.term is not None and known is not None and self._datagrams is not None:
            answer = Beat(self._name, 0, self._owner.term(), beat.seq, 0, answer=True)
            self._datagrams.send(self._codec.encode(answer, beat.name), known[1])

    def _hear(self, beat: Beat, now: float) -> None:
        if self._granter.term is None:
            return
        self._granter.committed(self._owner.committed_index(), now)
        self._granter.beat(Grant(beat.name, beat.incarnation, beat.seq), beat.applied, now)
        self._begin_round(now)

    def _begin_round(self, now: float) -> None:
        if (number := self._granter.round_wanted(now)) is not None:
            self._owner.quorum_round(partial(self._round_done, number))

    def _round_done(self, number: int) -> None:
        if self._timer is None:
            return
        now = self._clock()
        for grant in self._granter.round_done(number, now):
            answer = Beat(self._name, grant.incarnation, self._owner.term(), grant.seq, 0, answer=True)
            if grant.name == self._name:
                self._answered(answer, now)
            elif grant.name in self._resolved and self._datagrams is not None:
                where = self._resolved[grant.name][1]
                self._datagrams.send(self._codec.encode(answer, grant.name), where)
        self._begin_round(now)

    def _answered(self, beat: Beat, now: float) -> None:
        if beat.incarnation == 0:
            if self._asking is not None:
                then, self._asking = self._asking, None
                then()
            return
        self.keeper.answered(beat.incarnation, beat.seq, now)
        self._tell_lease()

    # addresses

    async def _resolve(self) -> None:
        """Addresses of the members: at once when one is new, again later, since names may move."""
        assert self._datagrams is not None, "it resolves for a socket"
        while True:
            missing = False
            for name, member in list(self._members.items()):
                if name == self._name:
                    continue
                host, _, port = member.address.rpartition(":")
                try:
                    where = await resolve(host.removeprefix("[").removesuffix("]"), int(port), self._datagrams.family)
                except (OSError, ValueError):
                    missing = missing or name not in self._resolved
                    continue
                if self._members.get(name) == member:  # it may have left meanwhile
                    self._resolved[name] = member.address, where
            await asyncio.sleep(RESOLVE_RETRY_S if missing else RESOLVE_AGAIN_S)
