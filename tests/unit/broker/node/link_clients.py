"""Clients of one queue, with recoverable receiver links and without, as their nodes have them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from clusterbroker.broker.access.together import Together
from clusterbroker.broker.content.selector.filters import Filter
from clusterbroker.broker.fronts.amqp091.delivery import BasicConsumer, Ledger
from clusterbroker.broker.fronts.amqp091.subscription import Subscription
from clusterbroker.broker.node.link_recovery import Attachment
from clusterbroker.broker.queues.handle import CommitPart, Decided
from clusterbroker.broker.queues.link_held import LinkAttach
from clusterbroker.broker.queues.modification import Modification
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.wire.amqp091.codec import OutBuffer
from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.journal.layout import PERSISTENT
from clusterbroker.journal.record import Message


def message(body: bytes, ttl_ms: int = -1, priority: int | None = None) -> Message:
    header = b"\x10\0\2" if priority is None else b"\x18\0\2" + bytes((priority,))
    return Message(b"\0\1q", header + body, len(header), PERSISTENT, priority or 0, 0, ttl_ms)


class Choosy(Subscription):
    """A consumer with a link's name and filter."""

    __slots__ = ("filter", "link")

    def __init__(self, link: str, wanted: Filter | None, *told: Any, **more: Any) -> None:
        super().__init__(*told, **more)
        self.link = link
        self.filter = wanted


class Client:
    """A client with one consumer, perhaps a recoverable link's."""

    def __init__(self, cluster: Any, at: str) -> None:
        self.cluster, self.site = cluster, cluster[at]
        self.ledger = Ledger(1, OutBuffer(1 << 20))
        self.hands: dict[bytes, int] = {}
        self.subscription: Subscription | None = None
        self.answers: list[str] = []
        self.kind: Callable[..., Subscription] = Subscription

    def cancelled(self, _: Subscription) -> None:
        self.subscription = None

    def want_send(self) -> None:
        pass

    @property
    def handle(self) -> Any:
        return self.site.node.vhosts["/"].queues["q"]

    def consume(self, prefetch: int = 0, priority: int = 0) -> str:
        self.subscription = self.kind(
            self, self.ledger, self.handle, "c", no_ack=False, exclusive=False, prefetch=prefetch, priority=priority,
            arguments={},
        )  # fmt: skip
        self.answers.clear()
        self._subscribe()
        self.cluster.turn()
        return self.answers[0] if self.answers else "unanswered"

    def _subscribe(self) -> None:
        self.handle.subscribe(self.subscription, self.site.now_ms, self.answers.append)

    def read(self) -> list[tuple[bytes, bool]]:
        """What has come since the last time."""
        self.cluster.turn()
        found, data, at, redelivered, tag = [], bytes(self.ledger.out.take()), 0, False, 0
        while at < len(data):
            kind, _, size = struct.unpack_from(">BHI", data, at)
            payload = data[at + 7 : at + 7 + size]
            at += size + 8
            if kind == 1:
                tag, redelivered = struct.unpack_from(">Q?", payload, 5 + payload[4])
            elif kind == 3:
                found.append((payload, redelivered))
                self.hands[payload] = tag
        return found

    def bodies(self) -> list[bytes]:
        return [body for body, _ in self.read()]

    def everything(self) -> list[bytes]:
        """What is ready for it, in order."""
        assert self.consume() == ""
        return self.bodies()

    def ack(self, *bodies: bytes) -> None:
        for body in bodies:
            assert not self.ledger.ack([self.hands.pop(body) * 2])
        self.cluster.turn()

    def give_back(self, body: bytes, counted: bool = False) -> None:
        ((_, _, seq),) = self.ledger.collect(self.hands.pop(body), False) or []
        self.handle.requeue(seq, counted)

    def exclude(self, body: bytes, link: str) -> None:
        """It returns, and that link never wants it again."""
        ((_, _, seq),) = self.ledger.collect(self.hands.pop(body), False) or []
        self.handle.modify(seq, Modification(False, link))
        self.cluster.turn()

    def reject(self, body: bytes) -> None:
        ((_, _, seq),) = self.ledger.collect(self.hands.pop(body), False) or []
        self.handle.reject(seq)


