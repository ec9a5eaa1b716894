"""An attach: what its terminus names, whether its user may, and what the link is in the end (2.6.3, 3.5).

Rights are asked first: who has none learns nothing of whether the node exists. What a source's filters ask for and this
node does not know is left out of the answer, which says what is in force (3.5.8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import astuple, replace

from clusterbroker.broker.access import receiver
from clusterbroker.broker.access.admin import Admin
from clusterbroker.broker.access.browser import BrowseReader
from clusterbroker.broker.access.errors import Refusal, not_found
from clusterbroker.broker.access.questions import Pending
from clusterbroker.broker.access.readers import OFFSET_MAX, RangeReader, StreamReader
from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.content.selector.filters import BadFilter, Filter, filter_of
from clusterbroker.broker.fronts.amqp10 import (
    attach_answer,
    dynamic,
    link_policies,
    management_link,
    recoverable,
    recoverable_receiver,
    recoverable_sender,
    resuming,
    returning,
    subscriptions,
)
from clusterbroker.broker.fronts.amqp10.addresses import MANAGEMENT, queue_of, target_of, topic_of
from clusterbroker.broker.fronts.amqp10.addresses import Target as Place
from clusterbroker.broker.fronts.amqp10.attach_answer import answer, answering
from clusterbroker.broker.fronts.amqp10.conditions import link_error
from clusterbroker.broker.fronts.amqp10.dynamic import DynamicNode
from clusterbroker.broker.fronts.amqp10.expiry import NOTHING_KEPT, Terms
from clusterbroker.broker.fronts.amqp10.expiry import in_force as terms_in_force
from clusterbroker.broker.fronts.amqp10.parked import ParkedLink, guarded
from clusterbroker.broker.fronts.amqp10.ports import SessionCore, Terminus
from clusterbroker.broker.fronts.amqp10.receiver_link import Attaching, Queue, ReceiverLink
from clusterbroker.broker.fronts.amqp10.reply_link import KEY, attach_replies, is_volatile
from clusterbroker.broker.fronts.amqp10.sender_link import SenderLink, check, no_address
from clusterbroker.broker.fronts.amqp10.suspended import Suspended, SuspendedReceiver, SuspendedSender
from clusterbroker.broker.fronts.amqp10.transacting import CAPABILITIES, CoordinatorLink
from clusterbroker.broker.node.links import LINKS_MAX
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.wire.amqp10.errors import (
    HANDLE_IN_USE,
    INVALID_FIELD,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT,
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
from clusterbroker.cluster.wiring.levels import LINK_RECOVERY
from clusterbroker.cluster.wiring.stream_settings import STREAM
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization

NO_FILTERS: Final[Mapping[Any, Any]] = MappingProxyType({})
FILTERS_LEVEL: Final = 3
"""Feature level of members that judge messages for consumers elsewhere."""
HANDLE_MAX: Final = 1023
NAME_BYTES_MAX: Final = 256
OUTCOMES: Final = tuple(kind.SYMBOL for kind in (Accepted, Rejected, Released, Modified))
JMS_DESTINATION: Final = "x-opt-jms-dest"
"""The annotation by which clients of JMS say what the address of a message is; JMS_TOPICS: a topic, a temporary one."""
JMS_TOPICS: Final = (1, 3)
OFFSET: Final = "rabbitmq:stream-offset-spec"
PRIORITY: Final = "rabbitmq:priority"
STREAM_OFFSET: Final = b"\xa3\x0fx-stream-offset"
"""The annotation with a message's offset, as a symbol on the wire."""
PRIORITY_MAX: Final = 2**31 - 1
SOURCES_SHARED: Final = 1024


def attach(session: SessionCore, performative: Attach) -> None:
    """Takes an attach up; a queue's owner may have to be asked. Raises SessionError and ConnectionFault10."""
    handle = int(performative.handle)
    if handle > HANDLE_MAX:
        raise framing_error(f"handle {handle} is above the handle-max of {HANDLE_MAX}")
    if handle in session.links or handle in session.table.detaching:
        raise SessionError(HANDLE_IN_USE, f"handle {handle} is in use")
    guarded(session, performative, lambda: _begin(session, performative))


