"""Simulated clients with recoverable links of AMQP 1.0: the product's own client core over real frames.

A client's links outlive its connections, as the program's memory does. Its sender sends numbered bodies in mode second,
under tags that it uses again as soon as they are free, and gives up nothing: what was not answered is resumed at
whatever node the next connection is. Its receiver has mode second as well: what the program has accepted it is never
handed again. What became of deliveries is looked at in `checkers.linking`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from clusterbroker.amqp10.client.core import Closed, Connection, Opened, Options, Sasl
from clusterbroker.amqp10.client.errors import ClientError, ProtocolError
from clusterbroker.amqp10.client.frames import FrameReader
from clusterbroker.amqp10.client.links import (
    LINK_RECOVERY,
    SECOND,
    UNSETTLED,
    Attached,
    Decided,
    Delivered,
    Detached,
    Incoming,
    Link,
    Lost,
    ReceiverLink,
    SenderLink,
    Settled,
    Terms,
)
from clusterbroker.amqp10.client.message import Message
from clusterbroker.amqp10.client.session import Begun, Ended, Session
from clusterbroker.broker.fronts.amqp10.connection import Connection as Core
from clusterbroker.broker.node.clients import Accepted as AcceptedClient
from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Composite,
    Released,
    Source,
    Target,
    Transfer,
)
from tests.simulation.checkers.history import Violation
from tests.simulation.clients import Actor
from tests.simulation.sockets import FRAME_BYTES, Socket

if TYPE_CHECKING:
    from clusterbroker.broker.node.core import Node
    from tests.simulation.world import World

EXPIRY_S: Final = 24 * 3600
TAGS: Final = 6
"""Of a sender, used again and again; beyond them each delivery has a tag of its own."""


class LinkSocket(Socket):
    """Both ends of a connection of AMQP 1.0."""

    actor: LinkClient

    def __init__(self, site: Any, actor: Any) -> None:
        self._reader = FrameReader(FRAME_BYTES)
        self._receives: dict[int, str] = {}
        """Names of the client's receiver links by the node's handle."""
        self._parts: dict[int, tuple[Transfer, list[bytes]]] = {}
        super().__init__(site, actor)

    def open(self, node: Node) -> Any:
        return Core(node, AcceptedClient(f"{self.actor.name}:1", True, self.site.now_ms()))

    def hello(self, channels: int = 1) -> None:
        """The first header; the rest follows what the node answers."""

    def _parse(self, data: bytes) -> list[tuple[int, Any]]:
        """The bytes as they are, for the client's core; what they hand over is said to the checkers."""
        for frame in self._reader.feed(data):
            if isinstance(frame.body, Attach):
                self._receives.pop(frame.body.handle, None)
                if not frame.body.role:
                    self._receives[frame.body.handle] = frame.body.name
            elif isinstance(frame.body, Transfer):
                self._transferred(frame.body, frame.payload)
        return [(0, data)]

    def _transferred(self, transfer: Transfer, payload: bytes) -> None:
        first, parts = self._parts.setdefault(transfer.handle, (transfer, []))
        parts.append(payload)
        if transfer.more and not transfer.aborted:
            return
        del self._parts[transfer.handle]
        if transfer.aborted or first.resume:
            return
        message = Message.decoded(b"".join(parts))
        again = not message.header.first_acquirer
        name = self._receives[transfer.handle]
        assert isinstance(self.actor, LinkReceiver), "nobody else is handed anything"
        self.site.world.checkers.link_delivered(self, self.actor.queue, name, message.body, again)


KEPT: Final[dict[str, Any]] = {"durable": 2, "expiry_policy": "connection-close", "timeout": EXPIRY_S}
"""Of a terminus whose unsettled state survives."""


def _terms(name: str, source: Source, target: Target) -> Terms:
    return Terms(name, source, target, True, UNSETTLED, SECOND, capabilities=(LINK_RECOVERY,))


