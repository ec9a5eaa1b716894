"""Who owned which queue since when: the past of the wiring, as far as this process saw it.

The map knows the present only. What each command of the log changed is told once, when it is folded, and kept here:

    Moved      a queue has another owner, or none, or the same one in a new epoch; with the reason
    Happened   a member joined, is up, is down, drains, left; or there is a gap in what is told here
    Raised     the cluster has another feature level

The log says nothing of reasons, and its commands need not carry a time. So the reason is what kind of command it was,
and the time is the one at which this process folded it: that of its node but for milliseconds. After a time without a
line to the node there may be a snapshot in the place of commands. What differs from before is told as `unseen` then:
where a queue went is known, when and by which ways is not.

Nothing is written down: it begins with the process. `began` says from when on all is told.

Bounded: QUEUE_MAX moves of one queue, MOVES_MAX of all, so that one which is handed round pushes out its own past
alone; and MEMBERS_MAX of members, which no number of moves pushes out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring import changes as told
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import Member, Queue
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.view import ClusterView

MOVES_MAX: Final = 10_000
QUEUE_MAX: Final = 100
MEMBERS_MAX: Final = 1_000

WHY: Final[dict[type, str]] = {
    c.FailNode: "failed",
    c.TransferOwner: "moved",
    c.GiveUpCopy: "given up",
    c.ForceOwner: "forced",
    c.RegisterNode: "returned",
    c.ForgetNode: "forgotten",
    c.MoveReplica: "replicas",
    c.AddMember: "joined",
}
"""What a command that changed an owner says of the reason; a transfer from a member that drains is `drained`."""
UNSEEN: Final = "unseen"
GAP: Final = "gap"
BEGAN: Final = "began"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened."""

    number: int
    """Ascending, from 1; of this process."""
    at_ms: int
    """When this process heard of it, ms since 1970."""
    index: int
    """Of the command in the wiring log."""


class Moved(Event, frozen=True, kw_only=True):
    """A change of ownership."""

    vhost: str
    queue: str
    queue_id: int
    previous: NodeId | None
    owner: NodeId | None
    """None: nobody alive has all of it."""
    epoch: int
    why: str


class Happened(Event, frozen=True, kw_only=True):
    """To a member, or (without one) to what is told here."""

    what: str
    member: str = ""


class Raised(Event, frozen=True, kw_only=True):
    """An operator raised the cluster's feature level."""

    level: int


AnyEvent = Moved | Happened | Raised


class Since(msgspec.Struct, frozen=True):
    """From when on all is told. 0: nothing was told yet."""

    at_ms: int = 0
    index: int = 0


