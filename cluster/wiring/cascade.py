"""Dependents of a queue, an exchange, a binding or a vhost that end with it, and the number of commands for that.

All members fold a command in one step each, without serving clients meanwhile. Its end may take a hundred thousand
bindings with it, or a thousand with a thousand conditions each. The proposer of such a command therefore looks before
(`in_pieces`), and orders `Loosen` first, as often as needed: each ends a piece of the cascade, the last ones first,
so that none of them ends anything else. A queue or an exchange that is going loses its bindings a moment before it
goes; if its node dies in between, it lives on without them until it is deleted again. So does a vhost, which loses
its bindings first, then its queues, then its exchanges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

from . import commands as c
from .changes import Change
from .entities import Binding, Exchange, Queue
from .levels import CIRCLES, Levels
from .queue_index import QueueIndex
from .queue_rules import RESERVED_PREFIX
from .topology import Topology
from .vhosts import Vhosts

PIECE: Final = 20_000
"""In units of about a microsecond."""
QUEUE: Final = 100
EXCHANGE: Final = 20
BINDING: Final = 10
_VALUE: Final = 2
_KEY_BYTES: Final = 4
"""Of a key, for one unit."""


@dataclass(slots=True, eq=False)
class Cascades:
    """Ends of many things in several commands. The things are the topologies'."""

    _vhosts: Vhosts
    _index: QueueIndex
    _levels: Levels

    def in_pieces(self, command: c.Ending) -> bool:
        """Whether what ends with it is too much for one command: then `Loosen` comes before it."""
        if isinstance(command, c.DeleteVhost):
            return _is_much(self._vhosts.look(command.name))
        return any(len(order) > len(_piece(order)) for _, order in self._ending(command))

    def loosen(self, command: c.Loosen, changes: list[Change]) -> bool:
        """Fold Loosen."""
        ending = command.ending
        if isinstance(ending, c.DeleteVhost):
            topology = self._vhosts.look(ending.name)
            if not _is_much(topology):
                return False
            _end_piece(topology, changes)
            return _is_much(topology)
        for topology, order in self._ending(ending):
            some = _piece(order)
            if len(some) < len(order):
                spared = ""
                if isinstance(ending, c.DeleteExchange) and self._levels.level >= CIRCLES:
                    spared = ending.name
                topology.end_some(some, changes, spared)
                return True
        return False

    def _ending(self, command: c.Ending) -> Iterator[tuple[Topology, list[Binding]]]:
        """The bindings that would end with the command, by vhost; none of a command that changes nothing."""
        match command:
            case c.RemoveConnection():
                by_vhost: dict[str, list[Queue]] = {}
                for queue in self._index.ending_with(command.connection):
                    by_vhost.setdefault(queue.vhost, []).append(queue)
                for vhost, queues in by_vhost.items():
                    topology = self._vhosts.by_name[vhost]
                    direct = [topology.bindings.to_destination("queue", queue.name) for queue in queues]
                    yield topology, topology.cascade(chain.from_iterable(direct))
            case c.DeleteQueue():
                found = self._index.by_id.get(command.queue_id)
                if found is not None and not (found.staging or found.part_of) and command.epoch in (0, found.epoch):
                    topology = self._vhosts.by_name[found.vhost]
                    yield topology, topology.cascade(topology.bindings.to_destination("queue", found.name))
            case c.DeleteExchange() | c.Unbind():
                topology = self._vhosts.look(command.vhost)
                yield topology, topology.would_end(command)


def _piece(order: list[Binding]) -> list[Binding]:
    """The last ones, as many as one command should end, the very last one first."""
    weight, some = 0, []
    for binding in reversed(order):
        some.append(binding)
        weight += _weight(binding)
        if weight > PIECE:
            break
    return some


def _weight(binding: Binding) -> int:
    """Cost of its end."""
    return BINDING + len(binding.routing_key) // _KEY_BYTES + _VALUE * _values(binding.arguments)


def _end_piece(topology: Topology, changes: list[Change]) -> None:
    """End as much of a vhost as one command should end."""
    weight = 0
    for binding in tuple(islice(topology.bindings, PIECE // BINDING)):
        if weight > PIECE:
            return
        if topology.bindings.find(binding) is binding:  # it has not gone with one before
            some = _piece(topology.cascade((binding,)))
            topology.end_some(some, changes)
            weight += sum(map(_weight, some))
    if topology.bindings:
        return
    for queue in tuple(islice(topology.queues.values(), PIECE // QUEUE + 1)):
        if weight > PIECE:
            return
        topology.end_queue(queue, changes)
        weight += QUEUE
    for exchange in _own(topology):
        if weight > PIECE:
            return
        topology.end_exchange(exchange, changes)
        weight += EXCHANGE


def _is_much(topology: Topology) -> bool:
    """Whether a vhost should not end with one command."""
    own = len(_own(topology)) * EXCHANGE + len(topology.queues) * QUEUE
    return own > PIECE or len(_piece(list(topology.bindings))) < len(topology.bindings)


def _own(topology: Topology) -> list[Exchange]:
    """Exchanges that were declared; segments of transactions end with their vhost."""
    kept = topology.ledger.segments
    return [x for name, x in topology.exchanges.items() if not name.startswith(RESERVED_PREFIX) and name not in kept]


def _values(tree: Any) -> int:
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return sum(1 + _values(value) for value in inner)