class Awaited:
    """An outcome whose client waits until it is committed: rcv-settle-mode second, or with `publishes` a transaction.
    `answers`: done, void, or refused."""

    def __init__(
        self, receiver: Receiver, body: bytes, outcome: str = "ack", publishes: bytes = b"",
        then: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        ((_, _, self.seq),) = receiver.ledger.collect(receiver.hands.pop(body), False) or []
        self.part = CommitPart()
        self.part.settles.append(Decided(self.seq, outcome, receiver.link))
        if publishes:
            self.part.publishes.append(((message(publishes),), None))
        self.answers: list[str] = []
        self._then = then
        ticket = Ticket(1, 1, self._done)
        receiver.handle.commit(self.part, ticket, receiver.site.now_ms)
        ticket.pass_()

    def _done(self, ticket: Ticket) -> None:
        self.answers.append("void" if self.part.void else "refused" if ticket.rejected else "done")
        self._then(self.answers[0])


class Apart:
    """A transaction that settles a delivery, and publishes into another queue (`access.together`). `answers`: done or
    refused."""

    def __init__(self, receiver: Receiver, body: bytes, puts: bytes, into: str, then: Callable[[str], None]) -> None:
        ((_, _, self.seq),) = receiver.ledger.collect(receiver.hands.pop(body), False) or []
        self.answers: list[str] = []
        self._receiver, self._body, self._then = receiver, body, then
        node, handle = receiver.site.node, receiver.handle
        takes, gives = CommitPart(), CommitPart()
        takes.settles.append(Decided(self.seq, "ack", receiver.link))
        gives.publishes.append(((message(puts),), None))
        parts = {handle: takes, node.vhosts["/"].queues[into]: gives}
        is_over = lambda: "" if node.map.link_since(*receiver.link) else "is over"  # noqa: E731
        self.whole = Together(node, parts, is_over, self._done, lambda: None)
        self.whole.begin()

    def _done(self, ticket: Ticket, begun: bool) -> None:
        receiver = self._receiver
        if not begun:  # it is held as before
            if receiver.subscription is None:
                receiver.handle.leave_to_link([self.seq], receiver.link)
            else:
                taker = receiver.resumed_by()
                receiver.hands[self._body] = receiver.ledger.add(taker, self.seq, receiver.site.now_ms)
        self.answers.append("refused" if ticket.rejected else "done")
        self._then(self.answers[0])


class Receiver(Client):
    """A recoverable receiver link as its node has it. `deaf`: it goes on when it is attached elsewhere."""

    def __init__(self, cluster: Any, at: str, *, resumes: bool = False, name: str = "l", deaf: bool = True) -> None:
        super().__init__(cluster, at)
        self.attached: list[Any] = []
        self.lost: list[bool] = []
        command = c.AttachLink(
            node=NodeId(at), incarnation=Incarnation(self.site.incarnation), resumes=resumes, vhost="/", container="c",
            name=name, role="receiver", terminus="/queues/q", user="guest", timeout_ms=1000,
        )  # fmt: skip
        self.deaf = deaf
        self.site.node.recovery.attach(command, self._lost, self.attached.append)
        cluster.turn()

    def _lost(self, goes_on: bool) -> None:
        self.lost.append(goes_on)
        if not self.deaf:
            self.part()

    @property
    def attachment(self) -> Attachment:
        (attachment,) = self.attached
        assert isinstance(attachment, Attachment)
        return attachment

    @property
    def link(self) -> LinkAttach:
        return LinkAttach(self.attachment.link.link, self.attachment.link.attach)

    def _subscribe(self) -> None:
        self.handle.subscribe_link(self.subscription, self.link, self.site.now_ms, self.answers.append)

    def held(self) -> Any:
        answers: list[Any] = []
        self.handle.held_by(self.link, answers.append)
        self.cluster.turn()
        (answer,) = answers
        return answer

    def seqs(self) -> list[int]:
        return [seq for held in self.held() for seq in held.seqs]

    def resumed_by(self) -> Any:
        """A consumer that has what was resumed."""
        return BasicConsumer(self.handle.ring, self.ledger, b"resumed", False, 0)

    def settle(self, seq: int) -> None:
        """By the client's map."""
        self.handle.settle(seq)
        self.cluster.turn()

    def leave_to_link(self, answer: Any) -> None:
        """What the queue says that it holds is of no use here any more."""
        if not isinstance(answer, str):
            self.handle.leave_to_link([seq for held in answer for seq in held.seqs])

    def part(self) -> None:
        """Nothing of it is at its node any more."""
        if self.subscription is not None:
            self.handle.unsubscribe(self.subscription, self.site.now_ms)
            self.subscription = None
        self.handle.leave_to_link([seq for _, _, seq in self.ledger.drain()])
        self.hands.clear()

    def leave(self) -> None:
        """The connection is lost."""
        self.part()
        self.site.node.recovery.suspend(self.attachment)
        self.cluster.turn()
