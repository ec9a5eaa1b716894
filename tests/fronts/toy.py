"""A second protocol beside 0-9-1, in lines of text: what a front needs of the node, and no more.

    TOY <user> <password> <vhost>    -> READY
    PUB <number> <queue> <body>      -> OK <number> (accepted), FULL <number> <queue> (rejected), NO <number> (released)
    SUB <queue> <limit> [<start>]    -> ON <queue>, then MSG <tag> <redelivered> <body> for each delivery; of a stream
                                     from `start` on: first, last, next or an offset
    ACK <tag>                        the delivery is settled

A refusal is answered ERR <kind> <text>, and ends the connection. Bodies have no line breaks. A connection is its own
only session. Deliveries leave the ring as frames of 0-9-1, which `Lines` turns into lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from clusterbroker.broker.access.authorization import Authorization
from clusterbroker.broker.access.errors import Refusal, access_refused, precondition_failed
from clusterbroker.broker.access.publisher import Publisher
from clusterbroker.broker.access.questions import Pending
from clusterbroker.broker.access.readers import StreamReader
from clusterbroker.broker.access.receiver import attach, give_back, let_go, readable
from clusterbroker.broker.access.rights import AccountRights
from clusterbroker.broker.access.sign_in import Outcome, by_secret, enter, leave
from clusterbroker.broker.content.message import new_message
from clusterbroker.broker.fronts.amqp091.delivery import Ledger
from clusterbroker.broker.fronts.amqp091.subscription import Subscription
from clusterbroker.broker.node.backpressure import MINORITY, Backpressure
from clusterbroker.broker.node.clients import Accepted
from clusterbroker.broker.node.core import Node
from clusterbroker.broker.node.counts import ChannelCounts
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.stats.rows import AnyRow, ConnectionRow
from clusterbroker.broker.stats.totals import MessageTotals
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.cluster.wiring.stream_settings import STREAM
from tests.fronts.lines import WORDS, Lines

FIRST = b"TOY "
LASTING = Properties(delivery_mode=2)
PLAIN: dict[str, Any] = {"no_ack": False, "exclusive": False, "priority": 0, "arguments": {}}


class Toy:
    """The core of a connection (`broker.node.clients.ClientCore`), and its session."""

    number, partial_bytes, totals = 1, 0, MessageTotals()

    def __init__(self, node: Node, accepted: Accepted) -> None:
        self.node, self.connection = node, self
        self.id, self.peer = node.connection_id(), accepted.peer
        self.trusted, self.loopback = False, accepted.loopback
        self.out, self.undecoded, self.reading = Lines(), b"", True
        self.ending: str | None = None
        self.is_open = self.dismissed = False
        self.access = Authorization(node, self.id, "", AccountRights(node.map, ""))
        self.backpressure, self.counts = Backpressure(node, self), ChannelCounts()
        self.channels: Mapping[int, Toy] = {1: self}
        self.ledger = Ledger(1, self.out.frames)
        self.consumers: dict[str, Subscription] = {}
        self.deadlines: list[Callable[[int], bool]] = []
        self.publisher, self._unconfirmed = Publisher(self), 0
        node.clients[self.id] = self

    @property
    def user(self) -> str:
        return self.access.user

    @property
    def vhost_name(self) -> str:
        return self.access.vhost.name

    # -- bytes in

    def receive(self, data: bytes | bytearray | memoryview, now_ms: int) -> None:
        self.node.now_ms = now_ms
        *lines, self.undecoded = bytes(data).split(b"\n")
        for place, line in enumerate(lines):
            if not self.reading:  # the rest waits for a verdict, or for an alarm to end
                self.undecoded = b"\n".join([*lines[place:], self.undecoded])
                return
            try:
                self._do(*line.split(b" ", 1))
            except Refusal as refusal:
                self.refuse(refusal)

    def _do(self, word: bytes, rest: bytes = b"") -> None:
        if word + b" " == FIRST:
            self._enter(*rest.decode().split(" "))
        elif not self.is_open:
            raise access_refused("TOY comes first")
        elif word == b"PUB":
            self._publish(*rest.split(b" ", 2))
        elif word == b"SUB":
            self._subscribe(*rest.decode().split(" "))
        elif word != b"ACK" or self.ledger.ack([int(rest) * 2]):
            raise precondition_failed(f"{word.decode()} {rest.decode()} means nothing")

    def _enter(self, user: str, password: str, vhost: str) -> None:
        def answered(outcome: Outcome) -> None:
            if outcome.access is None:
                self._close("access_refused", "login")
                return
            self.access = outcome.access
            try:
                enter(self.access, vhost, self.trusted)
            except Refusal as refusal:
                self.refuse(refusal)
                return
            self.publisher, self.is_open = Publisher(self), True
            self._say(b"READY")
            self.review_reading()

        self.reading = False
        by_secret(self.node, self, user, password.encode(), "TOY", lambda: self.ending is None, answered)

    def _publish(self, given: bytes, address: bytes, body: bytes) -> None:
        number, queue = int(given), address.decode()
        if not self.backpressure.publishes:
            self.backpressure.begin()
        message = new_message("", queue, LASTING, body, self.node.now_ms)
        route = self.publisher.find(address, "", queue)

        def done(ticket: Ticket) -> None:
            self._unconfirmed -= 1
            self._say(WORDS[ticket.outcome], number, *([ticket.refused.queue] if ticket.rejected else []))

        self._unconfirmed += 1
        self.publisher.publish(route, (message,), False, Ticket(number, number, done))

    def _subscribe(self, name: str, limit: str, start: str = "next") -> None:
        self.access.check("read", "queue", name)
        queue = readable(self.access, name, (self,))
        source: Any = queue
        if queue.settings.queue_type == STREAM:
            source = StreamReader(self.access, queue, int(start) if start.isdigit() else start)
        self._attach(source, name, int(limit))

    def _attach(self, source: Any, name: str, limit: int) -> None:
        def attached(_: bool) -> None:
            self.consumers[name] = consumer
            self._say(b"ON", name)
            self.review_rights()

        consumer = Subscription(self, self.ledger, source, name, prefetch=limit, **PLAIN)
        attach(self, source, consumer, Pending(self), attached)

    # -- what publisher and consumers ask

    def _nothing(self, *_: object) -> None: ...

    returned = flush_confirms = give_up_partial = sent = _nothing

    def in_turns(self, step: Callable[[], bool]) -> None:
        if not step():
            self.node.soon(lambda: self.in_turns(step))

    def cancelled(self, subscription: Subscription) -> None:
        self.force_close(f"queue '{subscription.tag}' is gone")

    def refuse(self, refusal: Any) -> None:
        self._close(refusal.kind, refusal.text)

    failed = refuse

    def want_send(self) -> None:
        self.node.sending[self] = None

    # -- what node and shell tell

    def alarmed(self) -> None:
        if not self.backpressure.alarms:
            self.backpressure.fed.clear()
        self.review_reading()

    def review_reading(self) -> None:
        blocked = self.backpressure.holds or self.dismissed or self.out.paused or MINORITY in self.node.alarms
        reading = self.is_open and self.ending is None and not blocked
        if reading is not self.reading:
            self.reading = reading
            self.want_send()
            if reading and self.undecoded:
                self.node.soon(lambda: self.receive(self.undecoded, self.node.now_ms))

    def review_rights(self) -> None:
        if not all(self.access.rights.allowed(self.vhost_name, "read", name) for name in self.consumers):
            self.force_close("rights changed")

    def vhost_deleted(self, name: str) -> None:
        if self.is_open and name == self.vhost_name:
            self.force_close("vhost deleted")

    def paused(self, paused: bool, now_ms: int) -> None:
        self.out.frames.paused = paused
        self.review_reading()
        self.mark_consumers()

    def mark_consumers(self) -> None:
        for consumer in self.consumers.values():
            consumer.queue.ring.mark()

    def tick(self, now_ms: int, wall_ms: int = 0) -> None:
        self.deadlines = [overdue for overdue in self.deadlines if not overdue(now_ms)]

    def rows(self, row: ConnectionRow) -> Iterator[AnyRow]:
        if self.is_open and self.ending is None:
            yield replace(row, protocol="TOY", vhost=self.vhost_name, state="running" if self.reading else "flow")

    # -- the end

    @property
    def owed(self) -> bool:
        return self._unconfirmed > 0

    def dismiss(self) -> None:
        self.dismissed = True
        self.review_reading()

    def force_close(self, text: str) -> None:
        self._close("closed", text)

    def _close(self, kind: str, text: str) -> None:
        self._say(b"ERR", kind, text)
        self._end("flush")

    def crashed(self, error: Exception) -> None:
        self.node.log.crashed(self.peer, error)
        self._end("abort")

    def lost(self, now_ms: int) -> None:
        self.node.now_ms = now_ms
        self._end("abort")
        if self.node.clients.pop(self.id, None) is not None:
            leave(self.access)
        self.node.sending.pop(self, None)

    def _say(self, *words: object) -> None:
        self.out.add(*words)
        self.want_send()

    def _end(self, how: str) -> None:
        self.ending, self.reading, self.ledger.flowing = how, False, False
        let_go(self.node, tuple(self.consumers.values()), self.node.labour.done + 1)
        self.consumers.clear()
        give_back(self.node, self.ledger.drain(), requeue=True, counted=True)
        self.want_send()
