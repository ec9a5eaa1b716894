"""Simulated publishers: with confirms, numbered, in transactions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from clusterbroker.broker.wire.amqp091 import methods as m
from tests.simulation.clients import Actor
from tests.simulation.sockets import Socket

if TYPE_CHECKING:
    from tests.simulation.world import World

Route = tuple[str, str, dict[str, Any], tuple[str, ...]]
"""Exchange, routing key, headers, and the queues that it leads to."""


class Publisher(Actor):
    """With confirms."""

    def __init__(self, world: World, name: str, routes: list[Route]) -> None:
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

    def refused(self, channel: int, tag: int, multiple: bool) -> None:
        self.world.schedule.counts["nacks"] += 1
        for one in self._answered(tag, multiple, tuple(self._open)):
            del self._open[one]

    def method(self, channel: int, said: Any) -> None:
        if isinstance(said, m.BasicAck | m.BasicNack):
            for tag in self._answered(said.delivery_tag, said.multiple, tuple(self._unheard)):
                self._unheard.discard(tag)
                self.told(tag)

    def told(self, tag: int) -> None:
        """The outcome of this publish is known."""


class NamedPublisher(Publisher):
    """Numbers its messages, and publishes again after a failure what was not confirmed."""

    def __init__(self, world: World, name: str, routes: list[Route]) -> None:
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


class Insister(NamedPublisher):
    """Publishes again also what was refused, under its number, behind later ones."""

    def method(self, channel: int, said: Any) -> None:
        refused: dict[int, tuple[str, str, tuple[str, ...]]] = {}
        if isinstance(said, m.BasicNack) and not self.world.quiet:
            tags = self._answered(said.delivery_tag, said.multiple, tuple(self._unheard))
            refused = {self._tag_of[tag]: self._mine[self._tag_of[tag]] for tag in tags}
        super().method(channel, said)
        self._mine |= refused
        for sequence in refused:
            self.after(self.rng.random(), self._insist, self.socket, sequence)

    def _insist(self, socket: Socket, sequence: int) -> None:
        if self.socket is not socket:
            return  # said again when it had connected again
        if self.world.quiet:
            self._mine.pop(sequence, None)
        else:
            self.world.schedule.counts["insisted"] += 1
            socket.send(self._send(socket, sequence, *self._mine[sequence]))


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
