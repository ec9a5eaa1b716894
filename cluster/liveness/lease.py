"""Leases of L seconds, granted by the Raft leader: the permission to speak to clients (pure).

A node may write to clients only while it holds a lease. The leader declares a node dead only when the node's lease
must have ended. Then no node on the losing side of a cut hands out a message that the other side hands out again.

    node     beat sent at s ------------------------------> lease until s + L, on its clock, once the answer is here
    leader          beat received at r >= s; then a quorum round begins and ends; then the answer;
                    silent since r: overdue at r + G, on its clock

Proof. A clock runs wrong by at most 2 %, so the node's L lasts at most L / 0.98 of true time and the leader's G at
least G / 1.02: with L = 1.6 s and G = 1.8 s the lease ends 0.13 s before the grace, whatever the delays, since s <=
r. A leader that was deposed unknowingly grants nothing: the round began after the beat came, and a majority answered
it in the leader's term. The next leader was therefore elected after s, and waits G from its election for every
member. The clock is `steady`, which no slewing bends, and which counts the time of a sleeping machine; values of
other nodes' clocks are never used. Its rate is wrong by less than 0.1 %, so 2 % is a margin of twenty times that.

A member with a process that seems to be gone is declared dead sooner. It is then fenced by `contact`.

Safety of messages does not rest on this. If clocks lie, a message may be handed out twice, the second time by the
node that was replaced, which does not mark it as redelivered.

A member about to be declared dead is condemned first and granted nothing more: otherwise a beat that arrives between
the proposal and its commit would let a dead node speak. A new leader begins to grant when it has applied the first
entry of its own term, because until then it does not know its predecessor's orders.

Barrier: a command is answered when every holder of a lease has applied it. A member without a lease is therefore
waited for first (`may_hold` names it), and gets its lease when it has applied everything committed at that moment.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

ROUND_RETRY_S: Final = 0.3
"""A quorum round that has not ended by then is no reason not to begin another."""
GATHERED: Final = 0.95
"""Share of the time between two beats in which one quorum round serves the beats of all members."""


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """The same on every node of a cluster."""

    beat_s: float = 0.1
    """Between two beats."""

    lease_s: float = 1.6
    """L: a lease lasts so long from the sending of the beat."""

    grace_s: float = 1.8
    """G: a member whose last beat is older is declared dead."""

    lag_s: float = 3.0
    """A member that beats, but has been too far behind the wiring log for a lease for so long, is declared dead: it
    cannot hear the leader, and everybody's commands wait for what it applies."""

    fence_s: float = 10.0
    """So long after its lease a node ends its clients' connections; each node's own choice."""

    drift: float = 0.02
    """A clock's rate is wrong by at most this share."""

    def __post_init__(self) -> None:
        ends = self.lease_s * (1 + self.drift) / (1 - self.drift)
        assert self.grace_s >= ends + 0.1, f"a grace of {self.grace_s} s may end before a lease of {self.lease_s} s"
        assert self.beat_s * 4 < self.lease_s, "a lease must survive three lost beats"


class LeaseState(enum.Enum):
    """What a node may do."""

    LEASED = "leased"
    """Speak to clients."""
    LOST = "lost"
    """Keep clients and be silent: the lease may come back."""
    FENCED = "fenced"
    """End clients' connections, register anew. Also the state before the first registration."""
    FAILED = "failed"
    """The same, since the cluster has declared this incarnation dead."""


