"""Imports of definitions, brought to their end by the metadata leader (waits).

    accepted    the next slice, as soon as the one before is applied
    staged      dropped when nobody has gone on with it for ABANDONED_S: who proposed it is gone

Every node looks, and the leader proposes: a leader that dies is followed by one that goes on. What was proposed twice
is carried out once, since a slice says where it begins. Slices are small, and the loop has its turn between two.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from clusterbroker.cluster.wiring import commands as c

if TYPE_CHECKING:
    from clusterbroker.broker.server.ports import ServerPort
    from clusterbroker.cluster.wiring.map import Applied

AGAIN_S: Final = 0.5
"""A slice that was not applied by then is proposed again: the leader may have changed, or a member may be missing."""
ABANDONED_S: Final = 15.0


class Imports:
    """Looks at the map after every command, as long as it has an import."""

    def __init__(self, shell: ServerPort) -> None:
        self._shell = shell
        self._wiring = shell.storage.wiring
        self._timer: asyncio.TimerHandle | None = None
        self._place: tuple[str, int, int] | None = None
        self._since_s = 0.0
        self._wiring.listen(self._applied)
        self._review()

    def _applied(self, _applied: Applied) -> None:
        if self._wiring.map.importing is not None:
            self._shell.loop.call_soon(self._review)

    @property
    def _leads(self) -> bool:
        return self._shell.cluster is None or self._shell.cluster.raft.is_leader

    def _again(self) -> None:
        self._timer = None
        self._review(again=True)

    def _review(self, again: bool = False) -> None:
        """Do what is to be done at this place of the import: once, and again when nothing came of it."""
        held = self._wiring.map.importing
        if held is None or self._shell.ended.done():
            self._place = None
            return
        if self._timer is None:
            self._timer = self._shell.loop.call_later(AGAIN_S, self._again)
        now_s = self._shell.loop.time()
        place = (held.import_id, held.parts, held.done)
        if place != self._place:
            self._place, self._since_s = place, now_s
            again = True
        if not self._leads:
            return
        if held.accepted and again:
            count = self._wiring.map.next_slice(held.commands, held.done)
            self._wiring.propose(c.ApplyImport(import_id=held.import_id, start=held.done, count=count))
        elif not held.accepted and now_s - self._since_s > ABANDONED_S:
            self._wiring.propose(c.DropImport(import_id=held.import_id))
