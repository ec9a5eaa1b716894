"""The parts of a data directory at one start: looked at, judged, stamped, listed (waits). binding.py says why and when.

Parts(directory)             reads the identity; nothing is written yet
trouble(part, found, ...)    None, or the line about what is wrong with it
stamp_of(part, found)        what the part is to be stamped with; then
list_parts(...)              the identity lists it, durably
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from clusterbroker.broker.server import identity as identities
from clusterbroker.broker.server.binding import JOURNAL, RAFT, WIRING, Found, Listed, Verdict, judge, trouble
from clusterbroker.broker.server.endings import Unstarted
from clusterbroker.broker.server.identity import Identity
from clusterbroker.journal.platform import sync_directory
from clusterbroker.journal.stamp import Stamp

DATA: Final = {JOURNAL: "journal/index/data.mdb", WIRING: "wiring/data.mdb", RAFT: "raft/identity"}
"""The file without which a part is not there."""
WHAT_TO_DO: Final = (
    "Nothing was changed. Put the right one back (is its disk mounted?) and start again; to begin without what it "
    "held, give the node an empty data directory"
)
WHAT_A_MEMBER_DOES: Final = (
    "Nothing was changed. Put the right one back (is its disk mounted?) and start again; else let the node join anew "
    "with an empty data directory"
)


class DamagedDirectory(Unstarted):
    """The parts of a data directory do not belong together: one line names it and says what to do."""

    exit_code = 70


class Parts:
    """Those of one directory, at the start of number `number`."""

    def __init__(self, directory: Path) -> None:
        """Raises WrongIdentity, OSError."""
        self.directory = directory
        known = identities.stored(directory)
        self._kept = known is not None
        self.identity = known or Identity("", uuid.uuid4().hex, "", identities.counted(directory))
        self.number = self.identity.starts + 1

    def is_there(self, part: str) -> bool:
        """Whether there is anything of the part."""
        try:
            return (self.directory / DATA[part]).stat().st_size > 0
        except OSError:
            return False

    @property
    def journal_was_used(self) -> bool:
        """Whether the journal holds, or has held, anything."""
        return any((self.directory / "journal" / "segments").glob("*.seg"))

    def verdict(self, part: str, found: Found, lived: bool = False) -> Verdict:
        identity = self.identity
        return judge(identity.disk_id, identity.starts, identity.parts.get(part), found, lived)

    def trouble(self, part: str, found: Found, lived: bool = False) -> str | None:
        """What is wrong with it, without the directory's name."""
        verdict, identity = self.verdict(part, found, lived), self.identity
        return trouble(part, verdict, identity.starts, identity.parts.get(part), found) if verdict.is_damage else None

    def check(self, part: str, found: Found, lived: bool = False) -> None:
        """Of a node that cannot be rebuilt. Raises DamagedDirectory."""
        what = self.trouble(part, found, lived)
        if what is not None:
            raise DamagedDirectory(f"{self.directory / part}: {what}. {WHAT_TO_DO}")

    def recognise(self, stamps: Iterable[Stamp | None]) -> None:
        """The identity of a node that was alone is gone: parts that agree on whose they are and on their last start say
        what it was."""
        known = set(stamps)
        if not self._kept and len({(stamp and stamp.disk_id, stamp and stamp.starts) for stamp in known}) == 1:
            stamp = known.pop()
            if stamp is not None:
                self.identity = replace(self.identity, disk_id=stamp.disk_id, starts=stamp.starts)
                self.number = stamp.starts + 1

    def belong_to(self, name: str, cluster_id: str) -> Identity:
        """The directory is a member's: its identity, kept. Raises WrongIdentity, OSError."""
        self.identity, self._kept = identities.identity_of(self.directory, name, cluster_id), True
        self.number = self.identity.starts + 1
        return self.identity

    def keep_identity(self) -> None:
        """Before anything is stamped: a directory has its id before its parts have. Raises OSError."""
        if not self._kept:
            identities.keep(self.directory, self.identity)
            self._kept = True

    def stamp_of(self, found: Found) -> Stamp:
        """Of a part that is used, for this start."""
        part_id = uuid.uuid4().hex if found.stamp is None else found.stamp.part_id
        return Stamp(self.identity.disk_id, part_id, self.number)

    def list_parts(self, stamps: dict[str, Stamp], without: str = "") -> None:
        """They are stamped; from now on they may speak. `without` a part that is no more. Raises OSError."""
        parts = {name: listed for name, listed in self.identity.parts.items() if name != without}
        parts |= {name: Listed(stamp.part_id, stamp.starts) for name, stamp in stamps.items()}
        self.identity = replace(self.identity, starts=self.number, parts=parts, stopped=False)
        identities.keep(self.directory, self.identity)
        (self.directory / identities.STARTS).unlink(missing_ok=True)

    def begins(self) -> None:
        """This start may end at any line from here on. Raises OSError."""
        self.identity = replace(self.identity, stopped=False)
        identities.keep(self.directory, self.identity)

    def stopped(self) -> None:
        """The start ended in order. Raises OSError."""
        if self.identity.starts == self.number:
            self.identity = replace(self.identity, stopped=True)
            identities.keep(self.directory, self.identity)


def put_aside(path: Path) -> Path:
    """Renames a part of a data directory that is damaged; where it is now. Raises OSError."""
    aside = unused(path.with_name(f"{path.name}.damaged-{moment()}"))
    path.rename(aside)
    sync_directory(path.parent)
    return aside


def moment() -> str:
    """For names of what is kept beside a part."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def unused(path: Path) -> Path:
    """The path, or with a number behind it if there is something."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free