class LeaseKeeper:
    """The node's side. FENCED and FAILED end with a registration only."""

    __slots__ = ("_lost_at", "_options", "_reported", "_sent", "_state", "incarnation", "lease_until")

    def __init__(self, options: LeaseOptions | None = None) -> None:
        self._options = options or LeaseOptions()
        self._sent: deque[tuple[int, float]] = deque()
        self._state = LeaseState.FENCED
        self._reported = LeaseState.FENCED
        self._lost_at = 0.0
        self.incarnation = 0
        self.lease_until = -math.inf
        """`now < lease_until` is `leased(now)`, for very frequent calls."""

    def leased(self, now: float) -> bool:
        """Whether the node may speak to clients at this moment."""
        return now < self.lease_until

    def registered(self, incarnation: int, now: float) -> None:
        """RegisterNode of this incarnation was applied: the first beat it answers to brings the lease."""
        assert incarnation > self.incarnation, f"incarnation {incarnation} after {self.incarnation}"
        self.incarnation = incarnation
        self._sent.clear()
        self.lease_until = -math.inf
        self._state, self._lost_at = LeaseState.LOST, now

    def failed(self, incarnation: int) -> None:
        """FailNode was applied."""
        if incarnation >= self.incarnation:
            self._state, self.lease_until = LeaseState.FAILED, -math.inf

    def distrust(self, now: float) -> None:
        """Time has gone by that the clock does not show: only the answer to a beat that is sent from now on counts."""
        self._sent.clear()
        if self.state(now) is LeaseState.LEASED:
            self._state, self._lost_at, self.lease_until = LeaseState.LOST, now, -math.inf

    def sent(self, seq: int, now: float) -> None:
        """A beat is about to leave: `now` is read before it is sent."""
        self._sent.append((seq, now))
        while self._sent[0][1] + self._options.lease_s <= now:
            self._sent.popleft()

    def answered(self, incarnation: int, seq: int, now: float) -> None:
        """The leader answered the beat. Only the time when it was sent counts."""
        self.state(now)
        if incarnation != self.incarnation or self._state not in (LeaseState.LEASED, LeaseState.LOST):
            return
        sent = next((at for number, at in self._sent if number == seq), None)
        if sent is None or sent + self._options.lease_s <= now:
            return
        self.lease_until = max(self.lease_until, sent + self._options.lease_s)
        self._state = LeaseState.LEASED

    def state(self, now: float) -> LeaseState:
        """Where the node stands at this moment."""
        if self._state is LeaseState.LEASED and now >= self.lease_until:
            self._state, self._lost_at = LeaseState.LOST, self.lease_until
        if self._state is LeaseState.LOST and now >= self._lost_at + self._options.fence_s:
            self._state, self.lease_until = LeaseState.FENCED, -math.inf
        return self._state

    def changed(self, now: float) -> bool:
        """Whether `change` would return a state."""
        return self.state(now) is not self._reported

    def change(self, now: float) -> LeaseState | None:
        """The state, if it is another than the last one returned; a lease lost and regained in between is not."""
        state = self.state(now)
        if state is self._reported:
            return None
        self._reported = state
        return state


class Grant(NamedTuple):
    """A beat that is to be answered."""

    name: str
    incarnation: int
    seq: int


class _Beaten(NamedTuple):
    grant: Grant
    at: float


@dataclass(slots=True)
class _Member:
    incarnation: int
    last_beat: float
    kept_up: float
    """When the last beat came of which nothing but a quorum was missing for a lease."""
    holds_until: float = -math.inf
    """Its lease has ended by then, on the leader's clock."""
    admitted_at: tuple[int, float] | None = None
    """Without a lease: what it must have applied, and since when the barrier waits for it."""
    condemned: bool = False