def _begin(session: SessionCore, performative: Attach) -> None:
    if len(performative.name.encode()) > NAME_BYTES_MAX:
        raise LinkError(INVALID_FIELD, f"a link's name has at most {NAME_BYTES_MAX} bytes")
    left = returning.before(session, performative)
    if session.access.node.links.has_no_room:
        raise LinkError(RESOURCE_LIMIT, f"the node has {LINKS_MAX} links, and no more")
    if performative.role:
        _receive(session, performative, left)
    else:
        _send(session, performative, left)


def place(access: Authorization, address: str, is_topic: bool = False) -> Place:
    """Where messages to an address go; `is_topic`: a plain name is a key of amq.topic. Raises LinkError for one
    that cannot be, and Refusal for one that its user may not send to, or that there is not."""
    vhost = access.vhost

    def is_exchange(name: str) -> bool:
        return name not in vhost.queues and vhost.router.exchange_type(name) is not None

    found = topic_of(address, subscriptions.TOPICS) if is_topic else target_of(address, is_exchange)
    access.check("write", "exchange", found.exchange)
    if not found.exchange and found.key not in vhost.queues and not found.key.startswith(KEY):
        raise access.no_queue(found.key)
    if found.exchange and vhost.router.exchange_type(found.exchange) is None:
        raise not_found(f"no exchange '{found.exchange}' in vhost '{vhost.name}'")
    return found


def place_of(access: Authorization, message: Message) -> Place:
    """Where a message to an anonymous target goes. Raises LinkError, and Refusal as `place`."""
    headers = properties_of(message).headers or {}
    to = headers.get("x-opt-to")
    if not isinstance(to, str):
        raise no_address()
    return place(access, to, headers.get(JMS_DESTINATION) in JMS_TOPICS)


# -- the client sends


def _send(session: SessionCore, performative: Attach, left: Suspended | None) -> None:
    check(performative)
    target = performative.target
    if isinstance(target, Coordinator):
        returning.resumed(performative, left)
        _coordinate(session, performative)
        return
    if not isinstance(target, Target):
        raise LinkError(INVALID_FIELD, "a sender's attach has a target")
    if target.dynamic:
        returning.resumed(performative, left)
        _make_target(session, performative, target)
        return
    if target.address is not None and not isinstance(target.address, str):
        raise LinkError(INVALID_FIELD, "a target's address is a string")
    if target.address == MANAGEMENT:
        returning.resumed(performative, left)
        management_link.attach_requests(session, performative)
        return
    is_topic = subscriptions.is_topic(target.capabilities)
    found = None if target.address is None else place(session.access, target.address, is_topic)
    settings = link_policies.settings_of(session, found)
    terms = terms_in_force(target, kept=True, administers=session.access.is_administrator, settings=settings)
    known = Target(
        address=target.address,
        durable=min(target.durable, 1),
        expiry_policy=terms.policy,
        timeout=terms.timeout_s,
        capabilities=target.capabilities,
    )
    if recoverable_sender.is_wanted(session, performative, found, terms, settings):
        told = resuming.told(performative)
        link_policies.check_room(session, performative, str(target.address), settings)
        if left is not None:
            left.end()
        link = SenderLink(session, performative, found)
        session.links[link.handle] = link
        terms = recoverable.in_force(terms)
        lasting = replace(known, durable=recoverable.DURABLE, expiry_policy=terms.policy)
        recoverable_sender.AttachingSender(session, performative, link, told, terms, lasting).begin(str(target.address))
        return
    properties = link_policies.refusal(performative, settings)
    client = returning.resumed(performative, left)
    if client is None:
        _produce(session, performative, known, found, terms, properties)
        return
    assert isinstance(left, SuspendedSender), "a link of this role is resumed"
    link = SenderLink(session, performative, found)
    session.links[link.handle] = link
    returning.resume_sender(session, performative, link, left, client, known, terms)


