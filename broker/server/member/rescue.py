"""Rescue after the permanent loss of the majority: one survivor's directory becomes a cluster of one (waits).

    found      reads DIR: lost members, and the content here of each queue; nothing is written
    rescue     writes the new cluster

The survivor keeps its name, its disk id and its journal. It gets another cluster id, so that members of the old cluster
and of this one refuse each other, and another Raft id, for the old one has given votes in a log that is over.

*Order of writing*, so that after a crash at any point the same command may be given again:

    1  DIR/raft is copied to DIR/raft.before-rescue-<time>
    2  the identity has the new cluster id, and lists no Raft log: the one that is there is taken as it is (binding.py)
    3  the snapshot, the log behind it, and this node's identity in it, in DIR/raft, without DIR/raft.lost any more
    4  DIR/members: this node alone
    5  the identity lists the Raft log

The new log's indices begin above every index of the old one and above every queue's id in a journal here: a queue that
is declared later must not get the id of one whose messages are set aside.

*Parts of another node are refused* (binding.py, as at a start): a journal that is missing, another's or of an earlier
start, for the map would count its copies; a Raft log that is another's; an identity that went back. A Raft log of an
earlier time is reported, and the operator asked: it may be the best that is left, and its votes count nowhere any more.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from clusterbroker.broker.server.binding import JOURNAL, NOTHING, RAFT, Found, Listed, Verdict
from clusterbroker.broker.server.directory import Identity, Parts, keep, moment, unused
from clusterbroker.broker.server.member.addresses import remember
from clusterbroker.broker.server.member.damage import is_marked
from clusterbroker.broker.server.member.raft_directory import LOST
from clusterbroker.cluster.errors import DamagedLog
from clusterbroker.cluster.ids import NodeId, QueueId, index_of
from clusterbroker.cluster.raft import identity as raft_identity
from clusterbroker.cluster.raft.disk import FileDisk
from clusterbroker.cluster.raft.identity import Founder
from clusterbroker.cluster.raft.reading import Wiring, read
from clusterbroker.cluster.wiring import rescue as maps
from clusterbroker.cluster.wiring.rescue import Judged
from clusterbroker.journal.errors import DamagedJournal, ForeignJournal
from clusterbroker.journal.inspect import JournalView
from clusterbroker.journal.journal import lock_directory
from clusterbroker.journal.platform import sync_directory
from clusterbroker.journal.stamp import Stamp

BEFORE: Final = "raft.before-rescue-"
NOT_ITS_OWN: Final = "Put this node's own one back (is its disk mounted?), or rescue another member's directory"


class NoRescue(Exception):
    """The directory cannot be rescued; one line says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Content of the directory, and losses."""

    name: NodeId
    identity: Identity
    wiring: Wiring
    lost: tuple[NodeId, ...]
    """The other members."""
    queues: list[Judged]
    messages: dict[QueueId, int]
    """Number in the journal here, by queue id."""
    unknown: tuple[QueueId, ...]
    """Ids in the journal that the map does not know: they are set aside."""
    above: int
    """The highest index in anything here."""
    went_back: str = ""
    """Why the Raft log here is a copy of an earlier time."""

    @property
    def until_ms(self) -> int:
        """When this node last heard of its cluster, by the cluster's calendar, within minutes; 0: not known."""
        return self.wiring.map.time.wall_ms


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Locks the directory meanwhile. Raises LockedJournal, NoRescue, OSError."""
    if not (directory / "identity").exists():
        raise NoRescue(f"no node's directory is at {directory}")
    lock = lock_directory(directory)
    try:
        yield
    finally:
        os.close(lock)


def found(directory: Path) -> Finding:
    """Raises NoRescue, WrongIdentity, PreconditionFailed, LogFailure, JournalError, OSError."""
    parts = Parts(directory)
    known = parts.identity
    if not (directory / RAFT).is_dir() and RAFT not in known.parts:
        raise NoRescue(f"{directory} is no cluster member's: a node that is alone is started without --cluster")
    if is_marked(directory):
        raise NoRescue(f"{directory}: its journal was given up as damaged, its copies do not count: rescue another one")
    if not parts.is_there(RAFT):
        _refuse(parts, RAFT, NOTHING)
    try:
        wiring = read(FileDisk(directory / RAFT))
    except DamagedLog as damage:
        raise NoRescue(f"{damage.what}. {NOT_ITS_OWN}") from damage
    if wiring is None:
        raise NoRescue(f"{directory} knows of no queues and members: rescue another member's directory")
    went_back = _went_back(parts, wiring)
    name = NodeId(known.name)
    queues = maps.judged(wiring.map, name)
    lost = tuple(member.name for member in wiring.map.members() if member.name != name)
    if not parts.is_there(JOURNAL):
        _refuse(parts, JOURNAL, NOTHING)
    with JournalView(directory / JOURNAL) as view:
        _refuse(parts, JOURNAL, Found(True, view.stamp))
        messages = {QueueId(queue_id): view.count(queue_id) for queue_id in view.queue_ids()}
    unknown = tuple(
        queue_id for queue_id in messages
        if wiring.map.queue_by_id(queue_id) is None and not wiring.map.was_deleted(queue_id)
    )  # fmt: skip
    ids = {*messages, *_elsewhere(directory)}
    above = max([wiring.end, wiring.map.applied, *map(index_of, ids)])
    return Finding(name, known, wiring, lost, queues, messages, unknown, above, went_back)


def _refuse(parts: Parts, part: str, found: Found) -> None:
    """Raises NoRescue for a part that is not this node's."""
    if what := parts.trouble(part, found, lived=True):
        raise NoRescue(f"{parts.directory / part}: {what}. {NOT_ITS_OWN}")


