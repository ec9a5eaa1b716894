"""DIR/raft that cannot be read: set aside and made anew where others can bring it back, refused where nobody can."""

from __future__ import annotations

from pathlib import Path

import pytest
from member_directory import FOUNDERS, A, member, prepared, quiet

from clusterbroker.broker.server.directory import DamagedDirectory, Parts
from clusterbroker.cluster.errors import FormatTooNew
from clusterbroker.cluster.raft import identity as raft_identity
from clusterbroker.cluster.raft.disk import FileDisk
from clusterbroker.cluster.raft.identity import founders_map, raft_id
from clusterbroker.cluster.raft.journal import Journal
from clusterbroker.cluster.raft.raft_log import RaftLog
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.levels import LEVEL
from clusterbroker.journal.stamp import Stamp

FILES = ("journal", "snapshot", "identity")


def damage(file: Path, how: str) -> None:
    whole = bytearray(file.read_bytes())
    if how == "gone":
        file.unlink()
    elif how == "empty":
        file.write_bytes(b"")
    else:
        whole[len(whole) // 3] ^= 1
        file.write_bytes(whole)


@pytest.mark.parametrize("how", ["flipped", "empty", "gone"])
@pytest.mark.parametrize("name", FILES)
def test_a_log_that_cannot_be_read_is_set_aside_and_made_anew_without_a_vote(
    tmp_path: Path, name: str, how: str
) -> None:
    """It refused the start (DamagedLog), though the others have all of it. Its promises are not in what is begun, so
    it must not vote, nor count as one that acknowledged: it is another one for Raft."""
    member(tmp_path, FOUNDERS)
    damage(tmp_path / "raft" / name, how)
    left = {file.name: file.read_bytes() for file in (tmp_path / "raft").iterdir()}
    directory = prepared(tmp_path, FOUNDERS)
    disk, _ = directory.prepare()
    (aside,) = tmp_path.glob("raft.damaged-*")
    assert directory.rebuilt.startswith(str(tmp_path / "raft"))
    assert directory.rebuilt.endswith(f"It was set aside as {aside}")
    assert "restore" not in directory.rebuilt, "nobody has to do anything"
    assert {file.name: file.read_bytes() for file in aside.iterdir()} == left, "nothing of it is lost"
    log = RaftLog(disk, **quiet((directory.parts.identity.disk_id, directory.parts.number)))
    assert log.me_id != raft_id(A, "old")
    assert (log.voters, log.term, log.session) == ((), 0, 2)
    assert log.map.member(A) is None, "all of it comes from the others"
    log.close()
    directory.list(log.log_id)
    again = prepared(tmp_path, FOUNDERS)
    again.prepare()
    assert again.rebuilt == "", "once"


def test_a_crash_while_it_is_set_aside_leaves_one_that_is_made_anew(tmp_path: Path) -> None:
    member(tmp_path, FOUNDERS)
    (tmp_path / "raft").rename(tmp_path / "raft.damaged-of-before")
    directory = prepared(tmp_path, FOUNDERS)
    directory.prepare()
    assert "it is missing or empty" in directory.rebuilt


@pytest.mark.parametrize("name", FILES)
def test_who_is_the_only_member_refuses_and_changes_nothing(tmp_path: Path, name: str) -> None:
    member(tmp_path, FOUNDERS[:1])
    damage(tmp_path / "raft" / name, "flipped")
    left = {file.name: file.read_bytes() for file in (tmp_path / "raft").iterdir()}
    with pytest.raises(DamagedDirectory, match=rf"^{tmp_path}/raft/{name}: .*Nothing was changed. Put the right") as it:
        prepared(tmp_path, FOUNDERS[:1]).prepare()
    assert it.value.exit_code == 70
    assert "\n" not in str(it.value)
    assert {file.name: file.read_bytes() for file in (tmp_path / "raft").iterdir()} == left


def test_a_start_reads_journal_and_snapshot_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read to judge it is what is opened."""
    member(tmp_path, FOUNDERS)
    read: list[str] = []

    class Counting(FileDisk):
        def read(self, name: str) -> bytes | None:
            read.append(name)
            return super().read(name)

    monkeypatch.setattr("clusterbroker.broker.server.member.raft_directory.FileDisk", Counting)
    directory = prepared(tmp_path, FOUNDERS)
    disk, loaded = directory.prepare()
    stamped = (directory.parts.identity.disk_id, directory.parts.number)
    log = RaftLog(disk, loaded=loaded, **quiet(stamped))
    assert sorted(name for name in read if name != "identity") == ["journal", "snapshot"]
    assert (log.term, log.voters, len(log.map.members())) == (7, ("a", "b", "c"), 3)
    assert log._core is not None
    log._core.journal.setCurrentTerm(8, "a/old")
    log.close()
    again = Journal(disk)
    assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (8, "a/old"), "what is written goes to its file"


def test_a_write_that_a_crash_tore_is_no_damage(tmp_path: Path) -> None:
    member(tmp_path, FOUNDERS)
    with (tmp_path / "raft" / "journal").open("ab") as file:
        file.write(b"1JFR half of a batch")
    directory = prepared(tmp_path, FOUNDERS)
    directory.prepare()
    assert (directory.rebuilt, list(tmp_path.glob("raft.damaged-*"))) == ("", [])


def test_what_a_newer_release_wrote_is_no_damage(tmp_path: Path) -> None:
    member(tmp_path, FOUNDERS)
    disk = FileDisk(tmp_path / "raft")
    known = raft_identity.read(disk)
    assert known is not None
    raft_identity.write(disk, raft_identity.Identity(known.name, known.disk_id, 1, (), (), format=2))
    with pytest.raises(FormatTooNew):
        prepared(tmp_path, FOUNDERS).prepare()
    assert not list(tmp_path.glob("raft.damaged-*"))


def test_a_log_that_may_be_right_under_an_identity_that_went_back_is_left_alone(tmp_path: Path) -> None:
    """Numbers of starts that others know of would come a second time."""
    member(tmp_path, FOUNDERS)
    disk = FileDisk(tmp_path / "raft")
    known = raft_identity.read(disk)
    assert known is not None
    ahead = Stamp(known.home, known.disk_id, known.starts + 9)
    raft_identity.write(disk, raft_identity.Identity(A, ahead.part_id, 1, known.founders, known.voters,
                                                     home=ahead.disk_id, starts=ahead.starts))  # fmt: skip
    damage(tmp_path / "raft" / "journal", "flipped")
    with pytest.raises(DamagedDirectory, match="the identity went back in time"):
        prepared(tmp_path, FOUNDERS).prepare()
    assert not list(tmp_path.glob("raft.damaged-*"))


def test_a_founder_that_a_crash_left_half_made_goes_on(tmp_path: Path) -> None:
    """Its snapshot stands, its log does not: founding makes both once more."""
    parts = Parts(tmp_path)
    identity = parts.belong_to(A, "the cluster")
    disk = FileDisk(tmp_path / "raft")
    raft_identity.found(disk, A, "old", FOUNDERS, identity.disk_id)
    made = FileDisk(tmp_path / "elsewhere")
    raft_identity.establish(made, raft_identity.Identity(A, "old", 0, tuple(FOUNDERS), ("a/old",)),
                            founders_map(FOUNDERS, LEVEL))  # fmt: skip
    (tmp_path / "elsewhere" / "snapshot").rename(tmp_path / "raft" / "snapshot")
    directory = prepared(tmp_path, FOUNDERS)
    directory.prepare()
    assert (directory.rebuilt, list(tmp_path.glob("raft.damaged-*"))) == ("", [])


def test_the_others_take_the_new_log_for_the_old_ones_successor(tmp_path: Path) -> None:
    """Decision 015: by name and log. The disk, and its copies of queues, count as before."""
    member(tmp_path, FOUNDERS)
    before = Parts(tmp_path).identity.disk_id
    damage(tmp_path / "raft" / "snapshot", "flipped")
    directory = prepared(tmp_path, FOUNDERS)
    fresh = raft_identity.read(directory.prepare()[0])
    assert fresh is not None
    map_ = founders_map(FOUNDERS, LEVEL)
    for number, log_id in enumerate(("old", fresh.disk_id), start=1):
        applied = map_.apply(
            map_.applied + 1,  # type: ignore[arg-type]
            c.RegisterNode(node=A, disk_id=before, incarnation=number, address="host-a:1", log_id=log_id, level=LEVEL),  # type: ignore[arg-type]
        )
        assert applied.error is None
    found = map_.member(A)
    assert found is not None
    assert (found.log_id, found.disk_id, fresh.home) == (fresh.disk_id, before, before)