def _make_target(session: SessionCore, performative: Attach, target: Target) -> None:
    """The client's sender makes the queue that it sends to, or the topic: that is a key which nobody else knows."""
    policy, properties = dynamic.in_force(target)
    known = Target(dynamic=True, dynamic_node_properties=properties)
    if subscriptions.TEMPORARY_TOPIC in target.capabilities:
        topic = subscriptions.temporary_topic(session)
        session.access.check("write", "exchange", topic.exchange)
        known.address, known.capabilities = topic.address, (subscriptions.TEMPORARY_TOPIC,)
        _produce(session, performative, known, topic)
        return

    def made(node: DynamicNode) -> None:
        queue = Place("", node.name)
        known.address = queue.address
        node.begin(_produce(session, performative, known, queue))

    dynamic.make(session, performative, policy, made)


def _produce(
    session: SessionCore, performative: Attach, known: Target, found: Place | None, terms: Terms = NOTHING_KEPT,
    properties: dict[Any, Any] | None = None,
) -> SenderLink:  # fmt: skip
    """`known`: the target in force."""
    access = session.access
    size = access.node.options.message_bytes_max
    told = answering(session, performative, target=known, max_message_size=size, properties=properties)
    link = SenderLink(session, performative, found)
    session.links[link.handle] = link
    link.keep(terms, known)
    if found is not None and not found.exchange:
        dynamic.join(session, link, found.key)

    def attached(there: bool) -> None:
        if session.links.get(link.handle) is not link:
            return
        if there:
            attach_answer.attached(session, link, told)
            link.review_credit()
        else:
            session.refuse(performative, link_error(access.no_queue("" if found is None else found.key)))

    if found is not None and not found.exchange and found.key.startswith(KEY):
        access.node.seek_requester(access.vhost.name, found.key, attached)
    else:
        attached(True)
    return link


def _coordinate(session: SessionCore, performative: Attach) -> None:
    link = CoordinatorLink(session, performative, None)
    session.links[link.handle] = link
    answer(session, performative, link, target=Coordinator(capabilities=CAPABILITIES))
    link.review_credit()


# -- the client receives


def _receive(session: SessionCore, performative: Attach, left: Suspended | None) -> None:
    source = performative.source
    if source is not None and not isinstance(source, Source):
        raise LinkError(INVALID_FIELD, "a receiver's attach has a source, or none")
    if performative.snd_settle_mode > 2 or performative.rcv_settle_mode > 1:
        raise LinkError(INVALID_FIELD, "there is no such settle mode")
    if source is None:
        returning.resumed(performative, left)
        subscriptions.look_up(session, performative, _consume)
        return
    if is_volatile(source):
        returning.resumed(performative, left)
        attach_replies(session, performative, source)
        return
    if subscriptions.is_topic(source.capabilities):
        _filter(session.access, source.filter or {})  # a bad one must not take the place of a durable subscription's
        returning.resumed(performative, left)
        subscriptions.attach(session, performative, source, _consume)
        return
    if source.dynamic:
        returning.resumed(performative, left)
        _make_source(session, performative, source)
        return
    if not isinstance(source.address, str):
        raise LinkError(INVALID_FIELD, "a source's address is a string")
    if source.address == MANAGEMENT:
        returning.resumed(performative, left)
        management_link.attach_responses(session, performative)
        return
    known = replace(source, capabilities=(), dynamic_node_properties=None)
    name = queue_of(source.address)

    def consume() -> None:
        _consume(session, performative, known, name, left=left, keeps=True)

    if name in session.access.vhost.queues or not _makes_group(session, performative, name, consume):
        consume()


def _makes_group(session: SessionCore, performative: Attach, name: str, consume: Callable[[], None]) -> bool:
    """The queue would be of a pool's group, which is made for its first consumer. False: it would not."""
    access = session.access
    if access.node.map.pools.absent_group(access.vhost.name, name) is None:
        return False
    access.check("read", "queue", name)
    waiting = ParkedLink(session, performative)
    if not Admin(access).order_group(name, Pending(waiting), lambda: waiting.go_on(consume)):
        waiting.go_on(consume)  # the pool ends just now
    return True


