"""Two counts of a leader: applied indices, and followers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from clusterbroker.cluster.ids import LogIndex

ANNOUNCE_EVERY_S: Final = 0.5

Then = Callable[[], object]


class Barrier:
    """The entry up to which every living member has applied the log: counted and announced by the leader, to which the
    other members report.

    Invariant: `index` never falls.
    """

    __slots__ = ("_announced", "_announced_s", "_applied", "_reported", "index")

    def __init__(self, now_s: float) -> None:
        """Nothing is known yet."""
        self.index = LogIndex(0)
        self._applied: dict[str, LogIndex] = {}
        self._announced: tuple[int, ...] = ()
        self._announced_s = now_s
        self._reported: tuple[object, ...] = ()

    def reported(self, name: str, index: LogIndex) -> None:
        """A member reports over its present link how far it has applied."""
        self._applied[name] = index

    def lost(self, name: str) -> None:
        """The link of a member is gone: its report may be of another incarnation."""
        self._applied.pop(name, None)

    def count(self, alive: Iterable[str], me: str, mine: LogIndex) -> None:
        """Of a leader: raise the barrier to what all living members, and this node, have applied."""
        reported = (self._applied.get(name, LogIndex(0)) for name in alive if name != me)
        self.raised(min([mine, *reported]))

    def raised(self, index: LogIndex) -> None:
        """The barrier is here, or above."""
        self.index = max(self.index, index)

    def is_announced(self, term: int, links: int, now_s: float) -> bool:
        """Whether a leader announces it now; `links`: the number of links made so far.

        Announced again from time to time, since a member that was not in this term yet has dropped it.
        """
        news = (term, self.index, links)
        if news == self._announced and now_s - self._announced_s <= ANNOUNCE_EVERY_S:
            return False
        self._announced, self._announced_s = news, now_s
        return True

    def is_reported(self, *report: object) -> bool:
        """Whether a member reports this now: news to that leader, in that term, over that link."""
        if report == self._reported:
            return False
        self._reported = report
        return True


class QuorumRounds:
    """Calls back when a majority answered a probe that was sent after the call, within one term."""

    __slots__ = ("_answers", "_round", "_term", "_waiting")

    def __init__(self) -> None:
        self._round = 0
        self._term = 0
        self._answers: dict[str, int] = {}
        self._waiting: list[tuple[int, Then]] = []

    def wait(self, term: int, then: Then) -> None:
        """Call back, unless the term ends before."""
        if term != self._term:
            self.forget()
            self._term = term
        self._waiting.append((self._round + 1, then))

    def forget(self) -> None:
        """The term is over: nobody is called."""
        self._waiting.clear()
        self._answers.clear()

    def probe(self) -> int | None:
        """The number of a round that is to be sent to all voters now; None: nothing to ask."""
        if not self._waiting or self._waiting[-1][0] <= self._round:
            return None
        self._round += 1
        return self._round

    def answered(self, raft_id: str, term: int, round_: int) -> None:
        """A voter still follows."""
        if term == self._term:
            self._answers[raft_id] = max(round_, self._answers.get(raft_id, 0))

    def complete(self, voters: Sequence[str], me: str) -> list[Then]:
        """The callbacks of the rounds that are complete."""
        ready: list[Then] = []
        while self._waiting and self._waiting[0][0] <= self._round:
            asked = self._waiting[0][0]
            count = sum(voter == me or self._answers.get(voter, 0) >= asked for voter in voters)
            if count * 2 <= len(voters):
                break
            ready.append(self._waiting.pop(0)[1])
        return ready
