"""A turn of a node: the core's effects on the world, carried out in one order everywhere.

    1. turn        marked queues hand out, expire, trim
    2. order       proposals go to the wiring log; immediate answers are worked on in the same turn
    3. read        messages and parts of streams wanted from the journal
       verify      passwords and tokens
    4. persist     queues' unwritten records become one group commit, if none is in progress
    5. send        buffers go to their sockets, if this node may say anything
    6. exchange    frames go to other nodes

Persist comes before send: a buffer in step 5 promises nothing that the group of step 4 has not yet kept, because
confirms are tickets until `group_committed`.

The shell, the simulation and the tests' worlds differ in their `World` and take their turns with this module, so a
property of one holds in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from clusterbroker.broker.node.core import Node
from clusterbroker.broker.node.effects import Check, Group, Load, StreamLoad
from clusterbroker.broker.queues.patience import PATIENCE_MS
from clusterbroker.cluster.wiring.commands import AnyCommand
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.journal.record import GroupWriter

ROUNDS_MAX: Final = 16
"""So often a turn goes on with what the wiring log answered at once."""
LAZY_MS: Final = 25
"""Acknowledgements alone wait so long for company: a flush of their own would take the disk from others."""

Proposal = tuple[AnyCommand, Callable[[Applied], None]]


class Journal(Protocol):
    """What a turn needs to know of the disk."""

    @property
    def idle(self) -> bool:
        """No group is under way."""

    @property
    def room(self) -> int:
        """Bytes that its last segment has left."""

    def begin_group(self, pending_bytes: int = 0) -> GroupWriter: ...


class World(Protocol):
    """What a turn asks the world for. Answers are events of their own, or come while it is asked."""

    @property
    def journal(self) -> Journal | None:
        """None: the node keeps nothing."""

    @property
    def may_speak(self) -> bool:
        """Whether something may be written to clients at this moment."""

    def order(self, proposals: Sequence[Proposal]) -> None:
        """Brings commands to the wiring log; each `done` is told what came of its own."""

    def read(self, loads: Sequence[Load | StreamLoad]) -> None:
        """Reads from the disk; `Node.loaded` gets what was read."""

    def verify(self, checks: Sequence[Check]) -> None:
        """Passwords and tokens; each `then` gets its verdict."""

    def file(self) -> None:
        """Begins a checkpoint if one is due; no group is under way."""

    def submit(self, writer: GroupWriter, group: Group) -> None:
        """Writes the group, and flushes it if `group.sync`; then `Node.group_committed`, at another time."""

    def later(self, delay_ms: int) -> None:
        """Another turn after so long, if none comes earlier by this."""

    def send(self, now_ms: int) -> None:
        """Flushes the buffers of `Node.sending`, and takes them off it."""

    def exchange(self) -> None:
        """Brings `Hub.out` to other nodes."""


class Driver:
    """Takes the turns of one node."""

    __slots__ = ("_clock", "_grouped_ms", "_lazy_ms", "_node", "_world")

    def __init__(self, node: Node, world: World, clock: Callable[[], int], lazy_ms: int = LAZY_MS) -> None:
        """`clock`: the node's time (ms); a turn takes some."""
        self._node = node
        self._world = world
        self._clock = clock
        self._lazy_ms = lazy_ms
        self._grouped_ms = -lazy_ms

    def turn(self, now_ms: int) -> bool:
        """One turn; whether another one is due at once. Raises what the node or the world does."""
        node, world = self._node, self._world
        node.turn(now_ms)
        rounds = 0
        while node.proposals and rounds < ROUNDS_MAX:
            proposals, node.proposals = node.proposals, []
            world.order(proposals)
            node.turn(now_ms, goes_on=True)
            rounds += 1
        if node.loads:
            loads, node.loads = node.loads, []
            world.read(loads)
        if node.checks:
            checks, node.checks = node.checks, []
            world.verify(checks)
        self.persist()
        if node.sending and world.may_speak:
            world.send(now_ms)
        world.exchange()
        return bool(node.busy or node.proposals or (node.sending and world.may_speak))

    def persist(self) -> None:
        """What is to be written becomes a group, unless one is under way or nobody waits for it yet."""
        node, world = self._node, self._world
        journal = world.journal
        if journal is None or not journal.idle:
            return
        world.file()
        if not node.wants_group:
            return
        now_ms = self._clock()
        if not node.wants_group_now and now_ms - self._grouped_ms < self._lazy_ms:
            world.later(self._lazy_ms)
            return
        self._grouped_ms = now_ms
        writer = journal.begin_group(node.group_bytes(journal.room))
        group = node.write_group(writer, now_ms)
        if writer.records:
            world.submit(writer, group)
            return
        node.group_committed(group, now_ms)
        if node.wants_group:  # all of it was too young
            world.later(PATIENCE_MS)