def _make_source(session: SessionCore, performative: Attach, source: Source) -> None:
    """The client's receiver makes the queue that it receives from."""
    policy, properties = dynamic.in_force(source)

    def made(node: DynamicNode) -> None:
        address = Place("", node.name).address
        known = replace(source, address=address, dynamic_node_properties=properties, capabilities=())
        node.begin(_consume(session, performative, known, node.name))

    dynamic.make(session, performative, policy, made)


def _consume(
    session: SessionCore, performative: Attach, source: Source, name: str, *, exclusive: bool = False,
    terminus: Terminus | None = None, left: Suspended | None = None, keeps: bool = False,
    in_force: Mapping[Any, Any] = NO_FILTERS,
) -> ReceiverLink:  # fmt: skip
    """`source`: as asked, but address, dynamic-node-properties and capabilities as they are in force. `name`: the
    queue's. `exclusive`: nobody else may consume from it. `keeps`: what the link holds may survive its client, and
    `left` has. `in_force`: filters that the queue sees to."""
    access = session.access
    access.check("read", "queue", name)
    limit = access.node.options.consumers_per_channel_max
    if len(session.consumers) >= limit:
        raise LinkError(RESOURCE_LIMIT, f"reached maximum ({limit}) of receivers per session")
    settled = performative.snd_settle_mode == 1
    queue = receiver.readable(access, name, session.connection.sessions.values(), settled=settled)
    settings = performative.properties or {}
    wanted, judged = _filter(access, source.filter or {})
    browses = source.distribution_mode == "copy"
    reader, filters = _reader(access, queue, source.filter or {}, wanted, browses)
    terms = NOTHING_KEPT
    said: dict[str, Any] = {}
    if keeps:
        kept = _keeps(access, reader)
        terms = terms_in_force(source, kept=kept, administers=access.is_administrator, settings=queue.settings)
        said = {"expiry_policy": terms.policy, "timeout": terms.timeout_s}
    known = shared(
        replace(
            source,
            filter={**filters, **judged, **in_force} or None,
            outcomes=tuple(one for one in OUTCOMES if not source.outcomes or one in source.outcomes),
            distribution_mode=("copy" if browses else "move") if source.distribution_mode else None,
            durable=min(source.durable, 1),
            **said,
        )
    )
    if keeps:
        if reader is queue and recoverable_receiver.is_wanted(session, performative, queue, terms):
            return _receive_lasting(session, performative, left, known, terms, queue, wanted)
        client = returning.resumed(performative, left)
        if client is not None:
            assert isinstance(left, SuspendedReceiver), "a link of this role is resumed"
            returning.resume_receiver(session, performative, left, client, known, terms)
            return left.link
    link = ReceiverLink(session, performative, known, reader, _priority(settings), wanted)
    link.exclusive, link.terminus, link.terms = exclusive, terminus, terms
    if isinstance(reader, StreamReader):
        link.credit.numbered, link.credit.shift = STREAM_OFFSET, -1
    mode = 1 if link.settled else 0
    told = answering(
        session, performative, snd_settle_mode=mode, source=known, initial_delivery_count=0,
        properties=link_policies.refusal(performative, queue.settings),
    )  # fmt: skip
    session.links[link.handle] = link

    def refused(error: LinkError) -> None:
        if session.links.get(link.handle) is link:
            session.refuse(performative, error)
            session.want_send()

    def attached(changed: bool) -> None:
        session.consumers[link.name] = link
        attach_answer.attached(session, link, told)
        link.begin()
        if changed:
            session.review_rights()

    try:
        receiver.attach(session, reader, link, Pending(Attaching(link, refused)), attached)
    except Refusal:
        session.links.pop(link.handle, None)
        raise
    dynamic.join(session, link, name)
    return link


