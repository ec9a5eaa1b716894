"""The links of one session: by handle while they are attached, and what is left of them when their client goes (2.6).

    detach(closed=false)   suspended, if the link's terms outlive it; else as below
    detach(closed=true)    over: what the link held returns, and nothing of it is kept
    end, close, no socket  suspended, if its terms outlive that (`expiry`)
    stolen                 another attach has the name: the older link is detached with `amqp:link:stolen`, and what it
                           held is suspended for the other to resume

A link that this side has detached waits in `detaching` for the client's answer; what comes for it meanwhile is passed
over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.access.errors import Refusal
from clusterbroker.broker.access.receiver import give_back, let_go
from clusterbroker.broker.fronts.amqp10 import recoverable
from clusterbroker.broker.fronts.amqp10.attach_answer import refusal_of
from clusterbroker.broker.fronts.amqp10.conditions import described
from clusterbroker.broker.fronts.amqp10.expiry import NOTHING_KEPT, Event
from clusterbroker.broker.fronts.amqp10.management_link import ResponseLink
from clusterbroker.broker.fronts.amqp10.parked import ParkedLink
from clusterbroker.broker.fronts.amqp10.receiver_link import ReceiverLink
from clusterbroker.broker.fronts.amqp10.reply_link import ReplyLink
from clusterbroker.broker.fronts.amqp10.sender_link import SenderLink
from clusterbroker.broker.fronts.amqp10.sender_memory import Memory
from clusterbroker.broker.fronts.amqp10.suspended import (
    NOBODY,
    PART_BYTES_MAX,
    PARTS_BYTES_MAX,
    Suspended,
    SuspendedReceiver,
    SuspendedSender,
    noted,
)
from clusterbroker.broker.wire.amqp10.errors import STOLEN, UNATTACHED_HANDLE, UNAUTHORIZED, LinkError, SessionError
from clusterbroker.broker.wire.amqp10.performatives import Attach, Detach

if TYPE_CHECKING:
    from clusterbroker.broker.fronts.amqp10.ports import SessionCore
    from clusterbroker.broker.node.links import Links as Registry
    from clusterbroker.broker.wire.amqp10.errors import Amqp10Error

Link = SenderLink | ReceiverLink | ResponseLink | ReplyLink | ParkedLink


_NONE: Final[dict[SenderLink, None]] = {}
"""Of a session without such links: there may be very many. It stays empty."""


class ByHandle(dict[int, Link]):
    """Links of one session, which their node counts."""

    __slots__ = ("_registry",)

    def __init__(self, registry: Registry) -> None:
        super().__init__()
        self._registry = registry

    def __setitem__(self, handle: int, link: Link) -> None:
        self._registry.handles += handle not in self
        super().__setitem__(handle, link)

    def pop(self, handle: int, *default: Any) -> Any:
        """As a dict's."""
        self._registry.handles -= handle in self
        return super().pop(handle, *default)

    def clear(self) -> None:
        """As a dict's."""
        self._registry.handles -= len(self)
        super().clear()