def _went_back(parts: Parts, wiring: Wiring) -> str:
    """Why the Raft log is of an earlier time; empty: it is not. Raises NoRescue for another's."""
    home, log_id, starts = wiring.identity.home, wiring.identity.disk_id, wiring.identity.starts
    found = Found(True, Stamp(home, log_id, starts) if home else None)
    if parts.verdict(RAFT, found) is Verdict.OLDER:
        return f"{parts.directory / RAFT}: {parts.trouble(RAFT, found)}"
    _refuse(parts, RAFT, found)
    lost = parts.directory / LOST
    return f"{lost}: {lost.read_text().strip()}" if lost.exists() else ""


def _elsewhere(directory: Path) -> list[int]:
    """Queue ids in journals that were set aside, as far as they can be read."""
    ids: list[int] = []
    for aside in sorted(directory.glob("journal.damaged-*")):
        try:
            with JournalView(aside) as view:
                ids += view.queue_ids()
        except (DamagedJournal, ForeignJournal, OSError):
            continue  # an unreadable journal cannot be mistaken for a queue's messages
    return ids


def rescue(directory: Path, finding: Finding) -> Path:
    """The new path of the old Raft log. Raises LogFailure, OSError."""
    me, log_id = finding.identity, uuid.uuid4().hex
    member = finding.wiring.map.member(finding.name)
    assert member is not None, "a survivor was a member"
    aside = _copied(directory / RAFT)
    maps.alone(finding.wiring.map, finding.name, me.disk_id, log_id, finding.above)
    parts = {name: listed for name, listed in me.parts.items() if name != RAFT}
    me = replace(me, cluster_id=uuid.uuid4().hex, parts=parts)
    keep(directory, me)
    founders = (Founder(finding.name, member.address),)
    voters = (raft_identity.raft_id(finding.name, log_id),)
    fresh = raft_identity.Identity(finding.name, log_id, 0, founders, voters, home=me.disk_id, starts=me.starts)
    disk = FileDisk(directory / RAFT)
    raft_identity.establish(disk, fresh, finding.wiring.map)
    disk.close()
    (directory / LOST).unlink(missing_ok=True)
    sync_directory(directory)
    remember(directory, {finding.name: member.address})
    keep(directory, replace(me, parts={**parts, RAFT: Listed(log_id, me.starts)}))
    return aside


def _copied(raft: Path) -> Path:
    aside = unused(raft.with_name(BEFORE + moment()))
    shutil.copytree(raft, aside)
    return aside
