"""An owner's knowledge of one queue and of each copy: values only, and the table of a copy's states.

    state     means                                                        Appends go there   counts for a commit
    APART     no link, or the map says that the node is not alive          no                 no
    WAITING   there is a link; its sync has not begun                      no                 no
    SYNCING   a SyncOffer went out                                         yes                no
    SYNCED    its SyncDone came                                            yes                when it owes nothing

    from \\ to   APART                 WAITING                                SYNCING     SYNCED
    APART       -                     linked, alive                          -           -
    WAITING     unlinked, not alive   again, another incarnation             offered     -
    SYNCING     unlinked, not alive   refused, too far behind, incarnation   -           done
    SYNCED      unlinked, not alive   refused, too far behind, incarnation   -           -

Every way back goes over WAITING: an acknowledgement counts only for what was sent after the newest offer of the
present link, so nothing of an earlier session or incarnation ever counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from .ports import OwnerStore

QUICK_MS: Final = 500
"""An acknowledgement that takes longer is a slow one."""
QUICK_FOR_MS: Final = 2000


class State(Enum):
    """Of one copy; see the module's table."""

    APART = "apart"
    WAITING = "waiting"
    SYNCING = "syncing"
    SYNCED = "synced"


NEXT: Final[dict[State, tuple[State, ...]]] = {
    State.APART: (State.WAITING,),
    State.WAITING: (State.APART, State.WAITING, State.SYNCING),
    State.SYNCING: (State.APART, State.WAITING, State.SYNCED),
    State.SYNCED: (State.APART, State.WAITING),
}


@dataclass(slots=True)
class Copy:
    """One copy of a queue, at another node. Times in ms."""

    node: str
    incarnation: int = 0
    """The life of the node's process that all below is about."""
    state: State = State.APART
    sync: int = 0
    """Number of the newest sync."""
    since_group: int = 0
    """Newest group that had been cut when that sync was offered: it is in the offer."""
    next_seq: int = 0
    """emitted_end in that offer: everything from it on is in Appends."""
    owed_first: int = 0
    owed_last: int = 0
    """First and last group whose records it was sent and did not acknowledge; 0: it owes nothing."""
    progress_ms: int = 0
    """When it last came nearer to being in sync."""
    behind: bool = False
    """It lacks what is committed: it leaves the in-sync set, until it is synced."""
    refuses: str = ""
    """Why it is kept apart: it knows as committed what the owner does not have."""

    def move(self, state: State) -> None:
        assert state in NEXT[self.state], f"a copy does not go from {self.state.value} to {state.value}"
        self.state = state

    @property
    def follows(self) -> bool:
        """Whether Appends go there."""
        return self.state is State.SYNCING or self.state is State.SYNCED

    def has_all_before(self, group: int | None) -> bool:
        """Whether it holds everything that may have been committed, when `group` is the one in flight."""
        return self.state is State.SYNCED and (not self.owed_last or (group is not None and self.owed_first >= group))


@dataclass(slots=True)
class HandOver:
    """A move of the ownership that the owner wants."""

    to: str
    deadline_ms: int
    proposed: bool = False


