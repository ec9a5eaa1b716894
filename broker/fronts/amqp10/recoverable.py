"""Sender links whose deliveries are known to the logs of their queues: they outlive their connection and their node.

A client asks for it with a target of durability unsettled-state (2), an expiry that outlives the connection, and the
desired capability CAPABILITY, which the answer offers. Else the link's state is kept here, in memory (`links`).

    attach      ordered by the wiring (`LinkRecovery.attach`): whoever had the link, on whichever node, has it no more
                the client's map: its queue is asked which of the deliveries it knows; an exchange is not, each of its
                queues judges for itself what comes again
    detach      suspended in the wiring; closed: forgotten there, and by all queues
    transfers   their tags go with them to the queues, and stand in the groups of the messages

The time of a suspended link runs from its detach: the answering attach says so, as expiry-policy link-detach.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from clusterbroker.broker.fronts.amqp10 import resuming
from clusterbroker.broker.fronts.amqp10.attach_answer import NO_MAP, answering, attached
from clusterbroker.broker.fronts.amqp10.expiry import NEVER, Terms
from clusterbroker.broker.fronts.amqp10.sender_link import SenderLink
from clusterbroker.broker.fronts.amqp10.sender_memory import Proof
from clusterbroker.broker.node.link_recovery import Attachment
from clusterbroker.broker.queues.link_deliveries import AskedTags, Tagged, value_of
from clusterbroker.broker.wire.amqp10.errors import (
    PRECONDITION_FAILED,
    RESOURCE_DELETED,
    RESOURCE_LIMIT,
    STOLEN,
    UNAUTHORIZED,
    LinkError,
)
from clusterbroker.broker.wire.amqp10.performatives import Attach, Target
from clusterbroker.broker.wire.amqp10.types import Symbol
from clusterbroker.cluster.errors import AccessRefused, LimitReached, NotFound, Unavailable
from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.wiring import commands as c

if TYPE_CHECKING:
    from clusterbroker.broker.access.publisher import Named
    from clusterbroker.broker.fronts.amqp10.addresses import Target as Place
    from clusterbroker.broker.fronts.amqp10.outcomes import Unsettled
    from clusterbroker.broker.fronts.amqp10.ports import SessionCore
    from clusterbroker.broker.fronts.amqp10.resuming import Told
    from clusterbroker.broker.queues.handle import QueueHandle
    from clusterbroker.broker.routing.router import Route
    from clusterbroker.cluster.wiring.map import Applied
    from clusterbroker.journal.record import Message

CAPABILITY: Final = Symbol("clusterbroker:link-recovery")
UNSETTLED_STATE: Final = 2
"""Durability of a terminus (3.5.5)."""
ATTACHED_MS: Final = 20_000
"""So long an attach waits for the wiring, and for what its queue knows."""


def is_wanted(session: SessionCore, attach: Attach, target: Target, terms: Terms) -> bool:
    """Whether the client asks for a recoverable link, and there can be one."""
    return (
        target.durable == UNSETTLED_STATE
        and CAPABILITY in attach.desired_capabilities
        and terms.outlives_connection
        and bool(attach.name and session.connection.container_id)
        and session.access.node.recovery.possible
    )


class ReadProof(Proof):
    """What the client has read for certain its queues may forget."""

    __slots__ = ("_link",)

    def __init__(self, link: RecoverableLink) -> None:
        super().__init__()
        self._link = link

    def heard(self, total: int | None) -> None:
        asked = self._asked
        super().heard(total)
        if self._asked is not asked:
            self._link.forget([tag for tags in asked for tag in tags])


class RecoverableLink(SenderLink):
    """`attachment`: None before the wiring has ordered it, and when it is over. `queues`: those that know its
    deliveries."""

    __slots__ = ("attachment", "coming", "number", "queues")

    def __init__(self, session: SessionCore, attach: Attach, place: Place | None) -> None:
        super().__init__(session, attach, place)
        self.attachment: Attachment | None = None
        self.number = 0
        self.coming: frozenset[bytes] = frozenset()
        """Of the batch: what may be known to queues already."""
        self.queues: dict[QueueHandle, None] = {}

    def keep(self, terms: Terms, target: Target) -> None:
        super().keep(terms, target)
        if self.proof is not None:
            self.proof = ReadProof(self)

    # -- transfers

    def _resumed(self, tags: Sequence[bytes]) -> None:
        kept = self.kept
        self.coming = self.again.intersection(tags)
        super()._resumed(tags)
        if kept and not self.kept:  # the client has read that they are accepted
            self.forget(list(kept))

    def repeated(self, number: int, tag: bytes, settled: bool) -> None:
        was_kept = tag in self.kept
        super().repeated(number, tag, settled)
        if was_kept and settled:
            self.forget([tag])

    def settled(self, tags: Collection[bytes], accepted: bool) -> None:
        super().settled(tags, accepted)
        if not self.settles_first:  # by the client
            self.forget(list(tags))

    def forget(self, tags: list[bytes]) -> None:
        """The client does not ask for these any more."""
        if self.attachment is None or not tags:
            return
        link = self.attachment.link
        upto = value_of(link.attach, self.number) - 1
        for queue in self.queues:
            if not queue.deleted:
                queue.forget_tags(link.link, upto, tags)

    def _hand_on(
        self, route: Route[QueueHandle], messages: Sequence[Message], ticket: Unsettled | None, named: Named | None
    ) -> None:
        if ticket is None or self.attachment is None or route.onward is not None:
            super()._hand_on(route, messages, ticket, named)
            return
        link, tags = self.attachment.link, ticket.tags
        again = self.coming.intersection(tags) if self.coming else self.coming
        tagged = Tagged(link.link, link.attach, self.number, tags, again)
        self.number += len(tags)
        for queue in route.targets:
            self.queues[queue] = None
        self.session.publisher.publish(route, messages, False, ticket, tagged=tagged)

    # -- the end

    def suspend(self) -> None:
        """The client is away."""
        attachment, self.attachment = self.attachment, None
        if attachment is not None:
            self.session.access.node.recovery.suspend(attachment)

    def forget_link(self, then: Callable[[], None]) -> None:
        """The link is over; `then()` when everybody knows."""
        attachment, self.attachment = self.attachment, None
        if attachment is None:
            then()
        else:
            self.session.access.node.recovery.forget(attachment, then)

    def interrupted(self) -> None:
        super().interrupted()
        self.forget_link(lambda: None)


# -- attaching


def attach(session: SessionCore, performative: Attach, place: Place | None, target: Target, asked: Terms) -> None:
    """Answers when the wiring has ordered it, and the link's queue has said what it knows. Raises LinkError."""
    client = resuming.told(performative)
    terms = asked if asked.policy == NEVER else Terms("link-detach", asked.timeout_s)
    target = replace(target, expiry_policy=terms.policy)
    told = answering(
        session, performative, target=target, max_message_size=session.access.node.options.message_bytes_max,
        offered_capabilities=(CAPABILITY,), **NO_MAP,
    )  # fmt: skip
    link = RecoverableLink(session, performative, place)
    session.links[link.handle] = link
    Attaching(session, performative, link, client, target, terms, told).begin()


