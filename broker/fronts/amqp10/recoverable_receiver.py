"""A recoverable link whose receiver is the client (`recoverable`): what it is handed it holds, until it is settled.

The queue's log says what each such link holds, before it is sent (`queues.link_holding`). So whoever owns the queue
keeps it from others, and a client that comes back, at whichever node, gets it again or says what becomes of it. While
the link is suspended nobody of this node has its messages: they stay with the link (`QueueHandle.leave_to_link`).

A filter is told at each attach, as all of a source is (2.6.3). It is part of the terminus by which the wiring knows the
link: a map for another filter is refused, and without a map another filter makes another link.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.fronts.amqp10 import resuming
from clusterbroker.broker.fronts.amqp10.attach_answer import NO_MAP, answering
from clusterbroker.broker.fronts.amqp10.changing import settle_first
from clusterbroker.broker.fronts.amqp10.recoverable import Attaching, is_asked
from clusterbroker.broker.fronts.amqp10.redelivery import begin_again, resume
from clusterbroker.broker.fronts.amqp10.resuming import RECOVERY, WITHDRAWN, Told
from clusterbroker.broker.node.link_recovery import Attachment
from clusterbroker.broker.queues.handle import GONE, CommitPart
from clusterbroker.broker.queues.link_held import HeldMessages, LinkAttach
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.wire.amqp10.errors import (
    NOT_FOUND,
    RESOURCE_DELETED,
    RESOURCE_LIMIT,
    RESOURCE_LOCKED,
    LinkError,
)
from clusterbroker.broker.wire.amqp10.performatives import Attach, Composite, Source

if TYPE_CHECKING:
    from clusterbroker.broker.content.selector.filters import Filter
    from clusterbroker.broker.fronts.amqp10.expiry import Terms
    from clusterbroker.broker.fronts.amqp10.ports import SessionCore
    from clusterbroker.broker.fronts.amqp10.receiver_link import ReceiverLink
    from clusterbroker.broker.node.core import Node
    from clusterbroker.broker.queues.handle import QueueHandle

TAG_BYTES: Final = 10
"""Of a delivery of such a link: seq and gap."""
FORGOTTEN_AT_ONCE: Final = 4096


class RecoverableReceiver:
    """What an attached link of this kind has besides."""

    __slots__ = ("_node", "attachment", "queue")

    def __init__(self, node: Node, attachment: Attachment, queue: QueueHandle) -> None:
        self._node = node
        self.attachment = attachment
        self.queue = queue

    def suspend(self, link: ReceiverLink, seqs: Sequence[int]) -> None:
        """The client is away; `seqs` are held."""
        if not self.queue.deleted:
            self.queue.leave_to_link(seqs)
            self.queue.unsubscribe(link, self._node.now_ms)
        self._node.recovery.suspend(self.attachment)

    def close(self, then: Callable[[], None]) -> None:
        """The client ends the link; `then()` when a later attach finds nothing of it. The queue has heard before
        what its client has settled: with the link its word ends."""
        ticket = Ticket(1, 1, lambda _: self._node.recovery.forget(self.attachment, then))
        if not self.queue.deleted:
            self.queue.commit(CommitPart(), ticket, self._node.now_ms)
        ticket.pass_()


def is_wanted(session: SessionCore, attach: Attach, queue: QueueHandle, terms: Terms) -> bool:
    """Whether the client asks for such a link, and it can be one: its deliveries are unsettled, its queue has a log."""
    source = attach.source
    if not isinstance(source, Source) or attach.snd_settle_mode == 1:
        return False
    settings = queue.settings
    return is_asked(session, attach, source, terms, settings) and settings.durability != "memory"


def terminus_of(address: str, wanted: Filter | None) -> str:
    """What a link of this address and filter is known again by: with another filter it is another link's messages."""
    return address if wanted is None else f"{address} filter:{wanted.digest.hex()}"


