"""The journal of Raft: log entries, term and vote, commit index, in one append-only file (guard rail G1).

    batch    u32 magic | u32 body length | u64 own offset | u32 crc32 of the three and the body | body
    body     records, each u8 kind | u32 length | payload
             ENTRY    u64 index | u64 term | stored entry
             CUT      u64 index          this entry and all after it are void
             TERM     u64 term | vote (Raft id as UTF-8, empty: none given)
             COMMIT   u64 index                                                          version 1

The lowest byte of the magic is the version, as a digit. The head of a batch and its checksum stay in every version,
which separates data of a newer release from damage.

Nothing is written before `sync`, which appends one batch and makes it durable with one fdatasync. When a batch stands
in the file, all before it were therefore durable. A broken batch with a sound one after it is damage, and the node
does not start. A broken one at the very end is a torn write, unreported to anybody, and is cut off. Compaction
replaces the file by a new one of a single batch, durable before it has the name; that first batch is never torn, only
damaged.

An opened log is written again, as a whole and under its name when it is durable. The read may have come from pages of
a failed write-back, which the kernel calls clean, so another flush would prove nothing.

Damage of the very last batch remains undetected, because it looks like a torn one. The last batch of a log at rest
therefore holds the commit index and nothing else (`note_commit`): nothing is lost with it.

A compaction keeps some entries from before the snapshot (`kept`), for followers that are just a little behind: a
follower with a snapshot begins again. They are no more than one Append holds, so the one that follows a snapshot
reaches beyond it.

It implements `pysyncobj.journal.Journal`; entries are the tuples (stored entry, index, term) that pysyncobj handles.
Invariant: the log is contiguous, contains the last two entries of the snapshot, and is never cut at or below the
commit index.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final, overload

from clusterbroker.cluster.errors import DamagedLog, newer_format

from .disk import REMEDY, FileDisk
from .messages import Entry

FILE: Final = "journal"
_BATCH: Final = struct.Struct("<IIQI")
_SUMMED: Final = struct.Struct("<IIQ")
_RECORD: Final = struct.Struct("<BI")
_U64: Final = struct.Struct("<Q")
_ENTRY: Final = struct.Struct("<QQ")
MAGIC: Final = 0x52464A31
FORMAT: Final = 1
_MAGIC: Final = struct.pack("<I", MAGIC)
_KIND_ENTRY, _KIND_CUT, _KIND_TERM, _KIND_COMMIT = 1, 2, 3, 4
RESTS_S: Final = 1.0
"""After so long without a flush the log is taken to rest."""
KEPT_BYTES_MAX: Final = 512 << 10
"""Of entries from before the snapshot."""
NO_OP: Final = b"\x01"
"""pysyncobj's entry that does nothing."""


