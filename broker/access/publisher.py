"""Publishes of one session on their way to queues: rights, routes, returns, counts and flow control.

A route is remembered per address until the wiring or a permission changes, so neither names are decoded nor rights
checked again for the usual batch. Order of checks (amqp-rules 5.1, 5.4): permission, exchange, internal, topic
permission; then returns, before the ticket passes.

The outcome of a publish is its ticket's (`Ticket.outcome`): accepted by all queues, rejected by one of them, or
released, for there is no queue to go to; with the reason, and the queue that refused. A queue that may refuse
(`QueueHandle.rejects`) decides for each message, so each needs a ticket of its own.

A queue may want nothing of what a container publishes (no-local of a JMS subscription): it is left out of the routes of
that container's sessions when they are found, which costs a message nothing.

A producer that numbers its messages (`Named`: a name, and a number rising from 1) may publish one again, over another
connection, node or day: each queue stores a number once, and confirms the repeat when the original is safe. A message
that a queue refused may come again too, also behind later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from clusterbroker.broker.access.errors import access_refused, not_found, precondition_failed
from clusterbroker.broker.access.pool_requests import enter, enters_pool
from clusterbroker.broker.access.services import REPLY_TO
from clusterbroker.broker.access.virtual_exchanges import VIRTUAL_EXCHANGES
from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.node.backpressure import Backpressure
from clusterbroker.broker.node.counts import ChannelCounts, ExchangeCounts
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.link_deliveries import Tagged
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.routing.choosing import numbered
from clusterbroker.broker.routing.labour import DELIVERIES_AT_ONCE as DELIVERIES_AT_ONCE
from clusterbroker.broker.routing.labour import DELIVERY_STEPS as DELIVERY_STEPS
from clusterbroker.broker.routing.labour import TooCostly
from clusterbroker.broker.routing.router import Route
from clusterbroker.cluster.wiring.entities import Segment
from clusterbroker.cluster.wiring.pool_table import closed
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization

Named = tuple[bytes, int]


class Run(NamedTuple):
    """Neighbouring messages of one producer, whose numbers rise."""

    producer: bytes
    numbers: Sequence[int]


def run_of(named: Named | None) -> Run | None:
    """Of one message."""
    return None if named is None else Run(named[0], named[1:])


ROUTES_MAX: Final = 1024
TARGETS_AT_ONCE: Final = 5_000
"""Queues that get a message in one turn; their own turns and the group that they write take as long again."""
REPLY_KEY: Final = REPLY_TO.encode() + b"."


class Session(Protocol):
    """The session that publishes."""

    access: Authorization
    counts: ChannelCounts

    def returned(self, messages: Sequence[Message]) -> None:
        """No queue gets these, which were mandatory."""

    @property
    def backpressure(self) -> Backpressure:
        """Of its client."""

    def in_turns(self, step: Callable[[], bool]) -> None:
        """Calls `step` now and in later turns until it returns True. The session takes nothing else meanwhile."""


def is_reply(message: Message) -> bool:
    """It has a key of direct reply-to, so no queue gets it."""
    return not message.exchange and message.routing_key.startswith(REPLY_KEY)


def way_of(route: Route[QueueHandle], mandatory: bool) -> Route[QueueHandle]:
    """The route that a message takes: a mandatory one is not delayed when it would lead nowhere now."""
    if not mandatory or route.leads_on is None or route.leads_on():
        return route
    return Route(uncacheable=True)


def affordable(find: Callable[..., Route[QueueHandle]], *asked: Any) -> Route[QueueHandle]:
    """A route. Refuses one that costs too much."""
    try:
        return find(*asked)
    except TooCostly as error:
        raise precondition_failed(str(error)) from None


class Publisher:
    """Of one session. `routes`: address -> generations of the wiring and of permissions, and the route."""

    __slots__ = ("_access", "_session", "container", "node", "routes")

    def __init__(self, session: Session, container: str = "") -> None:
        self._session = session
        self.container = container
        """The container-id of its client; empty: it has none."""
        self._access = session.access
        self.node = session.access.node
        self.routes: dict[bytes, tuple[int, int, Route[QueueHandle]]] = {}

    @property
    def counts(self) -> ChannelCounts:
        """Of the session."""
        return self._session.counts

    def find(self, address: bytes, exchange: str, key: str) -> Route[QueueHandle]:
        """The route of an address, which is remembered by its bytes. Raises Refusal."""
        route = self._find(exchange, key)
        if len(self.routes) >= ROUTES_MAX:
            self.routes.clear()
        if not route.uncacheable and self._access.rights.may_publish is None:
            generations = self._access.vhost.router.generation, self.node.authorization_generation
            self.routes[address] = (*generations, route)
        return route

    def _find(self, exchange: str, key: str) -> Route[QueueHandle]:
        access, vhost = self._access, self._access.vhost
        if exchange in VIRTUAL_EXCHANGES:
            return Route(uncacheable=True)  # a key that it does not know
        segment = vhost.segments.get(exchange)
        if segment is not None:
            return self._staging(segment, key)
        access.check("write", "exchange", exchange)
        if not self._unheard(exchange, key):
            access.check_key(exchange, key)
        if not exchange and key.startswith(REPLY_TO + "."):
            return Route(uncacheable=True)
        if not exchange and access.rights.may_publish is None:  # a worker writes to where its caller said
            access.check_published(key)
        route = self.route(exchange, key, lambda: None)
        if not route.found_exchange:
            raise not_found(f"no exchange '{exchange}' in vhost '{vhost.name}'")
        if (pool := self.node.map.pools.dead_letters_of(vhost.name, exchange)) is not None:
            raise access_refused(f"exchange '{exchange}' in vhost '{vhost.name}' {closed(pool)}")
        if route.internal:
            raise access_refused(f"cannot publish to internal exchange '{exchange}' in vhost '{vhost.name}'")
        access.check_topic("write", exchange, key)
        return route

    def route(self, exchange: str, key: str, *asked: Any) -> Route[QueueHandle]:
        """As `Router.route`, without queues that want nothing of this container, and to none from somebody whose answer
        may not be heard. Refuses one that costs too much."""
        if self._unheard(exchange, key):
            return Route()
        found = affordable(self._access.vhost.router.route, exchange, key, *asked)
        if exchange:  # another one may lead there, as its alternate exchange
            self._access.check_answers(found.targets)
        return self._wanted(found)

    def anew(self, route: Route[QueueHandle], message: Message, named: Named | None) -> Route[QueueHandle]:
        """The way of what was staged: another one now if a queue has ended that nobody has deleted, unless there is no
        way to be found; then that queue refuses it."""
        if not any(queue.deleted and queue.entity.ends_unasked for queue in route.targets):
            return route
        properties = properties_of(message)
        exchange, key = (part.decode("utf-8", "surrogateescape") for part in (message.exchange, message.routing_key))
        try:
            found = self._access.vhost.router.route(
                exchange, key, lambda: properties.headers, (), lambda name: getattr(properties, name, None),
                numbered(*(named or (b"", message.time_ms))),
            )  # fmt: skip
        except TooCostly:
            return route
        return self._wanted(found) if found.found_exchange else route

    def _wanted(self, route: Route[QueueHandle]) -> Route[QueueHandle]:
        vhost = self._access.vhost
        if not self.container or not vhost.no_local:
            return route
        wanted = {name for name in route.queues if vhost.no_local.get(name) != self.container}
        return route if len(wanted) == len(route.queues) else route.without(wanted)

    def _unheard(self, exchange: str, key: str) -> bool:
        unheard = self._access.rights.unheard
        return unheard is not None and not exchange and unheard(key)

    def ways(self, exchange: str, key: str) -> tuple[Route[QueueHandle], Route[QueueHandle]] | None:
        """As `Router.ways`, for batches that `content.delays.runs` can divide."""
        vhost = self._access.vhost
        return None if self.container and vhost.no_local else vhost.router.ways(exchange, key)

    def _staging(self, segment: Segment, key: str) -> Route[QueueHandle]:
        """To the queue that keeps rows until they are committed, if their target may be published to; or nowhere."""
        access, vhost = self._access, self._access.vhost
        access.check("write", "exchange", segment.target)
        access.check_key(segment.target, key)
        access.check_topic("write", segment.target, key)
        if segment.place is not None:
            raise access_refused(f"exchange '{segment.name}' in vhost '{vhost.name}' is committed")
        targets = () if segment.discards else (vhost.staging[segment.name],)
        route = Route(tuple(target.name for target in targets), targets)
        route.onward = affordable(vhost.router.route, segment.target, key, lambda: None)
        return route

    def replied(self, reply: Message) -> Route[QueueHandle]:
        """Hands a direct reply to its requester; the route says whether there is one."""
        key = reply.routing_key.decode("utf-8", "surrogateescape")
        return Route(found_exchange=self.node.reply(self._access.vhost.name, key, reply), uncacheable=True)

    @staticmethod
    def portion(route: Route[QueueHandle], count: int) -> int:
        """So many of `count` messages may take this way in one turn."""
        targets = len(route.targets)
        if targets > TARGETS_AT_ONCE:
            return 1
        return count if count * targets <= DELIVERIES_AT_ONCE else max(1, DELIVERIES_AT_ONCE // targets)

    def publish(
        self,
        route: Route[QueueHandle],
        messages: Sequence[Message],
        mandatory: bool,
        ticket: Ticket | None,
        named: Run | Tagged | None = None,
    ) -> None:
        """Puts the messages into the queues of the route. `ticket` is passed when the last of them has answered. More
        than TARGETS_AT_ONCE get it in turns."""
        route = way_of(route, mandatory)
        messages = self.depart(route, messages, mandatory, ticket)
        if ticket is not None:
            ticket.counts = route.counts
        if len(route.targets) <= TARGETS_AT_ONCE:
            self._deliver(route, route.targets, messages, ticket, named)
            if ticket is not None:
                ticket.pass_()
            return
        targets = iter(route.targets)

        def step() -> bool:
            part = tuple(islice(targets, TARGETS_AT_ONCE))
            self._deliver(route, part, messages, ticket, named)
            if len(part) == TARGETS_AT_ONCE:
                return False
            if ticket is not None:
                ticket.pass_()
            return True

        self._session.in_turns(step)

    def _deliver(
        self,
        route: Route[QueueHandle],
        targets: Sequence[QueueHandle],
        messages: Sequence[Message],
        ticket: Ticket | None,
        named: Run | Tagged | None,
    ) -> None:
        """To these of the route's queues."""
        node = self.node
        node.labour.done += DELIVERY_STEPS * len(messages) * len(targets)
        journaled = 0
        for queue in targets:
            if queue.deleted:
                continue
            if isinstance(named, Tagged):
                assert ticket is not None, "what is settled has no tag that counts"
                queue.publish_tagged(named, messages, ticket, node.now_ms)
            elif named is not None:
                _put_run(queue, messages, ticket, named, node.now_ms)
            elif route.onward is not None:
                if queue.takes(messages, node.now_ms):
                    queue.publish(messages, ticket, node.now_ms)
                elif ticket is not None:
                    ticket.reject(queue.name)
            elif queue.rejects:
                accepted = [message for message in messages if _accepted(queue, message, ticket, node.now_ms)]
                if ticket is not None and len(accepted) < len(messages):
                    ticket.reject(queue.name)
            else:
                queue.publish(messages, ticket, node.now_ms)
            journaled += queue.ring.journaled
        if journaled:
            node.published(journaled * len(messages) * messages[0].size)

    def depart(
        self, route: Route[QueueHandle], messages: Sequence[Message], mandatory: bool, ticket: Ticket | None
    ) -> Sequence[Message]:
        """Counts the messages, and returns to their publisher what has no queue to go to. The queues get those that are
        the result: who looks at them may mark some."""
        node, session = self.node, self._session
        count, own, exchange = len(messages), session.counts, route.counts or self._exchange_counts(route, messages[0])
        own.publish += count
        exchange.publish_in += count
        exchange.publish_out += count * len(route.targets)
        if not route.targets and not _is_direct_reply(route, messages):
            if ticket is not None and route.onward is None:  # a segment that takes no rows any more accepts them
                ticket.release()
            if mandatory:
                session.returned(messages)
                own.return_unroutable += count
                exchange.return_unroutable += count
            else:
                own.drop_unroutable += count
                exchange.drop_unroutable += count
        if node.flows.counting and route.onward is None:
            node.flows.published(own, self._access.vhost.name, messages[0].exchange, route.targets, count, node.now_ms)
        if node.watches and (watch := node.watches.get(self._access.vhost.name)) is not None:
            messages = watch.published(session, route, messages, ticket)
        pools = node.map.pools
        if route.targets and route.enters is None:
            route.enters = enters_pool(pools, route.targets)
        if route.enters:
            messages = enter(self._access, route.targets, messages)
        if node.alarms_elsewhere:
            session.backpressure.feeds(route.targets)
        if node.congested:
            for queue in route.targets:
                if queue in node.congested:
                    session.backpressure.waits_for(queue)
        return messages

    def _exchange_counts(self, route: Route[QueueHandle], message: Message) -> ExchangeCounts:
        """The counts of the exchange that a route begins at; the route remembers them."""
        # None is found of one that was deleted before the transaction was committed
        counts = self._access.vhost.counts(message.exchange.decode("utf-8", "surrogateescape"))
        route.counts = counts
        return counts


def _put_run(
    queue: QueueHandle, messages: Sequence[Message], ticket: Ticket | None, run: Run, now_ms: int
) -> None:  # fmt: skip
    """A repeat is never refused: it is there already."""
    producer, numbers = run
    if not queue.rejects:
        queue.publish_numbered(producer, numbers, messages, ticket, now_ms)
        return
    for number, message in zip(numbers, messages, strict=True):
        if queue.accepts(message, now_ms, (producer, number)):
            queue.publish_numbered(producer, (number,), (message,), ticket, now_ms)
        elif ticket is not None:
            ticket.reject(queue.name)


def _accepted(queue: QueueHandle, message: Message, ticket: Ticket | None, now_ms: int) -> bool:
    if not queue.accepts(message, now_ms):
        return False
    queue.publish((message,), ticket, now_ms)
    return True


def _is_direct_reply(route: Route[QueueHandle], messages: Sequence[Message]) -> bool:
    """A reply that reached its consumer was routed (amqp-rules 5.4)."""
    return route.found_exchange and route.uncacheable and messages[0].routing_key.startswith(REPLY_KEY)
