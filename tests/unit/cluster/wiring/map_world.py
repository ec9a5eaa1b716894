"""A map and its log for tests: each call is one command."""

from typing import Any

from clusterbroker.cluster.errors import (
    WiringError,
)
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import changes as told
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import Applied, ClusterMap


class World:
    """A map and its log, one command per call."""

    def __init__(self) -> None:
        self.map = ClusterMap()
        self.last: Applied | None = None

    def do(self, command: c.AnyCommand) -> Any:
        before = self.map.digest()
        self.last = self.map.apply(LogIndex(self.map.applied + 1), command)
        assert (self.map.digest() != before) is bool(self.last.changes), "changes are told exactly when there are some"
        if isinstance(self.last.error, WiringError):
            raise self.last.error
        return self.last.result

    @property
    def told(self) -> list[str]:
        assert self.last is not None
        return [_words(change) for change in self.last.changes]

    def queue(self, name: str, **fields: Any) -> Any:
        return self.do(c.DeclareQueue(vhost="/", name=name, **{"durable": True, **fields}))

    def exchange(self, name: str, type_: str = "direct", **fields: Any) -> Any:
        return self.do(c.DeclareExchange(vhost="/", name=name, type=type_, **{"durable": True, **fields}))

    def bind(self, source: str, destination: str, key: str = "", kind: Any = "queue", **fields: Any) -> Any:
        return self.do(
            c.Bind(
                vhost="/",
                source=source,
                destination=destination,
                destination_kind=kind,
                routing_key=key,
                **fields,
            )
        )

    def unbind(self, source: str, destination: str, key: str = "", kind: Any = "queue", **fields: Any) -> Any:
        return self.do(
            c.Unbind(
                vhost="/",
                source=source,
                destination=destination,
                destination_kind=kind,
                routing_key=key,
                **fields,
            )
        )


def _words(change: Any) -> str:
    name = type(change).__name__
    match change:
        case told.QueueDeclared(queue=entity) | told.QueueDeleted(queue=entity):
            return f"{name} {entity.name}"
        case told.ExchangeDeclared(exchange=entity) | told.ExchangeDeleted(exchange=entity):
            return f"{name} {entity.name}"
        case told.Bound(binding=b) | told.Unbound(binding=b):
            return f"{name} {b.source}->{b.destination}"
        case _:
            return name
