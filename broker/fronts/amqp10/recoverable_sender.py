"""A sender link that survives connection, node and owner (class L2 of `keeping`): its state is in its queues' logs.

Who it is, and where it is attached, the wiring knows (`cluster.wiring.links`); each attach is a command. Each delivery
is stored with its tag, once, by every queue of its route (`queues.link_deliveries`), so whoever owns the queue can say
whether it is there. A client that comes back names what it is in doubt of:

    to a queue        its owner says which of these it has: accepted; the others come again, and are new
    to an exchange    nobody is asked: all come again, and each queue of the route stores what it does not have

A queue forgets a tag when its client has settled the delivery, or has proven that it read its outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.fronts.amqp10 import resuming
from clusterbroker.broker.fronts.amqp10.attach_answer import answer_with, answering
from clusterbroker.broker.fronts.amqp10.expiry import NEVER
from clusterbroker.broker.fronts.amqp10.resuming import Told
from clusterbroker.broker.node.link_recovery import Attachment
from clusterbroker.broker.queues.link_deliveries import AskedTags, Tagged, value_of
from clusterbroker.broker.wire.amqp10.errors import (
    RESOURCE_DELETED,
    RESOURCE_LIMIT,
    STOLEN,
    UNAUTHORIZED,
    LinkError,
)
from clusterbroker.broker.wire.amqp10.performatives import Attach, Target
from clusterbroker.cluster.errors import AccessRefused, LimitReached, NotFound, PreconditionFailed, Unavailable
from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.wiring.commands import AttachLink

if TYPE_CHECKING:
    from clusterbroker.broker.fronts.amqp10.addresses import Target as Place
    from clusterbroker.broker.fronts.amqp10.expiry import Terms
    from clusterbroker.broker.fronts.amqp10.ports import SessionCore
    from clusterbroker.broker.fronts.amqp10.sender_link import SenderLink
    from clusterbroker.broker.node.core import Node
    from clusterbroker.broker.queues.handle import QueueHandle
    from clusterbroker.broker.routing.router import Route
    from clusterbroker.cluster.wiring.map import Applied

RECOVERY: Final = "clusterbroker:link-recovery"
"""Capability: what a client desires, and the attach offers that is answered."""
DURABLE: Final = 2
"""terminus-durability: the unsettled state survives (3.5.4)."""
DECIDED_MS: Final = 20_000
"""So long an attach waits for the wiring, and for the owner of its queue."""
_CONDITIONS: Final[Mapping[Any, str]] = {
    NotFound: RESOURCE_DELETED,
    PreconditionFailed: RESOURCE_DELETED,
    AccessRefused: UNAUTHORIZED,
    LimitReached: RESOURCE_LIMIT,
    Unavailable: RESOURCE_LIMIT,
}


class RecoverableSender:
    """What an attached link of this kind has besides."""

    __slots__ = ("_node", "_number", "_over", "_queues", "again", "attachment")

    def __init__(self, node: Node, attachment: Attachment) -> None:
        self._node = node
        self.attachment = attachment
        self.again: frozenset[bytes] = frozenset()
        """Those of the next deliveries that may be known already."""
        self._number = 0
        self._queues: dict[QueueHandle, None] = {}
        self._over: list[bytes] = []

    def tagged(self, tags: list[bytes], route: Route[QueueHandle]) -> Tagged:
        """The next deliveries, on their way to these queues."""
        self.flush()
        self._queues.update(dict.fromkeys(route.targets))
        link, number = self.attachment.link, self._number
        self._number += len(tags)
        return Tagged(int(link.link), link.attach, number, tags, self.again.intersection(tags))

    def over(self, tags: Collection[bytes]) -> None:
        """Nobody asks for these any more."""
        self._over += tags

    def flush(self) -> None:
        """Their queues forget them."""
        if not self._over:
            return
        tags, self._over = self._over, []
        link = self.attachment.link
        for queue in tuple(self._queues):
            if queue.deleted:
                del self._queues[queue]
            else:
                queue.forget_tags(int(link.link), value_of(link.attach, self._number) - 1, tags)

    def resumed(self, queue: QueueHandle | None) -> None:
        """Deliveries of an earlier attach may be known to this queue."""
        if queue is not None:
            self._queues[queue] = None

    def suspend(self) -> None:
        """The client is away."""
        self.flush()
        self._node.recovery.suspend(self.attachment)

    def close(self) -> None:
        """The client ends the link."""
        self._node.recovery.forget(self.attachment)


def is_wanted(session: SessionCore, attach: Attach, place: Place | None, terms: Terms) -> bool:
    """Whether the client asks for such a link, and it can be one: with a target of its own, whose queues have logs."""
    target = attach.target
    if not isinstance(target, Target) or target.durable != DURABLE or RECOVERY not in attach.desired_capabilities:
        return False
    if place is None or not terms.outlives_connection or not session.connection.container_id or not attach.name:
        return False
    if not session.access.node.recovery.possible:
        return False
    if place.exchange:
        return place.exchange not in session.access.vhost.segments
    queue = session.access.vhost.queues.get(place.key)
    return queue is not None and queue.settings.durability != "memory"


def attach_sender(
    session: SessionCore, attach: Attach, link: SenderLink, client: Told | None, target: Target, terms: Terms
) -> None:
    """Orders the attach, and answers when it is known what is there of the link's deliveries."""
    Attaching(session, attach, link, client, target, terms).begin()


