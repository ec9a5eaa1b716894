"""A client comes back to a link that is suspended (specification 2.6.13): both maps are compared, and the link goes on.

    no map            nothing is resumed: what the link held returns, and it is a new one
    a map             each delivery in doubt is answered as `resuming` says
    a map, no link    refused: only the client can say what its deliveries are worth

Another user's link is refused, and its name with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.fronts.amqp10 import recoverable, resuming
from clusterbroker.broker.fronts.amqp10.attach_answer import NO_MAP, answering, attached
from clusterbroker.broker.fronts.amqp10.changing import settle_first
from clusterbroker.broker.fronts.amqp10.positions import place_of
from clusterbroker.broker.fronts.amqp10.redelivery import resume
from clusterbroker.broker.fronts.amqp10.resuming import Map, Told
from clusterbroker.broker.fronts.amqp10.suspended import Suspended, SuspendedReceiver, SuspendedSender
from clusterbroker.broker.wire.amqp10.errors import RESOURCE_LIMIT, STOLEN, UNAUTHORIZED, LinkError
from clusterbroker.broker.wire.amqp10.performatives import Attach, Composite, Source, Target

if TYPE_CHECKING:
    from clusterbroker.broker.fronts.amqp10.expiry import Terms
    from clusterbroker.broker.fronts.amqp10.ports import SessionCore
    from clusterbroker.broker.fronts.amqp10.sender_link import SenderLink

DECIDED_MS: Final = 20_000
"""So long an attach waits until it is known what became of the link's deliveries."""


def before(session: SessionCore, attach: Attach) -> Suspended | None:
    """What the link of this name has left; one that is attached is detached first, wherever that is. Raises
    LinkError."""
    registry = session.access.node.links
    identity = session.identity(attach.name, attach.role)
    owner = registry.owner(identity.name)
    if owner is not None and owner != identity.user:
        raise LinkError(UNAUTHORIZED, "a link of this name is another user's")
    recoverable.known(session, identity)
    other: Any = registry.attached(identity)
    if other is not None:
        other.session.table.steal(other)
    left: Any = registry.find(identity)
    return left if isinstance(left, (SuspendedSender, SuspendedReceiver)) else None


def resumed(attach: Attach, left: Suspended | None) -> Told | None:
    """The client's map, if it comes back to what is left; what it does not want has ended with this. Raises
    LinkError."""
    client = resuming.told(attach)
    terminus = attach.source if attach.role else attach.target
    if left is not None and (client is None or not left.is_of(terminus)):
        left.end()
        left = None
    resuming.check_known(client, left is not None)
    return client if left is not None else None


def _room(session: SessionCore, told: Attach) -> int:
    return resuming.room_for_map(told, session.connection.out.frame_max)


def _answer(session: SessionCore, told: Attach, link: Any, answering_map: Map) -> None:
    """The link is attached again."""
    told.unsettled, told.incomplete_unsettled = {**answering_map.states}, answering_map.incomplete
    attached(session, link, told)


# -- the client sends


def resume_sender(
    session: SessionCore, attach: Attach, link: SenderLink, left: SuspendedSender, client: Told, target: Target,
    terms: Terms,
) -> None:  # fmt: skip
    """Answers when it is known what became of all that the link has sent. Raises LinkError."""
    node, registry = session.access.node, session.access.node.links
    told = answering(session, attach, target=target, max_message_size=node.options.message_bytes_max, **NO_MAP)
    since_ms = node.now_ms
    waits = True

    def is_here() -> bool:
        return session.links.get(link.handle) is link

    def refuse(error: LinkError) -> None:
        if is_here():
            session.refuse(attach, error)
            session.want_send()

    def overdue(now_ms: int) -> bool:
        nonlocal waits
        if waits and now_ms - since_ms >= DECIDED_MS:
            waits = False
            refuse(LinkError(RESOURCE_LIMIT, "the link's deliveries have not been decided yet: attach again"))
        return not waits or not is_here()

    def known(stored: frozenset[bytes] | LinkError) -> None:
        nonlocal waits
        if not waits or not is_here():
            return
        waits = False
        if isinstance(stored, LinkError):
            refuse(stored)
        elif registry.find(left.identity) is not left:
            refuse(LinkError(STOLEN, "another link of this name was attached"))
        else:
            registry.take(left)
            _go_on(session, told, link, left, client, stored, target, terms)
            session.want_send()

    if left.connection_id == session.connection.id:
        left.memory.read()
    tags = [tag for tag, state in client.states.items() if not resuming.is_terminal(state)]
    left.memory.known(tags, client.incomplete, known)
    if waits:
        session.deadlines.append(overdue)


def _go_on(
    session: SessionCore, told: Attach, link: SenderLink, left: SuspendedSender, client: Told,
    stored: frozenset[bytes], target: Target, terms: Terms,
) -> None:  # fmt: skip
    parts = {} if left.part is None else {left.part[0]: place_of(left.part[1])}
    found = resuming.resume_sender(client, stored, parts, _room(session, told))
    link.keep(terms, target)
    link.again = set(found.again)
    link.kept = set(stored - found.forgotten)
    link.is_partial = found.is_partial
    link.part = left.part if left.part is not None and left.part[0] in found.again else None
    _answer(session, told, link, found.map)
    link.review_credit()


# -- the client receives


def resume_receiver(
    session: SessionCore, attach: Attach, left: SuspendedReceiver, client: Told, source: Source, terms: Terms
) -> None:
    """What the link holds goes on in this session. Raises LinkError."""
    link, node = left.link, session.access.node
    mode, count = 1 if attach.snd_settle_mode == 1 else 0, link.delivery_count
    told = answering(session, attach, snd_settle_mode=mode, source=source, initial_delivery_count=count, **NO_MAP)
    node.links.take(left)
    seqs = {link.credit.tag_of(seq): seq for seq in left.let_go()}
    link.come_back(session, attach)
    link.terms, link.source = terms, source
    found = resuming.resume_receiver(client, seqs, _room(session, told))
    session.links[link.handle] = link
    session.consumers[link.name] = link
    outcomes = resume(link, seqs, found)
    backlog = link.backlog
    assert backlog is not None, "it was made just now"
    backlog.waits = True

    def settled(rest: Sequence[tuple[int, Composite]], _: bool) -> None:
        backlog.waits = False
        if session.links.get(link.handle) is link and link.session is session:
            _answer(session, told, link, found.map)
            link.go_on()
            session.want_send()
        for seq, outcome in rest:
            session.carry_out([(0, link.credit, seq)], outcome)

    settle_first(node, link, outcomes, settled)
