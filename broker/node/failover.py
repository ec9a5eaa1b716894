"""Where clients may go: addresses for those that should leave this node, and the exchange `amq.failover`.

A member counts while it is alive, does not drain and is no witness (which cannot hold queues).

Theory of the exchange. All nodes apply the same commands, so all of them see the same change of the members at the same
index, and there the same owner of each queue. Each node publishes to the bound queues that it owns at that index, so
each queue gets each message from one node. The message is persistent and goes the way of any other; if the owner dies
before its commit, it is lost: a client that must not miss a change asks for the members when it connects, in the
server's properties.

    exchange "amq.failover", routing key = event, content type application/json
    {"event": "member_joined" | "member_left" | "member_drains", "member": "b",
     "members": [{"name": "a", "amqp": ["amqp://10.0.0.1:5672"]}, ...]}        those that clients may connect to now
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.content.message import new_message
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.cluster.wiring.entities import Member
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.exchange_rules import FAILOVER
from clusterbroker.cluster.wiring.view import ClusterView

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import NodeCore

TEXT_BYTES_MAX: Final = 255
"""A reply text is a short string."""
DRAINED: Final = "node is drained"


def hosts(view: ClusterView) -> tuple[Member, ...]:
    """The members that clients may connect to, by name."""
    serving = [member for member in view.alive_members() if not member.draining and not member.witness]
    return tuple(sorted(serving, key=lambda member: member.name))


def addresses(view: ClusterView, but: str = "") -> tuple[str, ...]:
    """Their AMQP addresses, without those of the member `but`."""
    return tuple(url for member in hosts(view) if member.name != but for url in member.amqp)


def moving_text(why: str, view: ClusterView, own: str) -> str:
    """Why a connection ends, and where its client may go: whole addresses, as many as a reply text holds."""
    text, sign = why, ", connect to "
    for url in addresses(view, own):
        longer = text + sign + url
        if len(longer.encode()) > TEXT_BYTES_MAX:
            break
        text, sign = longer, " or "
    return text


JOINED: Final = "member_joined"
LEFT: Final = "member_left"
DRAINS: Final = "member_drains"

Seen = dict[str, tuple[int, tuple[str, ...]]]
"""Of each member that clients may connect to: incarnation and AMQP addresses."""


def events(before: Seen, after: Seen, draining: frozenset[str]) -> list[tuple[str, str]]:
    """(event, member) for each member that differs, by name; a new incarnation has left and joined."""
    found: list[tuple[str, str]] = []
    for name in sorted({*before, *after}):
        if name in before and name not in after:
            found.append((DRAINS if name in draining else LEFT, name))
        elif before.get(name) != after.get(name):
            found.append((JOINED, name))
    return found


def body(event: str, member: str, members: tuple[Member, ...]) -> bytes:
    """The message's body."""
    listed = [{"name": other.name, "amqp": list(other.amqp)} for other in members]
    return json.dumps({"event": event, "member": member, "members": listed}).encode()


class Failover:
    """What one node tells. `applied` is called when all changes of a command have been carried out."""

    __slots__ = ("_node", "_seen")

    def __init__(self, node: NodeCore) -> None:
        self._node = node
        self._seen = self._now()

    def _now(self) -> Seen:
        return {member.name: (member.incarnation, member.amqp) for member in hosts(self._node.map)}

    def applied(self) -> None:
        """Members changed: tells of it, if it is of interest to clients."""
        before, self._seen = self._seen, self._now()
        view = self._node.map
        draining = frozenset(member.name for member in view.alive_members() if member.draining)
        for event, member in events(before, self._seen, draining):
            self._publish(event, body(event, member, hosts(view)))

    def _publish(self, event: str, content: bytes) -> None:
        node = self._node
        properties = Properties(content_type="application/json", delivery_mode=2)
        for vhost in node.vhosts.values():
            route = vhost.router.reach(FAILOVER, event, lambda: None)
            for queue in route.targets:
                if not queue.deleted and self._owns(queue.entity):
                    message = new_message(FAILOVER, event, properties, content, node.now_ms)
                    queue.publish((message,), None, node.now_ms)

    def _owns(self, entity: QueueEntity) -> bool:
        role, now = self._node.role, self._node.map.queue_by_id(entity.queue_id)
        return role is not None and now is not None and role.owns(now)