class Journal:
    """Entries in memory, and in a file what is needed to have them again."""

    def __init__(self, disk: FileDisk, kept: int = 0, only_read: bool = False) -> None:
        """Read the file, if there is one, and open it. `only_read`: for a look from outside, beside a running node as
        well; nothing is written, and nothing may be before `open`.

        Raises DamagedLog, FormatTooNew, DiskFull, DiskFailed."""
        self._disk = disk
        self._kept = 0
        self._entries: list[Entry] = []
        self._term = 0
        self._vote: str | None = None
        self._commit = 1
        self._commit_stored = 1
        self._body = bytearray()
        self._size = 0
        self.term_dirty = False
        """A new term or vote waits for `sync`: nothing at all may be sent before."""
        self.leading = False
        """The node leads: it counts itself among those that have an entry, so it commits durable ones only."""
        self._rests = (0, 0.0)  # how many syncs there had been, and since when there have been no more, s
        self.syncs = 0
        """How many times something was made durable."""
        data = disk.read(FILE)
        self._was_there = bool(data)
        if data:
            self._replay(data)
        self._commit_stored = self._commit
        if not only_read:
            self.open(disk, kept)

    def open(self, disk: FileDisk, kept: int) -> None:
        """Write what was read anew, without a torn end, to this disk, as all that follows. `kept`: so many entries from
        before the snapshot are not forgotten, if they are not too large. Raises DiskFull, DiskFailed."""
        self._disk = disk
        self._kept = kept
        if self._was_there:
            self.rewrite()

    # ---- making durable ----

    @property
    def dirty(self) -> bool:
        """Whether something waits for `sync` that others must not hear of before."""
        return bool(self._body)

    def sync(self) -> None:
        """Make everything durable: one write, one fdatasync; nothing when nothing is new."""
        if not self._body:
            return
        if self._commit != self._commit_stored:
            self._record(_KIND_COMMIT, _U64.pack(self._commit))
            self._commit_stored = self._commit
        batch = _batch(self._size, self._body)
        self._body = bytearray()
        self.term_dirty = False
        self._disk.append(FILE, batch)
        self._disk.sync(FILE)
        self._size += len(batch)
        self.syncs += 1

    def rest(self, now_s: float) -> None:
        """To be called now and then: a log to which nothing more comes ends with a batch that may be lost."""
        if self.syncs != self._rests[0] or (now_s - self._rests[1] > RESTS_S and self.note_commit()):
            self._rests = self.syncs, now_s

    def note_commit(self) -> bool:
        """Make the commit index durable in a batch of its own, if it is not and nothing else waits; whether it did."""
        if self._body or self._commit == self._commit_stored:
            return False
        self._record(_KIND_COMMIT, _U64.pack(self._commit))
        self._commit_stored = self._commit
        self.sync()
        return True

    def rewrite(self) -> None:
        """A new file with what holds now, in the place of the old one; durable."""
        self._body = bytearray()
        self._record(_KIND_TERM, _U64.pack(self._term) + (self._vote or "").encode())
        for entry in self._entries:
            self._record_entry(entry)
        self._record(_KIND_COMMIT, _U64.pack(self._commit))
        self._commit_stored = self._commit
        batch = _batch(0, self._body)
        self._body = bytearray()
        self.term_dirty = False
        self._disk.replace(FILE, batch)
        self._size = len(batch)
        self.syncs += 1

    def align(self, previous: Entry, last: Entry) -> None:
        """Let the log begin with the last two entries of a snapshot, and keep what is around them if they are there.

        Raft section 7: a log that contains the snapshot's last entry keeps the entries after it.
        """
        at = previous[1] - self._entries[0][1] if self._entries else -1
        whole = at >= 0 and self._entries[at : at + 2] == [previous, last]
        self._commit = max(self._commit, last[1])
        if not whole:
            self._entries = [previous, last]
            self.rewrite()
        elif (forgotten := self._forgettable(at)) > 0:
            self._entries = self._entries[forgotten:]
            self.rewrite()

    def _forgettable(self, before: int) -> int:
        """How many of the entries before this position are too many or too large to be kept."""
        first = max(0, before - self._kept)
        size = 0
        for at in range(before - 1, first - 1, -1):
            size += len(self._entries[at][0])
            if size > KEPT_BYTES_MAX:
                return at + 1
        return first

    # ---- what pysyncobj asks of a journal ----

    def add(self, command: bytes, idx: int, term: int) -> None:
        """Append an entry."""
        assert not self._entries or idx == self._entries[-1][1] + 1, "the log is contiguous"
        entry = (bytes(command), idx, term)
        self._entries.append(entry)
        self._record_entry(entry)

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803
        """Void the entries from this position on."""
        if entryFrom < len(self._entries):
            index = self._entries[entryFrom][1]
            assert index > self._commit, "what is committed is never cut"
            self._record(_KIND_CUT, _U64.pack(index))
            del self._entries[entryFrom:]

    def deleteEntriesTo(self, entryTo: int) -> None:  # noqa: N802, N803
        """Forget the entries before this position but the last few: a snapshot has them."""
        self._entries = self._entries[self._forgettable(entryTo) :]
        self.rewrite()

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803
        """The commit index rises; stored with the next batch."""
        if raftCommitIndex > self._commit:
            if self.leading:
                self.sync()
            self._commit = raftCommitIndex

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        """The commit index, never beyond the log."""
        return max(1, min(self._commit, self._entries[-1][1] if self._entries else 1))

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:  # noqa: N802, N803
        """Remember term and vote."""
        assert term >= self._term, "terms never fall"
        if (term, votedForNodeId) != (self._term, self._vote):
            assert term > self._term or self._vote is None, "one vote in a term"
            self._term, self._vote = term, votedForNodeId
            self.term_dirty = True
            self._record(_KIND_TERM, _U64.pack(term) + (votedForNodeId or "").encode())

    def getCurrentTerm(self) -> int:  # noqa: N802
        """The latest term."""
        return self._term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802
        """The node that got the vote of this term."""
        return self._vote

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """Nothing is left for a timer."""

    def clear(self) -> None:
        """Never: `align` keeps what is to be kept."""
        raise AssertionError("the guarded core aligns the journal with a snapshot, it does not clear it")

    def _destroy(self) -> None:
        self._disk.close()

    @overload
    def __getitem__(self, item: int) -> Entry: ...

    @overload
    def __getitem__(self, item: slice) -> list[Entry]: ...

    def __getitem__(self, item: Any) -> Any:
        return self._entries[item]

    def __len__(self) -> int:
        return len(self._entries)

    # ---- bytes ----

    def _record(self, kind: int, payload: bytes) -> None:
        self._body += _RECORD.pack(kind, len(payload))
        self._body += payload

    def _record_entry(self, entry: Entry) -> None:
        self._record(_KIND_ENTRY, _ENTRY.pack(entry[1], entry[2]) + entry[0])

    def _replay(self, data: bytes) -> None:
        """Fold the sound batches."""
        at = 0
        while at < len(data):
            end = _sound_batch(data, at)
            if end is None:
                version = _newer_version(data, at)
                if version is not None:
                    raise newer_format(f"{self._disk.path}/{FILE}", version, FORMAT)
                if at == 0 or _any_sound_batch(data, at + 1):
                    raise DamagedLog(
                        f"{self._disk.path}/{FILE}: the bytes from {at} on do not match their checksum, below what "
                        "was durable",
                        REMEDY,
                    )
                break
            self._replay_batch(data, at + _BATCH.size, end)
            at = end

    def _replay_batch(self, data: bytes, at: int, end: int) -> None:
        while at < end:
            kind, length = _RECORD.unpack_from(data, at)
            at += _RECORD.size
            payload = data[at : at + length]
            at += length
            if kind == _KIND_ENTRY:
                index, term = _ENTRY.unpack_from(payload)
                self._entries.append((payload[_ENTRY.size :], index, term))
            elif kind == _KIND_CUT:
                del self._entries[max(0, _U64.unpack(payload)[0] - self._entries[0][1]) :]
            elif kind == _KIND_TERM:
                self._term = _U64.unpack_from(payload)[0]
                self._vote = payload[_U64.size :].decode() or None
            else:
                assert kind == _KIND_COMMIT, "no other kind is written"
                self._commit = _U64.unpack(payload)[0]


