"""The wiring of one vhost: its exchanges, queues, bindings and policies, and the rules that tie them together.

    exchange --binding--> queue            a binding lives as long as both its ends
    exchange --binding--> exchange         an auto-delete exchange lives as long as its last binding *from* it

So ends cascade: a queue's end takes its bindings, a binding's end may take its source exchange, whose end
takes the bindings that lead to it, and so on. The cascade runs oldest first and ends, because each step
removes something. Every method that changes something appends to `changes` what it changed, in order,
bindings before their ends; every check comes before the first change, so an error leaves the state as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from clusterbroker.cluster.errors import (
    InUse,
    LimitReached,
    PreconditionFailed,
    WiringError,
    exchange_text,
    no_exchange,
    no_queue,
)
from clusterbroker.cluster.ids import Epoch, NodeId, QueueId

from . import deduplication, delay_bits, delays, exchange_rules, histories, queue_rules
from .arguments import ENCODER
from .binding_table import BindingTable
from .changes import (
    Bound,
    Change,
    ExchangeDeclared,
    ExchangeDeleted,
    ProducerChanged,
    QueueDeclared,
    QueueDeleted,
    SegmentEnded,
    Unbound,
)
from .commands import (
    Bind,
    DeclareChoosingExchange,
    DeclareDeduplicatingExchange,
    DeclareDelayedExchange,
    DeclareExchange,
    DeclareHistoryExchange,
    DeclareQueue,
    DeleteExchange,
    ExchangeDeclaration,
    KeepDelays,
    QueuedExchange,
    SetVhostLimits,
    Unbind,
)
from .entities import BINDINGS_MAX, Binding, Exchange, Queue, Vhost, VhostLimits
from .ledger import Ledger
from .policies import PolicyTable
from .queue_index import QueueIndex
from .queue_rules import RESERVED_PREFIX

Place = Callable[[Queue, DeclareQueue | ExchangeDeclaration | KeepDelays], Queue]
"""Gives a new queue its owner and replicas. Raises WiringError when no member can hold it."""

_QUEUES_OF: Final = {
    exchange_rules.DELAYED: delays.delay_queue,
    exchange_rules.HISTORY: histories.history_queue,
    exchange_rules.DEDUPLICATING: deduplication.cache_queue,
}
"""The name of the queue that is a part of an exchange of this type."""


class _Queued(NamedTuple):
    """How exchanges with a queue of their own are declared."""

    type: str
    check: Callable[[Any], None]
    """Raises PreconditionFailed for arguments that cannot be."""
    queue: Callable[[QueueId, str, Any], Queue]
    by_type: bool = True
    """The command's type says so; a delayed exchange may be of another type, by an argument."""


_QUEUED: Final[dict[type[QueuedExchange], _Queued]] = {
    DeclareDelayedExchange: _Queued(exchange_rules.DELAYED, delays.check_delayed, delays.delaying, by_type=False),
    DeclareHistoryExchange: _Queued(exchange_rules.HISTORY, histories.check_history, histories.keeping),
    DeclareDeduplicatingExchange: _Queued(
        exchange_rules.DEDUPLICATING, deduplication.check_deduplicating, deduplication.comparing
    ),
}

ARGUMENT_SETS_MAX: Final = 100
"""So many different tables of arguments are remembered, for the queues to come that have the same."""
_NO_ARGUMENTS: Final[dict[str, Any]] = {}
"""Of most bindings. It stays empty."""
EXPECTED: Final = (DeclareQueue, Bind, SetVhostLimits)
"""The commands that `Expected` counts."""


@dataclass(slots=True, eq=False)
class Expected:
    """What an import has decided on for a vhost, and what is not there yet: it counts as if it were."""

    in_turn: bool = False
    """A command of the import is carried out: whether there is room for it was judged when it was decided, by the
    limit that shall be, which may be still to come."""
    queues: int = 0
    """For the limit."""
    limits: int = 0
    """So many times the limit will be set: until then nobody knows whether there is room for a queue more."""
    sources: Counter[str] = field(default_factory=Counter)
    """Exchanges from which bindings will lead: an auto-delete exchange that loses its last one stays."""

    def add(self, command: DeclareQueue | Bind | SetVhostLimits, count: int) -> None:
        """`count`: 1 when it is decided, -1 when it is its turn."""
        match command:
            case DeclareQueue():
                self.queues += count
            case Bind():
                self.sources[command.source] += count
            case SetVhostLimits():
                self.limits += count