class Attaching:
    """One that is not answered yet."""

    def __init__(
        self, session: SessionCore, attach: Attach, link: RecoverableLink, client: Told | None, target: Target,
        terms: Terms, told: Attach,
    ) -> None:  # fmt: skip
        """`told`: the answer."""
        self._session = session
        self._attach = attach
        self._link = link
        self._client = client if client is not None and (client.states or client.incomplete) else None
        self._target = target
        self._terms = terms
        self._told = told
        self._since_ms = session.access.node.now_ms
        self._waits = True

    def begin(self) -> None:
        """Asks the wiring."""
        session, name = self._session, self._link.identity.name
        options, access = session.access.node.options, session.access
        command = c.AttachLink(
            node=NodeId(options.name),
            incarnation=Incarnation(options.incarnation),
            vhost=name.vhost,
            container=name.container,
            name=name.link,
            role="sender",
            terminus=str(self._target.address or ""),
            user=access.principal,
            is_administrator=access.is_administrator,
            timeout_ms=None if self._terms.policy == NEVER else self._terms.timeout_s * 1000,
            resumes=self._client is not None,
        )
        access.node.recovery.attach(command, self._lost, self._ordered)
        if self._waits:
            session.deadlines.append(self._overdue)

    @property
    def _is_here(self) -> bool:
        return self._session.links.get(self._link.handle) is self._link

    def _overdue(self, now_ms: int) -> bool:
        if self._waits and now_ms - self._since_ms >= ATTACHED_MS:
            self._refuse(LinkError(RESOURCE_LIMIT, "no majority of nodes, or the link's queue does not answer"))
        return not self._waits

    def _refuse(self, error: LinkError) -> None:
        self._waits = False
        if self._is_here:
            self._link.suspend()
            self._session.refuse(self._attach, error)
            self._session.want_send()

    def _lost(self, goes_on: bool) -> None:
        """The link is another attach's, or has ended."""
        if goes_on:
            error = LinkError(STOLEN, "another link of this name was attached")
        else:
            error = LinkError(RESOURCE_DELETED, "the link has ended")
        if self._waits:
            self._refuse(error)
        elif self._is_here:
            self._session.cut(self._link, error)
            self._session.want_send()

    def _ordered(self, answer: Attachment | Applied) -> None:
        recovery = self._session.access.node.recovery
        if not isinstance(answer, Attachment):
            self._refuse(_refusal(answer))
            return
        if not self._waits or not self._is_here:  # its client has not waited
            recovery.suspend(answer)
            return
        self._link.attachment = answer
        if self._client is None:
            self._known([])
            return
        place, link = self._link.place, answer.link
        tags = tuple(tag for tag, state in self._client.states.items() if not resuming.is_terminal(state))
        queue = None
        if place is not None and not place.exchange:
            queue = self._session.access.vhost.queues.get(place.key)
        if queue is None:
            self._known([])
        else:
            self._link.queues[queue] = None
            queue.known_tags(AskedTags(link.link, link.attach, tags, self._client.incomplete), self._known)

    def _known(self, stored: list[bytes] | str) -> None:
        if not self._waits or not self._is_here:
            return
        if isinstance(stored, str):
            self._refuse(LinkError(STOLEN, stored))
            return
        self._waits = False
        session, link, node = self._session, self._link, self._session.access.node
        link.keep(self._terms, self._target)
        told = self._told
        told.unsettled, told.incomplete_unsettled = None, False
        if self._client is not None:
            room = resuming.room_for_map(told, session.connection.out.frame_max)
            found = resuming.resume_sender(self._client, frozenset(stored), {}, room)
            link.again, link.is_partial = found.again, found.is_partial
            link.kept = frozenset(stored).difference(found.forgotten)
            told.unsettled, told.incomplete_unsettled = {**found.map.states}, found.map.incomplete
            if not found.is_partial and link.attachment is not None:
                node.recovery.keep(link.attachment.link, [*found.again, *link.kept])
        attached(session, link, told)
        link.review_credit()
        session.want_send()


def _refusal(answer: Applied) -> LinkError:
    """What the wiring says, in terms of AMQP 1.0."""
    error = answer.error
    assert error is not None, "it is refused"
    condition = PRECONDITION_FAILED
    match error:
        case NotFound():
            condition = RESOURCE_DELETED
        case AccessRefused():
            condition = UNAUTHORIZED
        case LimitReached() | Unavailable():
            condition = RESOURCE_LIMIT
    return LinkError(condition, error.text)