class Attaching:
    """One attach on its way."""

    __slots__ = ("_attach", "_attachment", "_client", "_link", "_over", "_session", "_since_ms", "_target", "_terms")

    def __init__(
        self, session: SessionCore, attach: Attach, link: SenderLink, client: Told | None, target: Target, terms: Terms
    ) -> None:
        self._session = session
        self._attach = attach
        self._link = link
        self._client = client
        self._target = target
        self._terms = terms
        self._attachment: Attachment | None = None
        self._over = False
        self._since_ms = session.access.node.now_ms

    def begin(self) -> None:
        session, link, terms = self._session, self._link, self._terms
        node, access = session.access.node, session.access
        identity = link.identity
        command = AttachLink(
            node=NodeId(node.options.name),
            incarnation=Incarnation(node.options.incarnation),
            vhost=identity.name.vhost,
            container=identity.name.container,
            name=identity.name.link,
            role="sender",
            terminus=str(self._target.address),
            user=identity.user,
            is_administrator=access.is_administrator,
            timeout_ms=None if terms.policy == NEVER and not terms.timeout_s else terms.timeout_s * 1000,
            resumes=self._client is not None and bool(self._client.states),
        )
        session.deadlines.append(self._overdue)
        node.recovery.attach(command, self._lost, self._guarded(self._attached))

    def _guarded(self, then: Callable[..., None]) -> Callable[..., None]:
        """What it raises costs this client, not the caller."""

        def guarded(*given: object) -> None:
            try:
                then(*given)
            except Exception as error:
                self._session.connection.crashed(error)

        return guarded

    @property
    def _is_here(self) -> bool:
        return self._session.links.get(self._link.handle) is self._link

    def _lost(self, goes_on: bool) -> None:
        """Another attach has the link, or it has ended."""
        error = LinkError(STOLEN, "the link was attached elsewhere") if goes_on else None
        self._link.store = None
        if self._is_here:
            self._session.cut(self._link, error or LinkError(RESOURCE_DELETED, "the link has ended"))
            self._session.want_send()

    def _overdue(self, now_ms: int) -> bool:
        if not self._over and now_ms - self._since_ms >= DECIDED_MS:
            self._refuse(LinkError(RESOURCE_LIMIT, "no majority, or no owner of the queue, has answered: attach again"))
        return self._over or not self._is_here

    def _refuse(self, error: LinkError) -> None:
        self._over = True
        if self._attachment is not None:
            self._session.access.node.recovery.suspend(self._attachment)
        if self._is_here:
            self._session.refuse(self._attach, error)
            self._session.want_send()

    def _attached(self, answered: Attachment | Applied) -> None:
        recovery = self._session.access.node.recovery
        if not isinstance(answered, Attachment):
            condition = _CONDITIONS.get(type(answered.error), RESOURCE_LIMIT)
            if not self._over:
                self._refuse(LinkError(condition, str(answered.error)))
            return
        if self._over or not self._is_here:
            recovery.suspend(answered)
            return
        self._attachment = answered
        client, link = self._client, self._link
        assert link.place is not None, "a link to anywhere is none of this kind"
        queue = None if link.place.exchange else self._session.access.vhost.queues.get(link.place.key)
        if queue is None or client is None or not client.states:
            self._decided(queue, [])
            return
        tags = [tag for tag, state in client.states.items() if not resuming.is_terminal(state)]
        asked = AskedTags(int(answered.link.link), answered.link.attach, tuple(tags), client.incomplete)
        queue.known_tags(asked, self._guarded(lambda known: self._decided(queue, known)))

    def _decided(self, queue: QueueHandle | None, known: list[bytes] | str) -> None:
        if self._over or not self._is_here or self._attachment is None:
            return
        if isinstance(known, str):
            self._refuse(LinkError(RESOURCE_LIMIT, f"{known}: attach again"))
            return
        self._over = True
        session, attach, link, client = self._session, self._attach, self._link, self._client
        max_message_size = session.access.node.options.message_bytes_max
        told = answering(
            attach,
            link,
            target=self._target,
            max_message_size=max_message_size,
            offered_capabilities=(RECOVERY,),
        )
        link.store = store = RecoverableSender(session.access.node, self._attachment)
        link.keep(self._terms, self._target)
        if client is None:
            answer_with(session, told, link)
        else:
            room = resuming.room_for_map(told, session.connection.out.frame_max)
            found = resuming.resume_sender(client, frozenset(known), {}, room)
            link.again = found.again
            link.kept = frozenset(known) - found.forgotten
            link.is_partial = found.is_partial
            store.resumed(queue)
            if not client.incomplete:
                session.access.node.recovery.keep(self._attachment.link, [*link.kept, *found.again])
            told.unsettled, told.incomplete_unsettled = {**found.map.states}, found.map.incomplete
            answer_with(session, told, link)
        link.review_credit()
        session.want_send()