class LinkClient(Actor):
    """One container with one link."""

    speaks = LinkSocket
    link: Link

    def __init__(self, world: World, name: str) -> None:
        self.core: Connection | None = None
        self.session: Session | None = None
        super().__init__(world, name)

    # -- the connection

    def opened(self, socket: Socket) -> None:
        options = Options(self.name, Sasl.plain("guest", "guest"), frame_max=FRAME_BYTES, idle_time_out=0)
        self.core = Connection(options)
        self.core.start(self.world.schedule.now_s)
        self.flush()
        self.after(1.0, self._beat, socket)

    def ended(self) -> None:
        core, self.core, self.session = self.core, None, None
        if core is not None:
            self._take(core.lost("the connection is gone"))

    def _beat(self, socket: Socket) -> None:
        if self.socket is socket and self.core is not None:
            self.after(1.0, self._beat, socket)
            self._take(self.core.tick(self.world.schedule.now_s))
            self.flush()

    def method(self, channel: int, said: Any) -> None:
        if self.core is not None:
            self._take(self.core.receive(said, self.world.schedule.now_s))
            self.top_up()
            self.flush()

    def flush(self) -> None:
        """What the core has to say goes out."""
        if self.core is None or self.socket is None:
            return
        data = self.core.take_bytes()
        if data:
            self.core.wrote(self.world.schedule.now_s)
            self.socket.send(data)

    def _take(self, events: Any) -> None:
        for event in events:
            match event:
                case Opened():
                    assert self.core is not None, "it has told so"
                    self.core.session()
                case Begun():
                    self.session = event.session
                    self._attach(event.session)
                case Attached():
                    self.world.schedule.counts["links attached"] += 1
                    if LINK_RECOVERY not in event.attach.offered_capabilities:
                        raise Violation(f"links: {self.name} is attached, and the node does not keep its link")
                case Detached():
                    self._detached(event.error)
                case Ended():
                    raise Violation(f"links: the session of {self.name} is ended: {event.error}")
                case Closed():
                    self._closed(event.error)
                case _:
                    self.told_of(event)

    def _attach(self, session: Session) -> None:
        if self.session is session and not self.link.attached:
            session.attach(self.link)
            self.flush()

    def _detached(self, error: ClientError | None) -> None:
        """The node says why; a reason that may pass is waited for."""
        self.world.schedule.counts[f"links detached {error and error.condition}"] += 1
        if error is None or not error.may_retry:
            raise Violation(f"links: {self.name} is detached: {error}")
        if self.session is not None:
            self.after(0.1 + self.rng.random(), self._attach, self.session)

    def _closed(self, error: ClientError | None) -> None:
        if isinstance(error, ProtocolError) or (error is not None and not error.may_retry):
            raise Violation(f"links: the connection of {self.name} is closed: {error}")
        if self.socket is not None:
            self.after(0, self._leave, self.socket)

    def _leave(self, socket: Socket) -> None:
        if self.socket is socket:
            self.leave()

    # -- for subclasses

    def top_up(self) -> None:
        """Credit may be used up: resumed deliveries take it too, and no program sees them."""

    def told_of(self, event: Any) -> None:
        """Something of a delivery."""


