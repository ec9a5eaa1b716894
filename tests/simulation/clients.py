"""Simulated clients, and those of them that declare and delete, over real AMQP frames.

Each lives as long as the run, connects to any node that accepts clients, and again when its connection ends or
nothing is heard for long. Every message has a body of its own, "who:number", numbers rising per connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from clusterbroker.broker.wire.amqp091 import methods as m
from tests.simulation.sockets import Socket
from tests.simulation.workload import DELAYED, DUE
from tests.unit.broker.fronts.amqp091.harness import Content

if TYPE_CHECKING:
    from tests.simulation.world import World

PATIENCE_S = 6.0
"""Without a word for so long a client gives its connection up."""


class Actor:
    """A client. `waits`: what it must still hear of, "" when it is content."""

    channels = 1
    speaks = Socket

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
        self.socket = self.speaks(self.rng.choice(sites), self)
        self.socket.hello(self.channels)
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
                self.closed(said)
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

    def closed(self, said: Any) -> None:
        """The node closes the connection or a channel."""

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

    def refused(self, channel: int, tag: int, multiple: bool) -> None:
        """A refusal was written to the socket: a later confirm of all until its number does not mean these."""


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
        if "links" in self.world.pipeline:
            asked.append(m.ExchangeDeclare(exchange="pair", type="fanout", durable=True))
            asked += [m.QueueBind(queue=name, exchange="pair") for name in ("held", "shared")]
        asked.append(m.QueueBind(queue="q0", exchange="heads", arguments={"x-match": "all", "to": "q0"}))
        if "delays" in self.world.pipeline:
            asked.append(
                m.ExchangeDeclare(
                    exchange=DELAYED, type="x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"}
                )
            )
            asked += [
                m.QueueBind(queue=name, exchange=DELAYED, routing_key=key)
                for name, key in zip(DUE, ("one", "both", "both"), strict=True)
            ]
        self._left = len(asked)
        socket.say(*asked)

    def method(self, channel: int, said: Any) -> None:
        if channel == 1 and not isinstance(said, m.ChannelOpenOk):
            self._left -= 1
            if not self._left:
                self.world.declared()


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


class Churner(Actor):
    """Exclusive and auto-delete queues come and go, with a message in each."""

    def __init__(self, world: World, name: str) -> None:
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
