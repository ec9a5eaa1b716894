"""Heartbeats, leases, suspicion: the shell around the pure parts, on the node's loop (waits).

Work that must go on beside a busy loop is in `pulse`, a thread: each 0.1 s a beat to every member, and the words for
their beats. This module has a leader's work (leases after a round of its majority, death of silent members), and the
node's question before it writes to clients: `may_speak`. A node whose progress has been stuck for more than 1 s in a
flush, or whose loop has not turned for 3 s, stops beating: it looks alive and serves nobody. The leader, a member
like the others, hears its own beats without the network and gives itself a lease by the same rules.

A leader that does not hear a majority of the voters, by datagram or by link, is itself the deaf one. It fails no
member, and has another one lead until it hears again.

The clock is read here and handed in everywhere else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from .beats import Beat, BeatCodec
from .clocks import Clocks
from .datagrams import Where, resolve
from .detector import Detector, DetectorOptions
from .lease import Grant, LeaseGranter, LeaseKeeper, LeaseOptions, LeaseState
from .pulse import Member, Pulse
from .steady import Pauses, steady

__all__ = ["Heart", "HeartOptions", "HeartOwner", "Member"]

OVERDUE_AGAIN_S: Final = 1.0
DEAF_AGAIN_S: Final = 1.0
ASKED_S: Final = 2.0
"""So long after `may_speak` found no contact the words of voters are asked for, though there may be no client."""
RESOLVE_AGAIN_S: Final = 30.0
RESOLVE_RETRY_S: Final = 1.0

Clock = Callable[[], float]


def wall_ms() -> int:
    """Milliseconds since 1970, by the machine."""
    return time.time_ns() // 1_000_000


class HeartOwner(Protocol):
    """What the heart asks, and its events; all calls on the loop's thread. None of them may wait."""

    def applied_index(self) -> int:
        """The wiring log is applied here so far."""

    def committed_index(self) -> int:
        """The wiring log is committed so far, as known here."""

    def term(self) -> int:
        """The Raft term that is known here."""

    def stuck_since(self) -> float | None:
        """Since when (`steady`) the oldest flush of journal or Raft log that is not done has been waiting."""

    def serves(self) -> bool:
        """Whether the node has clients."""

    def quorum_round(self, then: Callable[[], None]) -> None:
        """`then` when a majority has answered a probe sent after this call, in the current term; else never."""

    def linked(self, peer: str) -> bool:
        """Whether the peer can hear the wiring log from this node."""

    def post(self, peer: str, data: bytes) -> None:
        """What datagrams do not bring to a peer: for `came_by_link` of the peer's heart, if there is a link."""

    def on_lease(self, state: LeaseState) -> None:
        """The node's lease changed."""

    def on_contact(self) -> None:
        """`may_speak` was asked while there was no contact, and there is contact again."""

    def on_suspected(self, peer: str, suspected: bool) -> None:
        """A peer seems gone, or back. A hint, no more."""

    def on_overdue(self, peer: str, incarnation: int) -> None:
        """This node leads and shall propose FailNode; called again each second until the map has it."""

    def on_deaf(self, deaf: bool) -> None:
        """This node led and heard no majority: it shall not lead. Called again each second until it hears one."""


@dataclass(frozen=True, slots=True)
class HeartOptions:
    """The same on every node of a cluster."""

    lease: LeaseOptions = field(default_factory=LeaseOptions)
    detector: DetectorOptions = field(default_factory=DetectorOptions)

    stuck_s: float = 1.0
    """A node that is stuck in a flush for longer stops beating."""

    loop_s: float = 3.0
    """So does a node whose loop has not turned for so long."""