class AttachingReceiver(Attaching):
    """One attach on its way."""

    role = "receiver"
    resumes_nothing = True
    link: ReceiverLink

    __slots__ = ("_held", "_queue", "_source", "_withdrawn")

    def __init__(
        self, session: SessionCore, attach: Attach, link: ReceiverLink, client: Told | None, terms: Terms,
        source: Source, queue: QueueHandle,
    ) -> None:  # fmt: skip
        super().__init__(session, attach, link, client, terms)
        self._source = source
        self._queue = queue
        self._held: list[int] = []
        self._withdrawn: dict[bytes, int] = {}

    def ask(self, attachment: Attachment) -> None:
        link = LinkAttach(int(attachment.link.link), attachment.link.attach)
        if self.client is None:
            self._subscribe(link)
            return
        gap = self.link.credit.tag_of(0)[-2:]
        if any(len(tag) == TAG_BYTES and tag[-2:] != gap for tag in self.client.states):
            text = f"queue '{self._queue.name}' has lost messages since, or is another one by now"
            text += ": what the link held is not known"
            self.refuse(LinkError(RESOURCE_DELETED, text))
            return
        begin_again(self.link)
        self._queue.held_by(link, self.guarded(lambda held: self._told(link, held)))

    def _told(self, link: LinkAttach, held: Sequence[HeldMessages] | str) -> None:
        assert self.client is not None, "only who resumes a link asks what it holds"
        if isinstance(held, str):
            self._refused(held)
            return
        self._held = [seq for one in held if not one.withdrawn for seq in one.seqs]
        tag_of = self.link.credit.tag_of
        withdrawn = {tag_of(seq): seq for one in held if one.withdrawn for seq in one.seqs}
        states = self.client.states
        done = {tag for tag in withdrawn if states.get(tag) == WITHDRAWN}  # what the client wants has happened
        self._withdrawn = {tag: seq for tag, seq in withdrawn.items() if tag in states and tag not in done}
        over = done if self.client.incomplete else withdrawn.keys() - self._withdrawn.keys()
        self._forget(link, [seq.to_bytes(8) for tag, seq in withdrawn.items() if tag in over])

    def _forget(self, link: LinkAttach, heard: list[bytes]) -> None:
        """The client knows of these that they were withdrawn. Before that is committed the link gets nothing: one of
        them might be handed to it again, and its tag would be that of both."""
        if not self.waits:
            self._queue.leave_to_link(self._held, link)
            assert self.attachment is not None, "it was ordered"
            self.session.access.node.recovery.suspend(self.attachment)
        elif heard:
            rest = self.guarded(lambda: self._forget(link, heard[FORGOTTEN_AT_ONCE:]))
            self._queue.forget_tags(link.link, 0, heard[:FORGOTTEN_AT_ONCE], rest)
        else:
            self._subscribe(link)

    def _subscribe(self, link: LinkAttach) -> None:
        now_ms = self.session.access.node.now_ms
        self.link.attach = link
        self._queue.subscribe_link(self.link, link, now_ms, self.guarded(self._subscribed))

    def _refused(self, why: str) -> None:
        if why == GONE:
            self.refuse(LinkError(NOT_FOUND, f"no queue '{self._queue.name}'"))
        else:
            self.refuse(LinkError(RESOURCE_LOCKED, f"queue '{self._queue.name}' {why}"))

    def make_answer(self) -> Attach:
        return answering(
            self.session, self.attach, snd_settle_mode=0, source=self._source, initial_delivery_count=0,
            offered_capabilities=(RECOVERY,), **NO_MAP,
        )  # fmt: skip

    def _subscribed(self, refused: str) -> None:
        if refused or not self.waits:
            if not refused:
                self._queue.unsubscribe(self.link, self.session.access.node.now_ms)
            self._queue.leave_to_link(self._held, self.link.attach)
            self._refused(refused)
            return
        session, link, client = self.session, self.link, self.client
        assert self.attachment is not None, "it was ordered"
        link.store = RecoverableReceiver(session.access.node, self.attachment, self._queue)
        link.terms = self.terms
        session.consumers[link.name] = link
        if client is None:
            self.answer(None)
            link.begin()
            session.review_rights()
            return
        seqs = {link.credit.tag_of(seq): seq for seq in self._held}
        found = resuming.resume_receiver(client, seqs, self.room, self._withdrawn)
        outcomes = resume(link, seqs, found, self._withdrawn)
        backlog = link.backlog
        assert backlog is not None, "it was made just now"
        backlog.waits = True

        def settled(rest: Sequence[tuple[int, Composite]], void: bool) -> None:
            backlog.waits = False
            if not self.waits or link.store is None:
                return  # it is suspended again, or over, with what it holds
            if void:
                self.refuse(LinkError(RESOURCE_LIMIT, "an outcome could not be carried out: attach again"))
                return
            self.answer(found.map)
            link.begin()
            link.go_on()
            for seq, outcome in rest:
                session.carry_out([(0, link.credit, seq)], outcome)
            session.review_rights()

        settle_first(session.access.node, link, outcomes, self.guarded(settled))
