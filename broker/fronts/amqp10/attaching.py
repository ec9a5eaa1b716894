"""An attach: what its terminus names, whether its user may, and what the link is in the end (2.6.3, 3.5).

Rights are asked first: who has none learns nothing of whether the node exists. What a source's filters ask for and this
node does not know is left out of the answer, which says what is in force (3.5.8).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from clusterbroker.broker.access import receiver
from clusterbroker.broker.access.errors import Refusal, not_found
from clusterbroker.broker.access.questions import Pending
from clusterbroker.broker.access.readers import OFFSET_MAX, StreamReader
from clusterbroker.broker.fronts.amqp10 import management_link
from clusterbroker.broker.fronts.amqp10.addresses import MANAGEMENT, queue_of, target_of
from clusterbroker.broker.fronts.amqp10.addresses import Target as Place
from clusterbroker.broker.fronts.amqp10.attach_answer import answer, answer_of
from clusterbroker.broker.fronts.amqp10.conditions import link_error
from clusterbroker.broker.fronts.amqp10.ports import SessionCore
from clusterbroker.broker.fronts.amqp10.receiver_link import Attaching, ReceiverLink
from clusterbroker.broker.fronts.amqp10.reply_link import KEY, attach_replies, is_volatile
from clusterbroker.broker.fronts.amqp10.sender_link import SenderLink, check
from clusterbroker.broker.fronts.amqp10.transacting import CAPABILITIES, CoordinatorLink
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.wire.amqp10.errors import (
    HANDLE_IN_USE,
    INVALID_FIELD,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT,
    STOLEN,
    LinkError,
    SessionError,
    framing_error,
)
from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Coordinator,
    Modified,
    Rejected,
    Released,
    Source,
    Target,
)
from clusterbroker.broker.wire.amqp10.types import Described, Milliseconds, Symbol
from clusterbroker.cluster.wiring.stream_settings import STREAM

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization

HANDLE_MAX: Final = 1023
NAME_BYTES_MAX: Final = 256
OUTCOMES: Final = tuple(kind.SYMBOL for kind in (Accepted, Rejected, Released, Modified))
OFFSET: Final = "rabbitmq:stream-offset-spec"
PRIORITY: Final = "rabbitmq:priority"
STREAM_OFFSET: Final = b"\xa3\x0fx-stream-offset"
"""The annotation with a message's offset, as a symbol on the wire."""
PRIORITY_MAX: Final = 2**31 - 1


def attach(session: SessionCore, performative: Attach) -> None:
    """Takes an attach up; a queue's owner may have to be asked. Raises SessionError and ConnectionFault10."""
    handle = int(performative.handle)
    if handle > HANDLE_MAX:
        raise framing_error(f"handle {handle} is above the handle-max of {HANDLE_MAX}")
    if handle in session.links or handle in session.detaching:
        raise SessionError(HANDLE_IN_USE, f"handle {handle} is in use")
    try:
        if len(performative.name.encode()) > NAME_BYTES_MAX:
            raise LinkError(INVALID_FIELD, f"a link's name has at most {NAME_BYTES_MAX} bytes")
        _steal(session, performative)
        session.connection.names.check()
        if performative.role:
            _receive(session, performative)
        else:
            _send(session, performative)
    except LinkError as error:
        session.refuse(performative, error)
    except Refusal as refusal:
        session.refuse(performative, link_error(refusal))


def _steal(session: SessionCore, performative: Attach) -> None:
    """A name is one link's, in its direction: the later attach has it (2.6.1)."""
    link = session.connection.names.find(performative.name, performative.role)
    if link is not None:
        link.session.cut(link, LinkError(STOLEN, "another link of this name was attached"))


def place(access: Authorization, address: str) -> Place:
    """Where messages to an address go. Raises LinkError for one that cannot be, and Refusal for one that its user may
    not send to, or that there is not."""
    vhost = access.vhost

    def is_exchange(name: str) -> bool:
        return name not in vhost.queues and vhost.router.exchange_type(name) is not None

    found = target_of(address, is_exchange)
    access.check("write", "exchange", found.exchange)
    if not found.exchange and found.key not in vhost.queues and not found.key.startswith(KEY):
        raise access.no_queue(found.key)
    if found.exchange and vhost.router.exchange_type(found.exchange) is None:
        raise not_found(f"no exchange '{found.exchange}' in vhost '{vhost.name}'")
    return found


# -- the client sends


