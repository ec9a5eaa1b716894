"""What has happened so far, seen from outside: the same for all checkers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.batches import Row
    from tests.simulation.links import LinkReceiver
    from tests.simulation.sockets import Socket
    from tests.simulation.world import World


class Violation(BaseException):
    """An invariant does not hold. No Exception: a node goes on after those, as after mistakes of its own."""


class Mistake(BaseException):
    """A node has survived a mistake of its own. The run does not: `error` is what it was."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class History:
    """Queues by their id, messages by their body, which every simulated publisher makes unique."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.committed: dict[int, dict[int, tuple[int, bytes]]] = defaultdict(dict)
        """Queue to seq to (epoch, body)."""
        self.places: dict[int, dict[bytes, int]] = defaultdict(dict)
        """Queue to body to seq, of what was committed."""
        self.settle_written: dict[int, set[int]] = defaultdict(set)
        """Seqs for which an owner has written that they left."""
        self.left: dict[int, dict[int, int]] = defaultdict(dict)
        """Queue to the seqs that are gone at its owner, to the epoch in which that was written or taken over. What an
        owner wrote and did not commit lives again if the next one has it, else it is gone: nothing is between."""
        self.owned: dict[int, int] = defaultdict(int)
        """Queue to the newest epoch whose owner has taken it over."""
        self.settled: dict[int, set[int]] = defaultdict(set)
        """The same, committed."""
        self.settled_ever: dict[int, set[int]] = defaultdict(set)
        """Seqs that left once, also those that were given anew since."""
        self.published: set[bytes] = set()
        self.confirmed: dict[bytes, tuple[str, ...]] = {}
        """Body to the queues that it was confirmed for."""
        self.delivered: dict[str, dict[bytes, int]] = defaultdict(dict)
        """Queue name to body to how often it was handed over."""
        self.doubtful: dict[str, set[bytes]] = defaultdict(set)
        """Queue name to bodies that were handed over when the node's word was not checked (Site.owes)."""
        self.holders: dict[str, dict[bytes, list[Socket]]] = defaultdict(lambda: defaultdict(list))
        self.acknowledged: dict[str, set[bytes]] = defaultdict(set)
        self.staged: dict[bytes, Row] = {}
        """Rows of micro-batches by their body."""
        self.receivers: dict[str, list[LinkReceiver]] = defaultdict(list)
        """Queue name to the recoverable links that receive from it."""
        self.gaps: dict[int, int] = defaultdict(int)
        """Queue to the newest epoch of which the map says that it began without all that was committed."""
        self.given_up: dict[str, set[bytes]] = defaultdict(set)
        """Queue name to bodies that such an epoch's owner had not: their loss was accepted, and told."""

    def in_gap(self, queue_id: int) -> bool:
        """Whether a copy was chosen that may lack messages, and has not taken over yet: what is lost is not known."""
        return self.owned[queue_id] < self.gaps[queue_id]

    def keeps_order(self, queue: str) -> bool:
        """Not behind a gap: what was lost and not confirmed comes again."""
        return self.world.keeps_order(queue) and not self.gaps[self.queue_id(queue) or 0]

    def begin_behind_gap(self, queue_id: int, live: Mapping[int, tuple[int, bytes]]) -> None:
        """The copy that was chosen takes over: the queue is what it holds, whatever became of that elsewhere. What it
        has not is given up, and nothing is known of it any more."""
        name, here = self.queue_name(queue_id), {body for _, body in live.values()}
        gone = self.places[queue_id].keys() - here
        self.given_up[name] |= gone
        for per_queue in (self.places, self.committed, self.settled, self.settle_written, self.left):
            per_queue.pop(queue_id, None)  # type: ignore[attr-defined]
        for body in gone:
            self.delivered[name].pop(body, None)
            self.holders[name].pop(body, None)
        self.world.schedule.counts["given up messages"] += len(gone - self.acknowledged[name])

    def queue_id(self, name: str) -> int | None:
        queue = self.world.newest_map.queue("/", name)
        return None if queue is None else int(queue.queue_id)

    def queue_name(self, queue_id: int) -> str:
        queue: Any = self.world.newest_map.queue_by_id(queue_id)  # type: ignore[arg-type]
        return "" if queue is None else str(queue.name)


class Checker:
    """Overrides the events that it looks at; the base says nothing."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.world = history.world

    def require(self, holds: bool, text: str) -> None:
        if not holds:
            raise Violation(f"{type(self).__name__}: {text}")
