"""I31 to I34: what recoverable links promise their clients (L1, L2, L5, L6, L8 of the design page).

That an accepted delivery is committed in each of its queues is I5 and I6; that none is there twice, I7; that it is said
to have been handed over before, I10.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tests.simulation.checkers.history import Checker

if TYPE_CHECKING:
    from tests.simulation.links import LinkReceiver
    from tests.simulation.sockets import Socket


class I31HeldByOneLink(Checker):
    """L5: what the client of a link has, nobody else is handed, whatever became of connections and owners."""

    def __init__(self, history: Any) -> None:
        super().__init__(history)
        self._has: dict[str, dict[bytes, LinkReceiver]] = defaultdict(dict)

    def link_heard(self, receiver: LinkReceiver, body: bytes) -> None:
        self._has[receiver.queue][body] = receiver

    def link_decided(self, receiver: LinkReceiver, body: bytes, accepted: bool) -> None:
        if not accepted:
            self._has[receiver.queue].pop(body, None)

    def delivered(self, socket: Socket, queue: str, body: bytes, redelivered: bool, consumer: str) -> None:
        holder = self._has[queue].get(body)
        self.require(
            holder is None or holder is socket.actor,
            f"{body!r} of {queue} goes to {socket.actor.name} while the link {holder and holder.name} holds it",
        )


class I32ProcessedOnce(Checker):
    """L6: what a program has accepted over a recoverable link of mode second no program is handed again."""

    def __init__(self, history: Any) -> None:
        super().__init__(history)
        self._done: dict[str, set[bytes]] = defaultdict(set)

    def link_heard(self, receiver: LinkReceiver, body: bytes) -> None:
        self.require(
            body not in self._done[receiver.queue],
            f"{body!r} of {receiver.queue} was accepted, and comes to {receiver.name}",
        )

    def link_decided(self, receiver: LinkReceiver, body: bytes, accepted: bool) -> None:
        if accepted:
            self._done[receiver.queue].add(body)


class I33NothingHeld(Checker):
    """L9, L12: when no client has anything unsettled, links hold nothing."""

    def ended(self) -> None:
        for site in self.world.sites.values():
            assert site.node is not None, "everybody is back"
            for queue in site.node.queues.values():
                held = queue.ring.links() if queue.name in self.history.receivers else ()
                still = [link for link in held if queue.ring.held_by_link(link, 1, 1)]
                self.require(not still, f"links {still} hold messages of {queue.name}, whose clients have none")


class I34LinkOrder(Checker):
    """L8: per sender the order in which the program of a queue's only client first has its messages is the order of
    publishing. With a second client of the queue there is no such promise: what a link or a poller had, or was to have
    when its node died, returns, and comes first to the other one behind what that had meanwhile. Nor behind a gap
    (`History.keeps_order`)."""

    def __init__(self, history: Any) -> None:
        super().__init__(history)
        self._last: dict[tuple[str, bytes], int] = {}
        self._known: set[tuple[str, bytes]] = set()

    def link_heard(self, receiver: LinkReceiver, body: bytes) -> None:
        queue = receiver.queue
        publisher, _, number = body.rpartition(b":")
        if (queue, body) in self._known or not self._is_promised(receiver, publisher):
            return
        self._known.add((queue, body))
        last = self._last.get((queue, publisher), 0)
        self.require(int(number) > last, f"{body!r} of {queue} comes first to {receiver.name} after number {last}")
        self._last[queue, publisher] = int(number)

    def _is_promised(self, receiver: LinkReceiver, publisher: bytes) -> bool:
        queue = receiver.queue
        clients = [actor for actor in self.world.actors if getattr(actor, "queue", "") == queue]
        return clients == [receiver] and self.history.keeps_order(queue) and self.world.goes_on_in_order(publisher)