def _batch(offset: int, body: bytearray) -> bytes:
    crc = zlib.crc32(body, zlib.crc32(_SUMMED.pack(MAGIC, len(body), offset)))
    return _BATCH.pack(MAGIC, len(body), offset, crc) + body


def _newer_version(data: bytes, at: int) -> int | None:
    """The version of the sound batch of a newer release that begins here; None: there is none."""
    for version in range(FORMAT + 1, 10):
        if _sound_batch(data, at, MAGIC - FORMAT + version) is not None:
            return version
    return None


def _sound_batch(data: bytes, at: int, magic_wanted: int = MAGIC) -> int | None:
    """Where the batch that begins here ends; None when there is no sound one."""
    if len(data) - at < _BATCH.size:
        return None
    magic, length, offset, crc = _BATCH.unpack_from(data, at)
    start = at + _BATCH.size
    if magic != magic_wanted or offset != at or len(data) - start < length:
        return None
    body = data[start : start + length]
    sound: bool = zlib.crc32(body, zlib.crc32(_SUMMED.pack(magic, length, offset))) == crc
    return start + len(body) if sound else None


def _any_sound_batch(data: bytes, at: int) -> bool:
    """Whether a sound batch begins at this offset or later."""
    while (at := data.find(_MAGIC, at)) >= 0:
        if _sound_batch(data, at) is not None:
            return True
        at += 1
    return False
