"""Simulated clients that speak the toy. The lines become the methods of 0-9-1 that mean the same, so that the checkers
judge these clients as all others."""

from __future__ import annotations

from typing import Any

from clusterbroker.broker.fronts.opening import Opening
from clusterbroker.broker.node.clients import Accepted
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.fronts.toy_client import FRONTS
from tests.simulation.consumers import Consumer
from tests.simulation.publishers import Publisher
from tests.simulation.sockets import Socket
from tests.simulation.world import World
from tests.unit.broker.fronts.amqp091.harness import Content


class ToySocket(Socket):
    """Both ends of one connection."""

    _number = 0
    _limit = 0

    def open(self, node: Any) -> Any:
        return Opening(node, Accepted(f"{self.actor.name}:1", True, self.site.now_ms()), FRONTS, self._become)

    def _become(self, core: Any) -> None:
        del self.site.sockets[self.connection]
        self.connection = core
        self.site.sockets[core] = self

    def hello(self, channels: int = 1) -> None:
        self.send(b"TOY guest guest /\n")

    def say(self, *methods: Any, channel: int = 1) -> None:
        for method in methods:
            if isinstance(method, m.BasicQos):
                self._limit = method.prefetch_count
            elif isinstance(method, m.BasicConsume):
                self.send(b"SUB %s %d\n" % (method.queue.encode(), self._limit))
            elif isinstance(method, m.BasicAck):
                self.send(b"ACK %d\n" % method.delivery_tag)
            else:
                assert isinstance(method, m.ConfirmSelect), f"the toy has no {method}"

    def content(self, exchange: str, key: str, body: bytes, channel: int = 1, **properties: Any) -> bytes:
        self._number += 1
        return b"PUB %d %s %s\n" % (self._number, key.encode(), body)

    def _parse(self, data: bytes) -> list[tuple[int, Any]]:
        return [said for line in data.splitlines() for said in self._meant(*line.split(b" ", 1))]

    def _meant(self, word: bytes, rest: bytes = b"") -> list[tuple[int, Any]]:
        if word == b"MSG":
            tag, redelivered, body = rest.split(b" ", 2)
            return [(1, Content(m.BasicDeliver("c", int(tag), redelivered == b"1", "", ""), b"", body))]  # type: ignore[arg-type]
        if word == b"ERR":
            return [(0, m.ConnectionClose(320, rest.decode(), 0, 0))]
        if word == b"READY":
            return []
        return [(1, m.BasicConsumeOk("c") if word == b"ON" else _CONFIRMS[word](int(rest.split(b" ")[0]), False))]


_CONFIRMS: dict[bytes, Any] = {b"OK": m.BasicAck, b"FULL": m.BasicNack, b"NO": m.BasicNack}


class ToyPublisher(Publisher):
    """With confirms."""

    speaks = ToySocket
    confirmed = 0

    def told(self, tag: int) -> None:
        self.confirmed += 1


class ToyConsumer(Consumer):
    """Acknowledges one by one."""

    speaks = ToySocket
    settled = 0

    def method(self, channel: int, said: Any) -> None:
        self._consuming = True

    def _decide(self, socket: Socket, tag: int) -> None:
        if self.socket is socket and tag in self._have:
            self.world.on_settling(self)
            self.world.checkers.released(socket, self.queue, self._have.pop(tag), True)
            self.settled += 1
            socket.say(m.BasicAck(tag))


def settle(world: World) -> tuple[list[ToyPublisher], list[ToyConsumer]]:
    """Clients of the toy come to the world when its queues are declared."""
    publishers: list[ToyPublisher] = []
    consumers: list[ToyConsumer] = []
    declared = world.declared

    def and_toys() -> None:
        begins = not world.started
        declared()
        if begins:
            publishers.append(ToyPublisher(world, "y1", [("", name, {}, (name,)) for name in ("q0", "q1", "q2")]))
            consumers.extend(ToyConsumer(world, f"c-toy-{name}", name, 10) for name in ("q0", "q1"))
            world.actors += [*publishers, *consumers]

    world.declared = and_toys  # type: ignore[method-assign]
    return publishers, consumers