@dataclass(slots=True)
class Owned:
    """One queue that this node owns, at one epoch."""

    queue_id: int
    epoch: int
    version: int
    replicas: tuple[str, ...]
    in_sync: tuple[str, ...]
    min_in_sync: int
    volatile: bool
    store: OwnerStore
    in_flight: int | None
    """The group that waits for its copies; at first the one with which all that was taken over is durable here."""
    first: bool = True
    """Not every member has been synced in this epoch yet: nothing new is written."""
    copies: dict[str, Copy] = field(default_factory=dict)
    added: dict[str, int] = field(default_factory=dict)
    """Nodes whose addition was proposed since `version` last rose, with the incarnation meant."""
    joining: dict[str, None] = field(default_factory=dict)
    """Nodes that are waited for so that they can be proposed: nothing was said of them, so they may be struck off."""
    proposed_ms: int | None = None
    """When the proposal was made whose outcome is not known."""
    proposal: int = 0
    hand_over: HandOver | None = None
    unproven: bool = False
    """What it took over is known from its disk alone, and nothing is committed since."""
    may_own: tuple[str, ...] = ()
    """Whose copies have all that is committed, if no disk went back: in sync or eligible."""
    doubt_until_ms: int | None = None
    """A copy that may not own the queue has a group more; until then another that may own it is waited for."""
    heir: str | None = None
    """Who is ahead, and shall own the queue: until that is decided nothing is committed, and nobody leaves."""
    spurned: dict[str, int] = field(default_factory=dict)
    """Who is ahead and may not own it, with the incarnation meant."""

    def in_doubt(self, now_ms: int) -> bool:
        """Whether nobody joins, for what the owner has may be less than what is committed: see refusals.py."""
        return self.doubt_until_ms is not None and now_ms < self.doubt_until_ms and self._none_synced()

    def _none_synced(self) -> bool:
        """Whether there are others who may own it, and none of them has taken over what the owner has."""
        others = [self.copies[node] for node in self.may_own if node in self.copies]
        return bool(others) and all(copy.state is not State.SYNCED for copy in others)

    def waits_for(self) -> Sequence[str]:
        """E: who must have a group before it is committed, the owner included."""
        if not self.added and not self.joining:
            return self.in_sync
        return tuple(dict.fromkeys((*self.in_sync, *self.added, *self.joining)))


@dataclass(slots=True)
class Sent:
    """One Append that was not acknowledged yet."""

    group: int
    sent_ms: int
    bytes: int
    queues: tuple[int, ...]


@dataclass(slots=True)
class Pace:
    """Whether a peer that was once too slow may be waited for again: not while `was_slow`."""

    was_slow: bool = False
    quick_since_ms: int = 0

    def slow(self, now_ms: int) -> None:
        """It made others wait for too long."""
        self.was_slow = True
        self.quick_since_ms = now_ms

    def acked(self, took_ms: int, now_ms: int) -> None:
        """It answered after so long."""
        if took_ms > QUICK_MS:
            self.quick_since_ms = now_ms

    def recovered(self, now_ms: int) -> bool:
        """Whether it has now been quick for long enough: said once, and the old lapse is forgotten. All its queues
        wait for that word, so only who tells all of them may ask."""
        if not self.was_slow or now_ms - self.quick_since_ms < QUICK_FOR_MS:
            return False
        self.was_slow = False
        return True


@dataclass(slots=True)
class Peer:
    """Another node, as the owner of many queues sees it."""

    name: str
    incarnation: int = 0
    alive: bool = False
    linked: bool = False
    since_ms: int = 0
    """When the link came up, or went down."""
    bad: bool = False
    idle_pending: bool = False
    """It is, and in-sync sets of queues for which nothing waits were not looked at for that."""
    pace: Pace = field(default_factory=Pace)
    queues: dict[int, Copy] = field(default_factory=dict)
    unsynced: dict[int, None] = field(default_factory=dict)
    """Queues whose copy there is not SYNCED."""
    owed: deque[Sent] = field(default_factory=deque)
    owed_bytes: int = 0
    newest_group: int = 0
    """The newest group that was sent over the present link."""
    urgent: deque[int] = field(default_factory=deque)
    """Queues that wait for a sync and cannot commit without it; then those that can."""
    idle: deque[int] = field(default_factory=deque)
    large: deque[int] = field(default_factory=deque)
    """Large ones that wait for the large one under way."""
    later: deque[tuple[int, int]] = field(default_factory=deque)
    """(at ms, queue) of those that were refused."""
    active: dict[int, bool] = field(default_factory=dict)
    """Queues with a sync under way; True: a large one."""
    offered: dict[int, int] = field(default_factory=dict)
    """About how many bytes their offers have."""
    offered_bytes: int = 0

    @property
    def at_rest(self) -> bool:
        """It is linked, owes nothing, and nothing is to be sent to it: time alone changes nothing."""
        quiet = self.linked and not self.bad and not self.idle_pending and not self.pace.was_slow
        return quiet and not (self.owed or self.unsynced or self.urgent or self.idle or self.later or self.active)

    def is_quick(self, now_ms: int) -> bool:
        """Whether it owes nothing for so long that it would be called slow."""
        return not self.owed or now_ms - self.owed[0].sent_ms <= QUICK_MS