class Heart:
    """One node's heart: `open`, `set_members`, `registered`; then it beats by itself."""

    def __init__(
        self,
        name: str,
        codec: BeatCodec,
        owner: HeartOwner,
        options: HeartOptions | None = None,
        clock: Clock = steady,
        time_ms: Callable[[], int] = wall_ms,
        wall_s: Clock = time.time,
    ) -> None:
        """`time_ms`: the time by which this node dates things, ms since 1970; it travels in beats. `wall_s`: the wall
        clock as it is."""
        self._name = name
        self._owner = owner
        self._options = options or HeartOptions()
        self._clock = clock
        self._time_ms = time_ms
        self._wall_s = wall_s
        lease = self._options.lease
        self._beat_s = lease.beat_s
        self.pulse = Pulse(name, codec, lease, self._options.stuck_s, self._options.loop_s, clock, time_ms, self)
        self._members: dict[str, Member] = {}
        self._resolved: dict[str, tuple[str, Where]] = {}
        self._resolver: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._turned = 0.0
        self._listens_since = self._asked_until = 0.0
        self._granter = LeaseGranter(lease)
        self._detector = Detector(self._options.detector)
        self._pauses = Pauses()
        self._reported_overdue: dict[tuple[str, int], float] = {}
        self._deaf_at: float | None = None
        self._asking: Callable[[], object] | None = None
        self.heard: dict[str, tuple[float, Beat]] = {}
        """The last beat of each member, and when it came; for status."""
        self.clocks = Clocks()
        """How far the members' time is from this node's."""

    # opening and closing

    async def open(self, host: str, port: int) -> None:
        """The UDP socket, and the first turn. Raises OSError with the address in its text."""
        self._turned = self._listens_since = self.pulse.facts.turned = self._clock()
        await self.pulse.open(host, port)
        self._resolver = asyncio.get_running_loop().create_task(self._resolve())
        self._turn()

    async def close(self) -> None:
        """No more beats, and no more events."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._resolver is not None:
            self._resolver.cancel()
            with suppress(asyncio.CancelledError):
                await self._resolver
        await self.pulse.close()

    @property
    def port(self) -> int:
        """The UDP port."""
        return self.pulse.port

    @property
    def keeper(self) -> LeaseKeeper:
        """This node's lease."""
        return self.pulse.keeper

    # events of the node

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
        self._publish_addresses()
        self.pulse.facts.members = dict(self._members)
        self.pulse.keep(set(members))
        self.heard = {name: entry for name, entry in self.heard.items() if name in members}
        self.clocks.keep(set(others))
        self._detector.watch(others, now)
        self._granter.set_members({name: m.incarnation for name, m in self._members.items() if m.alive}, now)
        if any(name not in self._resolved for name in others) and self._resolver is not None:
            self._resolver.cancel()
            self._resolver = asyncio.get_running_loop().create_task(self._resolve())

    def set_links(self, names: Iterable[str]) -> None:
        """The peers that this node is linked with, or shall be: beats go over links as well."""
        self.pulse.facts.links = frozenset(names) - {self._name}

    def set_voters(self, voters: Iterable[str]) -> None:
        """The voters of Raft, as known here."""
        with self.pulse.lock:
            self.pulse.contact.set_voters(voters)

    def caught_up(self) -> None:
        """Everything that was ordered before this process began is applied: it may give its word (`contact`)."""
        with self.pulse.lock:
            self.pulse.hearing.confirms = True

    def registered(self, incarnation: int) -> None:
        """RegisterNode of this node was applied here: it beats as that incarnation from now on."""
        with self.pulse.lock:
            self.keeper.registered(incarnation, self._clock())
            self.pulse.contact.forget()
        self._emit_lease()
        if self._timer is not None:
            self.pulse.beat()

    def failed(self, incarnation: int) -> None:
        """FailNode of this node was applied here."""
        with self.pulse.lock:
            self.keeper.failed(incarnation)
        self._emit_lease()

    def elected(self, term: int) -> None:
        """This node leads, and has applied the first entry of its term."""
        self._listens_since = self._clock()
        self.pulse.fetch()  # what came before does not count for a leader
        self.pulse.prompt = True
        self._granter.elected(term, self._clock())

    def stepped_down(self) -> None:
        """This node does not lead any more."""
        self.pulse.prompt = False
        self._granter.stepped_down()

    def ask(self, then: Callable[[], object]) -> None:
        """Before this node registers: `then` when a leader has answered a beat of incarnation 0, which counts for
        nothing else. A node whose beats would not be answered had better not register."""
        self._asking = then
        if self._granter.term is not None:
            own = Beat(self._name, 0, self._owner.term(), 0, 0, answer=True)
            asyncio.get_running_loop().call_soon(self.answered, own)
        elif self._timer is not None:
            self.pulse.beat()

    def condemn(self, peer: str, incarnation: int) -> None:
        """To be called before FailNode is proposed for another reason than `on_overdue`: no lease for it any more."""
        self._granter.condemn(peer, incarnation)

    def give_up(self, peer: str, incarnation: int) -> bool:
        """Its port has refused: no word for it any more, if it is silent. Returns whether it is."""
        with self.pulse.lock:
            return self.pulse.hearing.give_up(peer, incarnation, self._clock())

    def spoke_since(self, peer: str) -> bool:
        """Whether a peer that was given up has beaten since."""
        with self.pulse.lock:
            return self.pulse.hearing.spoke_since(peer)

    def take_back(self, peer: str, incarnation: int) -> None:
        """Nothing can follow any more from its having been given up."""
        with self.pulse.lock:
            self.pulse.hearing.take_back(peer, incarnation)

    def came_by_link(self, peer: str, data: bytes) -> None:
        """What the peer's heart posted."""
        self.pulse.received(data, peer)

    # what the node asks

    def may_speak(self) -> bool:
        """Whether the node may write to clients at this moment: it has a lease and contact."""
        now = self._clock()
        if self._pauses.noticed(now, self._wall_s()):
            self._distrust(now)
        if now >= self.keeper.lease_until:
            return False
        if now >= self.pulse.contact.until:
            self.pulse.held = True
            self._asked_until = now + ASKED_S
            if not self.pulse.facts.relies:  # nobody was to be written to for a while
                self.pulse.facts.relies = True
                self.pulse.beat()
            return now < self.pulse.contact.until  # a word may have come meanwhile, and found nothing held
        return True

    def leased(self) -> bool:
        """Whether the node holds a lease at this moment."""
        return self.keeper.leased(self._clock())

    def contact_left_s(self) -> float:
        """Until contact ends if no word comes any more; 0: there is none."""
        return max(0.0, self.pulse.contact.until - self._clock())

    def lease_left_ms(self) -> int:
        """Until the lease ends if no answer comes any more; 0: there is none."""
        return max(0, int((self.keeper.lease_until - self._clock()) * 1000)) if self.leased() else 0

    def lease_state(self) -> LeaseState:
        """Where the node stands at this moment."""
        with self.pulse.lock:
            return self.keeper.state(self._clock())

    def clocks_ahead_ms(self) -> dict[str, int]:
        """How far the clocks of others are ahead of this node's, of those whose beats came lately."""
        return self.clocks.ahead_ms(self._clock())

    def suspected(self, peer: str) -> bool:
        """Whether its beats have been missing for longer than chance explains."""
        return self._detector.suspected(peer)

    def blocked(self) -> list[tuple[str, str]]:
        """(from, to): where datagrams do not pass, though the link between both works."""
        with self.pulse.lock:
            return self.pulse.paths.blocked(self._name, self._clock())

    # one turn

    def _distrust(self, now: float) -> None:
        """The machine stood still, and only its wall clock knows: what was granted before may be over."""
        with self.pulse.lock:
            self.keeper.distrust(now)
            self.pulse.contact.forget()
        self._emit_lease()
        if self._timer is not None:
            self.pulse.beat()

    def _turn(self) -> None:
        now = self._clock()
        self._timer = asyncio.get_running_loop().call_later(self._beat_s, self._turn)
        stood_still = now - self._turned - self._beat_s
        self._turned = now
        if stood_still > 2 * self._beat_s:
            self._detector.stalled(stood_still, now)
            self._listens_since = now
        facts = self.pulse.facts
        facts.term, facts.applied = self._owner.term(), self._owner.applied_index()
        facts.flush_since, facts.turned = self._owner.stuck_since(), now
        facts.relies = now < self._asked_until or self._owner.serves()
        self._emit_lease()
        self.pulse.fetch()
        self.pulse.lasting = self._granter.lasting(now)
        for peer, suspected in self._detector.changes(now):
            self._owner.on_suspected(peer, suspected)
        self._report_overdue(now)

    def _report_overdue(self, now: float) -> None:
        overdue = [] if self._is_deaf(now) else self._granter.tick(now)
        self._reported_overdue = {key: at for key, at in self._reported_overdue.items() if key in overdue}
        for key in overdue:
            if now >= self._reported_overdue.get(key, now):
                self._reported_overdue[key] = now + OVERDUE_AGAIN_S
                self._owner.on_overdue(*key)

    def _is_deaf(self, now: float) -> bool:
        """Whether this node led, and has heard no majority for L."""
        if self._granter.term is None and self._deaf_at is None:
            return False
        with self.pulse.lock:
            voters, paths = self.pulse.contact.voters, self.pulse.paths
            silences = [0.0 if name == self._name else paths.silent_s(name, now) for name in voters]
        patience_s = self._options.lease.lease_s
        heard = sum(silent_s <= patience_s for silent_s in silences)
        if heard * 2 > len(voters) or not voters or now - self._listens_since <= patience_s:
            if self._deaf_at is not None:
                self._deaf_at = None
                self._owner.on_deaf(False)
            return False
        if self._deaf_at is None or now >= self._deaf_at + DEAF_AGAIN_S:
            self._deaf_at = now
            self._owner.on_deaf(True)
        return True

    def _emit_lease(self) -> None:
        with self.pulse.lock:
            state = self.keeper.change(self._clock())
        if state is not None:
            self._owner.on_lease(state)

    # what comes (PulseEvents)

    def beaten(self, beat: Beat, came: float) -> None:
        """See PulseEvents."""
        if beat.name != self._name:
            if beat.name not in self._members:
                return
            self.heard[beat.name] = came, beat
            self.clocks.heard(beat.name, beat.time_ms - self._time_ms(), came)
            self._detector.heard(beat.name, came)
        if self._granter.term is None or self._timer is None:
            return
        self._granter.committed(self._owner.committed_index(), self._clock())
        # a member without a link is behind the log, though nothing may have been ordered since
        hears = beat.name == self._name or self._owner.linked(beat.name)
        applied, serves = beat.applied if hears else -1, beat.rely_ms > 0
        self._granter.beat(Grant(beat.name, beat.incarnation, beat.seq), applied, came, serves)
        self._begin_round(self._clock())

    def asked(self, beat: Beat) -> None:
        """A node that wants to register hears whether the leader and it can hear each other."""
        if self._granter.term is None:
            return
        answer = Beat(self._name, 0, self._owner.term(), beat.seq, 0, answer=True)
        if beat.name == self._name:
            self.answered(answer)
        else:
            self.pulse.send(beat.name, answer)

    def answered(self, beat: Beat) -> None:
        """See PulseEvents."""
        if beat.incarnation == 0 and self._asking is not None:
            then, self._asking = self._asking, None
            then()
        self._emit_lease()

    def contact(self) -> None:
        """See PulseEvents."""
        if self.pulse.held:
            self.pulse.held = False
            self._owner.on_contact()

    def post(self, peer: str, data: bytes) -> None:
        """See PulseEvents."""
        self._owner.post(peer, data)

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
                with self.pulse.lock:
                    self.keeper.answered(grant.incarnation, grant.seq, now)
                self.answered(answer)
            else:
                self.pulse.send(grant.name, answer)
        self.pulse.lasting = self._granter.lasting(now)
        self._begin_round(now)

    # addresses

    def _publish_addresses(self) -> None:
        self.pulse.facts.where = {name: where for name, (_, where) in self._resolved.items()}

    async def _resolve(self) -> None:
        """Addresses of the members: at once when one is new, again later, since names may move."""
        while True:
            missing = False
            for name, member in list(self._members.items()):
                if name == self._name:
                    continue
                host, _, port = member.address.rpartition(":")
                try:
                    where = await resolve(host.removeprefix("[").removesuffix("]"), int(port), self.pulse.family)
                except (OSError, ValueError):
                    missing = missing or name not in self._resolved
                    continue
                if self._members.get(name) == member:  # it may have left meanwhile
                    self._resolved[name] = member.address, where
                    self._publish_addresses()
            await asyncio.sleep(RESOLVE_RETRY_S if missing else RESOLVE_AGAIN_S)
