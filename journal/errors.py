"""What can go wrong on disk.

    JournalError
    ├── DamagedJournal   bytes that were durable are not what was written: stop the node, repair nothing
    ├── ForeignJournal   another format or a newer version's: refuse to start
    ├── LockedJournal    another process has the directory open: refuse to start
    ├── JournalFull      no space: wait, it comes back; nothing is lost and nothing is confirmed meanwhile
    └── JournalFailed    a write or an fdatasync failed: what the disk holds is unknown, the node exits with 70

`DamagedRecord` is the record floor's own: a place in bytes that somebody handed in. Whoever knows the file turns it
into DamagedJournal.
"""

from __future__ import annotations

from pathlib import Path


class DamagedRecord(Exception):
    """Bytes of a segment that are not what was written: `args` are the offset and what is wrong there."""

    @property
    def offset(self) -> int:
        return int(self.args[0])

    def __str__(self) -> str:
        return f"at byte {self.args[0]}: {self.args[1]}"


class JournalError(Exception):
    """Anything that the journal says about the disk."""

    exit_code = 1


class DamagedJournal(JournalError):
    """Names the file, the place in it, the queue where it is known, and what to run."""

    exit_code = 70

    def __init__(self, directory: Path, file: str, offset: int | None, what: str, queue_id: int | None = None):
        super().__init__(directory, file, offset, what, queue_id)
        self.directory = directory
        self.file = file
        self.offset = offset
        self.what = what
        self.queue_id = queue_id

    @property
    def found(self) -> str:
        """What is wrong, for whoever says what becomes of it."""
        place = "" if self.offset is None else f" at byte {self.offset}"
        queue = "" if self.queue_id is None else f" (queue {self.queue_id:#x})"
        return f"journal damaged: {self.directory / self.file}{place}{queue}: {self.what}"

    def __str__(self) -> str:
        return f"{self.found}. Nothing was changed. Run: clusterbroker journal check {self.directory}"


class ForeignJournal(JournalError):
    """The directory holds another format, or one that a newer version wrote."""


class LockedJournal(JournalError):
    """Another process holds the directory."""


class JournalFull(JournalError):
    """The disk (or the quota) has no space left for this."""


class JournalFailed(JournalError):
    """The disk refused a write or a flush for another reason than space."""

    exit_code = 70
