"""A virtual host at work: its router and its queues, folded from the wiring's changes."""

from __future__ import annotations

from collections.abc import Callable

from clusterbroker.broker.node.counts import ExchangeCounts
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.sweeping import NO_LOCAL
from clusterbroker.broker.routing.binding import Binding, Destination
from clusterbroker.broker.routing.labour import Labour
from clusterbroker.broker.routing.router import Router
from clusterbroker.cluster.wiring.entities import Binding as BindingEntity
from clusterbroker.cluster.wiring.entities import Segment


class VirtualHost:
    """What a channel needs of its virtual host."""

    __slots__ = ("exchanges", "name", "no_local", "queues", "router", "segments", "staging")

    def __init__(
        self,
        name: str,
        labour: Labour | None = None,
        clock: Callable[[], int] = lambda: 0,
        is_here: Callable[[QueueHandle], bool] = lambda _: True,
    ) -> None:
        """`is_here`: whether a queue's leader is this node."""
        self.name = name
        self.queues: dict[str, QueueHandle] = {}
        self.no_local: dict[str, str] = {}
        """Queues that do not take what a container publishes (`queues.sweeping.NO_LOCAL`): name -> container-id."""
        self.router: Router[QueueHandle] = Router(self.queues.get, labour=labour, clock=clock, is_here=is_here)
        self.exchanges: dict[str, ExchangeCounts] = {}
        """Of those that something was published to."""
        self.segments: dict[str, Segment] = {}
        """What staging exchanges stand for, by their names; the router does not know them."""
        self.staging: dict[str, QueueHandle] = {}
        """The queues of those that keep what is published, by the same names."""

    def counts(self, exchange: str) -> ExchangeCounts:
        """Those of an exchange; of one that is gone they are lost."""
        counts = self.exchanges.get(exchange)
        if counts is None:
            counts = ExchangeCounts()
            if self.router.exchange_type(exchange) is not None:
                self.exchanges[exchange] = counts
        return counts

    def add_queue(self, name: str, queue: QueueHandle, keyless: bool = False) -> None:
        """A queue was declared. `keyless`: nobody publishes to its name."""
        self.queues[name] = queue
        not_of = queue.entity.arguments.get(NO_LOCAL)
        if isinstance(not_of, str) and not_of:
            self.no_local[name] = not_of
        if not queue.entity.part_of:  # no key of the default exchange leads into an exchange
            self.router.add_queue(name, keyless=keyless)

    def remove_queue(self, name: str) -> None:
        """It is deleted."""
        self.no_local.pop(name, None)
        self.router.remove_queue(name)

    def stage(self, segment: Segment) -> None:
        """A staging exchange was declared, or committed."""
        self.segments[segment.name] = segment
        self.router.forget()

    def unstage(self, segment: Segment) -> None:
        """It has ended."""
        del self.segments[segment.name]
        self.router.forget()

    def bind(self, entity: BindingEntity) -> None:
        """A binding began."""
        self.router.bind(_routed(entity))

    def unbind(self, entity: BindingEntity) -> None:
        """A binding ended."""
        self.router.unbind(_routed(entity))

    def remove_exchange(self, name: str) -> None:
        """It is deleted, and one of the same name that comes later counts anew."""
        self.router.remove_exchange(name)
        self.exchanges.pop(name, None)


def _routed(entity: BindingEntity) -> Binding:
    destination = Destination(entity.destination, entity.destination_kind == "exchange")
    return Binding(entity.source, destination, entity.routing_key, entity.arguments)
