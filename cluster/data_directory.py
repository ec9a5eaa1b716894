"""A node's data directory from outside: its journal, a running node, names of queues (waits).

    DIR/journal/   the messages; knows queues by id only
    DIR/wiring/    which id has which name, of a node that is alone; DIR/raft/ of a cluster's member

A journal's own directory is accepted as DIR too, also one that was set aside (DIR/journal.damaged-...). Nothing is
written. Offline, no lock file is touched either; beside a running node LMDB notes its readers in the lock files that
the node has made, and a view that was overtaken by a checkpoint is looked at again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from clusterbroker.cluster.errors import ClusterError, DamagedLog
from clusterbroker.cluster.ids import QueueId
from clusterbroker.cluster.log_store import LogStore
from clusterbroker.cluster.raft.disk import FileDisk
from clusterbroker.cluster.raft.identity import FILE as RAFT_IDENTITY
from clusterbroker.cluster.raft.reading import read as read_raft
from clusterbroker.cluster.wiring.entities import Queue
from clusterbroker.cluster.wiring.map import ClusterMap
from clusterbroker.journal.errors import DamagedJournal
from clusterbroker.journal.inspect import JournalView, is_running
from clusterbroker.journal.look import fits, look

LOOKS = 5
RAFT = "raft"
ID = re.compile(r"0x[0-9a-fA-F]{1,16}|[1-9][0-9]{0,18}")
PAUSE_S = 0.05

T = TypeVar("T")


class NotThere(Exception):
    """No journal, or no such queue: the text says what, where, and what to do."""


class NoJournal(NotThere):
    """The directory is no node's."""


class DataDirectory:
    """`wiring` is the folded wiring log; None when it is missing or damaged, then `wiring_problem` says why."""

    def __init__(self, directory: Path) -> None:
        """Raises NotThere."""
        self.directory = directory
        bare = (directory / "index/data.mdb").exists()
        if bare:
            self.journal, node = directory, directory.absolute().parent
        else:
            self.journal, node = directory / "journal", directory
        if not (self.journal / "index/data.mdb").exists():
            raise NoJournal(f"no journal is in {directory}: give the directory that the node has as --data-dir")
        self.running = is_running(self.journal)
        self.wiring: ClusterMap | None = None
        self.wiring_commands = 0
        self.wiring_problem = ""
        raft, wiring = node / RAFT, node / "wiring"
        member = (raft / RAFT_IDENTITY).exists()
        self.wiring_file = RAFT if member else "wiring/data.mdb"
        """Where it is, in the node's directory."""
        self.wiring_expected = member or not bare or wiring.exists()
        """Whether it is damage that there is no wiring: a journal may lie alone, a node's directory has both."""
        try:
            if member:
                self._read_raft(raft)
            else:
                self.wiring = self._fold(wiring)
        except (ClusterError, OSError) as error:
            self.wiring_problem = str(error)

    def _read_raft(self, directory: Path) -> None:
        """A member's. Raises ClusterError."""
        found = read_raft(FileDisk(directory))
        if found is None:
            self.wiring_problem = f"{directory} knows of no cluster yet: queues have ids instead of names"
            self.wiring_expected = False
        else:
            self.wiring, self.wiring_commands = found.map, found.commands

    def _fold(self, directory: Path) -> ClusterMap:
        """The fold of the log. Raises FileNotFoundError, ClusterError."""
        if not (directory / "data.mdb").exists():
            raise FileNotFoundError(f"{directory} holds no metadata log: queues have ids instead of names")
        if self.running:
            return self._load(directory)
        with TemporaryDirectory(prefix="clusterbroker-") as aside:
            # LMDB makes its lock file beside the data file that it is given: the link keeps it out of DIR
            (Path(aside) / "data.mdb").symlink_to((directory / "data.mdb").resolve())
            if not fits(Path(aside)) and (deadly := look((Path(aside),), only_read=True)):
                raise DamagedLog(f"{directory / 'data.mdb'}: {deadly.what}")
            try:
                return self._load(Path(aside))
            except ClusterError as error:
                raise type(error)(str(error).replace(aside, str(directory))) from error

    def _load(self, directory: Path) -> ClusterMap:
        store = LogStore(directory, read_only=True)
        try:
            folded = store.fold()
        finally:
            store.close()
        self.wiring_commands = folded.commands
        return folded.map

    @property
    def listing(self) -> str:
        """What to do when a queue is not found."""
        return f"`clusterbroker journal ls {self.directory}` lists what is there"

    def queues(self) -> list[Queue]:
        """The queues that a journal may hold messages of, those of staged rows with them, by vhost and name."""
        found = () if self.wiring is None else self.wiring.lasting_queues()
        return sorted(found, key=lambda queue: (queue.vhost, queue.name))

    def queue_by_id(self, queue_id: int) -> Queue | None:
        return None if self.wiring is None else self.wiring.queue_by_id(QueueId(queue_id))

    def was_deleted(self, queue_id: int) -> bool:
        """Whether the wiring knows that this queue was deleted: the node forgets it when it starts."""
        return self.wiring is not None and self.wiring.was_deleted(QueueId(queue_id))

    def queue_id(self, vhost: str, name: str) -> int:
        """Of a queue by its name, or by its id, as `journal ls` prints it (`0x1f`) or decimal. Raises NotThere."""
        queue = None if self.wiring is None else self.wiring.queue(vhost, name)
        if queue is not None:
            return int(queue.queue_id)
        segment = None if self.wiring is None else self.wiring.segment(vhost, name)
        if segment is not None and segment.queue_id:
            return int(segment.queue_id)
        if ID.fullmatch(name):
            return int(name, 0)
        why = f" ({self.wiring_problem})" if self.wiring_problem else ""
        raise NotThere(f"no queue {name!r} in vhost {vhost!r}{why}: {self.listing}")

    def view(self) -> JournalView:
        """An open view; the caller closes it. Raises DamagedJournal, ForeignJournal, OSError."""
        return self._looked_again(lambda: JournalView(self.journal))

    def look(self, at: Callable[[JournalView], T]) -> T:
        """What `at` makes of a view; beside a running node it may be asked again. Raises as `view`."""

        def look_once() -> T:
            with JournalView(self.journal) as view:
                return at(view)

        return self._looked_again(look_once)

    def _looked_again(self, look: Callable[[], T]) -> T:
        for _ in range(LOOKS - 1 if self.running else 0):
            try:
                return look()
            except (DamagedJournal, FileNotFoundError):
                # a checkpoint moved the beginning of the tail, or a segment went, between two reads
                time.sleep(PAUSE_S)
        return look()