class LeaseGranter:
    """The leader's side; on other nodes it only knows the members.

    Invariants: (1) a beat is answered only after a quorum round that began after it came; (2) nobody is overdue before
    G after his last beat (`lag_s` after the last one that was not too far behind), the election, or his registration,
    whichever is last; (3) who is condemned is granted nothing; (4) who holds a lease is in `may_hold`.
    """

    __slots__ = (
        "_committed", "_gathers_until", "_members", "_options", "_pending", "_round", "_round_began", "_rounds",
        "_ticked", "term",
    )  # fmt: skip

    def __init__(self, options: LeaseOptions | None = None) -> None:
        self._options = options or LeaseOptions()
        self._members: dict[str, _Member] = {}
        self._pending: dict[str, _Beaten] = {}
        self._round = 0
        self._round_began = self._gathers_until = -math.inf
        self._rounds: dict[int, dict[str, _Beaten]] = {}
        self._committed: deque[tuple[float, int]] = deque()
        self._ticked = -math.inf
        self.term: int | None = None
        """None: this node does not lead."""

    def elected(self, term: int, now: float) -> None:
        """This node leads and has applied the first entry of its term: everybody counts as having beaten now."""
        self.term = term
        self._ticked = now
        self._forget_rounds()
        self._committed.clear()
        for member in self._members.values():
            member.last_beat = member.kept_up = now
            # what a predecessor granted ends before this
            member.holds_until = now + self._options.grace_s
            member.admitted_at = None
            member.condemned = False

    def stepped_down(self) -> None:
        """Another leads, or nobody."""
        self.term = None
        self._forget_rounds()

    def _forget_rounds(self) -> None:
        self._pending.clear()
        self._rounds.clear()
        self._round_began = self._gathers_until = -math.inf

    def set_members(self, alive: Mapping[str, int], now: float) -> None:
        """The members that are alive by the map, with their incarnations."""
        known = self._members
        self._members = {}
        for name in sorted(alive):
            member = known.get(name)
            if member is None or member.incarnation != alive[name]:
                member = _Member(alive[name], now, now)
            self._members[name] = member

    def condemn(self, name: str, incarnation: int) -> None:
        """FailNode is about to be proposed for it, for another reason than silence."""
        member = self._members.get(name)
        if member is not None and member.incarnation == incarnation:
            member.condemned = True

    def committed(self, index: int, now: float) -> None:
        """The wiring log is committed so far."""
        if not self._committed or index > self._committed[-1][1]:
            self._committed.append((now, index))
        while len(self._committed) > 1 and self._committed[1][0] <= now - self._options.lease_s:
            self._committed.popleft()

    def beat(self, grant: Grant, applied: int, now: float, serves: bool = True) -> None:
        """A beat came: of a member that has applied the wiring log so far. `serves`: it has clients, and shall have as
        much of a lease as it can."""
        member = self._members.get(grant.name)
        if self.term is None or member is None or member.incarnation != grant.incarnation:
            return
        if not member.condemned:
            member.last_beat = max(member.last_beat, now)
        if member.condemned or not self._keeps_up(member, applied, now):
            return
        member.kept_up = max(member.kept_up, now)
        if not serves and grant.name in self.lasting(now):
            return
        self._pending[grant.name] = _Beaten(grant, now)

    def _keeps_up(self, member: _Member, applied: int, now: float) -> bool:
        """Whether it has applied what it must for a lease."""
        if not self._committed:
            return False
        began, oldest = self._committed[0]
        if began <= now - self._options.lease_s and applied < oldest:
            member.admitted_at = None
            return False  # it is L behind or more: the barrier shall not wait for it
        if now < member.holds_until:
            return True
        if member.admitted_at is None:
            member.admitted_at = self._committed[-1][1], now
        return applied >= member.admitted_at[0]

    def round_wanted(self, now: float) -> int | None:
        """The number of a quorum round that shall begin now; None: none."""
        if not self._pending or now < self._round_began + ROUND_RETRY_S:
            return None
        if now < self._gathers_until and self._pending.keys() <= self.lasting(now):
            return None  # one round for the beats of all
        self._round += 1
        self._round_began = now
        self._gathers_until = now + self._options.beat_s * GATHERED
        self._rounds[self._round] = self._pending
        self._pending = {}
        return self._round

    def lasting(self, now: float) -> frozenset[str]:
        """Members whose leases are good for half of their time: an answer may come a beat later."""
        half_s = self._options.lease_s / 2
        return frozenset(name for name, member in self._members.items() if member.holds_until - half_s > now)

    def round_done(self, number: int, now: float) -> list[Grant]:
        """A majority answered in this term: whose beats to answer now."""
        beats = self._rounds.get(number)
        if beats is None:
            return []  # of another term, or overtaken
        if number == self._round:
            self._round_began = -math.inf
        self._rounds = {other: waiting for other, waiting in self._rounds.items() if other > number}
        grants = []
        for name, (grant, came) in beats.items():
            member = self._members.get(name)
            if member is None or member.incarnation != grant.incarnation or member.condemned:
                continue
            member.holds_until = max(member.holds_until, came + self._options.grace_s)
            member.admitted_at = None
            if now < came + self._options.grace_s:
                grants.append(grant)
        return grants

    def tick(self, now: float) -> list[tuple[str, int]]:
        """To be called each beat: the overdue, to be declared dead: (name, incarnation). They are condemned.

        If the calls stop for longer, this node itself stood still, and nobody is blamed for that time.
        """
        stood_still = now - self._ticked - self._options.beat_s
        self._ticked = now
        if self.term is None:
            return []
        overdue = []
        for name, member in self._members.items():
            if stood_still > 2 * self._options.beat_s:
                member.last_beat = min(now, member.last_beat + stood_still)
                member.kept_up = min(now, member.kept_up + stood_still)
            silent, behind = now - member.last_beat, now - member.kept_up
            if member.condemned or silent > self._options.grace_s or behind > self._options.lag_s:
                member.condemned = True
                overdue.append((name, member.incarnation))
        return overdue

    def may_hold(self, now: float) -> list[str]:
        """The members that hold a lease, might hold one, or are about to get one: the barrier waits for these."""
        return [
            name for name, member in self._members.items() if now < member.holds_until or self._admitted(member, now)
        ]

    def _admitted(self, member: _Member, now: float) -> bool:
        if member.admitted_at is None or member.condemned:
            return False
        if now - max(member.last_beat, member.admitted_at[1]) > self._options.lease_s:
            member.admitted_at = None  # it went silent before it got a lease
            return False
        return True
