"""The hand-out of requests: alone while there are suspects, and first to the worker that a sticky one is meant for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

from clusterbroker.broker.pools.sticky import Sticking
from clusterbroker.broker.pools.suspects import Suspects, logged
from clusterbroker.broker.queues import ring as rings
from clusterbroker.broker.queues.dispatch import Dispatch
from clusterbroker.broker.queues.selecting import LOOK_MAX
from clusterbroker.broker.queues.states import LIMIT, NO_CREDIT

if TYPE_CHECKING:
    from clusterbroker.broker.queues.subscription import Member


class RequestQueue(Protocol):
    """The queue that has it (`group_queue`)."""

    def is_alone(self, member: Member) -> bool:
        """Whether a consumer's worker has no other key."""


class RequestDispatch(Dispatch):
    """See the module."""

    selects_by = Sticking
    selecting: Sticking | None
    __slots__ = ("_suspects",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._suspects: Suspects | None = None

    @property
    def suspects(self) -> Suspects:
        """Made when a worker is lost: most queues have none."""
        if self._suspects is None:
            self._suspects = Suspects(self._queue.ring, cast("RequestQueue", self._queue).is_alone)
        return self._suspects

    @property
    def has_suspects(self) -> bool:
        """Whether there are any."""
        return self._suspects is not None and self._suspects.remain()

    def keep(self, seq: int, worker: str) -> None:
        """The newest message is meant for this worker, if that is served."""
        if any(credit.owner.worker == worker for credit in self._queue.subscriptions.credits):
            self.select()
            assert self.selecting is not None, "it was made just now"
            self.selecting.keep(seq, worker)

    @property
    def kept_until_ms(self) -> int:
        """When the next one that is kept for its worker is anybody's; 0: none is passed over."""
        queue = self._queue
        if self.selecting is None or queue.halted or not queue.subscriptions.credits:
            return 0  # what changes that wakes it
        return self.selecting.ends_ms

    def _hand(self, credits: list[Any], now_ms: int) -> tuple[int, int]:
        if self.selecting is not None and self.selecting.walks:
            self.selecting.release(self._queue.host.now_ms, {credit.owner.worker for credit in credits})
            credits = self._queue.subscriptions.credits
        if self._suspects is None or not self._suspects.remain():
            return super()._hand(credits, now_ms)
        suspects, handed, why = self._suspects, 0, NO_CREDIT
        if self._queue.subscriptions.selects:  # what has returned all of them look at, and not the first one alone
            selecting = [credit for credit in credits if credit.selection is not None]
            rings.dispatch_selected(self._queue.ring, selecting, now_ms, 0)
        for credit in credits:
            if credit.has_credit and suspects.holds_none(credit.owner):
                seq = self._queue.ring.head_place() if credit.selection is None else 0
                count, why = self._hand_one(credit, now_ms)
                if count:
                    handed += count
                    suspects.given(credit.owner, seq)
                    why = NO_CREDIT  # as far as is known: there may be more
                elif credit.selection is None:
                    break  # else it passes over what others take
        return handed, why

    def _hand_one(self, credit: Any, now_ms: int) -> tuple[int, int]:
        """One request at most."""
        if credit.selection is None:
            return rings.dispatch(self._queue.ring, [credit], now_ms, 1)
        for _ in range(LOOK_MAX):
            count, why = self._select([credit], now_ms, 1)
            if count or why != LIMIT:
                return count, why
        return 0, LIMIT

    def left(self, member: Member) -> None:
        """A consumer is gone."""
        if self._suspects is not None:
            self._suspects.left(member)

    def restore(self) -> None:
        super().restore()
        self._suspects = None
        if logged(self._queue.ring):
            self._suspects = self.suspects

    def returned(self, seq: int) -> None:
        """Who held it does not any more, and whoever takes it next may have it."""
        if self._suspects is not None:
            self._suspects.returned(seq)
        if self.selecting is not None:
            self.selecting.unkeep(seq)
