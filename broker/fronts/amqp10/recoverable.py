"""A link that survives connection, node and owner (class L2 of `suspended`) is attached: what both roles have of it.

Who the link is, and where it is attached, the wiring knows (`cluster.wiring.links`): each attach is a command. The
later one has the link, on whichever node, and the older one is detached with `amqp:link:stolen`. Its state is in the
logs of its queues (`recoverable_sender`, `recoverable_receiver`).

    attach --AttachLink--> the wiring --what is known of its deliveries--> its queue's owner --> the answering attach

An attach that gets no answer is refused, and what has come of it meanwhile is suspended.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from clusterbroker.broker.fronts.amqp10.attach_answer import attached
from clusterbroker.broker.fronts.amqp10.expiry import NEVER, Terms
from clusterbroker.broker.fronts.amqp10.resuming import RECOVERY, Map, Told, room_for_map
from clusterbroker.broker.node.link_recovery import Attachment
from clusterbroker.broker.wire.amqp10.errors import (
    PRECONDITION_FAILED,
    RESOURCE_DELETED,
    RESOURCE_LIMIT,
    STOLEN,
    UNAUTHORIZED,
    LinkError,
)
from clusterbroker.broker.wire.amqp10.performatives import Attach, Source, Target
from clusterbroker.cluster.errors import AccessRefused, LimitReached, NotFound, PreconditionFailed, Unavailable
from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.wiring.commands import AttachLink

if TYPE_CHECKING:
    from clusterbroker.broker.fronts.amqp10.expiry import LinkSettings
    from clusterbroker.broker.fronts.amqp10.ports import SessionCore
    from clusterbroker.broker.node.links import Identity
    from clusterbroker.cluster.wiring.commands import LinkRole
    from clusterbroker.cluster.wiring.entities import RecoverableLink
    from clusterbroker.cluster.wiring.map import Applied

DURABLE: Final = 2
"""terminus-durability: the unsettled state survives (3.5.4)."""
DECIDED_MS: Final = 20_000
"""So long an attach waits for the wiring, and for the owner of its queue."""
_CONDITIONS: Final[Mapping[Any, str]] = {
    NotFound: RESOURCE_DELETED,
    PreconditionFailed: PRECONDITION_FAILED,
    AccessRefused: UNAUTHORIZED,
    LimitReached: RESOURCE_LIMIT,
    Unavailable: RESOURCE_LIMIT,
}


def is_asked(
    session: SessionCore, attach: Attach, terminus: Source | Target, terms: Terms, settings: LinkSettings | None
) -> bool:
    """Whether the client wants such a link, or a policy does, and this node can keep one. A container, and a link, has
    a name."""
    if terminus.durable != DURABLE or not terms.outlives_connection:
        return False
    wants = RECOVERY in attach.desired_capabilities or (settings is not None and settings.link_recovery is True)
    named = bool(session.connection.container_id and attach.name)
    return wants and named and session.access.node.recovery.possible


def in_force(terms: Terms) -> Terms:
    """Of such a link: its time runs from its detach, wherever that is heard of."""
    return terms if terms.policy == NEVER else Terms("link-detach", terms.timeout_s)


def known(session: SessionCore, identity: Identity) -> RecoverableLink | None:
    """The link of this name that queues' logs keep. Raises LinkError for another user's."""
    name = identity.name
    role: LinkRole = "receiver" if name.role else "sender"
    found = session.access.node.map.link_named(name.vhost, name.container, name.link, role)
    if found is not None and found.user != identity.user:
        raise LinkError(UNAUTHORIZED, "a link of this name is another user's")
    return found


def end_known(session: SessionCore, identity: Identity) -> None:
    """A link that is none of these takes the name: what one of these held returns to its queue."""
    found = known(session, identity)
    if found is not None:
        session.access.node.recovery.begun_anew(found)


class Attaching:
    """One attach on its way."""

    role: Literal["sender", "receiver"]
    resumes_nothing = False
    """An empty map resumes what the link has."""

    __slots__ = ("attach", "attachment", "client", "link", "over", "session", "since_ms", "terms", "told")

    def __init__(self, session: SessionCore, attach: Attach, link: Any, client: Told | None, terms: Terms) -> None:
        self.session = session
        self.attach = attach
        self.link = link
        self.client = client
        self.terms = terms
        self.attachment: Attachment | None = None
        self.over = False
        self.told = Attach("", 0, False)
        self.since_ms = session.access.node.now_ms

    def begin(self, address: str) -> None:
        """Orders it; `address` is the terminus, by which a link is known again. Raises LinkError for an answer that is
        more than the client's frames take."""
        self.told = self.make_answer()
        self.session.deadlines.append(self._overdue)
        client = self.client
        resumes = client is not None and (bool(client.states) or client.incomplete or self.resumes_nothing)
        self._order(address, resumes)

    def _order(self, address: str, resumes: bool) -> None:
        node, access, identity = self.session.access.node, self.session.access, self.link.identity
        terms = self.terms
        command = AttachLink(
            node=NodeId(node.options.name),
            incarnation=Incarnation(node.options.incarnation),
            vhost=identity.name.vhost,
            container=identity.name.container,
            name=identity.name.link,
            role=self.role,
            terminus=address,
            user=identity.user,
            is_administrator=access.is_administrator,
            timeout_ms=None if terms.policy == NEVER and not terms.timeout_s else terms.timeout_s * 1000,
            resumes=resumes,
        )

        def answered(answer: Attachment | Applied) -> None:
            if isinstance(answer, Attachment):
                self._ordered(answer)
            elif resumes and isinstance(answer.error, NotFound) and self.client is not None and not self.client.states:
                self.client = None  # it has nothing of a link that there is not
                self._order(address, False)
            elif not self.over:
                self.refuse(LinkError(_CONDITIONS.get(type(answer.error), RESOURCE_LIMIT), str(answer.error)))

        node.recovery.attach(command, self._lost, self.guarded(answered))

    def guarded(self, then: Callable[..., None]) -> Callable[..., None]:
        """What it raises costs this client, not the caller."""

        def guarded(*given: object) -> None:
            try:
                then(*given)
            except Exception as error:
                self.session.connection.crashed(error)

        return guarded

    @property
    def waits(self) -> bool:
        """The client waits for the answer."""
        return not self.over and self.session.links.get(self.link.handle) is self.link

    def _lost(self, goes_on: bool) -> None:
        """Another attach has the link, or it has ended."""
        if self.session.links.get(self.link.handle) is self.link:
            stolen = LinkError(STOLEN, "the link was attached elsewhere")
            self.session.cut(self.link, stolen if goes_on else LinkError(RESOURCE_DELETED, "the link has ended"))
            self.session.want_send()

    def _overdue(self, now_ms: int) -> bool:
        if self.waits and now_ms - self.since_ms >= DECIDED_MS:
            self.refuse(LinkError(RESOURCE_LIMIT, "no majority, or no owner of the queue, has answered: attach again"))
        return not self.waits

    def refuse(self, error: LinkError) -> None:
        """The client hears why; what there is of the link stays."""
        waits, self.over = self.waits, True
        if self.attachment is not None:
            self.session.access.node.recovery.suspend(self.attachment)
        if waits:
            self.session.refuse(self.attach, error)
            self.session.want_send()

    def _ordered(self, attachment: Attachment) -> None:
        if not self.waits:
            self.session.access.node.recovery.suspend(attachment)
            return
        self.attachment = attachment
        self.ask(attachment)

    @abstractmethod
    def make_answer(self) -> Attach:
        """With the shortest map there is. Raises LinkError."""

    @abstractmethod
    def ask(self, attachment: Attachment) -> None:
        """The link is attached: its queue says what it knows, and the client is answered."""

    @property
    def room(self) -> int:
        """For entries of the answer's map."""
        return room_for_map(self.told, self.session.connection.out.frame_max)

    def answer(self, found: Map | None) -> None:
        """The client has the link."""
        told, self.over = self.told, True
        told.unsettled = None if found is None else {**found.states}
        told.incomplete_unsettled = found is not None and found.incomplete
        attached(self.session, self.link, told)
        self.session.want_send()
