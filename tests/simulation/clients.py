"""Simulated clients: publishers, consumers, pollers and those who declare and delete, over real AMQP frames.

Each lives as long as the run, connects to any node that accepts clients, and again when its connection ends or
nothing is heard for long. Every message has a body of its own, "who:number", numbers rising per connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from broker.amqp import methods as m
from tests.simulation.sockets import Socket
from tests.unit.broker.session.harness import Content

if TYPE_CHECKING:
    from tests.simulation.world import World

PATIENCE_S = 6.0
"""Without a word for so long a client gives its connection up."""


class Actor:
    """A client. `waits`: what it must still hear of, "" when it is content."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.rng = world.schedule.rng
        self.socket: Socket | None = None
        self.blocked = False
        self.connections = 0
        self._heard_s = 0.0
        self.after(self.rng.random() * 0.3, self.connect)
        self.after(1.0, self._review)

    def after(self, delay_s: float, call: Any, *arguments: Any) -> None:
        self.world.schedule.after(delay_s, call, *arguments)

    @property
    def waits(self) -> str:
        return ""

    def connect(self) -> None:
        if self.socket is not None:
            return
        sites = [site for site in self.world.sites.values() if site.accepting]
        if not sites:
            self.after(0.2, self.connect)
            return
        self.connections += 1
        self.blocked = False
        self._heard_s = self.world.schedule.now_s
        self.socket = Socket(self.rng.choice(sites), self)
        self.socket.hello()
        self.opened(self.socket)

    def lost(self, socket: Socket) -> None:
        if self.socket is socket:
            self.socket = None
            self.ended()
            self.after(0.02 + self.rng.random() * 0.4, self.connect)

    def leave(self) -> None:
        if self.socket is not None:
            socket = self.socket
            socket.leave()
            self.lost(socket)

    def _review(self) -> None:
        self.after(1.0, self._review)
        if self.socket is not None and self.waits and self.world.schedule.now_s - self._heard_s > PATIENCE_S:
            self.world.schedule.counts["impatient"] += 1
            self.leave()

    def heard(self, heard: Iterable[tuple[int, Any]]) -> None:
        socket = self.socket
        self._heard_s = self.world.schedule.now_s
        for channel, said in heard:
            if self.socket is not socket:
                return
            if isinstance(said, m.ConnectionClose | m.ChannelClose):
                self.world.schedule.counts[f"closed {said.reply_code}"] += 1
                self.world.closed(self, said)
                self.leave()
            elif isinstance(said, m.ConnectionBlocked):
                self.blocked = True
            elif isinstance(said, m.ConnectionUnblocked):
                self.blocked = False
            elif isinstance(said, Content):
                self.content(said)
            else:
                self.method(channel, said)

    # -- for subclasses

    def opened(self, socket: Socket) -> None:
        """The handshake is on its way."""

    def ended(self) -> None:
        """The connection is gone."""

    def method(self, channel: int, said: Any) -> None:
        pass

    def content(self, said: Content) -> None:
        pass

    def queue_of(self, method: Any) -> str | None:
        return None

    def handed(self, socket: Socket, channel: int, said: Content) -> None:
        """A delivery was written to the socket."""

    def confirms(self, channel: int, tag: int, multiple: bool) -> list[tuple[bytes, tuple[str, ...]]]:
        """A confirm was written to the socket: what it confirms."""
        return []


