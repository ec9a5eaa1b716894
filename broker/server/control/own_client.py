"""A client of the node within its process: the rights and limits of a user, one session, values in place of bytes.

A caller of `broker.access` as a front is, so permissions, argument checks, if-unused, limits and all else are those of
any client. It does one thing at a time: each method begins one, and `outcome` has what comes of it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from clusterbroker.broker.access.addressing import addressed, as_row, looks_into, way_of_row
from clusterbroker.broker.access.admin import Admin
from clusterbroker.broker.access.authorization import Authorization
from clusterbroker.broker.access.errors import Refusal
from clusterbroker.broker.access.publisher import Publisher, run_of
from clusterbroker.broker.access.questions import Asked, review
from clusterbroker.broker.access.receiver import Got, get, give_back
from clusterbroker.broker.access.rights import AccountRights
from clusterbroker.broker.access.services import REPLY_TO, requested
from clusterbroker.broker.access.sign_in import (
    Outcome,
    by_identity,
    by_secret,
    check_session,
    enter,
    leave,
    login_refused,
    session_began,
    session_ended,
)
from clusterbroker.broker.access.virtual_exchanges import VIRTUAL_EXCHANGES, only_asks
from clusterbroker.broker.content.message import new_message
from clusterbroker.broker.fronts.amqp091.declaring import clean
from clusterbroker.broker.fronts.amqp091.reply_codes import Refused, amqp_error
from clusterbroker.broker.node.backpressure import MINORITY, Backpressure
from clusterbroker.broker.node.core import Node
from clusterbroker.broker.node.counts import ChannelCounts
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.subscription import Source
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.queues.watch import Traced
from clusterbroker.broker.routing.router import Route
from clusterbroker.broker.server.control.protocol import NAME
from clusterbroker.broker.stats import as_user as r
from clusterbroker.broker.stats.rows import AnyRow, ConnectionRow
from clusterbroker.broker.stats.totals import MessageTotals
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.codec import OutBuffer, make_message
from clusterbroker.broker.wire.amqp091.domains import push_shortstr
from clusterbroker.broker.wire.amqp091.errors import AmqpError, connection_forced, internal_error, precondition_failed
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.cluster.wiring.commands import AnyCommand
from clusterbroker.cluster.wiring.entities import DestinationKind
from clusterbroker.journal.record import Message

Outstanding = asyncio.Future[Any]


class Denied(Exception):
    """An exchange that is the broker itself has said no: its code and reason."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


class Nacked(Exception):
    """A queue was full, or could not take the message."""


