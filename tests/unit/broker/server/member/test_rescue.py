"""What a rescue makes of a directory whose parts are not what this node had: it says so, and refuses or asks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from member_directory import FOUNDERS, member, prepared

from clusterbroker.broker.cli.rescue import told
from clusterbroker.broker.server.binding import JOURNAL, RAFT
from clusterbroker.broker.server.directory import Parts, keep, stored
from clusterbroker.broker.server.member.rescue import NoRescue, found, rescue
from clusterbroker.cluster.raft import identity as raft_identity
from clusterbroker.cluster.raft.disk import FileDisk
from clusterbroker.cluster.raft.proposals import WENT_BACK
from clusterbroker.journal.index import Index
from clusterbroker.journal.stamp import Stamp


def stamped(directory: Path, **changed: object) -> None:
    """The journal says something else of itself."""
    index = Index(directory / "journal")
    stamp = index.stamp
    assert stamp is not None
    index.put_stamp(stamp._replace(**changed))
    index.close()


def later(directory: Path) -> None:
    """Another start has used all parts, but what is there now is of the one before."""
    parts = Parts(directory)
    listed = parts.identity.parts
    parts.list_parts({name: Stamp(parts.identity.disk_id, listed[name].part_id, parts.number) for name in listed})


def files(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_a_whole_directory_is_rescued(tmp_path: Path) -> None:
    member(tmp_path, FOUNDERS)
    finding = found(tmp_path)
    assert (finding.lost, finding.went_back) == (("b", "c"), "")
    assert not any("earlier time" in line for line in told(tmp_path, finding))
    rescue(tmp_path, finding)
    prepared(tmp_path, FOUNDERS[:1]).prepare()


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"starts": 0}, "it is of start 0 of this node, and start 1 used it: it went back in time"),
        ({"disk_id": "b's"}, "it is not this node's journal with its messages: another disk's"),
        ({"part_id": "anew"}, "or one that was made anew"),
        ({"starts": 3}, "the identity went back in time"),
    ],
)
def test_a_journal_that_is_not_this_nodes_is_refused(tmp_path: Path, changed: dict[str, object], what: str) -> None:
    """Its copies were counted as all that was confirmed, and the cluster of one could not be started."""
    member(tmp_path, FOUNDERS)
    stamped(tmp_path, **changed)
    left = files(tmp_path)
    with pytest.raises(NoRescue, match=rf"^{tmp_path}/journal: .*{what}.*\. Put this node's own one back") as refused:
        found(tmp_path)
    assert "\n" not in str(refused.value)
    assert files(tmp_path) == left


@pytest.mark.parametrize("part", [JOURNAL, RAFT])
def test_a_part_that_is_gone_is_refused(tmp_path: Path, part: str) -> None:
    member(tmp_path, FOUNDERS)
    shutil.rmtree(tmp_path / part)
    with pytest.raises(NoRescue, match=rf"^{tmp_path}/{part}: it is missing or empty, but this node has a"):
        found(tmp_path)
    assert not (tmp_path / part).exists()


def test_a_raft_log_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    member(tmp_path, FOUNDERS)
    file = tmp_path / "raft" / "snapshot"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(NoRescue, match=rf"^{file}: it does not match its checksum\. Put .*rescue another member's"):
        found(tmp_path)


def test_a_raft_log_that_is_anothers_is_refused(tmp_path: Path) -> None:
    member(tmp_path, FOUNDERS)
    identity = stored(tmp_path)
    assert identity is not None
    keep(tmp_path, type(identity)(identity.name, "another disk", identity.cluster_id, identity.starts))
    with pytest.raises(NoRescue, match=rf"^{tmp_path}/raft: it is not this node's Raft log"):
        found(tmp_path)


def test_a_raft_log_that_the_node_gave_up_is_told_and_asked_about(tmp_path: Path) -> None:
    """It was believed without a word (DIR/raft.lost), and the rescued node was refused at its start for the same."""
    member(tmp_path, FOUNDERS)
    prepared(tmp_path, FOUNDERS).give_up(WENT_BACK)
    finding = found(tmp_path)
    (line,) = (line for line in told(tmp_path, finding) if "earlier time" in line)
    assert f"{tmp_path}/raft.lost: {WENT_BACK}" in line
    assert "rescue another member's directory if there is one" in line
    rescue(tmp_path, finding)
    assert found(tmp_path).went_back == "", "what is there now is of this time"
    directory = prepared(tmp_path, FOUNDERS[:1])
    directory.prepare()
    assert directory.rebuilt == ""


def test_a_raft_log_of_an_earlier_start_is_told_and_asked_about(tmp_path: Path) -> None:
    member(tmp_path, FOUNDERS)
    later(tmp_path)
    stamped(tmp_path, starts=2)
    finding = found(tmp_path)
    assert finding.went_back == (
        f"{tmp_path}/raft: it is of start 1 of this node, and start 2 used it: it went back in time"
    )
    rescue(tmp_path, finding)
    assert found(tmp_path).went_back == ""


def test_a_rescue_that_a_crash_cut_off_may_be_given_again(tmp_path: Path) -> None:
    """Behind its step 2: the identity lists no Raft log, and the old one is there."""
    member(tmp_path, FOUNDERS)
    identity = stored(tmp_path)
    assert identity is not None
    parts = {name: listed for name, listed in identity.parts.items() if name != RAFT}
    keep(tmp_path, type(identity)("a", identity.disk_id, "a new cluster", identity.starts, parts))
    rescue(tmp_path, found(tmp_path))
    again = raft_identity.read(FileDisk(tmp_path / "raft"))
    assert again is not None
    assert again.voters == (again.raft_id,)
