"""Dependents of a queue, an exchange, a binding or a vhost that end with it, and the number of commands for that.

All members fold a command in one step each, without serving clients meanwhile. Its end may take a hundred thousand
bindings with it, or a thousand with a thousand conditions each. The proposer of such a command therefore looks before
(`in_pieces`), and orders `Loosen` first, as often as needed: each ends a piece of the cascade, the last ones first,
so that none of them ends anything else. A queue or an exchange that is going loses its bindings a moment before it
goes; if its node dies in between, it lives on without them until it is deleted again. So does a vhost, which loses
its bindings first, then its queues, then its exchanges.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from .changes import Change
from .entities import Binding, Exchange
from .queue_rules import RESERVED_PREFIX
from .topology import Topology

PIECE: Final = 20_000
"""In units of about a microsecond."""
QUEUE: Final = 100
EXCHANGE: Final = 20
BINDING: Final = 10
_VALUE: Final = 2
_KEY_BYTES: Final = 4
"""Of a key, for one unit."""


def piece(order: list[Binding]) -> list[Binding]:
    """The last ones, as many as one command should end, the very last one first."""
    weight, some = 0, []
    for binding in reversed(order):
        some.append(binding)
        weight += weigh(binding)
        if weight > PIECE:
            break
    return some


def weigh(binding: Binding) -> int:
    """What its end costs."""
    return BINDING + len(binding.routing_key) // _KEY_BYTES + _VALUE * _values(binding.arguments)


def end_piece(topology: Topology, changes: list[Change]) -> None:
    """End as much of a vhost as one command should end."""
    weight = 0
    for binding in tuple(islice(topology.bindings, PIECE // BINDING)):
        if weight > PIECE:
            return
        if topology.bindings.find(binding) is binding:  # it has not gone with one before
            some = piece(topology.cascade((binding,)))
            topology.end_some(some, changes)
            weight += sum(map(weigh, some))
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


def is_much(topology: Topology) -> bool:
    """Whether a vhost should not end with one command."""
    own = len(_own(topology)) * EXCHANGE + len(topology.queues) * QUEUE
    return own > PIECE or len(piece(list(topology.bindings))) < len(topology.bindings)


def _own(topology: Topology) -> list[Exchange]:
    """Exchanges that were declared; segments of transactions end with their vhost."""
    kept = topology.ledger.segments
    return [x for name, x in topology.exchanges.items() if not name.startswith(RESERVED_PREFIX) and name not in kept]


def _values(tree: Any) -> int:
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return sum(1 + _values(value) for value in inner)
