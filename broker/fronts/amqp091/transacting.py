"""tx.*: publishes and acknowledgements that take effect together (`broker.access.transaction`).

The checks of each are made at once (amqp-rules 5.4). A rollback forgets the staged publishes and returns the
acknowledged deliveries to the ledger; it does not requeue them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.access.transaction import Transaction
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.wire.amqp091 import methods
from clusterbroker.broker.wire.amqp091.errors import internal_error, precondition_failed
from clusterbroker.broker.wire.amqp091.layout import Method

if TYPE_CHECKING:
    from clusterbroker.broker.fronts.amqp091.channel import Channel


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
    rejected = staged.rejected()
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
            for queue, seqs in rejected.items():
                staged.letters(queue, seqs)
            _carry_out(channel, method, staged)

    for queue, seqs in rejected.items():
        queue.preload(seqs, brought)


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

    staged.commit(channel.publisher, done)


def _rollback(channel: Channel, _: methods.TxRollback) -> None:
    staged = _current(channel)
    channel.transaction = Transaction()
    for entries, _outcome, _change in staged.settles:
        channel.ledger.restore(entries, channel.connection.node.now_ms)
    channel.send(methods.TxRollbackOk())


HANDLERS: Final[dict[type[Method], Callable[[Channel, Any], None]]] = {
    methods.TxSelect: _select,
    methods.TxCommit: _commit,
    methods.TxRollback: _rollback,
}
