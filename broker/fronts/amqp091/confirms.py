"""Publisher confirms of one channel: tickets in, basic.ack and basic.nack out.

amqp-rules 5.4: the sequence starts at 1 with the first confirm.select; each publish is acked or nacked once, possibly
with `multiple`, possibly out of order. Tickets stand in the order of their publishes. What is done at the front is
answered with `multiple`; a done ticket behind one that still waits is answered one by one, so that a slow queue does
not hold back the confirms of the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.wire.amqp091.codec import OutBuffer


class Confirms:
    """The confirm state of a channel. `on_ready` is called once when there is something to send; `flush` sends it."""

    __slots__ = ("_on_ready", "_open", "_ready", "next")

    def __init__(self, on_ready: Callable[[], None]) -> None:
        self.next = 1
        self._open: deque[Ticket] = deque()
        self._on_ready = on_ready
        self._ready = False

    @property
    def unconfirmed(self) -> int:
        """Publishes that wait for their confirm, about: those behind the first that waits."""
        return self.next - self._open[0].first if self._open else 0

    def ticket(self, count: int) -> Ticket:
        """For the next `count` publishes."""
        ticket = Ticket(self.next, self.next + count - 1, self._done)
        self.next += count
        self._open.append(ticket)
        return ticket

    def _done(self, _: Ticket) -> None:
        if not self._ready:
            self._ready = True
            self._on_ready()

    def flush(self, out: OutBuffer, channel: int) -> int:
        """Sends what is due; how many publishes it acked."""
        self._ready = False
        confirmed = 0
        queue = self._open
        acked = 0
        while queue and queue[0].done:
            ticket = queue.popleft()
            if not ticket.rejected:
                acked = ticket.last
                confirmed += (count := acked - ticket.first + 1)
                if ticket.counts is not None:
                    ticket.counts.confirm += count
                continue
            if acked:
                out.ack(channel, acked, True)
                acked = 0
            out.nack(channel, ticket.last, ticket.last != ticket.first)
        if acked:
            out.ack(channel, acked, True)
        if any(ticket.done for ticket in queue):
            waiting: deque[Ticket] = deque()
            for ticket in queue:
                if not ticket.done:
                    waiting.append(ticket)
                    continue
                answer = out.nack if ticket.rejected else out.ack
                if not ticket.rejected:
                    confirmed += (count := ticket.last - ticket.first + 1)
                    if ticket.counts is not None:
                        ticket.counts.confirm += count
                for tag in range(ticket.first, ticket.last + 1):
                    answer(channel, tag, False)
            self._open = waiting
        return confirmed