class Topology:
    """One vhost and all in it; queues that hold staged rows stand apart (`staged`), and are no others' affair.

    Invariants: (1) both ends of every binding exist; (2) no two queues share a name; (3) the default exchange
    is not stored; (4) no auto-delete exchange lost its last binding and still exists.
    """

    __slots__ = (
        "_argument_sets", "_index", "_node_sets", "bindings", "exchanges", "expected", "ledger", "limits", "policies",
        "queues", "staged", "vhost",
    )  # fmt: skip

    def __init__(self, vhost: Vhost, index: QueueIndex) -> None:
        """An empty vhost; `index` hears of each queue that comes, changes or ends."""
        self._index = index
        self.vhost = vhost
        self.limits: VhostLimits | None = None
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self.staged: dict[str, Queue] = {}
        self.ledger = Ledger()
        self.bindings = BindingTable()
        self.policies = PolicyTable()
        self.expected = Expected()
        self._node_sets: dict[tuple[NodeId, ...], tuple[NodeId, ...]] = {}
        self._argument_sets: dict[bytes, dict[str, Any]] = {}

    def predeclare(self, changes: list[Change]) -> None:
        """The exchanges that every vhost begins with."""
        for name, type_, internal in exchange_rules.PREDECLARED:
            exchange = Exchange(vhost=self.vhost.name, name=name, type=type_, internal=internal)
            self.exchanges[name] = exchange
            changes.append(ExchangeDeclared(exchange))

    def predeclare_failover(self, changes: list[Change]) -> None:
        """The exchange that every vhost of a cluster has as well."""
        exchange = Exchange(vhost=self.vhost.name, name=exchange_rules.FAILOVER, type="fanout", internal=True)
        if self.exchanges.get(exchange.name) is None:
            self.exchanges[exchange.name] = exchange
            changes.append(ExchangeDeclared(exchange))

    def declare_exchange(self, command: DeclareExchange, changes: list[Change]) -> Exchange:
        """exchange.declare: the existing exchange when it is equivalent, else a new one."""
        exchange_rules.check_type(command.type)
        existing = self._equivalent_exchange(command)
        if existing is not None:
            return existing
        exchange_rules.check_arguments(self.vhost.name, command.name, command.type, command.arguments)
        return self._new_exchange(exchange_rules.TYPES[exchange_rules.TYPES.index(command.type)], command, changes)

    def declare_choosing_exchange(self, command: DeclareChoosingExchange, changes: list[Change]) -> Exchange:
        """As `declare_exchange`, of a type that chooses a destination."""
        exchange_rules.check_type(command.type, exchange_rules.CHOOSING)
        existing = self._equivalent_exchange(command)
        if existing is not None:
            return existing
        exchange_rules.check_arguments(self.vhost.name, command.name, command.type, command.arguments)
        return self._new_exchange(command.type, command, changes)

    def declare_queued_exchange(
        self, queue_id: QueueId, command: QueuedExchange, changes: list[Change], place: Place
    ) -> Exchange:
        """exchange.declare of one with a queue of its own: the existing exchange when it is equivalent, else a new one,
        and its queue with this id. The queue ends with the exchange, and survives restarts if that does."""
        kind = _QUEUED[type(command)]
        if kind.by_type:
            exchange_rules.check_type(command.type, (kind.type,))
        existing = self._equivalent_exchange(command)
        if existing is not None:
            return existing
        kind.check(command)
        queue = kind.queue(queue_id, _QUEUES_OF[kind.type](command.name), command)
        return self._new_with_queue(kind.type, queue, command, changes, place)

    def _new_with_queue(
        self, type_: str, queue: Queue, command: QueuedExchange, changes: list[Change], place: Place
    ) -> Exchange:
        if (other := self.queues.get(queue.name)) is not None:
            where = exchange_text(self.vhost.name, command.name)
            raise PreconditionFailed(f"{where} would share its queue '{queue.name}' with '{other.part_of}'")
        self.check_queue_limit(queue.name)
        placed = place(queue, command)
        exchange = self._new_exchange(type_, command, changes)
        changes.append(QueueDeclared(self.adopt_queue(placed)))
        return exchange

    def keep_delays(self, queue_id: QueueId, command: KeepDelays, changes: list[Change], place: Place) -> bool:
        """A queue with this id for the messages of an exchange with delays in keys, unless there is one of its name,
        or its policy is another one by now. Whether there is a new one."""
        exchange = self.exchanges.get(command.exchange)
        if exchange is None or not self.lacks_delays(exchange):
            return False
        queue = delay_bits.keeping(queue_id, command, self.policies.exchange_settings(exchange))
        self.check_queue_limit(queue.name)
        changes.append(QueueDeclared(self.adopt_queue(place(queue, command))))
        return True

    def lacks_delays(self, exchange: Exchange) -> bool:
        """Whether its policy wants a queue for the delays in its keys, and there is none of that name."""
        if exchange.type != delay_bits.KIND or delays.delay_queue(exchange.name) in self.queues:
            return False  # without a look at all policies
        return delay_bits.delays_by_keys(exchange, self.policies.exchange_settings(exchange))

    def wants_delays(self, queue: Queue) -> bool:
        """Whether messages with delays in their keys shall wait in this queue."""
        exchange = self.exchanges.get(queue.delays)
        return exchange is not None and delay_bits.wants(exchange, self.policies.exchange_settings(exchange), queue)

    def _equivalent_exchange(self, command: ExchangeDeclaration) -> Exchange | None:
        """None: there is none, and one of this name may be made."""
        exchange_rules.refuse_default_exchange(command.name)
        existing = self.exchanges.get(command.name)
        if existing is not None:
            exchange_rules.check_equivalent(existing, command)
            return existing
        queue_rules.check_name("exchange", command.name)
        return None

    def _new_exchange(self, type_: str, command: ExchangeDeclaration, changes: list[Change]) -> Exchange:
        exchange = Exchange(
            vhost=self.vhost.name,
            name=command.name,
            type=type_,
            durable=command.durable,
            auto_delete=command.auto_delete,
            internal=command.internal,
            arguments=command.arguments,
        )
        self.exchanges[command.name] = exchange
        changes.append(ExchangeDeclared(exchange))
        return exchange

    def delete_exchange(self, command: DeleteExchange, changes: list[Change]) -> bool:
        """exchange.delete: whether it existed."""
        exchange_rules.refuse_default_exchange(command.name)
        exchange_rules.refuse_system_deletion(self.vhost.name, command.name)
        exchange = self.exchanges.get(command.name)
        if exchange is None:
            return False
        # if-unused looks at bindings from the exchange only
        if command.if_unused and self.bindings.leaves(command.name):
            raise InUse(f"{exchange_text(self.vhost.name, command.name)} in use")
        self.end_exchange(exchange, changes)
        return True

    def declare_queue(self, queue_id: QueueId, command: DeclareQueue, changes: list[Change], place: Place) -> Queue:
        """queue.declare: the existing queue when it is equivalent, else a new one with this id, at its place."""
        existing = self.queues.get(command.name)
        if existing is not None:
            queue_rules.check_equivalent(existing, command, self.vhost.default_queue_type or "classic")
            return existing
        if command.server_named:
            queue_rules.check_length("queue", command.name)
        else:
            queue_rules.check_name("queue", command.name)
        queue_rules.check_arguments(self.vhost.name, command.name, command.arguments)
        queue_rules.check_kind(command)
        self.check_queue_limit(command.name)
        # "Exclusive => durable flag ignored" (amqp-rules.md 5.3)
        durable = command.durable and not command.exclusive
        arguments = command.arguments
        if durable and self.vhost.default_queue_type and "x-queue-type" not in arguments:
            arguments = {**arguments, "x-queue-type": self.vhost.default_queue_type}
        assert command.connection is not None or not command.exclusive, "an exclusive queue has a connection"
        replicas = command.replicas or (command.owner,)
        queue = Queue(
            vhost=self.vhost.name,
            name=command.name,
            queue_id=queue_id,
            durable=durable,
            auto_delete=command.auto_delete,
            exclusive_owner=command.connection if command.exclusive else None,
            arguments=arguments,
            owner=command.owner,
            epoch=Epoch(1),
            incarnation=command.incarnation,
            replicas=replicas,
            in_sync=replicas,
            declared_ms=command.at_ms,
        )
        queue = self.adopt_queue(place(queue, command))
        changes.append(QueueDeclared(queue))
        return queue

    def adopt_queue(self, queue: Queue) -> Queue:
        """Hold a legal queue, new or changed; names of vhost and nodes, and arguments, become shared, for queues may be
        very many."""
        by_name = self.staged if queue.staging else self.queues
        before = by_name.get(queue.name)
        known = before is not None and before.arguments is queue.arguments
        held = replace(
            queue,
            vhost=self.vhost.name,
            arguments=queue.arguments if known else self._shared_arguments(queue.arguments),
            owner=None if queue.owner is None else self._shared((queue.owner,))[0],
            replicas=self._shared(queue.replicas),
            in_sync=self._shared(queue.in_sync),
            eligible=self._shared(queue.eligible),
        )
        by_name[held.name] = held
        self._index.put(before, held)
        return held

    def adopt_binding(self, binding: Binding) -> Binding:
        """Hold a binding that is known to be legal and new, with the strings of its ends."""
        held = self._binding(binding)
        self.bindings.add(held)
        return held

    def _shared(self, nodes: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
        return self._node_sets.setdefault(nodes, nodes)

    def _shared_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if len(self._argument_sets) >= ARGUMENT_SETS_MAX:
            self._argument_sets.clear()
        return self._argument_sets.setdefault(ENCODER.encode(arguments), arguments)

    def has_room_for_queues(self, count: int = 1) -> bool:
        """Whether the vhost's limit allows so many queues more."""
        most = self.limits.queues_max if self.limits is not None and not self.expected.in_turn else None
        return most is None or not 0 <= most < len(self.queues) + self.expected.queues + count

    def check_queue_limit(self, name: str, count: int = 1) -> None:
        """Raise LimitReached unless there is room for so many queues more."""
        if not self.has_room_for_queues(count):
            assert self.limits is not None, "no limit, no refusal"
            most = self.limits.queues_max
            vhost = self.vhost.name
            raise LimitReached(f"cannot declare queue '{name}': queue limit in vhost '{vhost}' ({most}) is reached")

    def _check_binding_limit(self, source: str) -> None:
        """An import is an operator's, and was judged when it was decided."""
        most = self.limits.bindings_max if self.limits is not None else None
        if most is None:
            most = BINDINGS_MAX
        each = self.limits.exchange_bindings_max if self.limits is not None else None
        if self.expected.in_turn:
            return
        vhost = self.vhost.name
        if 0 <= most <= len(self.bindings):
            raise LimitReached(
                f"cannot bind to exchange '{source}': binding limit in vhost '{vhost}' ({most}) is reached"
            )
        if each is not None and 0 <= each <= self.bindings.count_from(source):
            raise LimitReached(
                f"cannot bind to exchange '{source}': binding limit of an exchange in vhost '{vhost}' ({each}) is "
                "reached"
            )

    def bind(self, command: Bind, changes: list[Change]) -> Binding:
        """queue.bind or exchange.bind: the existing binding, or a new one."""
        source = self._source_of(command)
        if source is None:
            raise no_exchange(self.vhost.name, command.source)
        if not self._has_destination(command):
            missing = no_queue if command.destination_kind == "queue" else no_exchange
            raise missing(self.vhost.name, command.destination)
        self._check_access(command)
        existing = self.bindings.find(command)
        if existing is not None:
            return existing
        queue_rules.check_length("routing key", command.routing_key)
        exchange_rules.check_binding(source, command.routing_key, command.arguments, command.destination_kind)
        self._check_binding_limit(source.name)
        binding = self._binding(command)
        self.bindings.add(binding)
        changes.append(Bound(binding))
        return binding

    def unbind(self, command: Unbind, changes: list[Change]) -> bool:
        """queue.unbind or exchange.unbind: whether the binding existed."""
        self._source_of(command)
        self._check_access(command)
        binding = self.bindings.find(command)
        if binding is None:
            return False
        self._end_bindings((binding,), changes)
        return True

    def end_queue(self, queue: Queue, changes: list[Change]) -> None:
        """End a queue with all that hangs on it."""
        if queue.staging:
            del self.staged[queue.name]
        else:
            del self.queues[queue.name]
            self._end_bindings(self.bindings.to_destination("queue", queue.name), changes)
        self.policies.forget(queue)
        self._index.remove(queue)
        changes.append(QueueDeleted(queue))

    def end_exchange(self, exchange: Exchange, changes: list[Change], part: bool = True) -> None:
        """End an exchange with all that hangs on it; `part`: with the queue of its own."""
        del self.exchanges[exchange.name]
        self.policies.forget(exchange)
        # a binding from the exchange to itself is in both answers
        leaving = self.bindings.from_source(exchange.name)
        self._end_bindings(leaving, changes)
        self._end_bindings(self.bindings.to_destination("exchange", exchange.name), changes)
        changes.append(ExchangeDeleted(exchange))
        if part:
            self._end_part(exchange, changes)

    def _end_part(self, exchange: Exchange, changes: list[Change]) -> None:
        """An exchange has ended: what waits in it, or what it keeps, ends with it."""
        if exchange.type in _QUEUES_OF:
            queue = self.queues.get(_QUEUES_OF[exchange.type](exchange.name))
            if queue is not None:  # else a vhost ends in pieces, and its queues have
                self.end_queue(queue, changes)

    def would_end(self, command: DeleteExchange | Unbind) -> list[Binding]:
        """Bindings that would end with the command, in the order of the cascade; none when it would be refused."""
        if isinstance(command, DeleteExchange):
            kept = command.name.startswith(RESERVED_PREFIX) or command.name in self.ledger.segments
            if kept or (command.if_unused and self.bindings.leaves(command.name)):
                return []
            leaving = self.bindings.from_source(command.name)
            return self.cascade((*leaving, *self.bindings.to_destination("exchange", command.name)), command.name)
        try:
            self._source_of(command)
            self._check_access(command)
        except WiringError:
            return []
        binding = self.bindings.find(command)
        return [] if binding is None else self.cascade((binding,))

    def cascade(self, direct: Iterable[Binding], ended: str = "") -> list[Binding]:
        """All that end when these do, in the order of the cascade; `ended`: the exchange that goes first."""
        ending = {id(binding): binding for binding in direct}
        order = list(ending.values())
        gone = {ended}
        left: dict[str, int] = {}
        at = 0
        while at < len(order):
            name = order[at].source
            at += 1
            source = self.exchanges.get(name)
            if source is None or not source.auto_delete or name in gone or self.expected.sources[name] > 0:
                continue
            left[name] = left.get(name, self.bindings.count_from(name)) - 1
            if not left[name]:
                gone.add(name)
                for binding in self.bindings.to_destination("exchange", name):
                    if id(binding) not in ending:
                        ending[id(binding)] = binding
                        order.append(binding)
        return order

    def end_some(self, some: list[Binding], changes: list[Change], spared: str = "") -> None:
        """End bindings that are about to end, the last ones of a cascade first: none takes another one with it, but in
        a circle. `spared`: the exchange that goes after them, and not by them."""
        for binding in some:
            if self.bindings.find(binding) is binding:
                self._end_bindings((binding,), changes, spared)

    def end_transient_exchanges(self, changes: list[Change]) -> None:
        """End every exchange that does not survive a restart."""
        for exchange in [x for x in self.exchanges.values() if not x.durable]:
            if exchange.name in self.exchanges:
                self.end_exchange(exchange, changes)

    def end_everything(self, changes: list[Change]) -> None:
        """Empty the vhost, without looking at auto-delete: all exchanges go anyway."""
        for binding in tuple(self.bindings):
            self.bindings.remove(binding)
            changes.append(Unbound(binding))
        for queue in (*self.queues.values(), *self.staged.values()):
            self._index.remove(queue)
            changes.append(QueueDeleted(queue))
        changes.extend(ExchangeDeleted(exchange) for exchange in self.exchanges.values())
        changes.extend(SegmentEnded(segment) for segment in self.ledger.segments.values())
        changes.extend(ProducerChanged(self.vhost.name, name) for name in self.ledger.producers)
        self.queues.clear()
        self.staged.clear()
        self.exchanges.clear()
        self.ledger = Ledger()

    def is_durable(self, binding: Binding | Bind | Unbind) -> bool:
        """A binding is durable only when both its ends are."""
        source = self.exchanges.get(binding.source)
        if source is None or not source.durable:
            return False
        if binding.destination_kind == "queue":
            queue = self.queues.get(binding.destination)
            return queue is not None and not queue.transient
        exchange = self.exchanges.get(binding.destination)
        return exchange is not None and exchange.durable

    def _end_bindings(self, bindings: tuple[Binding, ...], changes: list[Change], spared: str = "") -> None:
        """End bindings, then every auto-delete exchange that lost its last binding by that, and so on."""
        ending = list(bindings)
        ended: list[Exchange] = []
        at = 0
        while at < len(ending):
            binding = ending[at]
            at += 1
            self.bindings.remove(binding)
            changes.append(Unbound(binding))
            source = self.exchanges.get(binding.source)
            if source is None or not source.auto_delete or self._is_used(source) or source.name == spared:
                continue
            # "Auto-delete exchanges go when the last binding from them goes"
            del self.exchanges[source.name]
            self.policies.forget(source)
            ended.append(source)
            # never twice: a binding has one destination, and a destination ends once
            ending.extend(self.bindings.to_destination("exchange", source.name))
        for exchange in ended:
            changes.append(ExchangeDeleted(exchange))
            self._end_part(exchange, changes)

    def _is_used(self, exchange: Exchange) -> bool:
        """Whether bindings from it keep an auto-delete exchange."""
        return self.bindings.leaves(exchange.name) or self.expected.sources[exchange.name] > 0

    def miss_binding(self, source: str, changes: list[Change]) -> None:
        """A binding was decided on, and its destination ended before it was there."""
        exchange = self.exchanges.get(source)
        if exchange is not None and exchange.auto_delete and not self._is_used(exchange):
            self.end_exchange(exchange, changes)

    def _source_of(self, command: Bind | Unbind) -> Exchange | None:
        exchange_rules.refuse_default_exchange(command.source)
        if command.destination_kind == "exchange":
            exchange_rules.refuse_default_exchange(command.destination)
            exchange_rules.refuse_staging_exchange(self.exchanges.get(command.destination))
        source = self.exchanges.get(command.source)
        exchange_rules.refuse_staging_exchange(source)
        return source

    def _has_destination(self, command: Bind | Unbind) -> bool:
        ends = self.queues if command.destination_kind == "queue" else self.exchanges
        return command.destination in ends

    def _check_access(self, command: Bind | Unbind) -> None:
        if command.destination_kind == "queue":
            queue = self.queues.get(command.destination)
            if queue is not None:
                queue_rules.check_access(queue, command.connection)

    def _binding(self, command: Bind | Unbind | Binding) -> Binding:
        source = self.exchanges.get(command.source)
        ends = self.queues if command.destination_kind == "queue" else self.exchanges
        end = ends.get(command.destination)
        return Binding(
            vhost=self.vhost.name,
            # the entities' own strings, so that many bindings share them
            source=source.name if source else command.source,
            destination=end.name if end else command.destination,
            destination_kind="queue" if command.destination_kind == "queue" else "exchange",
            routing_key=command.routing_key,
            arguments=command.arguments or _NO_ARGUMENTS,
        )
