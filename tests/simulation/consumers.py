"""Simulated consumers: they acknowledge, reject, return, poll, cancel and come again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterbroker.broker.wire.amqp091 import methods as m
from tests.simulation.clients import Actor
from tests.simulation.sockets import Socket
from tests.unit.broker.fronts.amqp091.harness import Content

if TYPE_CHECKING:
    from tests.simulation.world import World


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
        self.slow_s = world.schedule.rng.choice((0.01, 0.05, 0.2, 2.0))
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
        arguments: dict[str, Any] = {"x-priority": self.priority} if self.priority else {}
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
        if chance >= 0.03:
            self.world.on_settling(self)
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
