"""Recent messages of an exchange (`x-recent-history`) on their way to what was bound to it.

    bind --applied--> look through the exchange's queue --> publish to the new destination --committed--> answer

The node that ordered the binding does it, before it answers. So what comes is what was kept when the binding was made,
in the order of the exchange's queue; a message that is published meanwhile may come twice. Once per new binding: one
that was there is answered at once. Nobody goes on for a node that dies meanwhile, and a queue of the exchange that has
no leader is waited for no longer than PATIENCE_MS: then the destination begins with less, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.content.message import republished
from clusterbroker.broker.content.properties import routing_headers
from clusterbroker.broker.queues.browse import COUNT_MAX, Browse
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.cluster.wiring.changes import Bound
from clusterbroker.cluster.wiring.exchange_rules import HISTORY
from clusterbroker.cluster.wiring.histories import history_queue
from clusterbroker.journal.record import Message, read_records

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import NodeCore
    from clusterbroker.broker.queues.handle import QueueHandle
    from clusterbroker.cluster.wiring.commands import Bind
    from clusterbroker.cluster.wiring.map import Applied

PATIENCE_MS: Final = 10_000


class Histories:
    """Of one node: bindings whose history is under way."""

    __slots__ = ("_node", "_under_way")

    def __init__(self, node: NodeCore) -> None:
        self._node = node
        self._under_way: dict[_Recall, None] = {}  # by their times

    def after(self, command: Bind, done: Callable[[Applied], None]) -> Callable[[Applied], None]:
        """Who hears of a binding instead of `done`: `done` hears when the history came."""
        source = self._node.map.exchange(command.vhost, command.source)
        if source is None or source.type != HISTORY:
            return done

        def bound(applied: Applied) -> None:
            queue = self._node.vhosts[command.vhost].queues.get(history_queue(command.source)) if applied.ok else None
            if queue is None or queue.away or not any(isinstance(change, Bound) for change in applied.changes):
                done(applied)
                return
            recall = _Recall(self._node, command, queue, lambda: self._over(recall, applied, done))
            self._under_way[recall] = None
            recall.go_on(0)

        return bound

    def _over(self, recall: _Recall, applied: Applied, done: Callable[[Applied], None]) -> None:
        if self._under_way.pop(recall, recall) is None:
            done(applied)

    @property
    def next_ms(self) -> int | None:
        """When `turn` is due; None: nothing is under way."""
        return next(iter(self._under_way)).until_ms if self._under_way else None

    def turn(self, now_ms: int) -> None:
        """Answers those that have waited for too long."""
        for recall in [one for one in self._under_way if one.until_ms <= now_ms]:
            recall.finish()


class _Recall:
    """Of one binding."""

    __slots__ = ("_command", "_end", "_left", "_node", "_queue", "finish", "ticket", "until_ms")

    def __init__(self, node: NodeCore, command: Bind, queue: QueueHandle, finish: Callable[[], None]) -> None:
        self._node = node
        self._command = command
        self._queue = queue
        self._left = int(queue.entity.arguments["x-max-length"])
        self.until_ms = node.now_ms + PATIENCE_MS
        self.finish = finish
        self.ticket = Ticket(0, 0, lambda _: finish())

    def go_on(self, seq: int) -> None:
        """Asks for what is kept from here on."""
        asked = Browse(seq, min(self._left, COUNT_MAX), waits=False)
        self._queue.browse(asked, lambda upto, records: self._shown(seq, upto, records), self._node.now_ms)

    def _shown(self, seq: int, upto: int, records: bytes) -> None:
        messages = [message for _, message, _, _ in read_records(records)]
        self._left -= len(messages)
        if messages:
            self._publish(messages)
        if messages and self._left > 0 and upto > seq:
            self._node.soon(lambda: self.go_on(upto))
        else:
            self.ticket.pass_()

    def _publish(self, messages: Sequence[Message]) -> None:
        now_ms = self._node.now_ms
        for message in messages:
            exchange, key = (_text(part) for part in (message.exchange, message.routing_key))
            made = republished(message, exchange, key, None, now_ms)
            for target in self._targets(made, key):
                if not target.deleted and (not target.rejects or target.accepts(made, now_ms)):
                    target.publish((made,), self.ticket, now_ms)
                    if target.ring.journaled:
                        self._node.unwritten_bytes += made.size

    def _targets(self, message: Message, key: str) -> Sequence[QueueHandle]:
        command, vhost = self._command, self._node.vhosts.get(self._command.vhost)
        if vhost is None:
            return ()
        if command.destination_kind == "exchange":
            headers: Callable[[], Any] = lambda: routing_headers(message)  # noqa: E731
            return vhost.router.reach(command.destination, key, headers).targets
        queue = vhost.queues.get(command.destination)
        return () if queue is None else (queue,)


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")
