"""What of transactions is over is ended by whoever orders the wiring (waits).

Segments that nobody committed in time, and producers that have been silent for as long as they are remembered. The time
is that of who proposes it; the fold judges by what the command says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cluster import commands as c
from cluster.transactions import due

if TYPE_CHECKING:
    from broker.server.shell import NodeShell

EVERY_S: Final = 10.0


class Upkeep:
    """Looks at the map every EVERY_S, if this node leads or is alone."""

    def __init__(self, shell: NodeShell) -> None:
        self._shell = shell
        self._again()

    def _again(self) -> None:
        self._shell.loop.call_later(EVERY_S, self._look)

    def _look(self) -> None:
        shell, wiring = self._shell, self._shell.storage.wiring
        if shell.ended.done():
            return
        if shell.cluster is None or shell.cluster.raft.is_leader:
            at_ms = shell.clock.now_ms()
            for found in due(wiring.map, at_ms):
                if found.segments:
                    wiring.propose(c.ExpireTransactions(at_ms=at_ms, vhost=found.vhost, names=found.segments))
                if found.producers:
                    wiring.propose(c.ForgetProducers(at_ms=at_ms, vhost=found.vhost, names=found.producers))
        self._again()