class Links:
    """Of one session."""

    __slots__ = ("_session", "by_handle", "detaching", "proving", "receivers", "suspended")

    def __init__(self, session: SessionCore) -> None:
        self._session = session
        self.by_handle: dict[int, Link] = ByHandle(session.access.node.links)
        self.detaching: tuple[int, ...] = ()
        self.receivers: dict[str, ReceiverLink] = {}
        """Those that are attached, by name."""
        self.proving: dict[SenderLink, None] = _NONE
        """Those whose clients prove what they have read (`sender_memory.Proof`)."""
        self.suspended = NOBODY
        """Of this session (`noted`)."""

    def find(self, handle: int) -> Link | None:
        """The link; None: it is about to be detached. Raises SessionError."""
        link = self.by_handle.get(handle)
        if link is None and handle not in self.detaching:
            raise SessionError(UNATTACHED_HANDLE, f"no link has handle {handle}")
        return link

    def add(self, link: Link) -> None:
        """It is attached, or about to be; whoever has its name is detached."""
        self.by_handle[link.handle] = link
        if isinstance(link, SenderLink):
            link.has_answer = True
        if not isinstance(link, SenderLink | ReceiverLink) or link.store is None:
            recoverable.end_known(self._session, link.identity)
        registry = self._session.access.node.links
        other = registry.attached(link.identity)
        if other is not None and other is not link:
            other.session.table.steal(other)  # type: ignore[attr-defined]
        registry.enter(link)

    def proves(self, link: SenderLink) -> None:
        """Its client proves what it has read."""
        if not self.proving:
            self.proving = {}
        self.proving[link] = None

    # -- the client goes

    def detach(self, detach: Detach) -> None:
        """The client detaches a link, or answers. Raises SessionError."""
        handle, session = int(detach.handle), self._session
        if handle in self.detaching:
            self.detaching = tuple(one for one in self.detaching if one != handle)
            return
        link = self.find(handle)
        assert link is not None, "it has a handle, and is not about to be detached"
        session.flush_confirms()  # what is told now the client has read when it attaches again
        if detach.closed and isinstance(link, SenderLink | ReceiverLink) and link.store is not None:
            store, link.store = link.store, None
            self._let_go(link)
            store.close(lambda: self._answer(handle, True, None))
            return
        if not detach.closed and self._suspend(link, Event.DETACH):
            session.send(Detach(handle=handle))
            return
        self._let_go(link)
        link.detached(detach.closed, lambda error: self._answer(handle, detach.closed, error))

    def _answer(self, handle: int, closed: bool, error: Amqp10Error | None) -> None:
        session = self._session
        if not session.closing and session.connection.ending is None:
            session.send(Detach(handle=handle, closed=closed, error=None if error is None else described(error)))
            session.want_send()

    def end(self, event: Event, until: int) -> None:
        """All links go, with their session or its connection."""
        node = self._session.access.node
        for link in tuple(self.by_handle.values()):
            self._suspend(link, event)
        connection = self._session.connection
        away = [before for before in self.suspended.values() if before.went(event)]
        connection.suspended = noted(connection.suspended, away, node)
        receivers = tuple(link for link in self.by_handle.values() if isinstance(link, ReceiverLink))
        for link in self.by_handle.values():
            link.interrupted()
            node.links.leave(link)
        self.by_handle.clear()
        self.receivers.clear()
        self.proving = _NONE
        let_go(node, receivers, until)

    def _suspend(self, link: Link, event: Event) -> bool:
        """False: its terms do not allow it, or there are too many of them."""
        node = self._session.access.node
        if self._leave_recoverable(link):
            return True
        if link.terms is NOTHING_KEPT or not link.terms.outlives(event):
            return False
        if not node.links.has_room(link.identity.user, self._session.access.is_administrator):
            return False
        if isinstance(link, SenderLink):
            left: Suspended = self._leave_sender(link)
        else:
            assert isinstance(link, ReceiverLink), "links to the node's management keep nothing"
            if not link.attached or link.queue.deleted:
                return False
            left = self._leave_receiver(link)
        self.by_handle.pop(link.handle, None)
        node.links.leave(link)
        node.links.suspend(left, node.now_ms)
        if left.went(event):
            self.suspended = noted(self.suspended, (left,), node)
        return True

    def _leave_recoverable(self, link: Link) -> bool:
        """Its state is in its queues; False: it is no such link."""
        session = self._session
        if isinstance(link, SenderLink) and link.store is not None:
            link.store.suspend(link.again if link.is_partial else ())
            link.store = None
            link.memory = memory = Memory((), (), link.unsettled)  # nobody asks it
            session.outcomes.hand_over(link, memory)
            link.interrupted()
            self.proving.pop(link, None)
        elif isinstance(link, ReceiverLink) and link.store is not None:
            seqs = [seq for _, _, seq in session.ledger.drain_of(link.credit)]
            session.ledger.interrupt(link.handle)
            link.store.suspend(link, seqs + link.stop())
            link.store = None
            if self.receivers.get(link.name) is link:
                del self.receivers[link.name]
        else:
            return False
        self.by_handle.pop(link.handle, None)
        session.access.node.links.leave(link)
        return True

    def _leave_sender(self, link: SenderLink) -> SuspendedSender:
        session, outcomes, incoming = self._session, self._session.outcomes, link.incoming
        connection = session.connection
        link.memory = memory = Memory(link.kept, () if link.proof is None else link.proof.tags(), link.unsettled)
        outcomes.hand_over(link, memory)
        part = None
        if incoming.partial and not incoming.settled and not link.posting:
            content = connection.decoder.part_of(incoming)
            kept = session.access.node.links.bytes_kept + len(content)
            if len(content) <= PART_BYTES_MAX and kept <= PARTS_BYTES_MAX:
                part = incoming.tag, content
        link.interrupted()
        self.proving.pop(link, None)
        return SuspendedSender(link.identity, session.access, link.terms, link.target, memory, part, connection.id)

    def _leave_receiver(self, link: ReceiverLink) -> SuspendedReceiver:
        session = self._session
        if self.receivers.get(link.name) is link:
            del self.receivers[link.name]
        seqs = [seq for _, _, seq in session.ledger.drain_of(link.credit)]
        session.ledger.interrupt(link.handle)
        left = SuspendedReceiver(link.identity, session.access, link.terms, link)
        seqs += link.leave(left)
        for seq in left.hold(seqs):
            link.queue.requeue(seq, False)
        return left

    # -- the node ends a link

    def cut(self, link: Link, error: Amqp10Error) -> None:
        """The session lives."""
        if self.by_handle.get(link.handle) is not link:
            return
        session = self._session
        session.access.node.log_fault(session.connection, error, session.number)
        if not self._leave_recoverable(link):
            self._let_go(link)
        self._detach(link.handle, error)

    def steal(self, link: Link) -> None:
        """Another attach has its name."""
        if self.by_handle.get(link.handle) is not link:
            return
        session = self._session
        error = LinkError(STOLEN, "another link of this name was attached")
        session.access.node.log_fault(session.connection, error, session.number)
        session.flush_confirms()
        if not self._suspend(link, Event.DETACH):
            self._let_go(link)
        self._detach(link.handle, error)

    def refuse(self, attach: Attach, error: LinkError) -> None:
        """A link that cannot be: an attach without a terminus, then detach (2.6.3)."""
        session, handle = self._session, int(attach.handle)
        session.access.node.log_fault(session.connection, error, session.number)
        link = self.by_handle.get(handle)
        if link is not None and not self._leave_recoverable(link):
            self.by_handle.pop(handle)
            session.access.node.links.leave(link)
            link.interrupted()
            if isinstance(link, SenderLink):
                self.proving.pop(link, None)
        session.send(refusal_of(session, attach))
        self._detach(handle, error)

    def _detach(self, handle: int, error: Amqp10Error) -> None:
        self.detaching += (handle,)
        self._session.send(Detach(handle=handle, closed=True, error=described(error)))

    def _let_go(self, link: Link) -> None:
        """What a link held returns to its queue."""
        session = self._session
        node = session.access.node
        self.by_handle.pop(link.handle, None)
        node.links.leave(link)
        link.interrupted()
        if isinstance(link, SenderLink):
            session.outcomes.forget(link)
            self.proving.pop(link, None)
            return
        if not isinstance(link, ReceiverLink):
            return
        if self.receivers.get(link.name) is link:
            del self.receivers[link.name]
        if not link.queue.deleted:
            link.queue.unsubscribe(link, node.now_ms)
        session.ledger.interrupt(link.handle)
        give_back(node, session.ledger.drain_of(link.credit), requeue=True, counted=False)

    # -- all of them

    def review_rights(self) -> None:
        """A permission changed: links whose user may not go on with them end."""
        access = self._session.access
        for link in tuple(self.by_handle.values()):
            try:
                if isinstance(link, ReceiverLink):
                    access.check("read", "queue", link.queue.name)
                elif isinstance(link, SenderLink) and link.place is not None:
                    access.check("write", "exchange", link.place.exchange)
            except Refusal as refusal:
                self.cut(link, LinkError(UNAUTHORIZED, refusal.text))

    def review_credit(self) -> None:
        """Publishers may go on, perhaps."""
        for link in self.by_handle.values():
            if isinstance(link, SenderLink):
                link.review_credit()

    def withhold_credit(self) -> None:
        """Publishers have to wait for an alarm's end."""
        for link in (one for one in self.by_handle.values() if isinstance(one, SenderLink)):
            link.withhold()

    def prove(self, now_ms: int) -> None:
        """Clients are asked whether they have read what was told them."""
        for link in self.proving:
            link.prove(now_ms)

    def mark_consumers(self) -> None:
        """Their queues may hand out again."""
        for link in tuple(self.receivers.values()):
            link.queue.ring.mark()
            link.go_on()
