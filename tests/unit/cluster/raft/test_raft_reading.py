"""A member's wiring, read from outside: to its end, with what is unsure told, and without a byte written."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterbroker.cluster.errors import DamagedLog
from clusterbroker.cluster.ids import NTH_BITS, NodeId, index_of
from clusterbroker.cluster.raft.disk import FileDisk
from clusterbroker.cluster.raft.fold import Envelope, Fold, seal
from clusterbroker.cluster.raft.identity import Founder, Identity, establish, found, founders_map, raft_id
from clusterbroker.cluster.raft.journal import NO_OP, Journal
from clusterbroker.cluster.raft.reading import read
from clusterbroker.cluster.wiring import arguments
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.levels import LEVEL

ME = NodeId("a")
FOUNDERS = (Founder(ME, "a:1"), Founder(NodeId("b"), "b:1"))


def founded(directory: Path) -> FileDisk:
    disk = FileDisk(directory)
    voters = (raft_id("a", "d"), raft_id("b", "e"))
    establish(disk, Identity(ME, "d", 1, FOUNDERS, voters), founders_map(FOUNDERS, LEVEL))
    return disk


def add(journal: Journal, number: int, command: c.AnyCommand) -> None:
    journal.add(seal(Envelope("a/d", 1, number, c.encode(command))), journal[-1][1] + 1, 1)


def test_a_directory_that_knows_of_no_cluster(tmp_path: Path) -> None:
    assert read(FileDisk(tmp_path / "none")) is None
    disk = FileDisk(tmp_path / "raft")
    found(disk, ME, "d", FOUNDERS)
    assert read(disk) is None


def test_the_log_is_read_to_its_end_and_what_is_unsure_is_told(tmp_path: Path) -> None:
    disk = founded(tmp_path)
    journal = Journal(disk)
    journal.add(NO_OP, journal[-1][1] + 1, 1)
    add(journal, 1, c.AddVhost(name="sure"))
    journal.setRaftCommitIndex(journal[-1][1])
    add(journal, 2, c.AddVhost(name="unsure"))
    add(journal, 2, c.AddVhost(name="said twice"))
    journal.sync()
    with (tmp_path / "journal").open("ab") as file:
        file.write(b"RFJ1 a write that was torn")
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.iterdir()}
    wiring = read(FileDisk(tmp_path))
    assert wiring is not None
    assert [vhost.name for vhost in wiring.map.vhosts()] == ["/", "sure", "unsure"]
    assert [member.name for member in wiring.map.members()] == ["a", "b"]
    assert (wiring.commands, wiring.end) == (2, journal[-1][1])
    assert wiring.unsure == ((journal[-2][1], c.AddVhost(name="unsure")),)
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.iterdir()} == before


def test_a_log_that_a_snapshot_has_replaced_says_nothing(tmp_path: Path) -> None:
    """A crash between the two: the node drops such a log when it starts."""
    disk = founded(tmp_path)
    journal = Journal(disk)
    add(journal, 1, c.AddVhost(name="of the past"))
    journal.sync()
    old = (tmp_path / "journal").read_bytes()
    map_ = founders_map(FOUNDERS, LEVEL)
    map_.apply(index_of(50), c.AddVhost(name="sent by a leader"))
    establish(disk, Identity(ME, "d", 1, FOUNDERS, ("a/d",)), map_)
    (tmp_path / "journal").write_bytes(old)
    wiring = read(FileDisk(tmp_path))
    assert wiring is not None
    assert [vhost.name for vhost in wiring.map.vhosts()] == ["/", "sent by a leader"]
    assert (wiring.end, wiring.unsure) == (50, ())


def test_the_index_in_a_queues_id() -> None:
    assert [index_of(7), index_of(7 | 3 << NTH_BITS)] == [7, 7]


def test_a_command_of_an_older_release_is_called_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was said to come from a newer one, to be met by an upgrade (operator a9)."""
    old = c.encode(c.AddVhost(name="v"))
    monkeypatch.setattr(arguments, "VERSION", c.VERSION + 1)
    with pytest.raises(DamagedLog, match=r"older release wrote it.*start this node with the release that its cluster"):
        Fold().apply(index_of(1), Envelope("a/d", 1, 1, old))
