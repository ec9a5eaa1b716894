"""A core's output of one turn: collected, joined, released in the order of durability (guard rail G2).

pysyncobj sends a message per entry and peer; here those of one turn become one. Messages that depend on the disk
leave after the sync: acknowledgements, votes and candidacies. A leader's entries travel while its own disk writes. In
a new term nothing at all is sent before the term is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from . import messages as m
from .journal import Journal
from .pinned import Node, Transport

BATCH_BYTES_MAX: Final = 1 << 20
_FREE_TO_LEAVE: Final = (m.Append, m.Snapshot, m.Probe, m.Barrier, m.Forward, m.Introduce, m.TermHint, m.PreVote)


class Sender(Protocol):
    """The core, as its outbox sees it."""

    journal: Journal

    def outgoing(self, message: dict[str, Any]) -> m.AnyMessage | None:
        """pysyncobj's message as one of ours."""

    def no_learner(self, node: Any) -> None:
        """A learner votes from now on."""


class NoPoller:
    """There are no sockets to poll."""

    def poll(self, timeout: float) -> None:
        """Nothing happens."""


class Outbox(Transport):  # type: ignore[misc]
    """pysyncobj's transport: collects what is to be sent until the turn's flush, and joins what can be joined."""

    def __init__(self, core: Sender, send: Callable[[str, m.AnyMessage], object]) -> None:
        super().__init__(core, None, [])
        self._core = core
        self._send = send
        self._linked: set[str] = set()
        self._queues: dict[str, list[m.AnyMessage]] = {}

    @property
    def ready(self) -> bool:
        return True

    def linked(self, peer: str, *, is_voter: bool) -> None:
        self._linked.add(peer)
        self._queues.pop(peer, None)
        (self._onNodeConnected if is_voter else self._onReadonlyNodeConnected)(Node(peer))

    def unlinked(self, peer: str, *, is_voter: bool) -> None:
        self._linked.discard(peer)
        self._queues.pop(peer, None)
        (self._onNodeDisconnected if is_voter else self._onReadonlyNodeDisconnected)(Node(peer))

    def addNode(self, node: Any) -> None:  # noqa: N802
        """A learner becomes a voter."""
        self._core.no_learner(node)

    def dropNode(self, node: Any) -> None:  # noqa: N802
        """A voter becomes a learner, for as long as it is linked."""
        if node.id in self._linked:
            self._onReadonlyNodeConnected(node)

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        if node.id not in self._linked:
            return False
        ours = self._core.outgoing(message)
        if ours is not None:
            self.put(node.id, ours)
        return True

    def put(self, peer: str, message: m.AnyMessage) -> None:
        if peer not in self._linked:
            return
        queue = self._queues.setdefault(peer, [])
        joined = _joined(queue[-1], message) if queue else None
        if joined is None:
            queue.append(message)
        else:
            queue[-1] = joined

    def flush(self) -> bool:
        queues, self._queues = self._queues, {}
        journal = self._core.journal
        if journal.dirty and self._must_wait(queues):
            journal.sync()
        for peer in sorted(queues):
            for message in queues[peer]:
                self._send(peer, message)
        if journal.dirty:
            journal.sync()
        return bool(queues)

    def _must_wait(self, queues: dict[str, list[m.AnyMessage]]) -> bool:
        """Whether a message depends on what the disk does not have yet (G2)."""
        if self._core.journal.term_dirty:
            return True
        return any(not isinstance(message, _FREE_TO_LEAVE) for queue in queues.values() for message in queue)


def _joined(last: m.AnyMessage, new: m.AnyMessage) -> m.AnyMessage | None:
    """One message in the place of two; None when they must stay two."""
    if isinstance(last, m.Append) and isinstance(new, m.Append):
        follows = new.term == last.term and new.prev_index == last.prev_index + len(last.entries)
        if follows and sum(len(e[0]) for e in last.entries) + sum(len(e[0]) for e in new.entries) <= BATCH_BYTES_MAX:
            return m.Append(last.term, new.commit, last.prev_index, last.prev_term, last.entries + new.entries)
    if isinstance(last, m.Ack) and isinstance(new, m.Ack) and last.term == new.term:
        if last.success and new.success and not (last.reset or new.reset):
            return m.Ack(last.term, max(last.next_index, new.next_index), False, True)
        if last.reset and new.reset:
            return new
    return None