class LinkSender(LinkClient):
    """Sends to `address`, which leads to these queues."""

    def __init__(self, world: World, name: str, address: str, queues: tuple[str, ...]) -> None:
        self.queues = queues
        self._number = 0
        self.window = world.schedule.rng.choice((3, 12, 40))
        self._bodies: dict[bytes, bytes] = {}
        self.link = SenderLink(_terms(name, Source(**KEPT), Target(address=address, **KEPT)))
        super().__init__(world, name)
        self.after(self.rng.random(), self._go)

    @property
    def waits(self) -> str:
        return f"outcomes of {len(self.link.unsettled)} deliveries" if self.link.unsettled else ""

    def _go(self) -> None:
        self.after(self.rng.expovariate(1 / self.world.pace_s), self._go)
        if not self.world.quiet:
            for _ in range(self.rng.choice((1, 1, 2, 5))):
                if len(self.link.unsettled) < self.window:
                    self._send()
            self._pump()

    def _send(self) -> None:
        self._number += 1
        body = b"%s:%d" % (self.name.encode(), self._number)
        tag = b"t%d" % (self._number % TAGS)
        once = not self.link.is_free(tag)
        if once:
            tag = b"n%d" % self._number
        self._bodies[tag] = body
        self.world.checkers.history.published.add(body)
        self.world.schedule.counts["link publishes"] += 1
        self.link.send(Message(body=body).encoded(), tag, once=once)

    def _pump(self) -> None:
        if self.session is not None and self.link.attached:
            self._take(self.session.pump())
            self.flush()

    def told_of(self, event: Any) -> None:
        assert isinstance(event, Decided), "nothing else is told of what was sent"
        tag = event.delivery.tag
        accepted = isinstance(event.delivery.state, Accepted)
        self.world.schedule.counts["link outcomes" if accepted else "link refusals"] += 1
        if accepted and self._believed:
            self.world.checkers.confirmed(self._bodies[tag], self.queues)
        if not event.settled:
            self.after(self.rng.random() * self.rng.choice((0.001, 0.3)), self._settle, event.delivery)

    @property
    def _believed(self) -> bool:
        """As of confirms (`Checkers.written`): a node that stood still may go by the wiring as that was before."""
        socket = self.socket
        return socket is None or socket.site.owes() or all(map(socket.site.knows, self.queues))

    def _settle(self, delivery: Any) -> None:
        if self.link.unsettled.get(delivery.tag) is not delivery:
            return
        told = self.link.settle(delivery.tag)
        if told is not None and self.session is not None:
            self.session.settle(told)
            self.flush()


class LinkReceiver(LinkClient):
    """Receives from a queue, and accepts in its own time."""

    def __init__(self, world: World, name: str, queue: str) -> None:
        self.queue = queue
        rng = world.schedule.rng
        self.credit = rng.choice((1, 3, 10, 50))
        self.slow_s = rng.choice((0.01, 0.05, 0.2, 2.0))
        self.link = ReceiverLink(_terms(name, Source(address=f"/queues/{queue}", **KEPT), Target(**KEPT)))
        self._here = 0
        """Deliveries that wait for the program."""
        super().__init__(world, name)
        world.checkers.history.receivers[queue].append(self)

    @property
    def waits(self) -> str:
        if not self.link.attached:
            return "its link"
        return f"{len(self.link.unsettled)} deliveries to be settled" if self.link.unsettled else ""

    def top_up(self) -> None:
        if self.session is not None and self.link.attached and self.link.credit + self._here <= self.credit // 2:
            self.session.grant(self.link, self.credit - self._here)

    def told_of(self, event: Any) -> None:
        if isinstance(event, Delivered):
            body = Message.decoded(event.delivery.payload).body
            self.world.checkers.link_heard(self, body)
            self._here += 1
            slow_s = 0.002 if self.world.quiet else self.slow_s
            self.after(self.rng.random() * slow_s, self._decide, event.delivery, body)
        elif isinstance(event, Settled):
            self.world.schedule.counts["link settlements"] += 1
        elif isinstance(event, Lost):
            raise Violation(f"links: {self.name} had {event.delivery.tag!r} of {self.queue}, and is told it is lost")

    def _decide(self, delivery: Incoming, body: bytes) -> None:
        self._here -= 1
        gives_back = not self.world.quiet and self.rng.random() < 0.03
        state: Composite = Released() if gives_back else Accepted()
        self.world.checkers.link_decided(self, body, not gives_back)
        due = self.link.dispose(delivery, state, False)
        if due and self.session is not None:
            self.session.dispose(self.link, delivery, state, False)
        self.top_up()
        self.flush()