def shared(source: Source) -> Source:
    """The one source of many links that have the same in force, as most links to a queue do. Nobody changes it."""
    if source.filter or source.dynamic_node_properties or source.default_outcome is not None:
        return source
    return _shared(*astuple(source))


@lru_cache(maxsize=SOURCES_SHARED)
def _shared(*fields: Any) -> Source:
    return Source(*fields)


def _receive_lasting(
    session: SessionCore, performative: Attach, left: Suspended | None, known: Source, asked: Terms, queue: QueueHandle,
    wanted: Filter | None,
) -> ReceiverLink:  # fmt: skip
    """What the link holds survives its node."""
    told, terms = resuming.told(performative), recoverable.in_force(asked)
    link_policies.check_room(session, performative, str(known.address), queue.settings)
    if left is not None:
        left.end()
    lasting = replace(known, durable=recoverable.DURABLE, expiry_policy=terms.policy)
    link = ReceiverLink(session, performative, lasting, queue, _priority(performative.properties or {}), wanted)
    session.links[link.handle] = link
    attach = recoverable_receiver.AttachingReceiver(session, performative, link, told, terms, lasting, queue)
    attach.begin(recoverable_receiver.terminus_of(str(lasting.address), wanted))
    return link


def _keeps(access: Authorization, reader: QueueHandle | RangeReader) -> bool:
    """Whether what a receiver holds can be kept for it: not of a stream, where its offset is all that it has; and in a
    cluster only if owners are asked for it again."""
    if isinstance(reader, RangeReader):
        return False
    return access.node.role is None or access.node.map.level >= LINK_RECOVERY


def _priority(settings: Mapping[str, Any]) -> int:
    """Among the consumers of a queue."""
    told = settings.get(PRIORITY, 0)
    if not isinstance(told, int) or isinstance(told, bool) or abs(told) > PRIORITY_MAX:
        raise LinkError(INVALID_FIELD, f"{PRIORITY} is an integer of 32 bits")
    return int(told)


def _filter(access: Authorization, filters: Mapping[str, Any]) -> tuple[Filter | None, dict[Any, Any]]:
    """What the link takes of what it reads, and the filters that say so."""
    try:
        wanted, judged = filter_of(filters)
    except BadFilter as error:
        raise LinkError(INVALID_FIELD, str(error)) from error
    if wanted is not None:
        check_level(access, "a filter")
    return wanted, judged


def check_level(access: Authorization, what: str) -> None:
    """Raises LinkError while members may be in the cluster that cannot read this."""
    level = access.node.map.level
    if level < FILTERS_LEVEL:
        raise LinkError(
            NOT_IMPLEMENTED,
            f"{what} needs feature level {FILTERS_LEVEL}, and the cluster is at {level}: when all members run a release"
            " that knows it, raise the level (clusterbroker cluster raise-level)",
        )


def _reader(
    access: Authorization, queue: QueueHandle, filters: Mapping[str, Any], wanted: Filter | None, browses: bool
) -> tuple[Queue, dict[Any, Any]]:
    """What the link reads, and where it begins, as its filters say."""
    if queue.settings.queue_type != STREAM:
        if not browses:
            return queue, {}
        check_level(access, "browsing")
        return BrowseReader(access, queue, wanted), {}
    for name, told in filters.items():
        if not isinstance(told, Described) or told.descriptor != OFFSET:
            continue
        start = told.value
        if isinstance(start, Milliseconds):
            return StreamReader(access, queue, since_ms=max(0, start), wanted=wanted), {Symbol(name): told}
        if start in ("first", "last", "next"):
            return StreamReader(access, queue, str(start), wanted=wanted), {Symbol(name): told}
        if isinstance(start, int) and not isinstance(start, bool) and 0 <= start < OFFSET_MAX:
            return StreamReader(access, queue, int(start), wanted=wanted), {Symbol(name): told}
        raise LinkError(INVALID_FIELD, f"{OFFSET} is first, last, next, an offset or a timestamp")
    return StreamReader(access, queue, wanted=wanted), {}
