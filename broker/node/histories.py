"""Recent messages of an exchange (`x-recent-history`) on their way to what was bound to it.

    bind --applied--> look through the exchange's queue --> publish to the new destination --committed--> answer

The node that ordered the binding does it, before it answers. So what comes is what was kept when the binding was made,
in the order of the exchange's queue; a message that is published meanwhile may come twice. Once per new binding: one
that was there is answered at once. Nobody goes on for a node that dies meanwhile, and a queue of the exchange that has
no leader, or a destination that is congested, is waited for no longer than PATIENCE_MS: then the destination begins
with less, or nothing.

A number of a producer (`x-producer`) counts nothing here: a queue takes a number below one that it has for a repeat,
and what is published meanwhile comes before what was kept. So the repeat of a message that came this way is stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.content.message import republished
from clusterbroker.broker.content.properties import routing_headers
from clusterbroker.broker.queues.browse import COUNT_MAX, Browse
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.routing.labour import DELIVERIES_AT_ONCE, DELIVERY_STEPS
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
"""Without any progress."""
LOOK_MS: Final = 20
"""Between two looks at a congested destination."""
SINGLE: Final = 4
"""A message that is delivered by itself costs as much as so many of a batch."""


class Histories:
    """Of one node: bindings whose history is under way."""

    __slots__ = ("_look_ms", "_under_way", "_waiting", "node")

    def __init__(self, node: NodeCore) -> None:
        self.node = node
        self._waiting: dict[_Recall, None] = {}  # for room
        self._look_ms = 0
        self._under_way: dict[_Recall, None] = {}  # by their times

    def after(self, command: Bind, done: Callable[[Applied], None]) -> Callable[[Applied], None]:
        """Who hears of a binding instead of `done`: `done` hears when the history came."""
        source = self.node.map.exchange(command.vhost, command.source)
        if source is None or source.type != HISTORY:
            return done

        def bound(applied: Applied) -> None:
            queue = self.node.vhosts[command.vhost].queues.get(history_queue(command.source)) if applied.ok else None
            if queue is None or queue.away or not any(isinstance(change, Bound) for change in applied.changes):
                done(applied)
                return
            recall = _Recall(self, command, queue, lambda: self._over(recall, applied, done))
            self._under_way[recall] = None
            recall.go_on(0)

        return bound

    def _over(self, recall: _Recall, applied: Applied, done: Callable[[Applied], None]) -> None:
        if self._under_way.pop(recall, recall) is None:
            done(applied)

    @property
    def next_ms(self) -> int | None:
        """When `turn` is due; None: nothing is under way."""
        if not self._under_way:
            return None
        until_ms = next(iter(self._under_way)).until_ms
        return min(until_ms, self._look_ms) if self._waiting else until_ms

    def turn(self, now_ms: int) -> None:
        """Answers those that have waited for too long, and goes on with those that waited for room."""
        for recall in [one for one in self._under_way if one.until_ms <= now_ms]:
            recall.finish()
        if self._waiting and self._look_ms <= now_ms:
            waiting, self._waiting = self._waiting, {}
            for recall in waiting:
                self.node.soon(recall.publish)

    def wait(self, recall: _Recall) -> None:
        """Its destination is congested."""
        self._look_ms = self._look_ms if self._waiting else self.node.now_ms + LOOK_MS
        self._waiting[recall] = None

    def moved(self, recall: _Recall) -> None:
        """Its patience begins anew."""
        if recall in self._under_way:
            del self._under_way[recall]
            recall.until_ms = self.node.now_ms + PATIENCE_MS
            self._under_way[recall] = None


class _Recall:
    """Of one binding. What is published in one turn is bounded (DELIVERIES_AT_ONCE), and so is what a congested queue
    holds of it. Nothing more is published once its binding is gone, or has been answered."""

    __slots__ = (
        "_command", "_ended", "_histories", "_left", "_made", "_node", "_over", "_queue", "_ready", "_targets", "_then",
        "ticket", "until_ms",
    )  # fmt: skip

    def __init__(self, histories: Histories, command: Bind, queue: QueueHandle, over: Callable[[], None]) -> None:
        self._histories = histories
        self._node = histories.node
        self._command = command
        self._queue = queue
        self._left = int(queue.entity.arguments["x-max-length"])
        self._ready: deque[Message] = deque()
        """Of the last look at the queue, not published yet."""
        self._then: Callable[[], None] = self._looked
        """After these."""
        self._made: Message | None = None
        """The one that is being published."""
        self._targets: deque[QueueHandle] = deque()
        """Where it has not been yet."""
        self.until_ms = self._node.now_ms + PATIENCE_MS
        self._ended = False
        self._over = over
        self.ticket = Ticket(0, 0, lambda _: self.finish())

    def finish(self) -> None:
        """It is committed, or has waited for too long."""
        self._ended = True
        self._over()

    def go_on(self, seq: int) -> None:
        """Asks for what is kept from here on."""
        asked = Browse(seq, min(self._left, COUNT_MAX), waits=False)
        self._queue.browse(asked, lambda upto, records: self._shown(seq, upto, records), self._node.now_ms)

    def _shown(self, seq: int, upto: int, records: bytes) -> None:
        self._ready.extend(message for _, message, _, _ in read_records(records))
        self._left -= len(self._ready)
        self._then = (lambda: self.go_on(upto)) if self._ready and self._left > 0 and upto > seq else self._looked
        self.publish()

    def _looked(self) -> None:
        self.ticket.pass_()

    def publish(self) -> None:
        """As much as a turn may take."""
        node = self._node
        if self._ended:
            return
        if node.map.find_binding(self._command) is None:
            self.finish()
            return
        before = left = DELIVERIES_AT_ONCE // SINGLE
        while left > 0 and (self._targets or self._ready):
            if not self._targets:
                self._route(self._ready.popleft())
                left -= 1
                continue
            if node.throttled or self._targets[0] in node.congested:
                self._histories.wait(self)
                break
            self._deliver(self._targets.popleft())
            left -= 1
        node.labour.done += DELIVERY_STEPS * SINGLE * (before - left)
        if left < before:
            self._histories.moved(self)
        if not self._targets and not self._ready:
            self._then()
        elif left <= 0:
            node.soon(self.publish)

    def _route(self, message: Message) -> None:
        exchange, key = (_text(part) for part in (message.exchange, message.routing_key))
        self._made = republished(message, exchange, key, None, self._node.now_ms)
        self._targets.extend(self._ways(self._made, key))

    def _deliver(self, target: QueueHandle) -> None:
        made, now_ms = self._made, self._node.now_ms
        if made is not None and not target.deleted and (not target.rejects or target.accepts(made, now_ms)):
            target.publish((made,), self.ticket, now_ms)
            if target.ring.journaled:
                self._node.unwritten_bytes += made.size

    def _ways(self, message: Message, key: str) -> Sequence[QueueHandle]:
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
