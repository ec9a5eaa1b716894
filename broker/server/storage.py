"""What a node remembers between two starts, opened, read and closed in the right order (waits).

    DIR/lock            taken by the process that uses the directory
    DIR/starts          how often the node was started: its incarnation
    DIR/wiring/         the wiring log of a node that is alone (cluster.local_log)
    DIR/raft/, identity that of a cluster's member (cluster.raft)
    DIR/journal/        the messages (journal.journal)

Without a directory everything is in memory, and no queue is journaled.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from broker.node.core import Node
from broker.node.log import Log
from broker.server.damage import set_aside
from broker.server.identity import write_durably
from broker.server.options import ServerOptions
from broker.server.recovery import recovered
from cluster.errors import LogFailure
from cluster.local_log import LocalLog
from cluster.wiring_log import MemoryWiringLog
from journal.errors import DamagedJournal
from journal.journal import Journal, lock_directory
from journal.writer import Watch

if TYPE_CHECKING:
    from cluster.raft.raft_log import RaftLog

SETTLE_S = 30.0

CallSoon = Callable[[Callable[[], object]], object]


def next_start(directory: Path) -> int:
    """Counts the starts of the node in this directory, durably: names made in different starts must differ."""
    path = directory / "starts"
    try:
        count = int(path.read_text()) + 1
    except FileNotFoundError:
        count = 1
    except ValueError as error:
        raise ValueError(f"{path} should hold a number: {error}") from error
    write_durably(path, str(count))
    return count


class Storage:
    """`wiring` is always there; `journal` is None when everything is in memory."""

    __slots__ = ("_checkpointing", "_damage", "_lock", "_options", "aside", "incarnation", "journal", "wiring")

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._lock = -1
        self._checkpointing = False
        self._damage: DamagedJournal | None = None
        self.aside: Path | None = None
        """Where a damaged journal was put at this start."""
        self.incarnation = 1
        self.journal: Journal | None = None
        self.wiring: LocalLog | MemoryWiringLog | RaftLog

    @classmethod
    def open(
        cls,
        options: ServerOptions,
        call_soon: CallSoon,
        on_journal_state: Callable[[str, str], object],
        on_wiring_failure: Callable[[LogFailure], object],
        watch: Watch | None = None,
    ) -> Storage:
        """Blocks. `watch` is `loop.add_reader`: groups are then written by a thread that needs no interpreter lock.

        Raises LockedJournal, DamagedJournal, ForeignJournal, JournalFull, LogFailure, DiskFull, OSError.
        """
        self = cls(options)
        directory = options.data_dir
        if directory is None:
            self.wiring = MemoryWiringLog()
            return self
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._lock = lock_directory(directory)
        try:
            self.incarnation = next_start(directory)
            if options.cluster is None:
                if (directory / "raft").exists():
                    raise ValueError(f"{directory} is a cluster member's: start it with --cluster HOST:PORT as before")
                self.wiring = LocalLog(directory / "wiring", call_soon=call_soon, on_failure=on_wiring_failure)
            if options.cluster is not None:
                self.aside = set_aside(directory)
            try:
                self.journal = Journal.open(directory / "journal", options.journal, call_soon, on_journal_state, watch)
            except DamagedJournal as damage:
                if options.cluster is None:
                    raise
                self._damage = damage  # what becomes of it, the wiring decides
        except BaseException:
            self.close()
            raise
        return self

    @property
    def watched(self) -> int | None:
        """The descriptor that was given to `watch`; the owner stops watching it before `close`."""
        return None if self.journal is None else self.journal.watched

    def order_by(self, wiring: RaftLog, incarnation: int) -> None:
        """The wiring is a cluster's."""
        self.wiring = wiring
        self.incarnation = incarnation

    def recover(self, log: Log, now_ms: int) -> Node:
        """The node as it was, with everything that was kept. Blocks. Raises DamagedJournal."""
        if self._damage is not None:
            raise self._damage
        options = replace(self._options.node, incarnation=self.incarnation)
        journal = self.journal
        use = journal.use if journal is not None else None
        node = Node(options, self.wiring.map, use, log, entropy=os.urandom)
        node.now_ms = now_ms
        if journal is None:
            node.adopt({})
            return node
        node.files_streams = True
        if self._options.cluster is not None:
            from broker.node.part import Part  # its imports would slow down every start

            node.part = Part(node)
        recovered(node, journal).adopt_into(node)
        return node

    def checkpoint(self, node: Node, then: Callable[[], object]) -> None:
        """To be called while no group is under way: what the queues hold is then what the log says up to its end."""
        journal = self.journal
        assert journal is not None, "only a journal has checkpoints"
        assert journal.idle, "a group under way is neither in the runs nor behind the position"
        self._checkpointing = True

        def done() -> None:
            self._checkpointing = False
            then()

        runs, metas, forgotten = node.checkpoint()
        filings, node.filings = node.filings, []
        journal.checkpoint(runs, metas, forgotten, journal.position, done, filings)

    async def settle(self, node: Node, run_turn: Callable[[], object], timeout_s: float = SETTLE_S) -> bool:
        """Waits until all is written, and takes a last checkpoint: the next start has nothing to replay.

        False when the disk did not answer in time (it is full, or gone): what was acknowledged is safe anyway.
        """
        journal = self.journal
        if journal is None:
            return True
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while node.wants_group or node.busy or not journal.idle or node.proposals or self._checkpointing:
            if loop.time() >= end_s or journal.full:
                return False
            run_turn()
            await asyncio.sleep(0.001)
        last = asyncio.Event()
        self.checkpoint(node, last.set)
        try:
            await asyncio.wait_for(last.wait(), max(0.1, end_s - loop.time()))
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Blocks until the threads of both logs are through."""
        if self.journal is not None:
            journal, self.journal = self.journal, None
            journal.close()
        wiring = getattr(self, "wiring", None)
        if isinstance(wiring, LocalLog):
            wiring.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
