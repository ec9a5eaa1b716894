"""What policies of the broker say of links whose state outlives their clients, when a client attaches one.

    link-recovery            false: nothing outlives the connection; the answer has the property
                             `clusterbroker:link-recovery`, which says why, in place of the capability
                             true: durability 2 is enough, without the desired capability
    link-expiry-max          the answer's timeout is no longer (`expiry.in_force`)
    recoverable-links-max    one more is refused

They are those of a queue, or of the exchange that a sender's messages go to. Links that are attached go on as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.fronts.amqp10.addresses import Target as Place
from clusterbroker.broker.fronts.amqp10.addresses import queue_of, target_of
from clusterbroker.broker.fronts.amqp10.resuming import RECOVERY
from clusterbroker.broker.stats.links import address_of
from clusterbroker.broker.wire.amqp10.errors import RESOURCE_LIMIT, LinkError
from clusterbroker.broker.wire.amqp10.types import Symbol
from clusterbroker.cluster.wiring.queue_settings import LINK_RECOVERY, RECOVERABLE_LINKS_MAX

if TYPE_CHECKING:
    from clusterbroker.broker.fronts.amqp10.expiry import LinkSettings
    from clusterbroker.broker.fronts.amqp10.ports import SessionCore
    from clusterbroker.broker.wire.amqp10.performatives import Attach
    from clusterbroker.cluster.wiring.commands import LinkRole

_ROLES: Final[tuple[LinkRole, LinkRole]] = "sender", "receiver"


def settings_of(session: SessionCore, place: Place | None) -> LinkSettings | None:
    """Of links to there; None: nothing can be said."""
    access = session.access
    if place is None:
        return None
    if place.exchange:
        exchange = access.node.map.exchange(access.vhost.name, place.exchange)
        return None if exchange is None else access.node.map.exchange_settings(exchange)
    queue = access.vhost.queues.get(place.key)
    return None if queue is None else queue.settings


def refusal(attach: Attach, settings: LinkSettings | None) -> dict[Any, Any] | None:
    """Properties of an answering attach: why a client that desires the capability is not offered it."""
    if settings is None or settings.link_recovery is not False or RECOVERY not in attach.desired_capabilities:
        return None
    return {Symbol(RECOVERY): f"{LINK_RECOVERY} is off: {dict(settings.sources)['link_recovery']}"}


def check_room(session: SessionCore, attach: Attach, address: str, settings: LinkSettings | None) -> None:
    """Raises LinkError for one more link than may be to the same queue or exchange; one that is known goes on. Of
    several that are attached at once at several nodes a few too many may pass."""
    most = None if settings is None else settings.recoverable_links_max
    if settings is None or most is None:
        return
    view, vhost = session.access.node.map, session.access.vhost.name
    if view.link_named(vhost, session.connection.container_id, attach.name, _ROLES[attach.role]) is not None:
        return
    place = _place(session, _ROLES[attach.role], address)
    count = sum(_place(session, link.role, link.terminus) == place for link in view.links(vhost))
    if count >= most:
        text = f"'{place[0] or place[1]}' has {count} recoverable links, and {RECOVERABLE_LINKS_MAX} is {most}"
        raise LinkError(RESOURCE_LIMIT, f"{text}: {dict(settings.sources)['recoverable_links_max']}")


def _place(session: SessionCore, role: LinkRole, address: str) -> tuple[str, str]:
    """The exchange, or the queue, however the address is written."""
    if role == "receiver":
        return "", queue_of(address_of(address))
    vhost = session.access.vhost
    found = target_of(address, lambda name: name not in vhost.queues)
    return found.exchange, "" if found.exchange else found.key
