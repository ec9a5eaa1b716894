"""A client that has signed in: its user, what that may do in its virtual host, and which queues are its own.

Verdicts are remembered (`node.verdicts`) until a permission of any user changes, or another token takes the place of
the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

from clusterbroker.broker.access.errors import Refusal, access_refused, not_found, precondition_failed, resource_locked
from clusterbroker.broker.access.rights import AccountRights
from clusterbroker.broker.node.verdicts import Verdicts
from clusterbroker.broker.pools.credentials import launch_of
from clusterbroker.broker.pools.losses import lost
from clusterbroker.cluster.wiring.authorization import PermissionKind, TopicPermissionKind, principal
from clusterbroker.cluster.wiring.levels import SUSPECTS
from clusterbroker.cluster.wiring.pool_table import closed
from clusterbroker.cluster.wiring.queue_rules import closed_queue_text

if TYPE_CHECKING:
    from clusterbroker.broker.access.rights import Rights
    from clusterbroker.broker.node.core import Node
    from clusterbroker.broker.node.vhost import VirtualHost
    from clusterbroker.broker.queues.handle import QueueHandle
    from clusterbroker.broker.queues.modification import Modification

OVER: Final = "its connection or channel ended"
TOO_LONG: Final = "it held the request for too long"
"""How a worker was lost with a request."""


class Authorization:
    """Of one connection. Every check raises Refusal. `vhost` is set when the client has entered one."""

    __slots__ = ("_verdicts", "connection_id", "node", "renewing", "rights", "until_ms", "user", "vhost")

    vhost: VirtualHost

    def __init__(self, node: Node, connection_id: str, user: str, rights: Rights, until_ms: int = 0) -> None:
        """`until_ms`: when the token that the client signed in with is over, wall clock; 0: it has none."""
        self.node = node
        self.connection_id = connection_id
        self.user = user
        self.rights = rights
        self.until_ms = until_ms
        self.renewing = False
        """Another token is verified (`sign_in.renew`)."""
        self._verdicts: Verdicts | None = None

    @property
    def entered(self) -> VirtualHost | None:
        """None: no virtual host yet."""
        vhost: VirtualHost | None = getattr(self, "vhost", None)
        return vhost

    def enter(self, vhost: VirtualHost) -> None:
        """The client enters a virtual host."""
        self.vhost, self._verdicts = vhost, None

    def renew(self, rights: Rights, until_ms: int) -> None:
        """Another token has come for the same user: nothing that the old one allowed is remembered."""
        self.rights, self.until_ms = rights, until_ms
        self._verdicts = None

    @property
    def by_token(self) -> bool:
        """The client signed in with a token: its user is the authority's, and not the account of that name."""
        return self.until_ms > 0

    @property
    def principal(self) -> str:
        """The user's name, distinct for an account and a token's user of the same name."""
        return principal(self.user, self.by_token)

    @property
    def is_administrator(self) -> bool:
        return "administrator" in self.rights.tags

    def check(self, kind: PermissionKind, sort: Literal["queue", "exchange"], resource: str) -> None:
        """Refuses unless the user may (amqp-rules 5.3). The default exchange is ""."""
        node, vhost = self.node, self.vhost.name
        if not self.verdicts.on_resource(node.authorization_generation, self.rights.allowed, vhost, kind, resource):
            raise access_refused(
                f"{kind} access to {sort} '{resource or 'amq.default'}' in vhost '{vhost}' refused for user "
                f"'{self.user}'"
            )

    def check_key(self, exchange: str, key: str) -> None:
        """Refuses a routing key of an exchange that may be written to, where the user's rights look at keys."""
        may = self.rights.may_publish
        if may is not None and not may(exchange, key):
            raise access_refused(
                f"write access to exchange '{exchange or 'amq.default'}' with routing key '{key}' in vhost "
                f"'{self.vhost.name}' refused for user '{self.user}': it answers what it holds, and nothing else"
            )

    def check_topic(self, kind: TopicPermissionKind, exchange: str, key: str) -> None:
        """Refuses unless the user may use the routing key on this exchange, if it is a topic exchange. Asked for each
        key that a message is routed by, so for those of CC and BCC too."""
        vhost = self.vhost
        if vhost.router.exchange_type(exchange) != "topic":
            return
        asked = vhost.name, kind, exchange, key
        if not self.verdicts.on_topic(self.node.authorization_generation, self.rights.topic_allowed, *asked):
            raise access_refused(
                f"{kind} access to topic '{key}' in exchange '{exchange}' in vhost '{vhost.name}' refused for user "
                f"'{self.user}'"
            )

    @property
    def verdicts(self) -> Verdicts:
        """What its rights have said in its virtual host."""
        known = self._verdicts
        if known is None:
            shares = isinstance(self.rights, AccountRights)
            known = self.node.verdicts.of(self.user, self.vhost.name) if shares else Verdicts()
            self._verdicts = known
        return known

    def queue(self, name: str) -> QueueHandle:
        """Refuses when there is none, or when it is exclusive to another connection."""
        queue = self.vhost.queues.get(name)
        if queue is None:
            raise self.no_queue(name)
        self.check_exclusive(queue)
        return queue

    def no_queue(self, name: str) -> Refusal:
        return not_found(f"no queue '{name}' in vhost '{self.vhost.name}'")

    def check_exclusive(self, queue: QueueHandle) -> None:
        if queue.entity.part_of:
            raise access_refused(closed_queue_text(queue.entity))
        owner = queue.entity.exclusive_owner
        if owner is not None and owner != self.connection_id:
            raise resource_locked(
                f"cannot obtain exclusive access to locked queue '{queue.name}' in vhost '{self.vhost.name}'. It could "
                "be originally declared on another connection or the exclusive property value does not match that of "
                "the original declaration."
            )

    def check_taking(self, queue: QueueHandle, *, settled: bool) -> None:
        """Refuses what takes messages out of a pool's own queues, and requests that are settled before their work."""
        part = self.node.map.pools.queue(queue.entity.queue_id)
        if part is None:
            return
        pool = self.node.map.pools.get(part.pool_id)
        where = f"queue '{queue.name}' in vhost '{self.vhost.name}'"
        if pool is not None and part.part in ("orphans", "dead"):
            raise access_refused(f"{where} {closed(pool)}")
        if pool is not None and part.part == "requests" and settled:
            raise access_refused(
                f"{where} holds requests of pool '{pool.name}': consume with acknowledgements, so that none is lost "
                "with its worker"
            )

    def lost(self, why: str, held: int) -> Modification | None:
        """How requests of pools return of which this client held so many as it ended; None: there are no pools. Owners
        below the level of suspects would hand them out together again, so there each counts."""
        if not self.node.map.pools.queues:
            return None
        in_company = held > 1 and self.node.map.level >= SUSPECTS
        return lost(launch_of(self.user) or self.connection_id, why, self.node.now_ms, in_company=in_company)

    def check_published(self, name: str) -> None:
        """Refuses what is published to a queue that takes only what its pool has for it."""
        queue = self.vhost.queues.get(name)
        if queue is not None and not self.vhost.router.has_key(name):
            self.check_managed(queue)

    def check_managed(self, queue: QueueHandle) -> None:
        """Refuses what only its pool does with a queue."""
        part = self.node.map.pools.queue(queue.entity.queue_id)
        pool = None if part is None else self.node.map.pools.get(part.pool_id)
        if pool is not None:
            raise access_refused(f"queue '{queue.name}' in vhost '{self.vhost.name}' {closed(pool)}")

    def check_answers(self, targets: Sequence[QueueHandle]) -> None:
        """Refuses what would be answered in a pool's name, or kept as its poison."""
        pools = self.node.map.pools
        for queue in targets if pools.queues else ():
            part = pools.queue(queue.entity.queue_id)
            if part is not None and part.part == "dead":
                self.check_managed(queue)

    def check_memory(self, what: str) -> None:
        """Refuses what would grow for good while the node's memory alarm is raised: what is declared stays in the
        memory of all members, and who declares need not be a publisher, whom the alarm holds up. What is there already
        may be declared again, so those who want to consume can."""
        if self.node.low_on_memory:
            raise precondition_failed(f"cannot {what}: node '{self.node.options.name}' is low on memory")
