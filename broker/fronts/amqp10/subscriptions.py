"""Subscriptions of JMS topics: the source capability `topic`, and what becomes of it (AMQP bindings for JMS, 5 and 6).

    source                              its queue                 the queue ends
    topic, not shared, not durable      amq.gen-..., exclusive    with its link
    topic, shared, not durable          CONTAINER|NAME|volatile   with its last link
    topic, durable or expiry never      CONTAINER|NAME, durable   when a link to it is closed and no other is attached
    null                                the durable one           ..., or there is none: amqp:not-found

NAME is the link's, up to the first `|`: clients append numbers to tell sharers apart. CONTAINER is the client's
container-id; empty with the capability `global`. A link that does not share is exclusive. The queue is bound to the
exchange and key that the address names: of a plain name the exchange `amq.topic`, with that key.

The queue's arguments x-subscription, x-selector and x-no-local say which topic and selector it is for, and whose own
messages it leaves out. An attach that names others means another subscription: the queue is deleted and made anew, if
nobody is attached. What the selector does not take is never kept (`broker.queues.sweeping`). No-local is by
container-id, which is a client's identity to JMS, and in force for subscriptions that are one client's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from msgspec.structs import replace

from clusterbroker.broker.access.admin import Admin
from clusterbroker.broker.access.errors import Refusal, precondition_failed
from clusterbroker.broker.access.questions import Pending
from clusterbroker.broker.content.selector.filters import JMS_SELECTOR
from clusterbroker.broker.fronts.amqp10 import dynamic
from clusterbroker.broker.fronts.amqp10.addresses import Target as Place
from clusterbroker.broker.fronts.amqp10.addresses import checked, topic_of
from clusterbroker.broker.fronts.amqp10.conditions import Refused, link_error
from clusterbroker.broker.fronts.amqp10.dynamic import DynamicNode, Errand
from clusterbroker.broker.fronts.amqp10.parked import ParkedLink
from clusterbroker.broker.fronts.amqp10.ports import Detached, SessionCore, Terminus
from clusterbroker.broker.queues.sweeping import NO_LOCAL, SELECTOR, SUBSCRIPTION
from clusterbroker.broker.wire.amqp10.errors import INVALID_FIELD, NOT_FOUND, LinkError
from clusterbroker.broker.wire.amqp10.performatives import Attach, DeleteOnClose, Source
from clusterbroker.broker.wire.amqp10.types import Described, Symbol
from clusterbroker.broker.wire.numbers import UInt64
from clusterbroker.cluster.wiring.levels import LINK_RECOVERY

if TYPE_CHECKING:
    from clusterbroker.cluster.wiring.commands import Bind

TOPIC: Final = "topic"
TEMPORARY_TOPIC: Final = "temporary-topic"
SHARED: Final = "shared"
GLOBAL: Final = "global"
NEVER: Final = "never"
TOPICS: Final = "amq.topic"
"""The exchange of topics that are plain names."""
DELIMITER: Final = "|"
VOLATILE: Final = "volatile"
SELECTORS: Final = (JMS_SELECTOR, UInt64(0x0000468C00000004))
"""Descriptors of a JMS selector among a source's filters."""
NO_LOCALS: Final = ("apache.org:no-local-filter:list", UInt64(0x0000468C00000003))
"""... and of no-local."""
LOOKED_UP: Final = 2
"""Durability of a subscription that a null source has found: unsettled-state, as its client asked for."""


class Asked(NamedTuple):
    """A subscription that has a name."""

    queue: str
    topic: Place
    is_durable: bool
    is_shared: bool
    selector: str
    not_of: str
    """The container-id whose messages it does not want; empty: it wants all."""

    @property
    def arguments(self) -> dict[str, Any]:
        return {"x-queue-type": "classic"} | arguments_of(self.topic, self.selector, self.not_of)

    def is_for(self, arguments: Mapping[str, Any]) -> bool:
        """Whether a queue with these arguments is this subscription, and not one for another topic or selector."""
        told = self.arguments
        return all(arguments.get(name) == told.get(name) for name in (SUBSCRIPTION, SELECTOR, NO_LOCAL))


