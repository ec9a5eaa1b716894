"""The clients of `node_crash`: publishers with confirms, consumers that decide late, and movers with transactions."""

from __future__ import annotations

import random
from typing import Any, Protocol

from clusterbroker.broker.wire.amqp091 import methods as m
from tests.property.node_crash_books import ADDRESSES, HEIRS, KINDS, Books, Key
from tests.unit.broker.fronts.amqp091.harness import Content, World


class Simulated(Protocol):
    """The life that they are part of."""

    addresses: list[tuple[str, str]]
    books: Books
    rng: random.Random

    @property
    def world(self) -> World: ...

    def token(self, publisher: str, queues: tuple[str, ...]) -> tuple[int, dict[str, Any]]: ...


class Publisher:
    """Publishes with confirms."""

    def __init__(self, simulation: Simulated, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.client = simulation.world.client()
        assert self.client.ask(m.ConfirmSelect()) == m.ConfirmSelectOk()
        self.next = 1
        self.outstanding: dict[int, int] = {}
        self.returned: list[int] = []

    def publish(self) -> None:
        rng = self.simulation.rng
        out = b""
        for _ in range(rng.randint(1, 3)):
            address = rng.choice(self.simulation.addresses)
            for _ in range(rng.choice((1, 1, 2, 6))):
                token, properties = self.simulation.token(self.name, ADDRESSES[address])
                self.outstanding[self.next] = token
                self.next += 1
                padding = bytes(rng.choice((0, 0, 40, 900)))
                out += self.client.content(*address, b"%d:" % token + padding, **properties)
        self.client.raw(out)
        self.simulation.world.turn()

    def hear(self) -> None:
        for said in self.client.hear():
            assert isinstance(said, m.BasicAck | m.BasicNack), said
            tag = said.delivery_tag
            assert tag in self.outstanding, f"(f) {said}, but {tag} does not wait for an answer"
            tags = [known for known in self.outstanding if known <= tag] if said.multiple else [tag]
            for known in tags:
                token = self.outstanding.pop(known)
                if isinstance(said, m.BasicAck):
                    self.simulation.books.confirmed(token)
                else:
                    self.simulation.books.counts["nacks"] += 1


class Consumer:
    """Consumes on channel 1, gets on channel 2, and holds what it was given until it decides."""

    def __init__(self, simulation: Simulated, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.client = simulation.world.client(channels=2)
        self.held: dict[int, dict[int, Key]] = {1: {}, 2: {}}
        self.no_ack: set[str] = set()
        self.queues: set[str] = set()
        self.getting: tuple[str, bool] | None = None
        prefetch = simulation.rng.choice((0, 1, 3, 10))
        self.client.ask(m.BasicQos(0, prefetch, False))

    def consume(self) -> None:
        rng = self.simulation.rng
        queue = rng.choice([name for name in KINDS if name != "take"])
        if queue in self.queues:
            if rng.random() < 0.5:
                self.client.raw_method(1, m.BasicCancel(queue))
                self.queues.discard(queue)
            return
        no_ack = rng.random() < 0.15
        self.queues.add(queue)
        (self.no_ack.add if no_ack else self.no_ack.discard)(queue)
        arguments = {"x-priority": rng.choice((0, 0, 5))}
        self.client.raw_method(1, m.BasicConsume(queue=queue, consumer_tag=queue, no_ack=no_ack, arguments=arguments))

    def get(self) -> None:
        if self.getting is None:
            rng = self.simulation.rng
            self.getting = rng.choice([name for name in KINDS if name != "take"]), rng.random() < 0.2
            self.client.raw_method(2, m.BasicGet(queue=self.getting[0], no_ack=self.getting[1]))

    def decide(self) -> None:
        """Acknowledges, returns or rejects something that it holds."""
        rng = self.simulation.rng
        channel = 2 if rng.random() < 0.3 and self.getting is None else 1
        held = self.held[channel]
        if not held:
            return
        tag = rng.choice(list(held))
        multiple = rng.random() < 0.4
        tags = [known for known in held if known <= tag] if multiple else [tag]
        what = rng.choice(("ack", "ack", "ack", "nack", "requeue", "reject", "return", "recover"))
        keys = [held[known] for known in tags]
        if what in ("nack", "reject") and any(key[1] not in HEIRS for key in keys):
            what = "ack"
        if what == "recover":
            self.client.raw_method(channel, m.BasicRecover(True))
            held.clear()
            return
        if what in ("reject", "return"):
            tags, multiple = [tag], False
        if what == "ack":
            for known in tags:
                self.simulation.books.ack(held[known])
            self.client.raw_method(channel, m.BasicAck(tag, multiple))
        elif what in ("nack", "requeue"):
            self.client.raw_method(channel, m.BasicNack(tag, multiple, what == "requeue"))
        else:
            self.client.raw_method(channel, m.BasicReject(tag, what == "return"))
        for known in tags:
            del held[known]

    def hear(self) -> None:
        books = self.simulation.books
        for channel in (1, 2):
            for said in self.client.hear(channel):
                if isinstance(said, m.BasicGetEmpty):
                    self.getting = None
                if not isinstance(said, Content):
                    assert not isinstance(said, m.ChannelClose), said
                    continue
                token, method = int(said.body.partition(b":")[0]), said.method
                if isinstance(method, m.BasicGetOk):
                    assert self.getting is not None
                    (queue, no_ack), self.getting = self.getting, None
                else:
                    queue, no_ack = method.consumer_tag, method.consumer_tag in self.no_ack
                books.delivered(token, queue, method.redelivered, f"{self.name}/{channel}/{queue}")
                if no_ack:
                    books.ack((token, queue))
                else:
                    self.held[channel][method.delivery_tag] = token, queue


class Mover:
    """Takes from "take" and puts into "put", in transactions."""

    def __init__(self, simulation: Simulated, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.client = simulation.world.client()
        self.client.ask(m.TxSelect())
        self.client.ask(m.BasicQos(0, 4, False))
        self.client.raw_method(1, m.BasicConsume(queue="take", consumer_tag="take"))
        self.held: dict[int, int] = {}
        self.staged: dict[int, int] = {}
        self.committing: list[int] | None = None

    def move(self) -> None:
        rng = self.simulation.rng
        if self.committing is not None:
            return
        choice = rng.random()
        if choice < 0.6 and self.held:
            tag = rng.choice(list(self.held))
            token = self.staged[tag] = self.held.pop(tag)
            mode = 2 if self.simulation.books.tokens[token].persistent else 1
            parts = [
                self.client.content("", "put", b"%d:" % token, delivery_mode=mode),
                self._frame(m.BasicAck(tag, False)),
            ]
            rng.shuffle(parts)
            self.client.raw(b"".join(parts))
        elif choice < 0.9 and self.staged:
            self.committing = list(self.staged.values())
            self.simulation.books.moving |= set(self.committing)
            self.staged.clear()
            self.client.raw_method(1, m.TxCommit())
        elif choice > 0.95 and self.staged:
            self.held |= self.staged
            self.staged.clear()
            self.client.raw_method(1, m.TxRollback())

    def _frame(self, method: Any) -> bytes:
        self.client._out.method(1, m.encode(method))
        return bytes(self.client._out.take())

    def hear(self) -> None:
        for said in self.client.hear():
            if isinstance(said, Content):
                token = int(said.body.partition(b":")[0])
                self.simulation.books.delivered(token, "take", said.method.redelivered, f"{self.name}/take")
                self.held[said.method.delivery_tag] = token
            elif isinstance(said, m.TxCommitOk):
                assert self.committing is not None
                self.simulation.books.committed(self.committing)
                self.committing = None
            else:
                assert not isinstance(said, m.ChannelClose), said