def _send(session: SessionCore, performative: Attach) -> None:
    check(performative)
    target = performative.target
    if isinstance(target, Coordinator):
        _coordinate(session, performative)
        return
    if not isinstance(target, Target):
        raise LinkError(INVALID_FIELD, "a sender's attach has a target")
    if target.dynamic:
        raise LinkError(NOT_IMPLEMENTED, "dynamic targets")
    if target.address is not None and not isinstance(target.address, str):
        raise LinkError(INVALID_FIELD, "a target's address is a string")
    if target.address == MANAGEMENT:
        management_link.attach_requests(session, performative)
        return
    found = None if target.address is None else place(session.access, target.address)
    link = SenderLink(session, performative, found)
    session.links[link.handle] = link
    access = session.access
    made = answer_of(
        session,
        performative,
        link,
        target=Target(address=target.address, durable=target.durable, capabilities=target.capabilities),
        max_message_size=access.node.options.message_bytes_max,
    )

    def attached(there: bool) -> None:
        if session.links.get(link.handle) is not link:
            return
        if there:
            session.send(made)
            link.review_credit()
        else:
            session.refuse(performative, link_error(access.no_queue("" if found is None else found.key)))

    if found is not None and not found.exchange and found.key.startswith(KEY):
        access.node.seek_requester(access.vhost.name, found.key, attached)
    else:
        attached(True)


def _coordinate(session: SessionCore, performative: Attach) -> None:
    link = CoordinatorLink(session, performative, None)
    session.links[link.handle] = link
    answer(session, performative, link, target=Coordinator(capabilities=CAPABILITIES))
    link.review_credit()


# -- the client receives


def _receive(session: SessionCore, performative: Attach) -> None:
    source = performative.source
    if not isinstance(source, Source):
        raise LinkError(INVALID_FIELD, "a receiver's attach has a source")
    if is_volatile(source):
        attach_replies(session, performative, source)
        return
    if source.dynamic:
        raise LinkError(NOT_IMPLEMENTED, "dynamic sources")
    if not isinstance(source.address, str):
        raise LinkError(INVALID_FIELD, "a source's address is a string")
    if performative.snd_settle_mode > 2 or performative.rcv_settle_mode > 1:
        raise LinkError(INVALID_FIELD, "there is no such settle mode")
    if source.address == MANAGEMENT:
        management_link.attach_responses(session, performative)
        return
    access, name = session.access, queue_of(source.address)
    access.check("read", "queue", name)
    limit = access.node.options.consumers_per_channel_max
    if len(session.consumers) >= limit:
        raise LinkError(RESOURCE_LIMIT, f"reached maximum ({limit}) of receivers per session")
    queue = receiver.readable(access, name, session.connection.sessions.values())
    settings = performative.properties or {}
    reader, filters = _reader(access, queue, source.filter or {})
    known = replace(
        source,
        filter=filters or None,
        outcomes=tuple(one for one in OUTCOMES if not source.outcomes or one in source.outcomes),
        distribution_mode="move" if source.distribution_mode else None,
        durable=min(source.durable, 1),
        capabilities=(),
    )
    link = ReceiverLink(session, performative, known, reader, _priority(settings))
    if reader is not queue:
        link.credit.numbered, link.credit.shift = STREAM_OFFSET, -1
    session.links[link.handle] = link

    snd_settle_mode = 1 if link.settled else 0
    attached_as = answer_of(
        session, performative, link, snd_settle_mode=snd_settle_mode, source=known, initial_delivery_count=0
    )

    def refused(error: LinkError) -> None:
        if session.links.get(link.handle) is link:
            session.refuse(performative, error)
            session.want_send()

    def attached(changed: bool) -> None:
        session.consumers[link.name] = link
        session.send(attached_as)
        link.begin()
        if changed:
            session.review_rights()

    try:
        receiver.attach(session, reader, link, Pending(Attaching(link, refused)), attached)
    except Refusal:
        session.links.pop(link.handle, None)
        raise


def _priority(settings: Mapping[str, Any]) -> int:
    """Among the consumers of a queue."""
    told = settings.get(PRIORITY, 0)
    if not isinstance(told, int) or isinstance(told, bool) or abs(told) > PRIORITY_MAX:
        raise LinkError(INVALID_FIELD, f"{PRIORITY} is an integer of 32 bits")
    return int(told)


def _reader(
    access: Authorization, queue: QueueHandle, filters: Mapping[str, Any]
) -> tuple[QueueHandle | StreamReader, dict[Any, Any]]:
    """What the link reads, and the filters that are in force."""
    if queue.settings.queue_type != STREAM:
        return queue, {}
    for name, told in filters.items():
        if not isinstance(told, Described) or told.descriptor != OFFSET:
            continue
        start = told.value
        if isinstance(start, Milliseconds):
            return StreamReader(access, queue, since_ms=max(0, start)), {Symbol(name): told}
        if start in ("first", "last", "next"):
            return StreamReader(access, queue, str(start)), {Symbol(name): told}
        if isinstance(start, int) and not isinstance(start, bool) and 0 <= start < OFFSET_MAX:
            return StreamReader(access, queue, int(start)), {Symbol(name): told}
        raise LinkError(INVALID_FIELD, f"{OFFSET} is first, last, next, an offset or a timestamp")
    return StreamReader(access, queue), {}
