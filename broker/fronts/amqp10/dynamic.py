"""Dynamic nodes: queues that an attach makes, and when they end (3.5.3, 3.5.4, 3.5.10 to 3.5.13).

    lifetime-policy                     the queue is deleted when there are no more
    delete-on-close                     its creator: the link that made it; the default
    delete-on-no-links                  links to it
    delete-on-no-messages               creator, and messages
    delete-on-no-links-or-messages      links to it, and messages

Such a queue is exclusive: it ends with its connection at the latest, and no other connection consumes from it. Links
that count are the receivers of its connection, and the senders of all connections of this node. A link that is detached
is gone, whether it was closed or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.access.admin import Admin
from clusterbroker.broker.access.errors import Refusal
from clusterbroker.broker.access.questions import Pending
from clusterbroker.broker.fronts.amqp10.conditions import Refused
from clusterbroker.broker.fronts.amqp10.parked import ParkedLink
from clusterbroker.broker.fronts.amqp10.ports import Detached, SessionCore
from clusterbroker.broker.wire.amqp10.errors import INVALID_FIELD, LinkError
from clusterbroker.broker.wire.amqp10.performatives import (
    Attach,
    Composite,
    DeleteOnClose,
    DeleteOnNoLinks,
    DeleteOnNoLinksOrMessages,
    DeleteOnNoMessages,
    Source,
    Target,
    composed,
)
from clusterbroker.broker.wire.amqp10.types import DecodeError, Symbol, symbols

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization
    from clusterbroker.cluster.wiring.commands import Bind

LIFETIME: Final = "lifetime-policy"
DIST_MODES: Final = "supported-dist-modes"
MODES: Final = ("move", "copy")
"""Distribution modes of a queue."""
OF_LINKS: Final = (DeleteOnNoLinks, DeleteOnNoLinksOrMessages)
OF_MESSAGES: Final = (DeleteOnNoMessages, DeleteOnNoLinksOrMessages)
POLICIES: Final = (DeleteOnClose, *OF_LINKS, DeleteOnNoMessages)


class Errand:
    """What is done for a session when a link is over (`broker.access.questions.Client`)."""

    __slots__ = ("_refused", "_session")

    def __init__(self, session: SessionCore, refused: Callable[[Refused], None]) -> None:
        self._session = session
        self._refused = refused

    @property
    def access(self) -> Authorization:
        return self._session.access

    @property
    def deadlines(self) -> list[Callable[[int], bool]]:
        return self._session.deadlines

    @property
    def ending(self) -> str | None:
        return self._session.connection.ending

    def refuse(self, error: Refused) -> None:
        self._refused(error)

    def crashed(self, error: Exception) -> None:
        self._session.connection.crashed(error)


class DynamicNode:
    """A queue of one connection, and the links that it lives for."""

    __slots__ = ("_asking", "_session", "_waiting", "creator", "links", "name", "policy")

    def __init__(self, session: SessionCore, name: str, policy: type[Composite]) -> None:
        self._session = session
        self.name = name
        self.policy = policy
        self.creator: Any = None
        """The link that made it; None: there is none any more."""
        self.links: set[Any] = set()
        self._asking = False
        """The deletion is on its way."""
        self._waiting: list[Detached] = []

    def begin(self, link: Any) -> None:
        """The link that made it is attached."""
        self.creator = link

    def joined(self, link: Any) -> None:
        link.terminus = self
        self.links.add(link)
        if self.policy in OF_MESSAGES:
            link.session.deadlines.append(lambda _: self._looked(link))

    def _looked(self, link: Any) -> bool:
        """Of a link, about twice a second: it may have taken the last message."""
        if link in self.links:
            self.review()
        return link not in self.links

    def left(self, link: Any) -> None:
        """A link is over."""
        self.links.discard(link)
        if link is self.creator:
            self.creator = None
        self.review()

    def detached(self, _: bool, then: Detached) -> None:
        """The client hears of its detach when a deletion that comes of it is done."""
        if self._asking:
            self._waiting.append(then)
        else:
            then(None)

    def review(self) -> None:
        """Deletes it, if nothing is left that it lives for."""
        if self._asking or self._session.connection.ending is not None or self._is_needed():
            return
        self._asking = True
        self._session.access.node.soon(self._delete)  # when the link has left the queue

    def _is_needed(self) -> bool:
        """Ready messages apart: of these the deletion asks the queue."""
        if self.links if self.policy in OF_LINKS else self.creator is not None:
            return True
        return self.policy in OF_MESSAGES and any(getattr(link, "held", 0) for link in self.links)

    def _delete(self) -> None:
        if self._is_needed():  # a receiver has taken what was ready meanwhile, or a link has come
            self._refused()
            return
        access = self._session.access
        queue = access.vhost.queues.get(self.name)
        if queue is None:
            self._over()
            return
        question = Pending(Errand(self._session, self._refused))
        try:
            Admin(access).delete_queue(
                queue, question, lambda _: self._over(), if_unused=False, if_empty=self.policy in OF_MESSAGES,
                if_settled=True,
            )  # fmt: skip
        except Refusal as refusal:
            self._refused(refusal)

    def _over(self) -> None:
        self._session.connection.dynamic_nodes.pop(self.name, None)
        self._refused()

    def _refused(self, _: Refused | None = None) -> None:
        """It has messages, or there is no majority: it is looked at again, or ends with its connection."""
        self._asking = False
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then(None)


def find(session: SessionCore, name: str) -> DynamicNode | None:
    """The dynamic node that a queue is, whichever connection of this node has made it."""
    access = session.access
    queue = access.vhost.queues.get(name)
    owner = None if queue is None else access.node.clients.get(queue.entity.exclusive_owner or "")
    node: DynamicNode | None = getattr(owner, "dynamic_nodes", {}).get(name)
    return node


def join(session: SessionCore, link: Any, name: str) -> None:
    """A link to a queue was attached, which may live for its links."""
    node = find(session, name)
    if node is not None:
        node.joined(link)


def make(
    session: SessionCore,
    attach: Attach,
    policy: type[Composite],
    then: Callable[[DynamicNode], None],
    bind: Callable[[str], Bind] | None = None,
    arguments: dict[str, Any] | None = None,
) -> None:
    """Makes the queue of a dynamic terminus, with these arguments, and its binding: `bind` has its name. Raises
    LinkError and Refusal."""
    access, connection = session.access, session.connection
    name = f"amq.gen-{access.node.secret_name()}"
    if attach.role:
        access.check("read", "queue", name)
    else:
        access.check("write", "exchange", "")
    admin = Admin(access)
    command = admin.declare_queue(
        name, arguments or {}, durable=False, auto_delete=False, exclusive=True, server_named=True
    )
    binding = None if bind is None else bind(name)
    connection.exclusive_queues = True  # before it is there: a connection that is lost meanwhile ends it as well
    waiting = ParkedLink(session, attach)

    def made(*_: Any) -> None:
        node = DynamicNode(session, name, policy)
        if not connection.dynamic_nodes:
            connection.dynamic_nodes = {}
        connection.dynamic_nodes[name] = node
        waiting.go_on(lambda: then(node))
        node.review()  # nobody lives for it, if its link was refused

    def declared(*_: int) -> None:
        if binding is None:
            made()
        else:
            admin.order(binding, Pending(waiting), made)

    admin.order_queue(command, Pending(waiting), declared)


def in_force(terminus: Source | Target) -> tuple[type[Composite], dict[Any, Any]]:
    """The lifetime policy of a dynamic terminus, and its dynamic-node-properties as they are answered. Raises
    LinkError."""
    if terminus.address is not None:
        raise LinkError(INVALID_FIELD, "a dynamic terminus has no address: the node gives it one")
    asked = terminus.dynamic_node_properties or {}
    try:
        policy: Any = type(composed(asked.get(Symbol(LIFETIME))))
    except DecodeError as error:
        raise LinkError(INVALID_FIELD, f"{LIFETIME}: {error}") from None
    policy = policy if policy in POLICIES else DeleteOnClose
    known: dict[Any, Any] = {Symbol(LIFETIME): policy()}
    if Symbol(DIST_MODES) in asked:
        known[Symbol(DIST_MODES)] = symbols(MODES)
    return policy, known
