"""Storage of a node between two starts: opened, read and closed in the right order (waits).

    DIR/lock            taken by the process that uses the directory
    DIR/identity        node, number of the last start, and parts (directory.py)
    DIR/wiring/         the metadata log of a node that is alone (cluster.local_log)
    DIR/raft/           that of a cluster's member (cluster.raft)
    DIR/journal/        the messages (journal.journal)

Metadata log and journal are stamped and listed after both were read, before any contact (binding.py); a member's Raft
log earlier, before it is opened (member/raft_directory.py). Without a directory everything is in memory, and no queue
is journaled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from clusterbroker.broker.node.core import Node
from clusterbroker.broker.node.damages import Hurt
from clusterbroker.broker.node.log import Log
from clusterbroker.broker.server.binding import JOURNAL, NOTHING, RAFT, WIRING, Found
from clusterbroker.broker.server.directory import WHAT_TO_DO, DamagedDirectory, DamagedIdentity, Parts, put_aside
from clusterbroker.broker.server.log import NodeLog
from clusterbroker.broker.server.options import ServerOptions
from clusterbroker.broker.server.recovery import Recovery, recovered
from clusterbroker.broker.server.worker_key import worker_key
from clusterbroker.cluster.errors import DiskFull, LogFailure
from clusterbroker.cluster.ids import index_of
from clusterbroker.cluster.local_log import LocalLog
from clusterbroker.cluster.wiring_log import MemoryWiringLog
from clusterbroker.journal.errors import DamagedJournal, JournalFull
from clusterbroker.journal.journal import Journal, lock_directory
from clusterbroker.journal.look import fits, look
from clusterbroker.journal.stamp import Stamp
from clusterbroker.journal.writer import Watch

if TYPE_CHECKING:
    from clusterbroker.broker.node.hub import MemberShell
    from clusterbroker.cluster.raft.raft_log import RaftLog

SETTLE_S = 30.0
HURT_MAX = 5_000
"""With more damaged queues the journal itself counts as damaged: no command names so many."""

CallSoon = Callable[[Callable[[], object]], object]


class Storage:
    """`wiring` is always there; `journal` is None when everything is in memory."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._lock = -1
        self._checkpointing = False
        self._damage: DamagedJournal | None = None
        self._settled = False  # the index knows all that was written
        self.aside: Path | None = None
        """New path of a damaged journal."""
        self._identity_aside: tuple[str, Path] | None = None  # (its damage, its new path)
        self.incarnation = 1
        self.hurt = Hurt({}, {})
        """Damage of single queues."""
        self.parts: Parts
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

        Raises LockedJournal, Unstarted, DamagedDirectory, DamagedJournal, ForeignJournal, JournalFull, LogFailure,
        DiskFull, OSError.
        """
        self = cls(options)
        directory = options.data_dir
        if directory is None:
            self.wiring = MemoryWiringLog()
            return self
        may_begin = options.cluster is None or options.cluster.founds or bool(options.cluster.joins)
        if not may_begin:
            # brings Raft along, which only members have
            from clusterbroker.broker.server.member.raft_directory import must_not_found

            with contextlib.suppress(DamagedIdentity):
                must_not_found(Parts(directory))  # before anything is made, the directory included
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._lock = lock_directory(directory)
        try:
            self.parts = self._identified(directory)
            if not may_begin:
                must_not_found(self.parts)
            opened = partial(Journal.open, directory / "journal", options.journal, call_soon, on_journal_state, watch)
            if options.cluster is None:
                log = partial(LocalLog, directory / "wiring", call_soon=call_soon, on_failure=on_wiring_failure)
                self._open_alone(log, opened)
            else:
                from clusterbroker.broker.server.member.damage import set_aside

                self.aside = set_aside(directory)
                try:
                    self._open_journal(opened)
                except DamagedJournal as damage:
                    self._damage = damage  # the metadata log decides on the remedy
            self.incarnation = self.parts.number
        except BaseException:
            self.close()
            raise
        return self

    def _identified(self, directory: Path) -> Parts:
        """Raises WrongIdentity, OSError."""
        try:
            return Parts(directory)
        except DamagedIdentity as damage:
            self._identity_aside = str(damage), put_aside(directory / "identity")
            return Parts(directory)

    def log_findings(self, log: NodeLog) -> None:
        if self._identity_aside is not None:
            why, aside = self._identity_aside
            log.emit("error", "identity.set_aside", why=why, aside=str(aside))

    def _open_alone(self, log: Callable[[], LocalLog], opened: Callable[[], Journal]) -> None:
        """A node without other members. Nothing is made before all parts are known to be there."""
        parts = self.parts
        directory = parts.directory
        if (directory / "raft").exists() or parts.identity.cluster_id:
            raise ValueError(f"{directory} is a cluster member's: start it with --cluster HOST:PORT as before")
        self._look(directory / WIRING, directory / JOURNAL / "index")
        if not parts.is_there(WIRING):
            parts.check(WIRING, NOTHING, lived=parts.journal_was_used)
        wiring = self.wiring = log()
        if not parts.is_there(JOURNAL):
            parts.check(JOURNAL, NOTHING, lived=any(True for _ in wiring.map.lasting_queues()))
        journal = self.journal = opened()
        parts.recognise((wiring.stamp, journal.index.stamp))
        parts.check(WIRING, Found(True, wiring.stamp))
        parts.check(JOURNAL, Found(True, journal.index.stamp))

    def _look(self, *environments: Path) -> None:
        """Reads the environments in a process of its own, if a file is shorter than it should be, or the last start did
        not end in order: a file that kills its reader is then found. Raises DamagedDirectory, DamagedJournal,
        OSError."""
        if self.parts.identity.stopped and all(map(fits, environments)):
            with contextlib.suppress(OSError):
                self.parts.begins()
                return
        if (deadly := look(environments)) is None:
            return
        if deadly.path.name == WIRING:
            raise DamagedDirectory(f"{deadly.path}: {deadly.what}. {WHAT_TO_DO}")
        raise DamagedJournal(deadly.path.parent, "index/data.mdb", None, deadly.what)

    def _open_journal(self, opened: Callable[[], Journal]) -> None:
        """A member's. Raises DamagedJournal, with nothing made or changed."""
        parts = self.parts
        directory = parts.directory / "journal"
        from clusterbroker.broker.server.member.damage import is_marked

        lost = is_marked(parts.directory)  # it was given up, and is another one from now on
        if not parts.is_there(JOURNAL) and not lost:
            used = parts.identity.starts > 0 and RAFT not in parts.identity.parts and parts.is_there(RAFT)
            if what := parts.trouble(JOURNAL, NOTHING, lived=used):
                raise DamagedJournal(directory, "", None, what)
        self._look(directory / "index")
        self.journal = opened()
        stamp = self.journal.index.stamp
        what = parts.trouble(JOURNAL, Found(True, stamp))
        if what is not None and not (lost and self._is_begun_anew(stamp)):
            self.journal.close()
            self.journal = None
            raise DamagedJournal(directory, "", None, what)

    def _is_begun_anew(self, stamp: Stamp | None) -> bool:
        """Whether a journal that is marked as lost is already the new one: a crash may have come between its stamp and
        its listing in place of the one set aside."""
        known = self.parts.identity
        return stamp is None or (stamp.disk_id == known.disk_id and stamp.starts >= known.starts)

    @property
    def watched(self) -> int | None:
        """The descriptor given to `watch`; the owner stops watching it before `close`."""
        return None if self.journal is None else self.journal.watched

    def order_by(self, wiring: RaftLog, incarnation: int) -> None:
        self.wiring = wiring
        self.incarnation = incarnation

    def recover(self, log: Log, now_ms: int, member: MemberShell | None) -> Node:
        """The node with all that was kept. Blocks. Raises DamagedJournal."""
        if self._damage is not None:
            raise self._damage
        options = replace(self._options.node, incarnation=self.incarnation)
        journal = self.journal
        use = journal.use if journal is not None else None
        node = Node(options, self.wiring.map, use, log, entropy=os.urandom)
        node.now_ms = now_ms
        node.pools.key = worker_key(self._options)
        if journal is None:
            node.adopt({})
            return node
        node.files_streams = True
        if member is not None:
            from clusterbroker.broker.node.member import MemberRole  # its imports would slow down every start

            node.role = MemberRole(node, member)
        recovery = recovered(node, journal, partial(self._settled_by, journal))
        recovery.adopt_into(node)
        if recovery.unknown:
            self._set_aside(recovery, node, journal)
        if recovery.begun_again:
            journal.owe_checkpoint()  # each start reads all of the log until the index has it
        self.hurt = Hurt(recovery.damaged, recovery.begun_again)
        return node

    def _settled_by(self, journal: Journal, recovery: Recovery) -> None:
        """All is read but these damages. Raises DamagedJournal for too many, and the errors of `_bind`."""
        hurt = {**recovery.damaged, **recovery.begun_again}
        if len(hurt) > HURT_MAX:
            what = f"{len(hurt)} queues are damaged, the first is {min(hurt):#x}"
            raise DamagedJournal(journal.directory, "", None, what)
        self._bind(journal)

    def _set_aside(self, recovery: Recovery, node: Node, journal: Journal) -> None:
        journal.pin(recovery.pinned)
        if isinstance(self.wiring, LocalLog):
            self.wiring.leave_out(max(map(index_of, recovery.unknown)))
        held = journal.pinned_bytes()
        for queue_id, ring in node.set_aside.items():
            node.alerts.set(
                "journal.unknown_queue",
                hex(queue_id),
                f"{journal.directory} holds {ring.ready} messages of a queue with the id {queue_id:#x}, of which the "
                "wiring does not know that it was ever declared, or deleted. They are kept, and come back when it "
                f"knows the queue again. All that is kept so holds {held} bytes of segments. To have them elsewhere: "
                f"clusterbroker journal export {self.parts.directory} {queue_id:#x} --to FILE",
            )

    def _bind(self, journal: Journal) -> None:
        """Binds the parts that were read to this start. Raises JournalFull, DiskFull, OSError and the like."""
        try:
            self._stamp_and_list(journal)
        except (JournalFull, DiskFull, OSError):
            journal.spend_reserve()
            self._stamp_and_list(journal)

    def _stamp_and_list(self, journal: Journal) -> None:
        parts, wiring = self.parts, self.wiring
        parts.keep_identity()
        stamps = {JOURNAL: parts.stamp_of(Found(True, journal.index.stamp))}
        journal.index.put_stamp(stamps[JOURNAL])
        if isinstance(wiring, LocalLog):
            stamps[WIRING] = parts.stamp_of(Found(True, wiring.stamp))
            wiring.put_stamp(stamps[WIRING])
        parts.list_parts(stamps)

    def checkpoint(self, node: Node, then: Callable[[], object]) -> None:
        """To be called while no group is under way: the queues then hold exactly what the log says."""
        journal = self.journal
        assert journal is not None, "only a journal has checkpoints"
        assert journal.idle, "a group under way is neither in the runs nor behind the position"
        if node.role is not None and node.role.copying.distrusted:
            return  # a start goes on from the one before, if it comes to that
        self._checkpointing = True

        def done() -> None:
            self._checkpointing = False
            then()

        runs, metas, forgotten = node.checkpoint()
        filings, node.filings = node.filings, []
        journal.checkpoint(runs, metas, forgotten, journal.position, done, filings)

    async def settle(self, node: Node, run_turn: Callable[[], object], timeout_s: float = SETTLE_S) -> bool:
        """Waits until all is written, and takes a last checkpoint: the next start has nothing to replay. False: the
        disk did not answer in time (full, or gone); what was acknowledged is safe anyway."""
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
        if node.role is not None and node.role.copying.distrusted:
            return False
        last = asyncio.Event()
        self.checkpoint(node, last.set)
        try:
            await asyncio.wait_for(last.wait(), max(0.1, end_s - loop.time()))
        except TimeoutError:
            return False
        self._settled = True
        return True

    def close(self) -> None:
        """Blocks until the threads of both logs have ended."""
        if self.journal is not None:
            journal, self.journal = self.journal, None
            journal.close()
        wiring = getattr(self, "wiring", None)
        if isinstance(wiring, LocalLog):
            wiring.close()
        if self._settled:
            self._settled = False
            with contextlib.suppress(OSError):  # it was only to make the next start quicker
                self.parts.stopped()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