class Timeline:
    """Belongs to the replica, which tells it what was folded.

    Invariants: (1) a move is in `_moves` exactly when its number is in the list of its queue; (2) numbers ascend in
    both; (3) whatever was dropped is not younger than `since`.
    """

    def __init__(self) -> None:
        self.since = Since()
        self._number = 0
        self._moves: dict[int, Moved] = {}
        self._of_queue: dict[int, deque[int]] = {}
        self._queue_since: dict[int, Since] = {}  # of queues that had too many
        self._happened: deque[Happened | Raised] = deque(maxlen=MEMBERS_MAX)
        self._members: dict[str, Member] = {}  # as they were told last

    # -- what happens -----------------------------------------------------------------------------------------

    def began(self, view: ClusterView, now_ms: int) -> None:
        """This is how things stand; nothing is known of what was before."""
        self.since = Since(now_ms, view.applied)
        self._members = {member.name: member for member in view.members()}

    def resumed(self, before: ClusterView, after: ClusterView, now_ms: int) -> None:
        """Commands between the two were not heard, only what came of them."""
        if after.applied == before.applied:
            return
        self._happen(GAP, "", after.applied, now_ms)
        for name in [name for name in self._members if after.member(NodeId(name)) is None]:
            del self._members[name]
            self._happen("forgotten", name, after.applied, now_ms)
        for member in after.members():
            self._member(member, after.applied, now_ms)
        if before.is_cluster and after.level > before.level:
            self._raise(after.level, after.applied, now_ms)
        for was in before.queues():
            queue = after.queue_by_id(was.queue_id)
            if queue is not None and queue.epoch != was.epoch:
                self._move(queue, was.owner, UNSEEN, after.applied, now_ms)

    def applied(self, outcome: Applied, now_ms: int) -> None:
        """A command was folded."""
        if not self.since.at_ms:
            self.since = Since(now_ms)  # of a node that has folded nothing yet there is no snapshot
        for change in outcome.changes:
            match change:
                case told.OwnerChanged(queue=queue, previous=previous) if not queue.staging:
                    self._move(queue, previous, self._why(outcome.command, previous), outcome.index, now_ms)
                case told.MemberChanged(member=member):
                    self._member(member, outcome.index, now_ms)
                case told.MemberForgotten(name=name):
                    self._members.pop(name, None)
                    leaves = isinstance(outcome.command, c.ForgetNode) and outcome.command.leaves
                    self._happen("left" if leaves else "forgotten", name, outcome.index, now_ms)
                case told.LevelRaised(level=level):
                    self._raise(level, outcome.index, now_ms)
                case _:
                    pass

    def _why(self, command: c.AnyCommand, previous: NodeId | None) -> str:
        if isinstance(command, c.TransferOwner) and previous is not None:
            giver = self._members.get(previous)
            if giver is not None and giver.draining:
                return "drained"
        return WHY.get(type(command), UNSEEN)

    def _member(self, member: Member, index: int, now_ms: int) -> None:
        before = self._members.get(member.name)
        self._members[member.name] = member
        for what in differences(before, member):
            self._happen(what, member.name, index, now_ms)

    def _happen(self, what: str, member: str, index: int, now_ms: int) -> None:
        self._number += 1
        self._happened.append(Happened(number=self._number, at_ms=now_ms, index=index, what=what, member=member))

    def _raise(self, level: int, index: int, now_ms: int) -> None:
        self._number += 1
        self._happened.append(Raised(number=self._number, at_ms=now_ms, index=index, level=level))

    def _move(self, queue: Queue, previous: NodeId | None, why: str, index: int, now_ms: int) -> None:
        self._number += 1
        self._moves[self._number] = Moved(
            number=self._number,
            at_ms=now_ms,
            index=index,
            vhost=queue.vhost,
            queue=queue.name,
            queue_id=queue.queue_id,
            previous=previous,
            owner=queue.owner,
            epoch=queue.epoch,
            why=why,
        )
        numbers = self._of_queue.setdefault(queue.queue_id, deque())
        numbers.append(self._number)
        if len(numbers) > QUEUE_MAX:
            dropped = self._moves.pop(numbers.popleft())
            self._queue_since[queue.queue_id] = Since(dropped.at_ms, dropped.index)
        if len(self._moves) > MOVES_MAX:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = next(iter(self._moves))
        dropped = self._moves.pop(oldest)
        numbers = self._of_queue[dropped.queue_id]
        assert numbers[0] == oldest, "the oldest move of all is the oldest of its queue"
        numbers.popleft()
        if not numbers:
            del self._of_queue[dropped.queue_id]
            self._queue_since.pop(dropped.queue_id, None)
        self.since = Since(dropped.at_ms, dropped.index)

    # -- what is told -----------------------------------------------------------------------------------------

    def moves(self) -> Iterator[Moved]:
        """Of all queues, the newest first."""
        return reversed(self._moves.values())

    def moves_of(self, queue_id: int) -> Iterable[Moved]:
        """Of one queue, the newest first."""
        return [self._moves[number] for number in reversed(self._of_queue.get(queue_id, ()))]

    def since_of(self, queue_id: int) -> Since:
        """From when on all of a queue is told."""
        return max(self.since, self._queue_since.get(queue_id, self.since), key=lambda since: since.index)

    def happened(self) -> Iterable[Happened | Raised]:
        """To members and the cluster, the newest first; and gaps."""
        return reversed(self._happened)


def differences(before: Member | None, after: Member) -> list[str]:
    """What happened to a member, from what it was to what it is."""
    found = []
    if before is None:
        found.append("joined")
    was_alive = before is not None and before.alive
    if after.alive and not was_alive:
        found.append("up")
    elif after.alive and before is not None and after.incarnation != before.incarnation:
        found.append("restarted")
    elif was_alive and not after.alive:
        found.append("down")
    was_draining, was_leaving = (before.draining, before.leaving) if before is not None else (False, False)
    if after.leaving and not was_leaving:
        found.append("leaving")
    elif after.draining and not was_draining:
        found.append("draining")
    elif was_draining and not after.draining:
        found.append("undrained")
    return found
