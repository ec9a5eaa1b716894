"""Identity of this node in the wiring log, written when its directory is formatted; the ways to format one.

    found            with others that do the same: all begin with the same map and the same voters
    join             with nothing: a learner, that is sent everything
    migrate_local    with the map of a node that was alone: a cluster of one, which others join

Raft knows a node by name and disk, "name/disk" (guard rail G12), and the disk is this log. A node that kept its
messages and lost its log has promised votes and entries that it does not remember; it returns under another id, as a
learner. The map keeps the id as `Member.log_id`. A founder does not know the others' disks when it is formatted, so
founding takes a round of introductions (founding.py), and the voters are written after it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final

import msgspec

from clusterbroker.cluster.errors import DamagedLog, newer_format
from clusterbroker.cluster.ids import LogIndex, NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.levels import FIRST, LEVEL
from clusterbroker.cluster.wiring.map import ClusterMap

from .disk import REMEDY, FileDisk
from .fold import Fold
from .journal import NO_OP, Journal
from .messages import Entry
from .snapshots import Snapshots, StoredSnapshot

FILE: Final = "identity"
FORMAT: Final = 1
FIRST_INDEX: Final = 3
"""The lowest index of a first snapshot: a joiner's empty log must never look like the beginning of a real one."""
_CRC: Final = struct.Struct("<I")


class Founder(msgspec.Struct, frozen=True, array_like=True):
    """A founding member, the same on every founder."""

    name: NodeId
    address: str
    witness: bool = False


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """The file."""

    name: NodeId
    disk_id: str
    """Made with this log: a log that was lost is never gone on with under the same Raft id."""
    session: int
    """How often the node has started on this disk."""
    founders: tuple[Founder, ...]
    """Empty: it joined."""
    voters: tuple[str, ...]
    """Raft ids with which the cluster was founded; empty: it joined, or founding is not over."""
    format: int = FORMAT
    """Of the file: stands here in every version. The first release wrote none, which is 1."""
    home: str = ""
    """The disk id of the data directory that this log belongs to; empty: of the first release."""
    starts: int = 0
    """The number of the last start of the node that used this log."""
    level: int = 1
    """The feature level of the map with which the cluster was founded; 1 as well as long as it was not."""

    @property
    def raft_id(self) -> str:
        """Name and disk."""
        return raft_id(self.name, self.disk_id)

    @property
    def creed(self) -> tuple[str, ...]:
        """The founders as other founders compare them."""
        return tuple(f"{f.name}={f.address}{' witness' if f.witness else ''}" for f in self.founders)


_FORMAT_AT: Final = Identity.__struct_fields__.index("format")


def raft_id(name: str, disk_id: str) -> str:
    """How Raft knows a node."""
    return f"{name}/{disk_id}"


def name_of(raft_id_: str) -> NodeId:
    """The name in a Raft id."""
    return NodeId(raft_id_.rpartition("/")[0])


def found(disk: FileDisk, name: NodeId, disk_id: str, founders: Sequence[Founder], home: str = "") -> None:
    """Format the directory of a founding member; `founders` has all of them, this one too, on each alike."""
    ordered = tuple(sorted(founders, key=lambda f: (f.witness, f.name)))
    assert any(f.name == name for f in ordered), "a founder is one of the founders"
    write(disk, Identity(name, disk_id, 0, ordered, (), home=home))


def join(disk: FileDisk, name: NodeId, disk_id: str, home: str = "", session: int = 0) -> None:
    """Format the directory of a node that joins a cluster, which must have it as a member (AddMember). `session`: as
    many starts as the others may know of."""
    write(disk, Identity(name, disk_id, session, (), (), home=home))


def migrate_local(
    disk: FileDisk, name: NodeId, disk_id: str, address: str, map_: ClusterMap, next_index: LogIndex, home: str = ""
) -> None:
    """Format the directory of a node that was alone: its map becomes the first snapshot, with it as the one member.

    `next_index` is the first that the local log has given to nobody (`LogStore.load().next_index`): indices go
    on from there, so that queue ids keep their meaning.
    """
    me = raft_id(name, disk_id)
    map_.apply(next_index, c.AddMember(name=name, address=address))
    _begin_at(map_, LEVEL)
    establish(disk, Identity(name, disk_id, 0, (Founder(name, address),), (me,), home=home, level=LEVEL), map_)


def founders_map(founders: Sequence[Founder], level: int) -> ClusterMap:
    """The map with which a new cluster begins: equal on all founders, if they know the same feature level."""
    map_ = ClusterMap()
    for index, founder in enumerate(founders, start=1):
        command = c.AddMember(name=founder.name, address=founder.address, witness=founder.witness)
        applied = map_.apply(LogIndex(index), command)
        assert applied.error is None, f"founder {founder.name}: {applied.error}"
    _begin_at(map_, level)
    return map_


def _begin_at(map_: ClusterMap, level: int) -> None:
    """Nobody has registered yet, so nobody has to be asked."""
    if level > FIRST:
        applied = map_.apply(LogIndex(map_.applied + 1), c.RaiseLevel(level=level))
        assert applied.error is None, f"feature level {level}: {applied.error}"


def establish(disk: FileDisk, identity: Identity, map_: ClusterMap) -> None:
    """Write the first snapshot, the log that follows it, and then that the cluster is founded."""
    end = max(map_.applied, FIRST_INDEX)
    previous: Entry = (NO_OP, end - 1, 0)
    last: Entry = (NO_OP, end, 0)

    def dump(previous: Entry, last: Entry) -> StoredSnapshot:
        return Fold(map_).dump(previous, last, identity.voters)

    Snapshots(disk, dump).write(dump(previous, last))
    Journal(disk).align(previous, last)
    write(disk, identity)


def read(disk: FileDisk) -> Identity | None:
    """The identity; None: the directory is not formatted. Raises DamagedLog, FormatTooNew."""
    data = disk.read(FILE)
    if data is None:
        return None
    body = data[_CRC.size :]
    if len(data) < _CRC.size or _CRC.unpack_from(data)[0] != zlib.crc32(body):
        raise DamagedLog(f"{disk.path}/{FILE}: it does not match its checksum", REMEDY)
    fields = msgspec.msgpack.decode(body)
    version = fields[_FORMAT_AT] if len(fields) > _FORMAT_AT else 1
    if version > FORMAT:
        raise newer_format(f"{disk.path}/{FILE}", version, FORMAT)
    return msgspec.convert(fields, Identity)


def write(disk: FileDisk, identity: Identity) -> None:
    """Write it down, durably."""
    body = msgspec.msgpack.encode(identity)
    disk.replace(FILE, _CRC.pack(zlib.crc32(body)) + body)
