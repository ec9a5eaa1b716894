"""The directory of a cluster's member, made by hand: it has lived through one start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterbroker.broker.server.binding import JOURNAL
from clusterbroker.broker.server.directory import Parts
from clusterbroker.broker.server.member import addresses
from clusterbroker.broker.server.member.raft_directory import RaftDirectory
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.raft import identity as raft_identity
from clusterbroker.cluster.raft.disk import FileDisk
from clusterbroker.cluster.raft.identity import Founder, founders_map, raft_id
from clusterbroker.cluster.raft.journal import NO_OP
from clusterbroker.cluster.raft.raft_log import RaftLog
from clusterbroker.cluster.wiring.levels import LEVEL
from clusterbroker.journal.index import Index
from clusterbroker.journal.stamp import Stamp

A = NodeId("a")
FOUNDERS = [Founder(NodeId(name), f"host-{name}:1") for name in "abc"]


def quiet(stamped: tuple[str, int]) -> dict[str, Any]:
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    return {
        "now_s": 1.0, "chance": lambda: 0.5, "send": nothing, "call_soon": nothing, "on_failure": nothing,
        "start": stamped,
    }  # fmt: skip


def no_log(path: Path) -> Any:
    raise AssertionError(f"{path}: a member has none")


def member(directory: Path, founders: list[Founder]) -> None:
    """A directory in which a member has lived through one start, with a vote given and a command in its log."""
    parts = Parts(directory)
    identity = parts.belong_to(A, "the cluster")
    disk = FileDisk(directory / "raft")
    voters = tuple(raft_id(one.name, "old" if one.name == A else one.name) for one in founders)
    fresh = raft_identity.Identity(A, "old", 0, tuple(founders), voters, home=identity.disk_id)
    raft_identity.establish(disk, fresh, founders_map(founders, LEVEL))
    log = RaftLog(disk, **quiet((identity.disk_id, parts.number)))
    core = log._core
    assert core is not None
    last = core.journal[-1][1]
    core.journal.setCurrentTerm(7, voters[-1])
    core.journal.add(NO_OP, last + 1, 7)
    core.journal.sync()
    core.journal.setRaftCommitIndex(last + 1)
    log.close()
    prepared(directory, founders).list("old")
    index = Index(directory / "journal")
    index.put_stamp(Stamp(identity.disk_id, "the journal", parts.number))
    index.close()
    (directory / "journal" / "segments").mkdir(exist_ok=True)
    at = Parts(directory)
    at.number -= 1  # of the same start
    at.list_parts({JOURNAL: Stamp(identity.disk_id, "the journal", at.number)})
    addresses.remember(directory, {one.name: one.address for one in founders})


def prepared(directory: Path, founders: list[Founder]) -> RaftDirectory:
    parts = Parts(directory)
    parts.belong_to(A, "the cluster")
    return RaftDirectory(parts, A, founders, "host-a:1", no_log)
