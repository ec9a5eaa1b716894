"""The toy, whose consumers pass messages over: they have a filter, and return messages that they never want again.

NEVER <tag>    the delivery returns, annotated; this connection's name never gets it again
"""

from __future__ import annotations

from typing import Any

from clusterbroker.broker.access.errors import precondition_failed
from clusterbroker.broker.access.questions import Pending
from clusterbroker.broker.access.receiver import attach, give_back
from clusterbroker.broker.content.changes import change_of
from clusterbroker.broker.content.selector.filters import Filter, filter_of
from clusterbroker.broker.fronts.amqp091.connection import Connection
from clusterbroker.broker.fronts.amqp091.subscription import Subscription
from clusterbroker.broker.fronts.opening import Fronts, Opening
from clusterbroker.broker.node.clients import Accepted
from clusterbroker.broker.queues.handle import Modification
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp10.types import Described, Symbol
from tests.fronts.toy import FIRST, PLAIN, Toy
from tests.fronts.toy_actors import ToyConsumer, ToyPublisher, ToySocket
from tests.simulation.sockets import Socket
from tests.simulation.world import World

LASTING, _ = filter_of(
    {Symbol("f"): Described(Symbol("apache.org:selector-filter:string"), "JMSDeliveryMode = 'PERSISTENT'")}
)


class FussySubscription(Subscription):
    """`link` and `filter` are its own."""

    __slots__ = ("filter", "link")

    def __init__(self, *arguments: Any, link: str, wanted: Filter | None, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.link = link
        self.filter = wanted  # type: ignore[assignment]


class Fussy(Toy):
    def _do(self, word: bytes, rest: bytes = b"") -> None:
        if word != b"NEVER":
            super()._do(word, rest)
            return
        entries = self.ledger.collect(int(rest), False)
        if entries is None:
            raise precondition_failed(f"NEVER {rest.decode()} means nothing")
        change = change_of({Symbol("x-opt-refused"): self.peer})
        modification = Modification(False, self.peer, change)
        give_back(self.node, entries, requeue=True, counted=False, modification=modification)

    def _attach(self, source: Any, name: str, limit: int) -> None:
        def attached(_: bool) -> None:
            self.consumers[name] = consumer
            self._say(b"ON", name)
            self.review_rights()

        wanted = LASTING if limit % 2 else None
        consumer = FussySubscription(
            self, self.ledger, source, name, prefetch=limit, link=self.peer, wanted=wanted, **PLAIN
        )
        attach(self, source, consumer, Pending(self), attached)


FRONTS = Fronts({FIRST: Fussy}, otherwise=Connection)


class FussySocket(ToySocket):
    def open(self, node: Any) -> Any:
        return Opening(node, Accepted(f"{self.actor.name}:1", True, self.site.now_ms()), FRONTS, self._become)

    def say(self, *methods: Any, channel: int = 1) -> None:
        for method in methods:
            if isinstance(method, m.BasicNack):
                self.send(b"NEVER %d\n" % method.delivery_tag)
            else:
                super().say(method, channel=channel)


class FussyConsumer(ToyConsumer):
    """Wants some messages never again."""

    speaks = FussySocket
    refused = 0

    def _decide(self, socket: Socket, tag: int) -> None:
        if self.world.quiet or self.rng.random() < 0.6 or tag not in self._have or self.socket is not socket:
            super()._decide(socket, tag)
            return
        self.world.checkers.released(socket, self.queue, self._have.pop(tag), False)
        self.refused += 1
        socket.say(m.BasicNack(tag, False, True))


def settle(world: World) -> tuple[list[ToyPublisher], list[FussyConsumer]]:
    """They come to the world when its queues are declared."""
    publishers: list[ToyPublisher] = []
    consumers: list[FussyConsumer] = []
    declared = world.declared

    def and_fussy_ones() -> None:
        begins = not world.started
        declared()
        if begins:
            publishers.append(ToyPublisher(world, "y1", [("", name, {}, (name,)) for name in ("q0", "q1", "q2")]))
            consumers.extend(
                FussyConsumer(world, f"c-fussy-{name}-{limit}", name, limit)
                for name in ("q0", "q1")
                for limit in (10, 7)
            )
            world.actors += [*publishers, *consumers]

    world.declared = and_fussy_ones  # type: ignore[method-assign]
    return publishers, consumers
