"""I6, I8 to I13, I15: what clients are handed and told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from clusterbroker.journal.layout import SET
from tests.simulation.checkers.history import Checker

if TYPE_CHECKING:
    from tests.simulation.sim_journal import Written
    from tests.simulation.site import Site
    from tests.simulation.sockets import Socket


class Leaving(Checker):
    """Looks at what leaves the queues that lose nothing but what is acknowledged."""

    def left(self, queue_id: int, records: list[Written]) -> Iterator[tuple[str, int, bytes]]:
        """(queue, seq, body) of what committed records settle; no body: it was not committed here."""
        name = self.history.queue_name(queue_id)
        if not self.world.keeps_all(name) or not self.world.acknowledged(name):
            return
        bodies = self.history.committed[queue_id]
        for record in records:
            for first, last in record.ranges if record.kind == SET else ():
                for seq in range(first, last + 1):
                    yield name, seq, bodies.get(seq, (0, b""))[1]


class I6NothingMissing(Leaving):
    """Every confirmed (sid, pseq, quid) is ready, outstanding, dead, or settled by a committed record."""

    def committed(self, site: Site, queue_id: int, records: list[Written]) -> None:
        for name, seq, body in self.left(queue_id, records):
            self.require(
                not body or body in self.history.acknowledged[name],
                f"{seq} {body!r} of {name} left and nobody has acknowledged it",
            )

    def ended(self) -> None:
        for body, queues in self.history.confirmed.items():
            for name in queues:
                if self.world.keeps_all(name) and self.world.acknowledged(name):
                    there = body in self.history.acknowledged[name] or body in self.history.given_up[name]
                    self.require(there, f"{body!r} was confirmed in {name} and is lost")


class I8NothingUnheardOf(Checker):
    """Nothing delivered that was not published."""

    def delivered(self, socket: Socket, queue: str, body: bytes, redelivered: bool, consumer: str) -> None:
        self.require(body in self.history.published, f"{body!r} out of {queue} was never published")


class I9OneHolder(Checker):
    """A message is outstanding at no more than one consumer of nodes with lease and contact; I11: no hand-over while
    the live consumer of such a node holds it."""

    def delivered(self, socket: Socket, queue: str, body: bytes, redelivered: bool, consumer: str) -> None:
        for other in self.history.holders[queue][body]:
            live = not other.closed and other.site.life == other.life and other.site.up and other.site.owes()
            self.require(
                not live or other.site.node is None,
                f"{body!r} of {queue} goes to {socket.actor.name} at {socket.site.name} while "
                f"{other.actor.name} at {other.site.name} holds it",
            )


class I10FirstHandOver(Checker):
    """redelivered=false: first hand-over ever."""

    def delivered(self, socket: Socket, queue: str, body: bytes, redelivered: bool, consumer: str) -> None:
        before = self.history.delivered[queue].get(body, 0)
        self.require(
            redelivered or not before, f"{body!r} of {queue} is handed over again and not marked as redelivered"
        )


class I11HeldIsHeld(Leaving):
    """What the live consumer of a node with lease and contact holds leaves by that consumer's word alone."""

    def committed(self, site: Site, queue_id: int, records: list[Written]) -> None:
        for name, seq, body in self.left(queue_id, records):
            for other in self.history.holders[name].get(body, ()):
                live = not other.closed and other.site.life == other.life and other.site.up
                self.require(
                    not live or not other.site.owes(),
                    f"{seq} {body!r} of {name} left while {other.actor.name} at {other.site.name} holds it",
                )


class I12GoneIsGone(Checker):
    """No hand-over after a committed SET."""

    def delivered(self, socket: Socket, queue: str, body: bytes, redelivered: bool, consumer: str) -> None:
        queue_id = self.history.queue_id(queue)
        if queue_id is not None and self.world.acknowledged(queue):
            seq = self.history.places[queue_id].get(body)
            self.require(
                seq not in self.history.settled[queue_id], f"{seq} {body!r} of {queue} is handed over after it left"
            )


class I13DeliveryOrder(Checker):
    """To any one consumer redelivered=false deliveries arrive in publish order."""

    def __init__(self, history: Any) -> None:
        super().__init__(history)
        self._last: dict[tuple[Socket, str, bytes], int] = {}

    def delivered(self, socket: Socket, queue: str, body: bytes, redelivered: bool, consumer: str) -> None:
        publisher, _, number = body.rpartition(b":")
        if redelivered or not self.history.keeps_order(queue) or not self.world.goes_on_in_order(publisher):
            return
        key = (socket, consumer, publisher)
        self.require(
            int(number) > self._last.get(key, 0), f"{body!r} of {queue} comes after number {self._last.get(key)}"
        )
        self._last[key] = int(number)


class I15OnlyLeased(Checker):
    """No client-visible output without lease and contact."""

    def wrote(self, socket: Socket) -> None:
        self.require(
            socket.site.may_speak, f"{socket.site.name} speaks to {socket.actor.name} without lease or contact"
        )
