"""One command's changes to thousands of queues, in slices; each queue at the latest when it is needed.

Theory. A member that fails changes every queue of which it had a copy. The map changes at once, by the fold. The
node's own changes (roles, attachments, in-sync sets) concern each queue apart, so they may come later for each queue:
a node that is late for a queue is to all others a node that has applied the command late, which any node may. That
holds as long as all of a queue's changes stay in order, and the delay is invisible:

    a frame that concerns the queue     it is settled before the frame is handled: its sender knew the change
    an Attach of another node           stays behind the queue's changes (`behind`), and makes it come sooner
    a complete Attach to an owner       waits until nothing is owed (`RemoteQueues.turn`): it speaks for all queues
    another change of the queue         settles it first; a change of members settles all
    a change of policies                each queue looks for itself (`renewals`), which settles it first
    questions of a take-over to the map index and members are those of the command (`moment`), not of the slice

The order is that of need: queues for which clients of this node wait; then those with another owner, for which
clients elsewhere may wait; then those of which a copy left. A turn carries out one slice, with input of sockets in
between. For queues without waiting clients a slice is followed by a rest, REST times as long: all members have the
same work at the same time, and clients of all other queues wait for them. A command that changes few queues is
carried out at once, without any of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from clusterbroker.broker.node.renewals import AT_ONCE, SLICE, SLICE_NS
from clusterbroker.broker.remote.messages import Attach
from clusterbroker.cluster.wiring import changes as c

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import NodeCore

REST: Final = 3

OF_ONE_QUEUE: Final = (c.OwnerChanged, c.InSyncChanged, c.ReplicasChanged, c.CopyLost)
"""Changes that may be carried out later."""
ORDERED: Final = (c.QueueDeleted, c.QueuePaused, c.QueueSet)
"""Changes of a queue that come after what is owed of it."""
OF_ALL: Final = (
    c.MemberChanged, c.MemberForgotten, c.VhostDeleted, c.SegmentOpened, c.SegmentCommitted,
    c.SegmentEnded,
)  # fmt: skip
"""Changes that may concern any queue."""


class Moment(NamedTuple):
    """When a command was applied."""

    applied: int
    """The wiring's index."""
    alive: Mapping[str, int]
    """Members that were alive then, with their incarnations."""


Step = Callable[[], None] | tuple[c.Change, Moment]
"""Something that waits for a change, or the change itself."""


