"""The release of pysyncobj whose inside the guards know."""

import pytest

from clusterbroker.cluster.raft import pinned


def test_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned._check()
    monkeypatch.setattr("pysyncobj.version.VERSION", "0.3.18")
    with pytest.raises(AssertionError, match=r"pysyncobj 0\.3\.18 is installed; the guards know 0\.3\.17 only"):
        pinned._check()


def test_a_missing_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pinned.SyncObj, "_SyncObj__sendAppendEntries")
    with pytest.raises(AssertionError, match="lacks sendAppendEntries"):
        pinned._check()


def test_no_command_of_pysyncobj_is_ever_unpickled() -> None:
    assert "pickle" not in set(pinned.__dict__)
    core = __import__("clusterbroker.cluster.raft.core", fromlist=["Core"]).Core
    for name in ("_SyncObj__doApplyCommand", "_SyncObj__parseChangeClusterRequest", "_SyncObj__loadDumpFile"):
        assert name in core.__dict__, f"{name} is ours"
