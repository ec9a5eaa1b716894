"""What a node orders: a command that would end very much is ordered behind others that end most of it
(`cluster.cascade`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from clusterbroker.cluster.wiring.commands import AnyCommand, Ending, Loosen
from clusterbroker.cluster.wiring.map import Applied

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import NodeCore


ROUNDS_MAX: Final = 10_000
"""Who declares new things in a vhost that ends does not keep it alive."""


def order(node: NodeCore, command: AnyCommand, done: Callable[[Applied], None]) -> None:
    """Proposes it."""
    if isinstance(command, Ending) and node.map.in_pieces(command):
        ending = command
        rounds = iter(range(ROUNDS_MAX))

        def loosened(applied: Applied) -> None:
            more = applied.ok and applied.result and next(rounds, None) is not None
            node.proposals.append((Loosen(ending=ending), loosened) if more else (ending, done))

        node.proposals.append((Loosen(ending=ending), loosened))
    else:
        node.proposals.append((command, done))