class Arrears:
    """Of one node.

    needed   whether somebody here waits for a queue
    opened   called with True when something is owed from now on, with False when nothing is any more
    """

    def __init__(self, node: NodeCore, needed: Callable[[int], bool], opened: Callable[[bool], None]) -> None:
        self._node = node
        self._needed = needed
        self._opened = opened
        self._soon: dict[int, list[Step]] = {}
        self._rest: dict[int, list[Step]] = {}
        self._rests_until_ms = 0
        self._failed: Exception | None = None
        self.owing = False
        """Something is owed; asked many times a turn."""
        self.moment: Moment | None = None
        """While something owed is carried out: of the command that it came of."""
        self.at_once = AT_ONCE
        self.slice = SLICE
        self.slices = self.queues = self.longest = 0
        """Since nothing was owed: slices, queues of which something was, and the most of them in one slice."""

    @property
    def rests_until_ms(self) -> int | None:
        """Nothing is to be done before; None: at once, or nothing is owed."""
        rests = self._node.now_ms < self._rests_until_ms and not self._soon and not self._failed
        return self._rests_until_ms if rests and self._rest else None

    @property
    def due(self) -> bool:
        """What is owed is to be done at once."""
        return self.rests_until_ms is None

    def owes(self, queue_id: int) -> bool:
        """Whether something of the queue is not carried out yet."""
        return queue_id in self._soon or queue_id in self._rest

    # -- what comes -------------------------------------------------------------------------------------------

    def takes(self, happened: Sequence[c.Change]) -> bool:
        """Whether the changes of a command are not to be carried out just one after the other."""
        if self.owing:
            return True
        # what an owner proposes of its own queues is bounded by itself, and it waits for it
        return len(happened) > self.at_once and not isinstance(happened[0], c.InSyncChanged)

    def take(self, happened: Sequence[c.Change]) -> None:
        """The changes of a command, in order."""
        later = len(happened) > self.at_once and not isinstance(happened[0], c.InSyncChanged)
        moment: Moment | None = None
        owed: dict[int, list[Step]] = {}
        moved: dict[int, None] = {}
        for change in happened:
            if isinstance(change, OF_ONE_QUEUE):
                queue_id = change.queue.queue_id
                if later:
                    if moment is None:
                        moment = self.now()
                    owed.setdefault(queue_id, []).append((change, moment))
                    if isinstance(change, c.OwnerChanged):
                        moved[queue_id] = None
                    continue
                self.settle(queue_id)
            elif isinstance(change, ORDERED):
                self._owe(owed, moved)
                self.settle(change.queue.queue_id)
            elif isinstance(change, c.PolicyChanged):
                self._owe(owed, moved)
            elif isinstance(change, OF_ALL):
                self._owe(owed, moved)
                self.settle_all()
                moment = None
            self._node.react(change)
        self._owe(owed, moved)

    def now(self) -> Moment:
        """The command that was applied last."""
        view = self._node.map
        return Moment(view.applied, {member.name: member.incarnation for member in view.alive_members()})

    def _owe(self, owed: dict[int, list[Step]], moved: dict[int, None]) -> None:
        """Puts what has been gathered into its places."""
        if not owed:
            return
        before, self.owing = self.owing, True
        for queue_id in (*moved, *(queue_id for queue_id in owed if queue_id not in moved)):
            steps = owed[queue_id]
            if queue_id in self._soon:
                self._soon[queue_id] += steps
            elif self._needed(queue_id):
                self._soon[queue_id] = [*self._rest.pop(queue_id, ()), *steps]
            elif queue_id in self._rest:
                self._rest[queue_id] += steps
            else:
                self._rest[queue_id] = steps
        owed.clear()
        moved.clear()
        if not before:
            self.slices = self.queues = self.longest = 0
            self._opened(True)

    def behind(self, queue_id: int, what: Callable[[], None], sooner: bool) -> bool:
        """Whether something is owed of the queue: then `what` is done after it, and with `sooner` before others."""
        steps = self._soon.get(queue_id) or self._rest.get(queue_id)
        if steps is None:
            return False
        steps.append(what)
        if sooner:
            self.sooner(queue_id)
        return True

    def sooner(self, queue_id: int) -> None:
        """Somebody waits for the queue."""
        steps = self._rest.pop(queue_id, None)
        if steps is not None:
            self._soon[queue_id] = steps

    # -- what is carried out ----------------------------------------------------------------------------------

    def before(self, message: Any) -> None:
        """A frame is about to be looked at."""
        if isinstance(message, Attach):
            if not message.partial:
                self.settle_all()  # it speaks for every queue; a new link in the midst of a take-over is rare
            return
        for queue_id in named(message):
            self.settle(queue_id)

    def settle(self, queue_id: int) -> None:
        """Carries out what is owed of the queue."""
        steps = self._soon.pop(queue_id, None) or self._rest.pop(queue_id, None)
        if steps is not None:
            self._do(steps)

    def settle_all(self) -> None:
        """Carries out all that is owed."""
        while self._soon or self._rest:
            self._next()

    def go_on(self) -> None:
        """One slice. Raises what was raised since the last one: half a change is the end of the node, whoever's frame
        it was in which it became due."""
        now_ms, stopwatch = self._node.now_ms, self._node.stopwatch
        rests = now_ms < self._rests_until_ms
        if not rests or self._soon:
            self.slices += 1
        before, began_ns = self.queues, stopwatch()
        for _ in range(self.slice):
            if (not self._soon and (rests or not self._rest)) or stopwatch() - began_ns > SLICE_NS:
                break
            self.longest = max(self.longest, self.queues + 1 - before)
            self._next()
        if not rests:
            self._rests_until_ms = now_ms + (1 + REST) * (stopwatch() - began_ns) // 1_000_000
        if self._failed is not None:
            raise self._failed

    def _next(self) -> None:
        of = self._soon or self._rest
        self._do(of.pop(next(iter(of))))

    def _do(self, steps: Iterable[Step]) -> None:
        self.queues += 1
        try:
            for step in steps:
                if isinstance(step, tuple):
                    self._carry_out(*step)
                else:
                    step()
        except Exception as error:
            self._failed = self._failed or error
        if not self._soon and not self._rest:
            self.owing = self._failed is not None
            self._opened(False)

    def _carry_out(self, change: Any, moment: Moment) -> None:
        assert self.moment is None, "what is owed is carried out one by one"
        self.moment = moment
        try:
            self._node.react(change)
        finally:
            self.moment = None


def named(message: Any) -> Sequence[int]:
    """The queues that a frame concerns."""
    queue_id: int | None = getattr(message, "queue_id", None)
    if queue_id is not None:
        return (queue_id,)
    parts: Sequence[tuple[int, ...]] = getattr(message, "parts", ()) or getattr(message, "grants", ())
    return [part[0] for part in parts]