class OwnClient:
    """The core of a client (`broker.node.clients.ClientCore`), and its session. An error ends it: `outcome` raises
    AmqpError, Denied or Nacked, of this request and of all later ones."""

    publisher: Publisher
    peer: Final = NAME
    number: Final = 1
    trusted: Final = True
    loopback: Final = True
    partial_bytes: Final = 0
    undecoded: Final = b""
    is_transactional: Final = False

    def __init__(self, node: Node) -> None:
        self.node = node
        self.id = node.connection_id()
        self.access = Authorization(node, self.id, "", AccountRights(node.map, ""))
        self.out = OutBuffer()  # nothing is ever in it
        self.backpressure = Backpressure(node, self)
        self.counts = ChannelCounts()
        self.channels: Mapping[int, OwnClient] = {}
        self.deadlines: list[Callable[[int], bool]] = []
        self.requests = 0
        self.reply_key = ""
        self.traced: Traced | None = None
        self.routed = True
        """All that was published found a queue."""
        self.reading = True
        self.outcome: Outstanding = asyncio.get_running_loop().create_future()
        self._failure: Exception | None = None
        self._asked: Asked | None = None
        self._held: list[tuple[int, QueueHandle, int]] = []  # got, and not settled
        self._told: dict[str, Any] = {}  # an answer of an exchange that is the broker itself
        self._blocked: Callable[[], None] | None = None  # a publish that waits for alarms to end
        self._lasting = False  # the queue's owner carries it out also when nobody waits any more
        self._tag = 0
        node.clients[self.id] = self

    # -- requests ---------------------------------------------------------------------------------------------

    def begin(self, what: Callable[..., None], *given: Any) -> Outstanding:
        """Begins a request; the answer will be its outcome."""
        self.outcome, self._lasting = asyncio.get_running_loop().create_future(), False
        if self._failure is not None:
            self.outcome.set_exception(self._failure)
        else:
            self.answers(what)(*given)
        return self.outcome

    def sign_in(self, user: str, vhost: str, token: bytes) -> None:
        """The node takes the process' word for an account; a token is verified, for its rights are in it."""
        if token:
            wanted = lambda: self._failure is None  # noqa: E731
            entered = self.answers(lambda outcome: self._enter("PLAIN", outcome, vhost))
            by_secret(self.node, self, user, token, "PLAIN", wanted, entered)
        else:
            self._enter("EXTERNAL", by_identity(self.node, self, user, "EXTERNAL"), vhost)

    def _enter(self, mechanism: str, outcome: Outcome, vhost: str) -> None:
        if outcome.access is None:
            raise login_refused(mechanism)
        enter(outcome.access, vhost, self.trusted)
        self.access = outcome.access
        check_session(self.access)
        session_began(self.access)
        self.channels = {self.number: self}
        self.publisher = Publisher(self)
        self._done()

    def administer(self, method: m.Method) -> None:
        """Declares, binds, deletes or purges; the outcome says that it is done."""
        admin, done = Admin(self.access), self._done
        match method:
            case m.ExchangeDeclare():
                flags = {"durable": method.durable, "auto_delete": method.auto_delete, "internal": method.internal}
                name = clean(method.exchange)
                admin.order(admin.declare_exchange(name, method.type, method.arguments, **flags), self, done)
            case m.ExchangeDelete():
                command = admin.delete_exchange(clean(method.exchange), if_unused=method.if_unused)
                admin.order(command, self, done)
            case m.QueueBind() | m.QueueUnbind() | m.ExchangeBind() | m.ExchangeUnbind():
                admin.order(_binding(admin, method), self, done)
            case m.QueueDeclare():
                flags = {"durable": method.durable, "auto_delete": method.auto_delete, "exclusive": False}
                name = clean(method.queue)
                declared = admin.declare_queue(name, method.arguments, server_named=False, **flags)
                admin.order_queue(declared, self, done)
            case m.QueuePurge():
                self._lasting = True
                admin.purge_queue(clean(method.queue), self, done)
            case m.QueueDelete():
                self._lasting = True
                queue = admin.may_delete_queue(clean(method.queue))
                if queue is None:
                    done()
                else:
                    admin.delete_queue(queue, self, done, if_unused=method.if_unused, if_empty=method.if_empty)
            case _:
                raise AssertionError(f"{method.NAME} is none of these")

    def publish(self, request: r.Publish) -> None:
        """A mandatory message, which is confirmed; it waits for alarms to end."""
        if not only_asks(request.exchange):
            self.backpressure.begin()
            if self._blocks:
                self._blocked = self.answers(lambda: self._publish(request))
                return
        self._publish(request)

    def _publish(self, request: r.Publish) -> None:
        exchange, key, size = request.exchange, request.routing_key, len(request.payload)
        most = self.node.options.message_bytes_max
        if size > most:  # as `amqp.codec` says of a client's
            raise precondition_failed(f"message size {size} is larger than configured max size {most}")
        address = push_shortstr(exchange) + push_shortstr(key)
        message = make_message(address, request.properties, request.payload, self.node.now_ms)
        if isinstance(message, AmqpError):
            raise message
        service = VIRTUAL_EXCHANGES.get(exchange)
        if service is not None and requested(self, service, exchange, key, (message,)):
            return
        route, named, mandatory = self.publisher.find(address, exchange, key), None, True
        own, onward = looks_into(message.flags, (message,)), route.onward
        if onward is not None:  # a row of a segment
            if own:
                message = addressed(self, exchange, key, message)[0]
            message, mandatory = as_row(message), bool(route.targets)
            if mandatory and (own or onward.uncacheable):
                route = way_of_row(self.access, exchange, route, message)
            elif mandatory and not onward.targets:
                route = Route()
        elif own or route.uncacheable:
            message, route, named = addressed(self, exchange, key, message)
        self.publisher.publish(route, (message,), mandatory, self.ticket(1), run_of(named))

    def inquire(self, request: r.Ask) -> None:
        """A question to an exchange that is the broker itself; the answer comes before the confirm."""
        node = self.node
        self._told = {"code": 503, "reason": "refused without an answer"}
        self.reply_key = f"{REPLY_TO}.{node.secret_name()}"
        node.reply_targets[self.reply_key] = self
        about = Properties(content_type="application/json", reply_to=REPLY_TO)
        body = json.dumps(request.body).encode()
        message = new_message(request.exchange, request.routing_key, about, body, node.now_ms)
        service = VIRTUAL_EXCHANGES[request.exchange]
        known = requested(self, service, request.exchange, request.routing_key, (message,))
        assert known, "the process asks what there is"

    def get(self, name: str, no_ack: bool) -> None:
        """The outcome is a `Got`, or None when there is nothing."""

        def taken(got: Got | None) -> None:
            if got is None:
                self._done()
                return
            message = got.message
            exchange, key = message.exchange.decode(errors="replace"), message.routing_key.decode(errors="replace")
            redelivered, left = bool(got.redelivered), got.remaining
            self._done(r.Got(exchange, key, redelivered, left, message.header, message.body))

        get(self, name, self, taken, settled=no_ack, operation="basic.get")

    def hold(self, queue: QueueHandle, seq: int | None, message: Message) -> int:  # noqa: ARG002
        self._tag += 1
        if seq is not None:
            self._held.append((self._tag, queue, seq))
        return self._tag

    def settle(self, requeue: bool, counted: bool = False) -> None:
        """What was got goes back, or is rejected. `counted`: as a delivery that failed."""
        held, self._held = self._held, []
        if self.traced is not None:
            self.traced.settled(0, True, "closed" if counted else "requeue" if requeue else "reject")
        give_back(self.node, held, requeue=requeue, counted=counted)

    def leave(self) -> None:
        """All that it held goes back."""
        node = self.node
        self._failure = self._failure or connection_forced("gone")
        self.outcome.cancel()
        if self._asked is not None and self._asked.withdraw is not None:
            self._asked.withdraw()
        self.settle(requeue=True, counted=True)
        node.reply_targets.pop(self.reply_key, None)
        if self.channels:
            session_ended(self.access, self)
            self.channels = {}
        leave(self.access)
        del node.clients[self.id]
        self.backpressure.leave()

    # -- what access asks of a session (`publisher.Session`, `questions.Question`, `services.Requester`)

    @property
    def vhost_name(self) -> str:
        return self.access.vhost.name

    def returned(self, messages: Sequence[Message]) -> None:  # noqa: ARG002
        self.routed = False

    def in_turns(self, step: Callable[[], bool]) -> None:
        @self.answers
        def go_on() -> None:
            if not step():
                self.node.soon(go_on)

        go_on()

    def ticket(self, count: int) -> Ticket:
        return Ticket(1, count, self._confirmed)

    def _confirmed(self, ticket: Ticket) -> None:
        if ticket.rejected:
            self._fail(Denied(self._told["code"], self._told["reason"]) if self._told else Nacked())
            return
        self.counts.confirm += 1
        if ticket.counts is not None:
            ticket.counts.confirm += 1
        self._done()

    def reply(self, message: Message) -> None:
        """The answer to `inquire`."""
        self._told |= json.loads(message.body)

    def ask(
        self, queue: Source, withdraw: Callable[[], None] | None = None, instead: Callable[[], None] | None = None
    ) -> None:
        self._asked = Asked(queue, None, self._lasting, self.node.now_ms, withdraw, instead)

    def awaits(self) -> bool:
        self._asked = None
        return not self.outcome.done()

    def refuse(self, error: Refused, _request: Any = None) -> None:
        self._fail(amqp_error(error))

    def answers(self, then: Callable[..., None]) -> Callable[..., None]:
        def told(*given: Any) -> None:
            try:
                then(*given)
            except Refusal as error:
                self._fail(amqp_error(error))
            except AmqpError as error:
                self._fail(error)
            except Exception as error:
                self.crashed(error)

        return told

    @property
    def closing(self) -> bool:
        return self._failure is not None

    def resume(self) -> None:
        self._asked = None

    def _done(self, *values: Any) -> None:
        """The first value is the outcome, where a request has one."""
        self._asked = None
        if not self.outcome.done():
            self.outcome.set_result(values[0] if values else None)

    def _fail(self, error: Exception) -> None:
        if self._failure is not None:
            return
        self._failure = error
        if isinstance(error, AmqpError):
            self.node.log_fault(self, error, self.number)
        if not self.outcome.done():
            self.outcome.set_exception(error)

    # -- what the node sees of a client

    @property
    def user(self) -> str:
        return self.access.user

    @property
    def connection(self) -> OwnClient:
        return self

    @property
    def is_open(self) -> bool:
        return bool(self.channels) and self._failure is None

    @property
    def ending(self) -> str | None:
        return None if self._failure is None else "flush"

    @property
    def owed(self) -> bool:
        return not self.outcome.done()

    @property
    def totals(self) -> MessageTotals:
        counts = self.counts
        return MessageTotals(
            publish=counts.publish,
            confirm=counts.confirm,
            return_unroutable=counts.return_unroutable,
            drop_unroutable=counts.drop_unroutable,
            get=counts.got,
            get_no_ack=counts.get_no_ack,
            get_empty=counts.get_empty,
            redeliver=counts.redelivered,
        )

    @property
    def _blocks(self) -> bool:
        return self.backpressure.holds or MINORITY in self.node.alarms

    def alarmed(self) -> None:
        if not self.backpressure.alarms:
            self.backpressure.fed.clear()
        self.review_reading()

    def review_reading(self) -> None:
        if self._blocked is not None and not self._blocks:
            publish, self._blocked = self._blocked, None
            publish()

    def review_rights(self) -> None:
        if gone := self.access.rights.gone:
            self.force_close(gone)

    def vhost_deleted(self, name: str) -> None:
        if self.access.entered is not None and self.vhost_name == name:
            self.force_close(f"vhost '{name}' is deleted")

    def force_close(self, text: str) -> None:
        self._fail(connection_forced(text))

    def crashed(self, error: Exception) -> None:
        self.node.log.crashed(self.peer, error)
        self._fail(internal_error("the broker made a mistake; see its log"))

    def rows(self, row: ConnectionRow) -> Iterator[AnyRow]:  # noqa: ARG002 - operators see who asked, not this
        return iter(())

    def tick(self, now_ms: int, wall_ms: int = 0) -> None:  # noqa: ARG002
        if self._asked is not None:
            self.answers(review)(self, self._asked, now_ms)
        self.deadlines = [overdue for overdue in self.deadlines if not overdue(now_ms)]

    def receive(self, data: bytes | bytearray | memoryview, now_ms: int) -> None: ...

    def sent(self, now_ms: int) -> None: ...

    def paused(self, paused: bool, now_ms: int) -> None: ...

    def mark_consumers(self) -> None: ...

    def lost(self, now_ms: int) -> None: ...

    def dismiss(self) -> None: ...

    def give_up_partial(self) -> None: ...

    def flush_confirms(self) -> None: ...


def _binding(admin: Admin, method: m.QueueBind | m.QueueUnbind | m.ExchangeBind | m.ExchangeUnbind) -> AnyCommand:
    to: DestinationKind
    if isinstance(method, m.QueueBind | m.QueueUnbind):
        source, to, destination = method.exchange, "queue", method.queue
    else:
        source, to, destination = method.source, "exchange", method.destination
    ordered = admin.bind if isinstance(method, m.QueueBind | m.ExchangeBind) else admin.unbind
    return ordered(clean(source), clean(destination), to, method.routing_key, method.arguments)
