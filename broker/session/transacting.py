"""tx.*: publishes and acknowledgements that take effect together.

Until tx.commit a channel's publishes are staged, and its acknowledged deliveries are out of its ledger but not out of
their queues. The checks of each are made at once (amqp-rules 5.4). A commit does everything within one turn, so it
stands in one group of the journal: after a crash all of it is there or none. Settled messages are HELD or SETTLED
until that group is durable, and tx.commit-ok waits for it. A rollback forgets the staged publishes and returns the
acknowledged deliveries to the ledger; it does not requeue them.

Each queue gets its part at once (`QueueFace.commit`): all of it or, when it refuses one of the messages, none of it.

In a cluster a commit hands each queue's part to the queue's owner, and says commit-ok when all parts are committed.
This node sends each again until it is, and each takes effect once, in one group of its owner's. So a transaction is
atomic per queue whatever fails. Over several queues it is all or nothing as long as this node lives: if it dies within
a commit, some queues may have their parts and others not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.amqp import methods
from broker.amqp.errors import internal_error, precondition_failed
from broker.amqp.layout import Method
from broker.queues.face import CommitPart, QueueFace
from broker.queues.ring import Consumer
from broker.queues.ticket import Ticket
from broker.routing.router import Route
from broker.session import publishing
from journal.record import Message

if TYPE_CHECKING:
    from broker.session.channel import Channel

Entry = tuple[int, Consumer, int]  # delivery tag, consumer, seq


class Transaction:
    """What a channel has staged. `settles`: deliveries, and what becomes of them ("ack", "reject", "requeue")."""

    __slots__ = ("publishes", "settles", "size")

    def __init__(self) -> None:
        self.publishes: list[tuple[Route[QueueFace], Sequence[Message], bool, publishing.Named | None]] = []
        self.settles: list[tuple[list[Entry], str]] = []
        self.size = 0  # bytes of the staged messages

    def abandon(self, counted: bool) -> None:
        """The channel ends: what was acknowledged in vain goes back to its queues."""
        for entries, _ in self.settles:
            for _, consumer, seq in entries:
                consumer.ring.owner.requeue(seq, counted)
        self.settles.clear()


def _select(channel: Channel, _: methods.TxSelect) -> None:
    if channel.confirms is not None:
        raise precondition_failed("cannot switch from confirm to tx mode")
    if channel.transaction is None:
        channel.transaction = Transaction()
    channel.send(methods.TxSelectOk())


def _current(channel: Channel) -> Transaction:
    if channel.transaction is None:
        raise precondition_failed("channel is not transactional")
    return channel.transaction


def _commit(channel: Channel, method: methods.TxCommit) -> None:
    staged = _current(channel)
    rejected = _rejected(staged)
    channel.park()
    waits = len(rejected)
    if not waits:
        _carry_out(channel, method, staged)
        return

    @channel.answers
    def brought() -> None:
        nonlocal waits
        waits -= 1
        # a channel that ended meanwhile has abandoned the transaction
        if not waits and channel.parked is not None and channel.transaction is staged:
            _carry_out(channel, method, staged)

    for queue, seqs in rejected.items():
        queue.bring(seqs, brought)


def _rejected(staged: Transaction) -> dict[QueueFace, list[int]]:
    """Rejected deliveries: the bodies of those that will be dead letters may be on disk only, and a commit is one turn,
    so they are fetched before it."""
    rejected: dict[QueueFace, list[int]] = {}
    for entries, outcome in staged.settles:
        for _, consumer, seq in entries:
            if outcome == "reject":
                rejected.setdefault(consumer.ring.owner, []).append(seq)
    return rejected


def _carry_out(channel: Channel, method: methods.TxCommit, staged: Transaction) -> None:
    channel.transaction = Transaction()

    @channel.answers
    def done(ticket: Ticket) -> None:
        if channel.parked is None:
            return
        if not channel.closing:
            if ticket.rejected:
                # a queue refused one of the publishes; RabbitMQ ends the connection with 541 likewise
                channel.connection.fail(internal_error("commit failed", method.CLASS_ID, method.METHOD_ID))
                return
            channel.send(methods.TxCommitOk())
        channel.resume()

    node = channel.connection.node
    ticket = Ticket(1, 1, done)
    for queue, part in _parts(channel, staged).items():
        if queue.ring.journaled:
            node.published(sum(message.size for messages, _ in part.publishes for message in messages))
        queue.commit(part, ticket, node.now_ms)
    node.barrier(ticket)


def _parts(channel: Channel, staged: Transaction) -> dict[QueueFace, CommitPart]:
    """What each queue gets of it. What has no queue to go to is returned."""
    parts: dict[QueueFace, CommitPart] = {}
    for route, messages, mandatory, named in staged.publishes:
        departed = publishing.depart(channel, route, messages, mandatory, None)
        for queue in route.targets:
            parts.setdefault(queue, CommitPart()).publishes.append((departed, named))
    for entries, outcome in staged.settles:
        channel.counts.ack += len(entries) if outcome == "ack" else 0
        for _, consumer, seq in entries:
            parts.setdefault(consumer.ring.owner, CommitPart()).settles.append((seq, outcome))
    return parts


def _rollback(channel: Channel, _: methods.TxRollback) -> None:
    staged = _current(channel)
    channel.transaction = Transaction()
    for entries, _outcome in staged.settles:
        channel.ledger.restore(entries, channel.connection.node.now_ms)
    channel.send(methods.TxRollbackOk())


HANDLERS: Final[dict[type[Method], Callable[[Channel, Any], None]]] = {
    methods.TxSelect: _select,
    methods.TxCommit: _commit,
    methods.TxRollback: _rollback,
}