class Declarer(Actor):
    """Declares everything, then starts the others."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "declarer")
        self._left = -1

    @property
    def waits(self) -> str:
        return "declarations" if self._left else ""

    def opened(self, socket: Socket) -> None:
        if not self._left:
            return
        asked: list[Any] = [m.ExchangeDeclare(exchange="fan", type="fanout", durable=True)]
        asked.append(m.ExchangeDeclare(exchange="heads", type="headers", durable=True))
        asked.append(m.ExchangeDeclare(exchange="news", type="direct", durable=True))
        asked += [m.QueueDeclare(queue=k.name, durable=True, arguments=k.arguments) for k in self.world.kinds.values()]
        asked += [m.QueueBind(queue=name, exchange="fan") for name in ("q1", "q2")]
        asked.append(m.QueueBind(queue="q0", exchange="heads", arguments={"x-match": "all", "to": "q0"}))
        self._left = len(asked)
        socket.say(*asked)

    def method(self, channel: int, said: Any) -> None:
        if channel == 1 and not isinstance(said, m.ChannelOpenOk):
            self._left -= 1
            if not self._left:
                self.world.declared()


class Publisher(Actor):
    """With confirms. A route is (exchange, key, headers, queues)."""

    def __init__(self, world: World, name: str, routes: list[tuple[str, str, dict[str, Any], tuple[str, ...]]]) -> None:
        self.routes = routes
        self.number = 0
        self._tags = 0
        self._open: dict[int, tuple[bytes, tuple[str, ...]]] = {}
        self._unheard: set[int] = set()
        self.window = 12
        super().__init__(world, name)

    @property
    def waits(self) -> str:
        return f"{len(self._unheard)} confirms" if self._unheard else ""

    def opened(self, socket: Socket) -> None:
        self.number = self._tags = 0
        self._open.clear()
        self._unheard.clear()
        socket.say(m.ConfirmSelect())
        self.after(self.rng.random() * self.rng.choice((0.1, 0.1, 4)), self._go, socket)

    def ended(self) -> None:
        self._unheard.clear()

    def _go(self, socket: Socket) -> None:
        if self.socket is not socket:
            return
        self.after(self.rng.expovariate(1 / self.world.pace_s), self._go, socket)
        if self.world.quiet or self.blocked or len(self._unheard) >= self.window:
            return
        data = b""
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            exchange, key, headers, queues = self.rng.choice(self.routes)
            data += self.one(socket, exchange, key, headers, queues)
        socket.send(data)

    def one(
        self, socket: Socket, exchange: str, key: str, headers: dict[str, Any], queues: tuple[str, ...]
    ) -> bytes:  # fmt: skip
        self.number += 1
        body = b"%s.%d:%d" % (self.name.encode(), self.connections, self.number)
        return self.put(socket, exchange, key, headers, queues, body)

    def put(
        self, socket: Socket, exchange: str, key: str, headers: dict[str, Any], queues: tuple[str, ...], body: bytes
    ) -> bytes:  # fmt: skip
        self._tags += 1
        self._open[self._tags] = (body, queues)
        self._unheard.add(self._tags)
        self.world.checkers.history.published.add(body)
        self.world.schedule.counts["publishes"] += 1
        more: dict[str, Any] = {"headers": headers} if headers else {}
        if "prio" in queues:
            more["priority"] = self.rng.randrange(4)
        return socket.content(exchange, key, body, **more)

    def _answered(self, tag: int, multiple: bool, of: Iterable[int]) -> list[int]:
        return [one for one in of if one == tag or (multiple and one < tag)]

    def confirms(self, channel: int, tag: int, multiple: bool) -> list[tuple[bytes, tuple[str, ...]]]:
        return [self._open.pop(one) for one in self._answered(tag, multiple, tuple(self._open))]

    def method(self, channel: int, said: Any) -> None:
        if isinstance(said, m.BasicAck | m.BasicNack):
            for tag in self._answered(said.delivery_tag, said.multiple, tuple(self._unheard)):
                self._unheard.discard(tag)
                self.told(tag)
            if isinstance(said, m.BasicNack):
                self.world.schedule.counts["nacks"] += 1
                for tag in self._answered(said.delivery_tag, said.multiple, tuple(self._open)):
                    del self._open[tag]

    def told(self, tag: int) -> None:
        """The outcome of this publish is known."""


class NamedPublisher(Publisher):
    """Numbers its messages, and publishes again after a failure what was not confirmed."""

    def __init__(self, world: World, name: str, routes: list[tuple[str, str, dict[str, Any], tuple[str, ...]]]) -> None:
        self._sequence = 0
        self._mine: dict[int, tuple[str, str, tuple[str, ...]]] = {}
        self._tag_of: dict[int, int] = {}
        super().__init__(world, name, routes)

    @property
    def waits(self) -> str:
        return f"{len(self._mine)} numbered confirms" if self._mine else ""

    def opened(self, socket: Socket) -> None:
        super().opened(socket)
        self._tag_of.clear()
        again = [self._send(socket, sequence, *address) for sequence, address in self._mine.items()]
        if again:
            self.world.schedule.counts["published again"] += len(again)
            socket.send(b"".join(again))

    def one(
        self, socket: Socket, exchange: str, key: str, headers: dict[str, Any], queues: tuple[str, ...]
    ) -> bytes:  # fmt: skip
        self._sequence += 1
        self._mine[self._sequence] = (exchange, key, queues)
        return self._send(socket, self._sequence, exchange, key, queues)

    def _send(self, socket: Socket, sequence: int, exchange: str, key: str, queues: tuple[str, ...]) -> bytes:
        self._tag_of[self._tags + 1] = sequence
        body = b"%s:%d" % (self.name.encode(), sequence)
        return self.put(socket, exchange, key, {"x-producer": self.name, "x-seq": sequence}, queues, body)

    def told(self, tag: int) -> None:
        self._mine.pop(self._tag_of.pop(tag), None)


class Transaction:
    """`bodies` go to each of `queues`, or none does; `answered`: commit-ok was written."""

    def __init__(self, queues: tuple[str, ...]) -> None:
        self.queues = queues
        self.bodies: list[bytes] = []
        self.answered = False


class Transactor(Actor):
    """Publishes in transactions."""

    def __init__(self, world: World, name: str, queues: tuple[str, ...]) -> None:
        self.queues = queues
        self._number = 0
        self._open: Transaction | None = None
        super().__init__(world, name)

    @property
    def waits(self) -> str:
        return "a commit" if self._open is not None else ""

    def opened(self, socket: Socket) -> None:
        self._number = 0
        socket.say(m.TxSelect())
        self.after(0.1, self._go, socket)

    def ended(self) -> None:
        self._open = None

    def _go(self, socket: Socket) -> None:
        if self.socket is not socket:
            return
        self.after(self.rng.expovariate(1 / (4 * self.world.pace_s)), self._go, socket)
        if self._open is not None or self.world.quiet or self.blocked:
            return
        part = self._open = Transaction(self.queues)
        self.world.transactions.append(part)
        data = b""
        for _ in range(self.rng.choice((1, 3))):
            self._number += 1
            body = b"%s.%d:%d" % (self.name.encode(), self.connections, self._number)
            part.bodies.append(body)
            self.world.checkers.history.published.add(body)
            data += b"".join(socket.content("", queue, body) for queue in part.queues)
        socket.send(data)
        socket.say(m.TxCommit())

    def method(self, channel: int, said: Any) -> None:
        if isinstance(said, m.TxCommitOk) and self._open is not None:
            part, self._open = self._open, None
            part.answered = True
            for body in part.bodies:
                self.world.checkers.confirmed(body, part.queues)


class Consumer(Actor):
    """Consumes from one queue, with a prefetch or without, and acknowledges in its own time."""

    def __init__(
        self, world: World, name: str, queue: str, prefetch: int, *, no_ack: bool = False, rejects: bool = False,
        priority: int = 0,
    ) -> None:  # fmt: skip
        self.queue = queue
        self.prefetch = prefetch
        self.no_ack = no_ack
        self.rejects = rejects
        self.priority = priority
        self.slow_s = world.schedule.rng.choice((0.01, 0.05, 0.2))
        self._have: dict[int, bytes] = {}
        self._consuming = False
        super().__init__(world, name)

    @property
    def waits(self) -> str:
        return "" if self._consuming else "its consumer"

    def queue_of(self, method: Any) -> str | None:
        return self.queue

    def opened(self, socket: Socket) -> None:
        self._consume(socket)

    def _consume(self, socket: Socket) -> None:
        if self.prefetch:
            socket.say(m.BasicQos(prefetch_count=self.prefetch))
        arguments = {"x-priority": self.priority} if self.priority else {}
        socket.say(m.BasicConsume(queue=self.queue, consumer_tag="c", no_ack=self.no_ack, arguments=arguments))

    def ended(self) -> None:
        self._have.clear()
        self._consuming = False

    def method(self, channel: int, said: Any) -> None:
        if isinstance(said, m.BasicConsumeOk):
            self._consuming = True
            if self.rng.random() < 0.3:
                self.after(self.rng.random() * 10, self._cancel, self.socket)
        elif isinstance(said, m.BasicCancelOk) and self.socket is not None:
            self._consume(self.socket)
        elif isinstance(said, m.BasicCancel):
            self.world.schedule.counts["cancelled"] += 1
            self._consuming = False
            self.leave()

    def _cancel(self, socket: Socket) -> None:
        if self.socket is socket and self._consuming and not self.world.quiet:
            self._consuming = False
            socket.say(m.BasicCancel("c"))

    def content(self, said: Content) -> None:
        if self.no_ack or self.socket is None:
            return
        tag = said.method.delivery_tag
        self._have[tag] = said.body
        slow_s = 0.002 if self.world.quiet else self.slow_s
        self.after(self.rng.random() * slow_s, self._decide, self.socket, tag)

    def _decide(self, socket: Socket, tag: int) -> None:
        if self.socket is not socket or tag not in self._have:
            return
        chance = 1.0 if self.world.quiet else self.rng.random()
        released = self.world.checkers.released
        if chance < 0.03:
            released(socket, self.queue, self._have.pop(tag), False)
            socket.say(m.BasicReject(tag, True) if chance < 0.015 else m.BasicNack(tag, False, True))
        elif self.rejects and chance < 0.4:
            released(socket, self.queue, self._have.pop(tag), False)
            socket.say(m.BasicReject(tag, False))
        elif chance < 0.3:
            for other in [other for other in self._have if other <= tag]:
                released(socket, self.queue, self._have.pop(other), True)
            socket.say(m.BasicAck(tag, True))
        else:
            released(socket, self.queue, self._have.pop(tag), True)
            socket.say(m.BasicAck(tag))


class Poller(Consumer):
    """basic.get, again and again."""

    _asked_s = 0.0

    @property
    def waits(self) -> str:
        return "" if self._consuming or self.world.schedule.now_s - self._asked_s < 0.5 else "an answer to its get"

    def opened(self, socket: Socket) -> None:
        self._consuming = True
        self.after(0.05, self._poll, socket)

    def _poll(self, socket: Socket) -> None:
        if self.socket is socket and self._consuming:
            self._consuming = False
            self._asked_s = self.world.schedule.now_s
            socket.say(m.BasicGet(queue=self.queue))

    def method(self, channel: int, said: Any) -> None:
        if isinstance(said, m.BasicGetEmpty):
            self._answered()

    def content(self, said: Content) -> None:
        self._answered()
        super().content(said)

    def _answered(self) -> None:
        self._consuming = True
        self.after(0.002 if self.world.quiet else 0.03 + self.rng.random() * 0.2, self._poll, self.socket)


class Churner(Actor):
    """Exclusive and auto-delete queues come and go, with a message in each."""

    def __init__(self, world: World, name: str) -> None:
        self._steps: deque[list[Any]] = deque()
        self._awaited = 0
        self._round = 0
        super().__init__(world, name)

    @property
    def waits(self) -> str:
        return "an answer" if self._awaited else ""

    def opened(self, socket: Socket) -> None:
        self._awaited = 0
        self.after(0.1, self._go, socket)

    def ended(self) -> None:
        self._awaited = 0

    def _go(self, socket: Socket) -> None:
        if self.socket is not socket or self.world.quiet:
            return
        self._round += 1
        name = f"{self.name}.{self.connections}.{self._round}"
        exclusive = self.rng.random() < 0.5
        declare = m.QueueDeclare(
            queue=name, durable=not exclusive, exclusive=exclusive, auto_delete=not exclusive, arguments={}
        )
        steps: list[Any] = [declare, m.BasicConsume(queue=name, consumer_tag=name, no_ack=True), m.BasicCancel(name)]
        if exclusive:
            steps.append(m.QueueDelete(queue=name))
        self._awaited = len(steps)
        for step in steps:
            socket.say(step)
            if isinstance(step, m.QueueDeclare):
                body = b"%s:1" % name.encode()
                self.world.checkers.history.published.add(body)
                socket.send(socket.content("", name, body))

    def method(self, channel: int, said: Any) -> None:
        if channel != 1 or isinstance(said, m.ChannelOpenOk):
            return
        self._awaited -= 1
        if self._awaited == 0:
            self.after(self.rng.random() * 0.8, self._go, self.socket)


class Pioneer(Actor):
    """Declares and binds new queues; as soon as that is answered, everybody may publish to them through any node."""

    def __init__(self, world: World, name: str) -> None:
        self._made = 0
        self._awaited = ""
        super().__init__(world, name)

    @property
    def waits(self) -> str:
        return "a declaration" if self._awaited else ""

    def opened(self, socket: Socket) -> None:
        self.after(0.1, self._go, socket)

    def ended(self) -> None:
        self._awaited = ""

    def _go(self, socket: Socket) -> None:
        if self.socket is not socket or self.world.quiet or self._made >= 4:
            return
        self._awaited = f"new{self._made}"
        self._made += 1
        socket.say(
            m.QueueDeclare(queue=self._awaited, durable=True, arguments={}),
            m.QueueBind(queue=self._awaited, exchange="news", routing_key=self._awaited),
        )

    def method(self, channel: int, said: Any) -> None:
        if isinstance(said, m.QueueBindOk):
            name, self._awaited = self._awaited, ""
            self.world.settled(name)
            self.after(self.rng.random() * 6, self._go, self.socket)
