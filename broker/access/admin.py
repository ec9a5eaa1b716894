"""What a client declares, binds and deletes: rights and limits, and the command of the wiring log that it becomes.

Permissions (amqp-rules 5.3): declare and delete = configure; bind = write on the destination and read on the source; a
dead-letter exchange in the arguments = read on the queue and write on that exchange, an alternate exchange = read on
the exchange and write on the alternate. Everything else that can be wrong is decided by the cluster map, the same on
every node, when the command is ordered (`Node.propose`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clusterbroker.broker.access.errors import access_refused, not_found, precondition_failed
from clusterbroker.cluster.commands import Bind, DeclareExchange, DeclareQueue, DeleteExchange, Unbind
from clusterbroker.cluster.entities import Binding, DestinationKind
from clusterbroker.cluster.exchange_rules import STAGING
from clusterbroker.journal.values import stored

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization


class Admin:
    """Of one client. Raises Refusal."""

    __slots__ = ("_access",)

    def __init__(self, access: Authorization) -> None:
        self._access = access

    def find_exchange(self, name: str) -> None:
        """Refuses when there is none."""
        vhost = self._access.vhost.name
        if self._access.node.map.exchange(vhost, name) is None:
            raise not_found(f"no exchange '{name}' in vhost '{vhost}'")

    def declare_exchange(
        self, name: str, kind: str, arguments: Mapping[str, Any], *, durable: bool, auto_delete: bool, internal: bool
    ) -> DeclareExchange:
        access, node = self._access, self._access.node
        access.check("configure", "exchange", name)
        kept: dict[str, Any] = stored(arguments)
        staging = kind == STAGING
        target = kept.get("x-target")
        if staging and isinstance(target, str):
            access.check("write", "exchange", target)
        alternate = kept.get("alternate-exchange")
        if isinstance(alternate, str):
            access.check("read", "exchange", name)
            access.check("write", "exchange", alternate)
        limit = node.options.exchanges_max
        if node.map.exchange(access.vhost.name, name) is None:
            if not staging and node.exchange_count >= limit:
                raise precondition_failed(f"cannot declare exchange '{name}': exchange limit ({limit}) is reached")
            access.check_memory(f"declare exchange '{name}'")
        return DeclareExchange(
            vhost=access.vhost.name,
            name=name,
            type=kind,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=kept,
            **self._stager() if staging else {},
        )

    def _stager(self) -> dict[str, Any]:
        """What the wiring must know of who opens a segment, and when."""
        access = self._access
        return {"at_ms": access.node.now_ms, "user": access.principal, "is_administrator": access.is_administrator}

    def delete_exchange(self, name: str, *, if_unused: bool) -> DeleteExchange:
        self._access.check("configure", "exchange", name)
        return DeleteExchange(vhost=self._access.vhost.name, name=name, if_unused=if_unused)

    def bind(self, source: str, destination: str, to: DestinationKind, key: str, arguments: Mapping[str, Any]) -> Bind:
        named = self._binding(source, destination, to, key, arguments)
        access = self._access
        if access.node.low_on_memory and access.node.map.find_binding(Binding(**named)) is None:
            access.check_memory(f"bind {to} '{destination}' to exchange '{source}'")
        return Bind(**named, connection=access.connection_id)

    def unbind(
        self, source: str, destination: str, to: DestinationKind, key: str, arguments: Mapping[str, Any]
    ) -> Unbind:
        named = self._binding(source, destination, to, key, arguments)
        return Unbind(**named, connection=self._access.connection_id)

    def _binding(
        self, source: str, destination: str, to: DestinationKind, key: str, arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        access = self._access
        if not source or (to == "exchange" and not destination):
            raise access_refused("operation not permitted on the default exchange")
        access.check("write", to, destination)
        access.check("read", "exchange", source)
        access.check_topic("read", source, key)
        return {
            "vhost": access.vhost.name,
            "source": source,
            "destination": destination,
            "destination_kind": to,
            "routing_key": key,
            "arguments": stored(arguments),
        }

    def declare_queue(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        durable: bool,
        auto_delete: bool,
        exclusive: bool,
        server_named: bool,
    ) -> DeclareQueue:
        access, node = self._access, self._access.node
        access.check("configure", "queue", name)
        kept: dict[str, Any] = stored(arguments)
        dead_letters = kept.get("x-dead-letter-exchange")
        if isinstance(dead_letters, str):
            access.check("read", "queue", name)
            access.check("write", "exchange", dead_letters)
        if node.map.queue(access.vhost.name, name) is None:
            limit = node.options.queues_max
            if len(node.queues) >= limit:
                raise precondition_failed(
                    f"cannot declare queue '{name}': queue limit in this node ({limit}) is reached"
                )
            access.check_memory(f"declare queue '{name}'")
        return DeclareQueue(
            at_ms=node.now_ms,
            vhost=access.vhost.name,
            name=name,
            durable=durable,
            auto_delete=auto_delete,
            exclusive=exclusive,
            arguments=kept,
            connection=access.connection_id,
            server_named=server_named,
        )