def arguments_of(topic: Place, selector: str, not_of: str) -> dict[str, Any]:
    """Of a subscription's queue."""
    told = {SUBSCRIPTION: topic.address, SELECTOR: selector, NO_LOCAL: not_of}
    return {name: value for name, value in told.items() if value or name == SUBSCRIPTION}


class Consume(Protocol):
    """Attaches a receiver to a queue (`attaching`). `source`: address and capabilities as they are in force.
    `in_force`: those of its filters that the queue sees to."""

    def __call__(
        self, session: SessionCore, performative: Attach, source: Source, name: str, *, exclusive: bool = False,
        terminus: Terminus | None = None, in_force: Mapping[Any, Any] = ...,
    ) -> Any: ...  # fmt: skip


class Subscription:
    """A durable subscription, and the client's wish to end it."""

    __slots__ = ("_name", "_session")

    def __init__(self, session: SessionCore, name: str) -> None:
        self._session = session
        self._name = name

    def left(self, link: Any) -> None:
        """It goes on without its links."""

    def detached(self, closed: bool, then: Detached) -> None:
        """A link that is closed ends the subscription, unless there are others."""
        if closed:
            self._session.access.node.soon(lambda: self._delete(then))  # when the link has left the queue
        else:
            then(None)

    def _delete(self, then: Detached) -> None:
        admin = Admin(self._session.access)
        question = Pending(Errand(self._session, lambda refused: then(_unless_in_use(refused))))
        try:
            queue = admin.may_delete_queue(self._name)
            if queue is None:
                then(None)
            else:
                admin.delete_queue(queue, question, lambda _: then(None), if_unused=True, if_empty=False)
        except Refusal as refusal:
            then(link_error(refusal))


def _unless_in_use(refused: Refused) -> LinkError | None:
    """What the client of a closed link is told of a subscription that was not deleted: nothing, if others share it."""
    return None if refused.kind == "precondition_failed" else link_error(refused)


def is_topic(capabilities: tuple[str, ...]) -> bool:
    """Whether a terminus is a topic by its capabilities."""
    return TOPIC in capabilities or TEMPORARY_TOPIC in capabilities


def temporary_topic(session: SessionCore) -> Place:
    """A topic that nobody else knows: a key of its own."""
    return Place(TOPICS, f"amq.gen-{session.access.node.secret_name()}", is_topic=True)


def attach(session: SessionCore, performative: Attach, source: Source, consume: Consume) -> None:
    """A receiver of a topic. Raises LinkError and Refusal."""
    known = replace(
        source,
        distribution_mode=None,  # each subscription has each message, and its receivers share them
        dynamic_node_properties=None,
        capabilities=tuple(one for one in (TOPIC, TEMPORARY_TOPIC, SHARED, GLOBAL) if one in source.capabilities),
    )
    if source.dynamic:
        policy, properties = dynamic.in_force(source)
        topic = temporary_topic(session)
        known = replace(known, address=topic.address, dynamic_node_properties=properties)
    elif not isinstance(source.address, str):
        raise LinkError(INVALID_FIELD, "a source's address is a string")
    else:
        policy, topic = DeleteOnClose, topic_of(source.address, TOPICS)
    is_durable = source.durable > 0 or source.expiry_policy == NEVER
    is_shared = SHARED in source.capabilities
    no_local = {} if is_shared or GLOBAL in source.capabilities else _no_local(session, source)
    not_of = session.connection.container_id if no_local else ""
    if source.dynamic or not (is_durable or is_shared):

        def made(node: DynamicNode) -> None:
            node.begin(consume(session, performative, known, node.name, in_force=no_local))

        arguments = arguments_of(topic, _selector(source), not_of)
        dynamic.make(session, performative, policy, made, lambda name: _bind(session, name, topic), arguments)
        return
    name = queue_name(session, performative.name, GLOBAL in source.capabilities, is_durable)
    asked = Asked(name, topic, is_durable, is_shared, _selector(source), not_of)

    def there() -> None:
        terminus = Subscription(session, name) if is_durable else None
        consume(session, performative, known, name, exclusive=not is_shared, terminus=terminus, in_force=no_local)

    _subscribe(session, performative, asked, there)


