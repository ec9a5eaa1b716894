"""Two counts of a leader: applied indices, and followers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from clusterbroker.cluster.ids import LogIndex

Then = Callable[[], object]


class AppliedCount:
    """How far members have applied, as they said over their present link."""

    __slots__ = ("_applied",)

    def __init__(self) -> None:
        self._applied: dict[str, LogIndex] = {}

    def heard(self, name: str, index: LogIndex) -> None:
        """A member says how far it is."""
        self._applied[name] = index

    def lost(self, name: str) -> None:
        """Its link is gone: what it said may have been of another life."""
        self._applied.pop(name, None)

    def minimum(self, names: Iterable[str], me: str, mine: LogIndex) -> LogIndex:
        """Up to where all of them, and this node, have applied."""
        return min([mine, *(self._applied.get(name, LogIndex(0)) for name in names if name != me)])


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
        """Who is to be called now."""
        ready: list[Then] = []
        while self._waiting and self._waiting[0][0] <= self._round:
            asked = self._waiting[0][0]
            count = sum(voter == me or self._answers.get(voter, 0) >= asked for voter in voters)
            if count * 2 <= len(voters):
                break
            ready.append(self._waiting.pop(0)[1])
        return ready
