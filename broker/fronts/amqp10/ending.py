"""An operator ends a link: one that is suspended as if its time were over, an attached one after it was detached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterbroker.broker.node.links import Identity, Name
from clusterbroker.broker.wire.amqp10.errors import CONNECTION_FORCED, LinkError
from clusterbroker.cluster.wiring.commands import ForgetLink

if TYPE_CHECKING:
    from clusterbroker.broker.node.core import Node
    from clusterbroker.broker.stats.peer_messages import EndLink


def end_link(node: Node, asked: EndLink) -> bool:
    """Whether there was such a link here. What it held returns to its queue."""
    identity = Identity(Name(asked.vhost, asked.container, asked.name, asked.receives), asked.user)
    left = node.links.find(identity)
    if left is not None:
        left.end()
        return True
    link: Any = node.links.attached(identity)
    if link is None or not asked.force:
        return False
    store = getattr(link, "store", None)  # of a recoverable one: detached it is suspended
    link.session.cut(link, LinkError(CONNECTION_FORCED, asked.reason))
    link.session.want_send()
    if store is not None:
        attached = store.attachment.link
        node.propose(ForgetLink(link=attached.link, attach=attached.attach), lambda _: None)
    return True
