"""A member's Raft log before it is opened: its verdict, and its creation (waits).

    sound        as it is
    new          founded, joined, or migrated from the metadata log of a node that was alone
    damaged      (missing, another's, older than the last start, see binding.py; or unreadable) set aside, and made anew
                 under another Raft id as that of a node that joins, without a vote until the others have replaced the
                 former one. Refused without record of others, for nothing could be brought back
    went back    the directory as a whole is a copy of an earlier time, so its parts agree: the others' log shows a
                 later incarnation of this node (LogWentBack). DIR/raft.lost is written, the node begins again: as
                 damaged

Under its old id that node would vote with an empty log, and could elect a member that lacks acknowledged entries. A log
too new to be read is no damage: the release that wrote it reads it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clusterbroker.broker.server.binding import NOTHING, RAFT, WIRING, Found, Remedy, Verdict, remedy
from clusterbroker.broker.server.directory import WHAT_A_MEMBER_DOES, DamagedDirectory, Parts, put_aside, write_durably
from clusterbroker.broker.server.endings import Unstarted
from clusterbroker.broker.server.member.addresses import remembered
from clusterbroker.cluster.errors import DamagedLog
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.local_log import LocalLog
from clusterbroker.cluster.raft import identity as raft_identity
from clusterbroker.cluster.raft.disk import FileDisk
from clusterbroker.cluster.raft.identity import Founder
from clusterbroker.cluster.raft.reading import Loaded, prove
from clusterbroker.cluster.wiring.map import ClusterMap
from clusterbroker.journal.stamp import Stamp

LOST: Final = "raft.lost"
"""File with the reason why this Raft log counts for nothing, until it has been made anew."""


def is_empty(parts: Parts) -> bool:
    """Whether no node has lived in the directory, and none has joined a cluster with it. Raises WrongIdentity."""
    lived = parts.identity.parts or any(map(parts.is_there, (RAFT, WIRING))) or remembered(parts.directory)
    return not lived


def must_not_found(parts: Parts) -> None:
    """Without an operator's order no new cluster begins here. Raises Unstarted, WrongIdentity; nothing is made."""
    if is_empty(parts):
        raise Unstarted(
            f"{parts.directory} is empty (is its disk mounted?): clusterbroker join (or --join) makes it that of a new "
            "member of a cluster, --found the first of a new cluster, --peers with its name one of several"
        )


def must_know(directory: Path, peers: Sequence[NodeId], known: Collection[str]) -> None:
    """`known`: present and former members by what is written here; empty: any may be. Raises Unstarted."""
    if known and peers and not set(peers) & set(known):
        raise Unstarted(
            f"{directory} belongs to a cluster of {', '.join(sorted(known))}, which never had a member "
            f"{' or '.join(peers)}, as --peers says: it is another cluster's directory. Name the right one (is its "
            "disk mounted?), or leave --peers out"
        )


@dataclass(slots=True)
class RaftDirectory:
    """DIR/raft of one node at one start: `prepare`, open the log with the result, then `list`."""

    parts: Parts
    name: NodeId
    founders: list[Founder]
    own: str
    """The address at which the others reach this node."""
    log: Callable[[Path], LocalLog]
    """Opens the wiring log of a node that was alone."""
    rebuilt: str = ""
    """Why the log is made anew, and where the damaged one was put."""

    @property
    def path(self) -> Path:
        return self.parts.directory / RAFT

    @property
    def _lost(self) -> Path:
        return self.parts.directory / LOST

    def give_up(self, why: str) -> None:
        """The log is to be made anew at the next start. Raises OSError."""
        write_durably(self._lost, why + "\n")

    def prepare(self) -> tuple[FileDisk, Loaded | None]:
        """(the formatted disk, the log as read; None: it was just made). Raises DamagedDirectory, Unstarted,
        LogFailure, OSError."""
        parts, found = self.parts, self._found()
        wiring = parts.is_there(WIRING)
        others = len(self.founders) > 1 or len(remembered(parts.directory)) > 1
        alone = not found.there and RAFT not in parts.identity.parts and (wiring or WIRING in parts.identity.parts)
        lived = parts.identity.starts > 0 and not alone and parts.journal_was_used
        verdict = parts.verdict(RAFT, found, lived)
        why = f"{self.path}: {parts.trouble(RAFT, found, lived)}"
        loaded = None
        if verdict is not Verdict.AHEAD:
            loaded, lost = self._proved()
            if lost:
                verdict, why = Verdict.OLDER, lost  # it lacks what it has promised
        match remedy(RAFT, verdict, True, others):
            case Remedy.REFUSE:
                raise DamagedDirectory(f"{why}. {WHAT_A_MEMBER_DOES}")
            case Remedy.REBUILD:
                self.rebuilt = why
                if self.path.is_dir() and any(self.path.iterdir()):
                    self.rebuilt += f". It was set aside as {put_aside(self.path)}"
                disk = FileDisk(self.path)
                # no number of a start may come twice: others may know of this disk's last one
                raft_identity.join(disk, self.name, _log_id(), parts.identity.disk_id, parts.identity.starts)
                self._lost.unlink(missing_ok=True)
                loaded = None
            case Remedy.USE:
                disk = FileDisk(self.path)
                if not found.there:
                    self._format(disk, wiring)
        return disk, loaded

    def _proved(self) -> tuple[Loaded | None, str]:
        """(the log as read, the reason not to open it): it went back, or a file is damaged or missing."""
        if self._lost.exists():
            return None, f"{self.path}: {self._lost.read_text().strip()}"
        if self.parts.is_there(RAFT):
            try:
                return prove(FileDisk(self.path)), ""
            except DamagedLog as damage:
                return None, damage.what
        return None, ""

    def _found(self) -> Found:
        if not self.parts.is_there(RAFT):
            return NOTHING
        try:
            known = raft_identity.read(FileDisk(self.path))
        except DamagedLog:
            return Found(True, None)  # `_proved` says why
        if known is None or not known.home:
            return Found(known is not None, None)
        return Found(True, Stamp(known.home, known.disk_id, known.starts))

    def _format(self, disk: FileDisk, alone: bool) -> None:
        parts, home = self.parts, self.parts.identity.disk_id
        if remembered(parts.directory):
            raft_identity.join(disk, self.name, _log_id(), home)
        elif alone:
            if len(self.founders) > 1:
                raise Unstarted(
                    f"{parts.directory} holds what this node kept while it was alone: start it without --peers (with "
                    "--cluster), then let the others join it"
                )
            log = self.log(parts.directory / WIRING)
            try:
                parts.check(WIRING, Found(True, log.stamp))
                assert isinstance(log.map, ClusterMap), "the local log folds into a map"
                raft_identity.migrate_local(disk, self.name, _log_id(), self.own, log.map, log.next_index, home)
            finally:
                log.close()
        else:
            parts.check(WIRING, NOTHING)
            raft_identity.found(disk, self.name, _log_id(), self.founders, home)

    def list(self, log_id: str) -> None:
        """The log is open and stamped, and nothing was sent yet. Raises OSError."""
        stamp = Stamp(self.parts.identity.disk_id, log_id, self.parts.number)
        self.parts.list_parts({RAFT: stamp}, without=WIRING)


def _log_id() -> str:
    return uuid.uuid4().hex
