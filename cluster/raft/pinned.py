"""The one supported release of pysyncobj, checked when this module is imported (guard rail G14).

The guarded core uses private names, because guards must stand inside. A release without one of them, or any other
release, does not start.

pysyncobj asks a module function for the time. Here the time is set: `CLOCK.now_s` is the last time given to the core
that is being entered, so cores in one process, each with its own time, do not disturb each other.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_INET_NTOP = socket.inet_ntop

import pysyncobj  # noqa: E402
import pysyncobj.version  # noqa: E402
from pysyncobj import SyncObj, SyncObjConf, syncobj  # noqa: E402
from pysyncobj.node import Node  # noqa: E402
from pysyncobj.transport import Transport  # noqa: E402

# The library puts a function for Windows in its place, everywhere, and on all systems; it fails on all others.
socket.inet_ntop = _INET_NTOP

PINNED: Final = "0.3.17"
_METHODS: Final = """
    applyLogEntries changeCluster deleteEntriesFrom deleteEntriesTo doApplyCommand doChangeCluster generateRaftTimeout
    getCurrentLogIndex getCurrentLogTerm loadDumpFile onBecomeLeader onLeaderChanged onMessageReceived
    parseChangeClusterRequest sendAppendEntries sendNextNodeIdx setCurrentTerm setState tryLogCompaction
    updateClusterConfiguration
"""
_FIELDS: Final = """
    connectedNodes leaderCommitIndex needLoadDumpFile noopIDx otherNodes raftCommitIndex raftElectionDeadline
    raftLastApplied raftLeader raftLog raftMatchIndex raftNextIndex raftState readonlyNodes serializer
"""
FOLLOWER: Final = 0
CANDIDATE: Final = 1
LEADER: Final = 2

__all__ = ["CANDIDATE", "CLOCK", "FOLLOWER", "LEADER"]
__all__ += ["Node", "SyncObj", "SyncObjConf", "Transport", "journal_of_next_core"]


class _Clock:
    """The time of the core that is being entered, s."""

    __slots__ = ("now_s",)

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


CLOCK: Final = _Clock()


def _check() -> None:
    version = pysyncobj.version.VERSION
    assert version == PINNED, f"pysyncobj {version} is installed; the guards know {PINNED} only"
    missing = [name for name in _METHODS.split() if not hasattr(SyncObj, f"_SyncObj__{name}")]
    names = SyncObj.__init__.__code__.co_names
    missing += [name for name in _FIELDS.split() if f"_SyncObj__{name}" not in names]
    assert not missing, f"pysyncobj {PINNED} lacks {', '.join(missing)}"
    states = syncobj._RAFT_STATE
    assert (states.FOLLOWER, states.CANDIDATE, states.LEADER) == (FOLLOWER, CANDIDATE, LEADER), "its states' numbers"
    assert syncobj._COMMAND_TYPE.REGULAR == 0, "number of a regular command"
    assert syncobj._COMMAND_TYPE.NO_OP == 1, "number of an entry that does nothing"
    assert syncobj._COMMAND_TYPE.MEMBERSHIP == 2, "number of a change of voters"


@contextmanager
def journal_of_next_core(journal: object) -> Iterator[None]:
    """A SyncObj that is made meanwhile has this journal: pysyncobj makes it by a function of its module."""
    make = syncobj.createJournal
    syncobj.createJournal = lambda _file: journal
    try:
        yield
    finally:
        syncobj.createJournal = make


_check()
syncobj.monotonicTime = CLOCK
syncobj.PIPE_NOTIFIER_ENABLED = False
