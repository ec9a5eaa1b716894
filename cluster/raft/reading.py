"""A member's wiring from outside: snapshot and log folded, offline or beside the running node; nothing is written.

    read     the map, and its sources
    prove    whether a log can be opened here, and the part of it read for that

The log is applied to its end, with entries that this node had not heard to be committed: a node that leads after the
others are gone commits its whole log, and no client was answered that any of it is not committed. `unsure` names that
part.
"""

from __future__ import annotations

from typing import NamedTuple

from clusterbroker.cluster.errors import DamagedLog
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import ClusterMap

from . import identity as identities
from .disk import REMEDY, FileDisk
from .fold import REGULAR, Fold, unseal
from .identity import Identity
from .journal import Journal
from .messages import Entry
from .snapshots import Snapshots, StoredSnapshot


class Wiring(NamedTuple):
    """What a member knows of its cluster."""

    identity: Identity
    map: ClusterMap
    end: int
    """Of the last entry in the log."""
    commands: int
    """Applied since the snapshot."""
    unsure: tuple[tuple[int, c.AnyCommand], ...]
    """(index, command) of those that this node had not heard to be committed."""


def read(disk: FileDisk) -> Wiring | None:
    """The wiring; None: there is none yet, for its cluster is not founded or has sent nothing.

    Raises DamagedLog, FormatTooNew, DiskFailed.
    """
    identity = identities.read(disk)
    # in this order: beside a running node the log may be shortened behind a snapshot that comes between
    log = Journal(disk, only_read=True)
    stored = Snapshots(disk, _never).load()
    if identity is None or stored is None:
        return None
    fold = Fold.restored(stored, disk.path)
    entries, index = log[:], stored.last[1]
    at = index - entries[0][1] if entries else 0
    if not 0 <= at < len(entries) or entries[at][2] != stored.last[2]:
        entries = []  # a snapshot that a leader sent took the place of this log
    commands, unsure = 0, []
    for stored_entry, index, _ in entries[at + 1 :]:
        if stored_entry[:1] != REGULAR:
            continue
        applied = fold.apply(LogIndex(index), unseal(stored_entry))
        if applied is not None:
            commands += 1
            if index > log.getRaftCommitIndex():
                unsure.append((index, applied.command))
    if entries:
        index = entries[-1][1]
    return Wiring(identity, fold.map, index, commands, tuple(unsure))


class Loaded(NamedTuple):
    """A log that can be opened."""

    journal: Journal
    """Only read."""
    stored: StoredSnapshot | None
    """The snapshot behind which it goes on; None: nothing was ever applied here."""


def prove(disk: FileDisk) -> Loaded | None:
    """The log that can be opened here; None: founding makes it, over what is there. Raises DamagedLog, FormatTooNew,
    DiskFailed."""
    identity = identities.read(disk)
    if identity is None or (identity.founders and not identity.voters):
        return None
    return load(disk, identity)


def load(disk: FileDisk, identity: Identity) -> Loaded:
    """Read it. Raises DamagedLog, FormatTooNew, DiskFailed."""
    journal, stored = Journal(disk, only_read=True), Snapshots(disk, _never).load()
    begins = journal[0][1] if len(journal) else 0
    if (stored is None and (identity.voters or begins > 1)) or (stored is not None and not begins):
        raise DamagedLog(
            f"{disk.path}: journal and snapshot do not belong together, one of them is missing or empty", REMEDY
        )
    return Loaded(journal, stored)


def _never(previous: Entry, last: Entry) -> StoredSnapshot:  # noqa: ARG001
    raise AssertionError("a reader from outside makes no snapshot")
