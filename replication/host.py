"""Port of the owner's side of replication to its node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from clusterbroker.cluster.wiring.commands import InSyncProposal

from .hand_overs import Host as MovingHost
from .offers import Sender
from .refusals import Host as RefusalHost


class Host(Sender, RefusalHost, MovingHost, Protocol):
    """What the owner's side needs of its node. None of these may call back into the Primary before they return,
    except `load`'s `then`."""

    def change_in_sync(self, changes: tuple[InSyncProposal, ...], done: Callable[[], None]) -> None:
        """Proposes ChangeInSync; `done` when it is applied or failed (what changed is told by entity_changed)."""

    def committed(self, queue_id: int, group: int) -> None:
        """The queue's records of that group are committed, and it may be written again."""

    def first_sync_complete(self, queue_id: int) -> None:
        """All that was taken over is committed: the queue may be written and handed out."""

    def stumbled(self, queue_id: int, error: Exception) -> None:
        """Something raised over this queue. The core has given it up: nothing of it is committed any more, whatever is
        in flight. What the node holds of it is not to be believed."""

    def link_stumbled(self, peer: str, error: Exception) -> None:
        """Something raised over what is said to the peer: the link is to end, and all is said anew on the next one."""

    def replication_event(self, event: str, queue_id: int, node: str, detail: str) -> None:
        """For the log: "caught_up", "fell_behind", "refused", "rolled_back", "later", "kept_apart",
        "hand_over_failed"."""