def look_up(session: SessionCore, performative: Attach, consume: Consume) -> None:
    """An attach without a source finds the durable subscription of its name. Raises LinkError and Refusal."""
    access, name = session.access, performative.name
    is_global = name.partition(DELIMITER)[2].startswith(GLOBAL) or GLOBAL in performative.desired_capabilities
    queue_named = queue_name(session, name, is_global, is_durable=True)
    access.check("read", "queue", queue_named)
    queue = access.vhost.queues.get(queue_named)
    if queue is None or not isinstance(queue.entity.arguments.get(SUBSCRIPTION), str):
        raise LinkError(NOT_FOUND, f"no durable subscription '{name}' of container '{session.connection.container_id}'")
    arguments = queue.entity.arguments
    filters: dict[str, Any] = {}
    no_local: dict[Any, Any] = {}
    if SELECTOR in arguments:
        filters = {Symbol("jms-selector"): Described(Symbol(SELECTORS[0]), arguments[SELECTOR])}
    if NO_LOCAL in arguments:
        no_local = {Symbol("no-local"): Described(Symbol(NO_LOCALS[0]), [])}
    source = Source(
        address=arguments[SUBSCRIPTION],
        durable=LOOKED_UP,
        expiry_policy=NEVER,
        filter=filters or None,
        capabilities=(TOPIC, *((GLOBAL,) if is_global else ())),
    )
    consume(
        session, performative, source, queue_named, terminus=Subscription(session, queue_named), in_force=no_local
    )  # fmt: skip


def queue_name(session: SessionCore, link: str, is_global: bool, is_durable: bool) -> str:
    """The queue of the subscription that a link's name means. Raises LinkError."""
    container = "" if is_global else session.connection.container_id.replace("%", "%25").replace(DELIMITER, "%7C")
    subscription = link.partition(DELIMITER)[0]
    if not subscription or not (container or is_global):
        raise LinkError(INVALID_FIELD, "a subscription has a link's name, and a container-id or the capability global")
    parts = (container, subscription) if is_durable else (container, subscription, VOLATILE)
    return checked(link, DELIMITER.join(parts))


def _selector(source: Source) -> str:
    """The JMS selector among the filters; "": there is none."""
    for told in (source.filter or {}).values():
        if isinstance(told, Described) and told.descriptor in SELECTORS and isinstance(told.value, str):
            return told.value
    return ""


def _no_local(session: SessionCore, source: Source) -> dict[Symbol, Described]:
    """Those of the filters that ask for no messages of this container; none while members may publish that do not know
    of it."""
    if session.access.node.map.level < LINK_RECOVERY:
        return {}
    return {
        Symbol(name): told
        for name, told in (source.filter or {}).items()
        if isinstance(told, Described) and told.descriptor in NO_LOCALS
    }


def _bind(session: SessionCore, queue: str, topic: Place) -> Bind:
    return Admin(session.access).bind(topic.exchange, queue, "queue", topic.key, {})


def _subscribe(session: SessionCore, performative: Attach, asked: Asked, then: Callable[[], None]) -> None:
    """Makes the queue and its binding, or finds them. Raises LinkError and Refusal."""
    access, name = session.access, asked.queue
    access.check("read", "queue", name)
    admin = Admin(access)
    declare = admin.declare_queue(
        name, asked.arguments, durable=asked.is_durable, auto_delete=not asked.is_durable, exclusive=False,
        server_named=False,
    )  # fmt: skip
    bind = _bind(session, name, asked.topic)
    known = access.vhost.queues.get(name)
    if known is not None and SUBSCRIPTION not in known.entity.arguments:
        raise precondition_failed(f"queue '{name}' in vhost '{access.vhost.name}' is there, and is no subscription")
    parked = ParkedLink(session, performative)

    def bound(*_: Any) -> None:
        parked.go_on(then)

    def declared(*_: int) -> None:
        admin.order(bind, Pending(parked), bound)

    def make(*_: int) -> None:
        admin.order_queue(declare, Pending(parked), declared)

    if known is None or asked.is_for(known.entity.arguments):
        make()
    else:
        admin.delete_queue(known, Pending(parked), make, if_unused=True, if_empty=False)
