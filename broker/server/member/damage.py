"""A member with a damaged journal: its copies are rebuilt from the others', if every queue has one (waits).

    found       the journal cannot be read at the start, or a record while the node runs
    given up    RegisterNode calls every copy that is held here damaged. The cluster refuses that (`spare_last`) for a
                queue of which no other member may have all: nothing is touched, and the node ends with a line that
                names the queues
    set aside   DIR/journal.lost is written, the node begins anew, DIR/journal becomes DIR/journal.damaged-<time>
    rebuilt     the node registers with an empty journal, all its copies named as damaged once more (so that a crash in
                between does no harm), and DIR/journal.lost goes. The leaders sync the copies as any other

Between that command and the removal of DIR/journal.lost, the copies may be in sync again, and the node may die. The new
journal therefore keeps the incarnation that gave the copies up, and the command carries it: if a later one has
registered since, nothing is damaged any more (decision 035). A journal begun anew once more for the same mark lacks it.

A node never deletes a journal that was set aside: `clusterbroker journal` examines it and exports readable messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from clusterbroker.broker.server.directory import DamagedDirectory, put_aside, write_durably
from clusterbroker.broker.server.endings import Restart
from clusterbroker.cluster.errors import queue_text
from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.wiring.commands import RegisterNode
from clusterbroker.cluster.wiring.entities import Queue
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.view import ClusterView
from clusterbroker.journal.errors import DamagedJournal
from clusterbroker.journal.platform import sync_directory

NAMES_MAX: Final = 5
REBUILDS: Final = (
    "The node begins again by itself: it puts what is left of the journal aside, and fetches its copies from the others"
)
LOST: Final = "journal.lost"
GIVEN_UP_AS: Final = "given up as incarnation "
REBUILT: Final = "rebuilt"
"""A file in a journal begun after one that was set aside, until the node has registered."""


def only_copies(map_: ClusterView, node: str) -> list[Queue]:
    """Queues of which only this node may have all messages."""
    return [queue for queue in map_.replicas_of(NodeId(node)) if map_.is_only_copy(queue, NodeId(node))]


def names_of(queues: Sequence[Queue]) -> str:
    """The first few, for a line."""
    names = ", ".join(queue_text(queue.vhost, queue.name) for queue in queues[:NAMES_MAX])
    more = len(queues) - NAMES_MAX
    return f"{names} and {more} more" if more > 0 else names


def given_up(directory: Path, damage: DamagedJournal, applied: Applied, map_: ClusterView, node: str) -> Exception:
    """The reason for the node's end after its request to give up its copies: a restart with the journal marked as lost,
    or the queues of which it may have the only copy."""
    if applied.error is not None:
        only = only_copies(map_, node)
        return DamagedDirectory(
            f"{damage.found}. Nothing was changed. Of {len(only)} queues this may be the only copy, so it is not "
            f"rebuilt from others: {names_of(only) or applied.error.text}. See docs/operating-a-cluster.md, 'A damaged "
            "journal'"
        )
    assert isinstance(applied.command, RegisterNode), "it was asked for by registering"
    mark(directory, damage.found, applied.command.incarnation)
    return Restart("its journal is damaged: it is set aside, and the copies are rebuilt from the other members'")


def mark(directory: Path, why: str, incarnation: int) -> None:
    """Marks the journal as lost from the next start on, also when it was rebuilt before: a crash may have left the mark
    of a rebuilt one, which is never set aside. `incarnation`: the one that gave the copies up."""
    (directory / "journal" / REBUILT).unlink(missing_ok=True)
    write_durably(directory / LOST, f"{why}\n{GIVEN_UP_AS}{incarnation}\n")


def given_up_as(directory: Path) -> Incarnation:
    """The incarnation that gave up the former journal; 0: unknown."""
    return _number_in(directory / "journal" / REBUILT)


def _number_in(mark: Path) -> Incarnation:
    try:
        last = mark.read_text(errors="replace").splitlines()[-1:]
    except FileNotFoundError:
        return Incarnation(0)
    number = "".join(last).removeprefix(GIVEN_UP_AS)
    return Incarnation(int(number) if number.isdecimal() else 0)


def set_aside(directory: Path) -> Path | None:
    """Begins a journal anew if marked as lost; the former one's new path, if there was one. Raises OSError."""
    journal = directory / "journal"
    aside = None
    if is_marked(directory) and not (journal / REBUILT).exists():
        there = journal.exists() or journal.is_symlink()
        aside = put_aside(journal) if there else None
        _begin_rebuilt(directory)
    if _number_in(directory / LOST):
        write_durably(directory / LOST, f"{journal} is begun anew\n")
    return aside


def _begin_rebuilt(directory: Path) -> None:
    """An empty journal with a mark: a crash before the node has registered must not set it aside again."""
    fresh = directory / "journal.new"
    fresh.mkdir(mode=0o750, exist_ok=True)
    number = _number_in(directory / LOST)
    write_durably(fresh / REBUILT, f"its copies come from the other members\n{GIVEN_UP_AS}{number}\n")
    fresh.rename(directory / "journal")
    sync_directory(directory)


def is_marked(directory: Path) -> bool:
    """Whether the copies of this directory do not count yet."""
    return (directory / LOST).exists()


def unmark(directory: Path) -> None:
    """The cluster knows that the copies are lost: their new content counts."""
    if is_marked(directory):
        (directory / LOST).unlink()
        sync_directory(directory)
    (directory / "journal" / REBUILT).unlink(missing_ok=True)
