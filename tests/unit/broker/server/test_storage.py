"""What a start makes of a journal that was begun in the place of a damaged one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from member_directory import FOUNDERS, member

from clusterbroker.broker.server.binding import JOURNAL, Found
from clusterbroker.broker.server.directory import Parts
from clusterbroker.broker.server.member.damage import LOST, mark, set_aside
from clusterbroker.broker.server.options import ServerOptions
from clusterbroker.broker.server.storage import Storage
from clusterbroker.cluster.ids import Incarnation
from clusterbroker.journal.errors import DamagedJournal
from clusterbroker.journal.journal import Journal
from clusterbroker.journal.options import MIB, JournalOptions
from clusterbroker.journal.stamp import Stamp

OPTIONS = JournalOptions(segment_bytes=MIB // 4, reserve_bytes=0, map_bytes=1 << 28)


def opened(directory: Path) -> Storage:
    """As a member's start opens it. Raises DamagedJournal."""
    storage = Storage(ServerOptions(data_dir=directory))
    storage.parts = Parts(directory)
    storage.aside = set_aside(directory)
    nothing = lambda *_: None  # noqa: E731
    storage._open_journal(partial(Journal.open, directory / "journal", OPTIONS, nothing, nothing))
    return storage


def begun_anew(directory: Path) -> Stamp:
    """The journal was given up, and another one begun; a crash came between its stamp and the list. Its stamp."""
    member(directory, FOUNDERS)
    mark(directory, "one bit", Incarnation(2))
    storage = opened(directory)
    assert storage.aside is not None
    assert storage.journal is not None
    stamp = storage.parts.stamp_of(Found(True, storage.journal.index.stamp))
    storage.journal.index.put_stamp(stamp)
    storage.close()
    return stamp


@pytest.mark.parametrize("listed", ["nothing", "the Raft log"])
def test_a_crash_between_the_stamp_and_the_list_sets_nothing_aside_once_more(tmp_path: Path, listed: str) -> None:
    """It was taken for another disk's, and given up as the damaged one had been. The Raft log of a start is listed
    before its journal is."""
    stamp = begun_anew(tmp_path)
    if listed == "the Raft log":
        parts = Parts(tmp_path)
        parts.list_parts({"raft": Stamp(parts.identity.disk_id, "old", parts.number)})
    storage = opened(tmp_path)
    assert storage.journal is not None
    assert (storage.aside, storage.journal.index.stamp) == (None, stamp)
    again = storage.parts.stamp_of(Found(True, stamp))
    storage.journal.index.put_stamp(again)
    storage.parts.list_parts({JOURNAL: again})
    storage.close()
    (tmp_path / LOST).unlink()
    opened(tmp_path).close()


@pytest.mark.parametrize("how", ["another disk's", "of an earlier start", "not marked as lost"])
def test_what_is_not_the_one_that_was_begun_is_not_believed(tmp_path: Path, how: str) -> None:
    stamp = begun_anew(tmp_path)
    storage = opened(tmp_path)
    assert storage.journal is not None
    if how == "another disk's":
        storage.journal.index.put_stamp(stamp._replace(disk_id="another"))
    elif how == "of an earlier start":
        storage.journal.index.put_stamp(stamp._replace(starts=0))
    else:
        (tmp_path / LOST).unlink()
    storage.close()
    with pytest.raises(DamagedJournal, match="it is not this node's journal"):
        opened(tmp_path)
