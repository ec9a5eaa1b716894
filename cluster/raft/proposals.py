"""This node's own proposals, from the call to the outcome: numbered, sent, repeated, given up.

    waiting --(at most 500 are numbered at a time)--> numbered --(applied here)--> applied --(barrier)--> done
                                                        |  ^
                                                        '--' sent again: to a new leader, over a new link, and
                                                             after a second in which nothing was applied

A number is never left open, since the fold of an origin's proposals has no gaps: a proposal that was given up after
20 s is sent on as an empty one. (Its command may have come into the log before, unknown to the proposer.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from clusterbroker.cluster.errors import LogWentBack
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring_log import Done

from .fold import BLANK, Envelope, Fold, seal

IN_FLIGHT_MAX: Final = 500
GIVE_UP_S: Final = 20.0
STALL_S: Final = 1.0
WENT_BACK: Final = "the data directory is a copy of an earlier time: the cluster knows of a later life of this node"


@dataclass(slots=True)
class Proposal:
    """One call of `propose`."""

    command: c.AnyCommand
    done: Done | None
    give_up_s: float
    entry: bytes
    """The stored command; once numbered, the entry of the log."""
    blank: bool = False
    """Given up while it had a number."""
    term: int | None = None
    """The only term in which it may come into the log: what was decided under one leader must not be carried out
    under the next (the death of a member that the next one has granted a lease, say). Nobody waits for it."""


class Proposals:
    """Pure: what is to be sent, and which `done` is to be called."""

    __slots__ = (
        "_applied", "_generation", "_next", "_numbered", "_origin", "_progress_s", "_sent", "_session", "_target",
        "_waiting",
    )  # fmt: skip

    def __init__(self, origin: str, session: int, generation: int = 0) -> None:
        self._origin = origin
        self._generation = generation
        self._session = session
        self._next = 1
        self._waiting: deque[Proposal] = deque()
        self._numbered: dict[int, Proposal] = {}
        self._applied: deque[tuple[Applied, Proposal]] = deque()
        self._target: Hashable = None
        self._sent = 0
        self._progress_s = 0.0

    @property
    def pending(self) -> int:
        """Number of proposals without an outcome."""
        return len(self._waiting) + len(self._numbered) + len(self._applied)

    def add(
        self, command: c.AnyCommand, stored: bytes, done: Done | None, now_s: float, term: int | None = None
    ) -> None:
        """Take a proposal."""
        assert term is None or done is None, "what may be dropped is not waited for"
        self._waiting.append(Proposal(command, done, now_s + GIVE_UP_S, stored, term=term))

    def to_send(self, target: Hashable, now_s: float, term: int) -> list[bytes]:
        """Entries for the leader of this term, in order; `target` changes when what was sent may be lost."""
        stalled = bool(self._numbered) and now_s - self._progress_s > STALL_S
        if target != self._target or stalled:
            self._target = target
            self._sent = 0
            self._progress_s = now_s
            for number, proposal in self._numbered.items():
                if proposal.term not in (None, term) and not proposal.blank:
                    proposal.blank = True
                    proposal.entry = seal(Envelope(self._origin, self._session, number, BLANK, self._generation))
        while self._waiting and len(self._numbered) < IN_FLIGHT_MAX:
            proposal = self._waiting.popleft()
            if proposal.term not in (None, term):
                continue
            proposal.entry = seal(Envelope(self._origin, self._session, self._next, proposal.entry, self._generation))
            if not self._numbered:
                self._progress_s = now_s
            self._numbered[self._next] = proposal
            self._next += 1
        unsent = [proposal.entry for number, proposal in self._numbered.items() if number > self._sent]
        self._sent = self._next - 1
        return unsent

    def check(self, envelope: Envelope, fresh: bool = True) -> None:
        """An entry that is in the log, and `fresh`, no repetition: if it is of this session, it is of this
        generation. Raises LogWentBack."""
        later = (envelope.session, envelope.generation) != (self._session, self._generation)
        if fresh and later and envelope.origin == self._origin and envelope.session >= self._session:
            raise LogWentBack(WENT_BACK)

    def applied(self, envelope: Envelope, applied: Applied | None, now_s: float) -> None:
        """An entry of this origin was applied in its turn; `applied` is None for an empty one."""
        if (envelope.origin, envelope.session) != (self._origin, self._session):
            return
        self._progress_s = now_s
        proposal = self._numbered.pop(envelope.number, None)
        if proposal is not None and proposal.done is not None and applied is not None:
            self._applied.append((applied, proposal))

    def restored(self, fold: Fold) -> list[Proposal]:
        """A snapshot took the place of the state: proposals whose outcome is in it, and now unknown.
        Raises LogWentBack."""
        if fold.is_known(self._origin, self._session, self._next):
            raise LogWentBack(WENT_BACK)
        known = [n for n in self._numbered if fold.is_known(self._origin, self._session, n)]
        return [self._numbered.pop(number) for number in known]

    def outcomes(self, barrier: LogIndex) -> list[tuple[Applied, Done]]:
        """Outcomes to hand out, in order: all members that count have applied up to `barrier`."""
        outcomes: list[tuple[Applied, Done]] = []
        while self._applied and self._applied[0][0].index <= barrier:
            applied, proposal = self._applied.popleft()
            assert proposal.done is not None, "a proposal without `done` is not kept"
            outcomes.append((applied, proposal.done))
        return outcomes

    def given_up(self, now_s: float) -> list[Proposal]:
        """Proposals whose time is over."""
        gone: list[Proposal] = []
        while self._applied and self._applied[0][1].give_up_s <= now_s:
            gone.append(self._applied.popleft()[1])
        for number, proposal in self._numbered.items():
            if proposal.blank:
                continue
            if proposal.give_up_s > now_s:
                break
            gone.append(Proposal(proposal.command, proposal.done, proposal.give_up_s, b""))
            proposal.done = None
            proposal.blank = True
            proposal.entry = seal(Envelope(self._origin, self._session, number, BLANK, self._generation))
            self._target = None
        while self._waiting and self._waiting[0].give_up_s <= now_s:
            gone.append(self._waiting.popleft())
        return gone

    def closed(self) -> list[Proposal]:
        """All without an outcome: the node stops."""
        gone = [*(proposal for _, proposal in self._applied), *self._numbered.values(), *self._waiting]
        self._applied.clear()
        self._numbered.clear()
        self._waiting.clear()
        return gone
